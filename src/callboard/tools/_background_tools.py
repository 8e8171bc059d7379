"""Tools with which a model looks at its background calls, and cancels one of them."""

from langchain_core.tools import BaseTool, StructuredTool

from callboard._calls._call import current_call
from callboard.tools._background import BackgroundCall
from callboard.tools._batch_call import BatchCall
from callboard.tools._supervision import cancel_calls


def background_tools() -> list[BaseTool]:
    """Return the tools `background_calls` and `cancel_background_call`, for an agent with `CallPolicy(background=...)`.

    With the first, the model lists the calls of its conversation that go on in the background: what they do, and for
    how long. With the second, it cancels one. Give them to the agent beside its own tools.
    """
    return [
        StructuredTool.from_function(coroutine=background_calls),
        StructuredTool.from_function(coroutine=cancel_background_call, parse_docstring=True),
    ]


async def background_calls() -> str:
    """List your calls that go on in the background, with their state."""
    lines: list[str] = []
    for call in _calls_of_conversation():
        state = call.describe()
        progress = f": {state.progress[:_MAX_PROGRESS]}" if state.progress else ""
        lines.append(f"- {call.handle}: {state.tool}, {_PLACES[state.place]}, for {state.seconds:.0f} s{progress}")
    return "\n".join(lines) or "No call goes on in the background."


async def cancel_background_call(handle: str, reason: str = "") -> str:
    """Cancel one of your calls that go on in the background.

    Args:
        handle: name of the call, as in the list of your background calls.
        reason: why it is cancelled, in a few words.
    """
    calls = [call for call in _calls_of_conversation() if call.handle == handle]
    if not calls:
        names = ", ".join(str(call.handle) for call in _calls_of_conversation()) or "none"
        return f"Error: there is no background call {handle[:_MAX_PROGRESS]!r}; open are: {names}"
    is_cancelled = await cancel_calls(calls, reason or "its caller does not need it any more")
    return f"{handle} was cancelled." if is_cancelled else f"{handle} had ended."


_MAX_PROGRESS = 200
"""Maximum number of characters of a progress message in the list of calls."""

_PLACES = {"running": "running", "waiting": "waiting for a permit", "between": "between two attempts"}


def _calls_of_conversation() -> list[BackgroundCall]:
    """Return the background calls of the conversation to which the running call belongs."""
    own_call = current_call()
    if not isinstance(own_call, BatchCall):
        return []
    live_calls = own_call.batch.setup.supervision.live_calls()
    background = (call for call in live_calls if isinstance(call, BackgroundCall) and call.handle is not None)
    return [call for call in background if call.thread_id == own_call.thread_id]
