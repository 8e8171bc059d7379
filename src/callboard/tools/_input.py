"""What a tool node is asked to do: the forms its input may have, and the calls in it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from langchain_core.messages import AIMessage, ToolCall, ToolMessage

InputKind = Literal["list", "dict", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Requested:
    """The calls of one input."""

    calls: Sequence[ToolCall]
    kind: InputKind
    """In which form the result goes back."""
    state: Any
    """The state that came along; `None` where the graph has to be asked."""


def parse_input(value: Any, messages_key: str) -> Requested:
    """Find the tool calls in a node's input.

    Args:
        value: a state (dict or object) with messages, a list of messages, a list of tool calls, or a
            `ToolCallWithContext`.
        messages_key: where a state keeps its messages.

    Raises:
        ValueError: if there is no message, no AIMessage, or a call lacks its name, id or arguments.
    """
    if isinstance(value, dict) and value.get("__type") == "tool_call_with_context":
        state = value["state"]
        calls = unanswered_in([_checked(value["tool_call"])], state, messages_key)
        return Requested(calls, "tool_calls", state)
    if (mistaken := _mistaken(value, messages_key)) is not None:
        raise ValueError(mistaken)
    if isinstance(value, list):
        if value and _is_call(value[-1]):
            return Requested([_checked(call) for call in value], "tool_calls", None)
        return Requested(_calls_of_last(value), "list", value)
    return Requested(_calls_of_last(_messages(value, messages_key)), "dict", value)


def _is_call(item: object) -> bool:
    return isinstance(item, dict) and (item.get("type") == "tool_call" or {"name", "args"} <= item.keys())


def _mistaken(value: Any, messages_key: str) -> str | None:
    """What to say of an input that has its calls in a form which nobody can take; `None` for any other."""
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


def _messages(state: Any, key: str) -> Sequence[Any]:
    found = state.get(key) if isinstance(state, dict) else getattr(state, key, None)
    return cast("Sequence[Any]", found or ())


def _calls_of_last(messages: Sequence[Any]) -> list[ToolCall]:
    if not messages:
        raise ValueError("No message found in input")
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if isinstance(message, AIMessage):
            return _unanswered([_checked(call) for call in message.tool_calls], messages[position + 1 :])
    raise ValueError("No AIMessage found in input")


def _unanswered(calls: list[ToolCall], messages: Sequence[Any]) -> list[ToolCall]:
    """Leave out calls that have their message: an answered call never runs again, nor does a rejected one."""
    answers: Counter[str | None] = Counter(
        message.tool_call_id for message in messages if isinstance(message, ToolMessage)
    )
    if not answers:
        return calls
    open_calls = []
    for call in calls:
        if answers[call["id"]]:
            answers[call["id"]] -= 1
        else:
            open_calls.append(call)
    return open_calls


def unanswered_in(calls: Sequence[ToolCall], state: Any, messages_key: str) -> list[ToolCall]:
    """Leave out calls that a state has an answer to, after the message that asks for them: models reuse ids."""
    messages = _messages(state, messages_key)
    return [call for call in calls if _unanswered([call], _since(call, messages))]


def _since(call: ToolCall, messages: Sequence[Any]) -> Sequence[Any]:
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if isinstance(message, AIMessage) and any(one["id"] == call["id"] for one in message.tool_calls):
            return messages[position + 1 :]
    return ()


def _checked(call: Any) -> ToolCall:
    """The call as it is, if it can be run and answered."""
    if not isinstance(call, Mapping):
        raise ValueError(f"A tool call is a dict with name, args and id, got {call!r}")
    for key, kind in (("name", str), ("args", dict), ("id", str)):
        if not isinstance(call.get(key), kind):
            raise ValueError(f"Tool call {call!r} needs {key!r} to be a {kind.__name__}, got {call.get(key)!r}")
    return cast("ToolCall", call)


def tools_condition(state: Any, messages_key: str = "messages") -> Literal["tools", "__end__"]:
    """Say whether the last message asks for tools; a routing function for graphs.

    Args:
        state: a list of messages, or a state (dict or object) that has one.
        messages_key: where the state has it.

    Returns:
        "tools" if it does, else "__end__".

    Raises:
        ValueError: if there are no messages.
    """
    messages = state if isinstance(state, list) else _messages(state, messages_key)
    if not messages:
        raise ValueError(f"No messages found in input state to tool_edge: {state}")
    return "tools" if getattr(messages[-1], "tool_calls", None) else "__end__"
