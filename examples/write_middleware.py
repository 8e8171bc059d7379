"""Your own middleware: a model that repeats the same call gets a message, and the tool does not run again.

The file has the middleware, an agent that needs it, and its test on asyncio and trio with a virtual clock.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import anyio
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import tool

from callboard import CallEvent, ToolCallRequest, ToolNode, create_react_agent, observe, tool_call
from callboard.middleware import CallNext, Middleware, Output, note
from callboard.testing import Recorder, ScriptedModel, backend, backend_names, calls


class NoLoops(Middleware):
    """Limit on repetitions of a call since the last message of the user.

    It has no state: it counts the calls in the conversation, so it also works after a restart.

    Args:
        most: maximum number of runs of the same call, at least 1.

    Raises:
        ValueError: for a number out of range.
    """

    def __init__(self, max_repeats: int = 2) -> None:
        if max_repeats < 1:
            raise ValueError(f"NoLoops(max_repeats) must be 1 or more, got {max_repeats!r}")
        self._max_repeats = max_repeats

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call, or return a message about the repetition."""
        call = request.tool_call
        before = count_equal_calls(call, request.state["messages"])
        if before < self._max_repeats:
            return await call_next(request)
        note("loop_stopped", tool=call["name"], before=before)
        text = f"You have made this call {before} times. It was not made again: change it, or do something else."
        return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error")


def count_equal_calls(call: ToolCall, messages: Sequence[AnyMessage]) -> int:
    """Return the number of equal calls before this one, since the last message of the user."""
    earlier_calls: list[ToolCall] = []
    for message in messages:
        if isinstance(message, HumanMessage):
            earlier_calls.clear()
        elif isinstance(message, AIMessage):
            earlier_calls += message.tool_calls
    return sum(
        is_same(call, earlier) for earlier in takewhile(lambda earlier: earlier["id"] != call["id"], earlier_calls)
    )


def is_same(call: ToolCall, other_call: ToolCall) -> bool:
    return call["name"] == other_call["name"] and call["args"] == other_call["args"]


# An agent that needs it.

waited: list[str] = []


@tool
async def status(job: str) -> str:
    """Say how far a job is."""
    waited.append(job)
    await anyio.sleep(60)
    return "still running"


def give_in(messages: list[Any]) -> str:
    refusal = messages[-1].content
    assert refusal.startswith("You have made this call 2 times.")
    return "The job is still running. Ask me again later."


async def run_agent() -> None:
    """Run an agent with a model that repeats its call until it is told to stop."""
    request = calls(("status", {"job": "backup"}))
    model = ScriptedModel([request, request, request, give_in])
    agent = create_react_agent(model, ToolNode([status], middleware=[NoLoops(2)]))

    state = await agent.ainvoke({"messages": [HumanMessage("Is the backup done?")]})

    assert waited == ["backup", "backup"]
    print(f"The tool ran {len(waited)} times. The agent says: {state['messages'][-1].content}")


# Its test.


async def test_the_call_runs_as_often_as_allowed_and_no_more() -> None:
    """Calls with other arguments, and calls before the last user message, do not count."""
    recorder = Recorder()
    node = ToolNode([recorder.tool("search", seconds=3600)], middleware=[NoLoops(1)])
    before = [calls(tool_call("search", "0", query="tea")), ToolMessage("tea", tool_call_id="0"), HumanMessage("Again")]
    batch = calls(*(tool_call("search", str(n), query=query) for n, query in enumerate(("tea", "tea", "mud"), start=1)))
    noted: list[CallEvent] = []

    with anyio.fail_after(3601), observe(lambda event: noted.append(event) if event.note else None):
        state = await node.ainvoke({"messages": [*before, batch]})

    assert [message.status for message in state["messages"]] == ["success", "error", "success"]
    assert sorted(recorder.order) == ["search(mud)", "search(tea)"]
    assert [(event.note, event.call_id) for event in noted] == [("loop_stopped", "2")]


if __name__ == "__main__":
    for name in backend_names():
        library, options = backend(name)
        waited.clear()
        anyio.run(run_agent, backend=library, backend_options=options)
        library, options = backend(name)
        anyio.run(test_the_call_runs_as_often_as_allowed_and_no_more, backend=library, backend_options=options)
        print(f"The middleware passed its test on {name}; the clock jumped over hours.")
