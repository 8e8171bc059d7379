"""Limits of a model's tool calls: number, size, depth, integers, and length of names and ids.

Larger calls are refused one by one.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.messages import ToolCall, ToolMessage

from callboard._langchain._errors import error_message
from callboard.exceptions import CallRejectedError

MAX_DEPTH = 100
"""Maximum nesting of lists and objects in arguments. Python itself can copy and serialize about 300 levels."""
MAX_VALUES = 100_000
MAX_CHARACTERS = 10_000_000
"""Maximum number of characters of all texts and keys in the arguments of one call."""
SMALLEST_INTEGER, LARGEST_INTEGER = -(2**63), 2**64 - 1
"""Integers that a database can store, in msgpack. A model may write longer ones, which are legal JSON."""
MAX_ID = 65_536
"""Maximum length of a call id, in characters. Some providers put a signature of a few thousand characters into it."""
MAX_NAME = 256
"""Maximum length of the name in a call of an unknown tool, in characters."""

_SHORTENED_LENGTH = 40
_STORAGE_REFUSAL_KEY = "callboard_unkept"
_MAX_SMALL_ARGS, _MAX_SMALL_TEXT = 50, 100_000
_PLAIN_TYPES = frozenset((int, float, bool, type(None)))


class Refusal(NamedTuple):
    """Answer to a refused call: an error message for the model, and the error that observers receive."""

    message: ToolMessage
    error: CallRejectedError
    """Error that observers receive."""


def admit_calls(
    calls: Sequence[ToolCall],
    reply: Sequence[ToolCall],
    tool_names: Collection[str],
    max_calls: int | None,
    *,
    are_small: bool,
) -> tuple[Sequence[ToolCall], Mapping[int, Refusal]]:
    """Return a batch's calls, and the refusals of those calls that exceed a limit, in a dict by the call's index.

    With `are_small`, the caller has asked `is_small` about each call.
    """
    surplus: set[int] = set()
    if max_calls is not None and len(reply) > max_calls:
        # By identity: the model may write equal calls, and only the surplus ones are refused. `calls` has the same
        # objects.
        surplus = {id(call) for call in reply[max_calls:]}
    if are_small and not surplus:
        return calls, {}
    refusals: dict[int, Refusal] = {}
    for index, call in enumerate(calls):
        reason: str | None = None
        if id(call) in surplus:
            reason = (
                f"this reply had {len(reply)} calls, and only the first {max_calls} were run; this one was not. Call "
                "the tool again in your next reply if it is still needed."
            )
        elif not are_small and not is_small(call):
            reason = describe_exceeded_limit(call, tool_names)
        if reason is not None:
            refusals[index] = _refusal(call, reason)
    if not refusals:
        return calls, refusals
    # A copy without arguments, with a short name and id: a refused call may be too large to be kept.
    return [_without_content(call) if index in refusals else call for index, call in enumerate(calls)], refusals


def refusals_of_storage(calls: Sequence[ToolCall], *, is_stored: bool) -> dict[int, ToolMessage]:
    """Return error messages, by index of the call, for calls whose arguments are too large or too deep to be stored.

    With `is_stored`, a database gets the calls, which stores integers of at most 64 bits, and texts as UTF-8.
    """
    messages: dict[int, ToolMessage] = {}
    for index, call in enumerate(calls):
        reason = None if is_small(call) else _describe_exceeded_argument_limit(call["args"])
        if reason is None and is_stored:
            reason = _describe_unstorable_argument(call["args"])
        if reason is not None:
            message = _refusal(call, reason).message
            messages[index] = message.model_copy(update={"response_metadata": {_STORAGE_REFUSAL_KEY: True}})
    return messages


def replace_surrogates(text: str) -> str:
    """Return a text with `?` in place of each lone surrogate, as LangGraph's checkpointers store it."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def is_refusal_of_storage(message: ToolMessage) -> bool:
    """Return whether a message is an error message of `refusals_of_storage`, and not the result of a call."""
    return bool(message.response_metadata.get(_STORAGE_REFUSAL_KEY))


def _refusal(call: ToolCall, reason: str) -> Refusal:
    shortened_call = _without_content(call)
    error = CallRejectedError(shortened_call["name"], shortened_call["id"], reason)
    # The message keeps the full id that the model wrote: providers match answers to calls by it.
    return Refusal(error_message(f"Error: {reason}", {**shortened_call, "id": call["id"]}, error), error)


