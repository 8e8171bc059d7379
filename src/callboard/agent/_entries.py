"""Overridden methods of a tools node within an agent: around each call, or around all calls of a reply.

The method gets the same input as in LangGraph: a call and the state in version "v2", the state in version "v1".
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, cast

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langgraph.types import Command

from callboard.tools._chain import Chain, Middleware, Named, Next
from callboard.tools._results import Output, Requested, ResultRules, parse_input
from callboard.tools._subclassing import Entries, Entry
from callboard.tools._unanswered import answered_ids, id_of
from callboard.tools._vocabulary import ToolCallRequest, ToolCallWithContext

Step = Callable[[Requested, RunnableConfig], Awaitable[Any]]
"""Runs calls, and returns their results in the form of a node's output."""


def sent(call: ToolCall, state: Any) -> ToolCallWithContext:
    """Return a call in the form in which LangGraph sends it to a task of its own."""
    return ToolCallWithContext(__type="tool_call_with_context", tool_call=call, state=state)


def around_call(entries: Entries, messages_key: str) -> Middleware:
    """Return the node's overridden method as middleware around one call."""

    async def around(request: ToolCallRequest, call_next: Next) -> Output:
        async def inner(entry: Entry) -> Any:
            given = parse_input(entry.input, messages_key)
            config = _config(entry, request.runtime.config)
            runtime = replace(request.runtime, state=given.state, config=config)
            requests = (ToolCallRequest(call, request.tool, given.state, runtime) for call in given.calls)
            return ResultRules(given.kind, messages_key).combined([await call_next(one) for one in requests])

        entry = Entry(sent(request.tool_call, request.state), request.runtime.config, {})
        result = await entries(entry, inner)
        return outputs_of(result, [request.tool_call], messages_key, entries.name)[0]

    return Named(entries.name, around)


async def around_all(
    entries: Entries, step: Step, calls: Sequence[ToolCall], entry: Entry, messages_key: str
) -> list[Output]:
    """Run the calls of a reply through the node's overridden method; return the outputs in call order.

    Args:
        entries: the overridden method.
        step: runs the calls that the method passes to its base class.
        calls: all calls that need an output.
        entry: input of the node, and the config of the step.
        messages_key: state key of the messages.
    """

    async def around(within: Entry, call_next: Next) -> Any:
        return await entries(within, call_next)

    async def inner(within: Entry) -> Any:
        return await step(
            parse_input(within.input, messages_key), _config(within, cast("RunnableConfig", entry.config))
        )

    result = await Chain([around], [])(entry, inner)
    return outputs_of(result, calls, messages_key, entries.name)


def _config(entry: Entry, config: RunnableConfig) -> RunnableConfig:
    return config if entry.config is None else ensure_config(entry.config)


def outputs_of(result: Any, calls: Sequence[ToolCall], messages_key: str, name: str) -> list[Output]:
    """Assign the results of an overridden method to calls; results without a call go with the last one.

    Raises TypeError for a result that a node does not return, and ValueError if a call has no message.
    """
    found: list[list[ToolMessage | Command[Any]]] = [[] for _ in calls]
    rest: list[ToolMessage | Command[Any]] = []
    due: dict[str, deque[int]] = {}
    for place, call in enumerate(calls):
        due.setdefault(id_of(call), deque()).append(place)
    for piece in _pieces(result, messages_key, name):
        open_places = [due[call_id] for call_id in _answered_by(piece, messages_key) if due.get(call_id)]
        # Several calls may have the same id: their messages are assigned in call order.
        first = min(open_places, key=itemgetter(0), default=None)
        (rest if first is None else found[first.popleft()]).append(piece)
    left = any(isinstance(piece, Command) and piece.graph is not None for piece in rest)
    for call, pieces in zip(calls, found, strict=True):
        if not pieces and not left:
            raise ValueError(
                f"{name} returned no message for call {call['id']!r}; a call that is not run needs one too: "
                f"ToolMessage(..., tool_call_id={call['id']!r})"
            )
    if found:
        found[-1].extend(rest)
    return [pieces[0] if len(pieces) == 1 else pieces for pieces in found]


def _pieces(result: Any, messages_key: str, name: str) -> list[ToolMessage | Command[Any]]:
    pieces: list[ToolMessage | Command[Any]] = []
    for item in result if isinstance(result, list) else [result]:
        if isinstance(item, (ToolMessage, Command)):
            pieces.append(item)
        elif isinstance(item, dict):
            pieces.extend(_pieces_of_update(cast("dict[str, Any]", item), messages_key))
        else:
            raise TypeError(
                f"{name} returned {result!r}; it has to return what ToolNode returns, such as "
                f"{{{messages_key!r}: [ToolMessage(...)]}}"
            )
    return pieces


def _pieces_of_update(update: dict[str, Any], messages_key: str) -> list[ToolMessage | Command[Any]]:
    written = update.get(messages_key, [])
    messages: list[Any] = list(written) if isinstance(written, list) else [written]
    pieces: list[ToolMessage | Command[Any]] = [
        message if isinstance(message, ToolMessage) else Command(update={messages_key: [message]})
        for message in messages
    ]
    if others := {key: value for key, value in update.items() if key != messages_key}:
        pieces.append(Command(update=others))
    return pieces


def _answered_by(piece: ToolMessage | Command[Any], messages_key: str) -> set[str]:
    if isinstance(piece, ToolMessage):
        return answered_ids([piece])
    update: Any = piece.update
    return answered_ids(update.get(messages_key, [])) if isinstance(update, dict) else set()
