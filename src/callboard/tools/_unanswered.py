"""Which calls of a conversation have no answer."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

Kind = TypeVar("Kind", bound=BaseMessage)


def of_kind(messages: Iterable[Any], kind: type[Kind]) -> list[Kind]:
    """Those of a kind; to ask each message of a long conversation takes long, so each class is asked once."""
    messages = [*messages]
    kinds = {one for one in {*map(type, messages)} if issubclass(one, kind)}
    return [message for message in messages if type(message) in kinds]


def last_reply(messages: Sequence[Any]) -> int | None:
    """Where the last message of a model stands; `None` if there is none."""
    places = range(len(messages) - 1, -1, -1)
    return next((place for place in places if isinstance(messages[place], AIMessage)), None)


def unanswered(messages: Sequence[Any]) -> list[ToolCall]:
    """The calls of the last reply that have no answer after it."""
    place = last_reply(messages)
    return [] if place is None else without_answer(messages[place].tool_calls, messages[place + 1 :])


def without_answer(calls: Sequence[ToolCall], answers: Sequence[Any]) -> list[ToolCall]:
    """Leave out calls that have their message: an answered call never runs again, nor does a rejected one.

    Args:
        calls: of one reply; one message answers one of those that share an id.
        answers: the messages after that reply.
    """
    given: Counter[str] = Counter(message.tool_call_id for message in answers if isinstance(message, ToolMessage))
    if not given:
        return [*calls]
    left = []
    for call in calls:
        if given[id_of(call)]:
            given[id_of(call)] -= 1
        else:
            left.append(call)
    return left


def each_without_answer(calls: Sequence[ToolCall], messages: Sequence[Any]) -> list[ToolCall]:
    """Leave out calls that a conversation answers after the last reply that has them: models reuse ids."""
    return [call for call in calls if without_answer([call], _since(call, messages))]


def _since(call: ToolCall, messages: Sequence[Any]) -> Sequence[Any]:
    place = asked_at(call, messages)
    return () if place is None else messages[place + 1 :]


def asked_at(call: ToolCall, messages: Sequence[Any]) -> int | None:
    """Where the last message stands that asks for a call; `None` if there is none."""
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if isinstance(message, AIMessage) and any(id_of(one) == id_of(call) for one in message.tool_calls):
            return place
    return None


def id_of(call: ToolCall) -> str:
    """The id of a call, as its message has it; models may leave it out, messages may not."""
    return call["id"] or ""