def describe_exceeded_limit(call: ToolCall, tool_names: Collection[str] = ()) -> str | None:
    """Return a text that says which limit a call exceeds and what to do; `None` if the call is within the limits."""
    name, call_id = call["name"], call["id"]
    if len(name) > MAX_NAME and name not in tool_names:
        return (
            f"the name of the tool has {len(name)} characters, at most {MAX_NAME} are allowed. Call a tool by its name."
        )
    if call_id is not None and len(call_id) > MAX_ID:
        return (
            f"the id of this call has {len(call_id)} characters, at most {MAX_ID} are allowed. Call the tool again "
            "with a shorter id."
        )
    return _describe_exceeded_argument_limit(call["args"])


def is_small(call: ToolCall) -> bool:
    """Return whether a call has only a few short plain values."""
    # True for nearly all calls, and cheaper than measuring their arguments.
    args = call["args"]
    if len(call["name"]) > MAX_NAME or len(call["id"] or "") > MAX_NAME or len(args) > _MAX_SMALL_ARGS:
        return False
    for key, value in args.items():
        # By class: this runs for each argument of each call, and `isinstance` takes longer.
        kind = value.__class__
        if kind is str:
            if len(value) > _MAX_SMALL_TEXT:
                return False
        elif kind not in _PLAIN_TYPES or (kind is int and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER):
            return False
        if key.__class__ is not str or len(key) > _MAX_SMALL_TEXT:
            return False
    return True


def _describe_exceeded_argument_limit(args: Mapping[str, Any]) -> str | None:
    """Return a text that says which limit a call's arguments exceed and what to do; `None` if they exceed no limit."""
    depth = values = characters = 0
    level: list[Any] = [args]
    # Level by level: deep nesting would overflow a recursive walk.
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return f"the arguments are nested more than {MAX_DEPTH} levels deep. Call the tool again with flatter ones."
        # Depth and number of values are tested before a container is walked: the limits bound the work, not the model.
        parts: list[Any] = []
        for container in level:
            values += len(container)
            if values > MAX_VALUES:
                return f"the arguments have more than {MAX_VALUES} values. Call the tool several times, with fewer."
            # Copies, because other threads may change the container meanwhile.
            parts += [*(container.values() if isinstance(container, dict) else container)]
            if isinstance(container, dict):
                parts += [key for key in [*container] if isinstance(key, str)]
        characters += sum(len(part) for part in parts if isinstance(part, str))
        if characters > MAX_CHARACTERS:
            return f"the arguments have more than {MAX_CHARACTERS} characters. Call the tool again with less text."
        level = [part for part in parts if isinstance(part, (dict, list, tuple, set, frozenset))]
    return None


def bits_of(number: int) -> int:
    """Return the number of bits that an integer needs; a negative one needs a bit for its sign."""
    return number.bit_length() if number >= 0 else (~number).bit_length() + 1


def _describe_unstorable_argument(args: Mapping[str, Any]) -> str | None:
    """Return a text about a long integer or a lone surrogate in arguments within all limits; `None` without one."""
    for value in _keys_and_values(args):
        if isinstance(value, str) and replace_surrogates(value) is not value:
            # Stored as another text, a call that a person was asked about would be another call.
            return "the arguments have half of a surrogate pair, which is no character. Call the tool again without it."
        if isinstance(value, int) and not SMALLEST_INTEGER <= value <= LARGEST_INTEGER:
            return (
                f"the arguments have an integer of {bits_of(value)} bits, at most 64 are allowed. Call the tool "
                "again with a smaller number, or with a text."
            )
    return None


def find_broken_text(value: object) -> str | None:
    """Return the first text in a value, at any depth, that has half of a surrogate pair; `None` without one."""
    return next(
        (text for text in _keys_and_values(value) if isinstance(text, str) and replace_surrogates(text) is not text),
        None,
    )


def _keys_and_values(value: object) -> Iterator[object]:
    """Yield the keys and the values in mappings and lists at any depth."""
    values, containers = [value], set[int]()
    while values:
        value = values.pop()
        if not isinstance(value, (dict, list, tuple, set, frozenset)):
            yield value
        elif id(value) not in containers:
            containers.add(id(value))  # a list may contain itself
            values += (*value, *value.values()) if isinstance(value, dict) else value


def _without_content(call: ToolCall) -> ToolCall:
    call_id = call["id"]
    return {**call, "name": _shorten(call["name"]), "args": {}, "id": call_id and _shorten(call_id, MAX_NAME)}


def _shorten(text: str, max_length: int = MAX_NAME) -> str:
    return text if len(text) <= max_length else f"{text[:_SHORTENED_LENGTH]}..."
