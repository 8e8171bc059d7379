"""Input of a tool node: its possible forms, and the tool calls in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, cast
from uuid import UUID

from langchain_core.messages import AIMessage, ToolCall

from callboard.tools._cooperative import Steps, at_once, each
from callboard.tools._unanswered import asked_at, each_without_answer, id_of, last_reply, matching, seeking

InputKind = Literal["list", "dict", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Requested:
    """Tool calls of one input."""

    calls: Sequence[ToolCall]
    """Calls without an answer."""
    reply: Sequence[ToolCall]
    """All calls of the message that contains them, or all calls of the input."""
    kind: InputKind
    """Form of the input, which decides the form of the output."""
    state: Any
    """State in the input; `None` if it must be read from the graph."""


def parse_input(value: Any, messages_key: str) -> Requested:
    """Return the tool calls of a node's input without yielding to other tasks; see `reading`."""
    return at_once(reading(value, messages_key))


def reading(value: Any, messages_key: str) -> Steps[Requested]:
    """Return the tool calls of a node's input, in portions; ValueError if it contains nothing that can be run."""
    if isinstance(value, dict) and value.get("__type") == "tool_call_with_context":
        state, call = value["state"], _checked(value["tool_call"])
        open_calls = each_without_answer([call], messages_in(state, messages_key))
        return Requested(open_calls, [call], "tool_calls", state)
    if (mistaken := _mistaken(value, messages_key)) is not None:
        raise ValueError(mistaken)
    if isinstance(value, list):
        if value and _is_call(value[-1]):
            calls = yield from each(_checked, value)
            return Requested(calls, calls, "tool_calls", None)
        return Requested(*(yield from _calls_of_last(value)), "list", value)
    return Requested(*(yield from _calls_of_last(messages_in(value, messages_key))), "dict", value)


def _is_call(item: object) -> bool:
    return isinstance(item, dict) and (item.get("type") == "tool_call" or {"name", "args"} <= item.keys())


def _mistaken(value: Any, messages_key: str) -> str | None:
    """Return the error for an input in a known wrong form; `None` for any other input."""
    last: object = value[-1] if isinstance(value, list) and value else None
    if isinstance(value, str):
        example = f"{{{messages_key!r}: [AIMessage(...)]}} or [{{'name': ..., 'args': ..., 'id': ...}}]"
        return f"No message found in input: a node takes messages or tool calls, as in {example}; got {value!r}"
    if isinstance(value, AIMessage):
        return f"No message found in input: a message goes in a list, [message]; got {value!r}"
    if _is_call(value):
        return f"No message found in input: a tool call goes in a list, [call]; got {value!r}"
    if _is_of_openai(value) or _is_of_openai(last):
        return (
            "No message found in input: a tool call is a dict with name, args and id, {'name': ..., 'args': {...}, "
            f"'id': ...}}; OpenAI's form, with its function and a JSON text, is not one: {value!r}"
        )
    return None


def _is_of_openai(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("function"), dict)


def messages_in(state: Any, key: str) -> Sequence[Any]:
    """Return the messages of a state, which is a dict or an object."""
    found = state.get(key) if isinstance(state, dict) else getattr(state, key, None)
    return cast("Sequence[Any]", found or ())


def _calls_of_last(messages: Sequence[Any]) -> Steps[tuple[list[ToolCall], list[ToolCall]]]:
    """Return the unanswered calls of the last reply, and all its calls."""
    if not messages:
        raise ValueError("No message found in input")
    place = last_reply(messages)
    if place is None:
        raise ValueError("No AIMessage found in input")
    reply = yield from each(_checked, messages[place].tool_calls)
    return (yield from matching(reply, messages[place + 1 :])), reply


def left_of(
    requested: Requested, state: Any, messages_key: str, *, is_counted: bool
) -> Steps[tuple[Sequence[ToolCall], Sequence[ToolCall]]]:
    """Return the calls to run, and all calls of their reply.

    The whole reply is looked up only if `is_counted`, which is set if the node limits the number of calls of a reply.
    """
    calls, reply = requested.calls, requested.reply
    if requested.kind == "tool_calls":
        if requested.state is None:
            calls = yield from seeking(calls, messages_in(state, messages_key))
        if is_counted:
            reply = _whole_reply(calls, state, messages_key)
    return calls, reply


def _whole_reply(calls: Sequence[ToolCall], state: Any, messages_key: str) -> Sequence[ToolCall]:
    """Return all calls of the reply that contains a single call, for a call that LangGraph's `Send` delivers alone."""
    messages = messages_in(state, messages_key)
    if len(calls) != 1 or (place := asked_at(calls[0], messages)) is None:
        return calls
    reply = list(messages[place].tool_calls)
    # The same object as in `calls`: `admission` finds surplus calls by identity.
    reply[[id_of(one) for one in reply].index(id_of(calls[0]))] = calls[0]
    return reply


_IDS = (NoneType, int, float, UUID)
"""Types that a `ToolMessage` accepts as an id besides text."""


def _checked(call: Any) -> ToolCall:
    """Return the call, normalized, if it can be run and answered; raise ValueError otherwise."""
    if not isinstance(call, Mapping):
        raise ValueError(f"A tool call is a dict with name, args and id, got {call!r}")
    if "id" in call and isinstance(call["id"], _IDS):
        call = {**call, "id": id_of(cast("ToolCall", call))}
    if "name" in call and not isinstance(call["name"], str):
        call = {**call, "name": str(call["name"])}  # no tool has this name, and the call's message will say so
    for key, kind in (("name", str), ("args", dict), ("id", str)):
        if not isinstance(call.get(key), kind):
            raise ValueError(f"Tool call {call!r} needs {key!r} to be a {kind.__name__}, got {call.get(key)!r}")
    return cast("ToolCall", call)


def tools_condition(state: Any, messages_key: str = "messages") -> Literal["tools", "__end__"]:
    """Return the next node of a graph: "tools" if the last message has tool calls, else "__end__".

    Args:
        state: a list of messages, or a state (dict or object) that contains one.
        messages_key: key of the messages in the state.

    Raises:
        ValueError: if there are no messages.
    """
    messages = state if isinstance(state, list) else messages_in(state, messages_key)
    if not messages:
        raise ValueError(f"No messages found in input state to tool_edge: {state}")
    return "tools" if getattr(messages[-1], "tool_calls", None) else "__end__"
