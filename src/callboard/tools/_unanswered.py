"""Functions that match tool calls and their answers in a conversation."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage
from langchain_core.messages.tool import tool_call


def last_reply(messages: Sequence[Any]) -> int | None:
    """Return the index of the last message of a model; `None` if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if isinstance(messages[index], AIMessage):
            return index
    return None


def unanswered_calls(messages: Sequence[Any]) -> list[ToolCall]:
    """Return the calls of the model's last reply that no later message answers.

    Args:
        messages: messages of a conversation, the oldest first.
    """
    index = last_reply(messages)
    calls: Sequence[ToolCall] = () if index is None else messages[index].tool_calls
    if index is None or not calls or index + 1 == len(messages):
        return [*calls]
    return without_answer(calls, messages[index + 1 :])


def without_answer(calls: Sequence[ToolCall], answers: Sequence[Any]) -> list[ToolCall]:
    """Return the calls of a reply that have no answer among the messages after the reply."""
    counts = Counter(message.tool_call_id for message in answers if isinstance(message, ToolMessage))
    # Each message answers one call.
    return _drop_answered(calls, counts)


def each_without_answer(calls: Sequence[ToolCall], messages: Sequence[Any]) -> list[ToolCall]:
    """Return the given calls that have no answer in a conversation; the calls may be of different replies."""
    if not messages:
        return [*calls]
    open_ids = {*map(id_of, calls)}
    counts: Counter[str] = Counter()
    later_counts: Counter[str] = Counter()
    for message in reversed(messages):
        if not open_ids:
            break
        if isinstance(message, ToolMessage):
            # Read from the end: only answers after the last reply with the id count, because models reuse ids.
            later_counts[message.tool_call_id] += 1
        elif isinstance(message, AIMessage):
            reply_ids = open_ids.intersection(map(id_of, message.tool_calls))
            counts.update({call_id: later_counts[call_id] for call_id in reply_ids})
            open_ids -= reply_ids
    return _drop_answered(calls, counts)


def _drop_answered(calls: Sequence[ToolCall], counts: Counter[str]) -> list[ToolCall]:
    """Return the calls without an answer; `counts` has the number of answers by call id."""
    if not counts:
        return [*calls]

    def has_no_answer(call: ToolCall) -> bool:
        # Each answer counts for one call with its id.
        counts[id_of(call)] -= 1
        return counts[id_of(call)] < 0

    return [*filter(has_no_answer, calls)]


def reply_index_of(call: ToolCall, messages: Sequence[Any]) -> int | None:
    """Return the index of the model's last reply that contains the given call; `None` if no reply contains it."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AIMessage) and any(
            id_of(reply_call) == id_of(call) for reply_call in message.tool_calls
        ):
            return index
    return None


def answer_of(call: ToolCall, messages: Sequence[Any]) -> ToolMessage | None:
    """Return the last message that answers a call, if it follows the last reply with this call; else `None`."""
    for message in reversed(messages):
        if isinstance(message, ToolMessage) and message.tool_call_id == id_of(call):
            return message
        if isinstance(message, AIMessage) and any(
            id_of(reply_call) == id_of(call) for reply_call in message.tool_calls
        ):
            return None
    return None


def answers_to(call: ToolCall, messages: Iterable[Any]) -> list[ToolMessage]:
    """Return the messages that answer a call."""
    return [message for message in messages if isinstance(message, ToolMessage) and message.tool_call_id == id_of(call)]


def ids_with_answer(messages: Iterable[Any]) -> set[str]:
    """Return the ids of all calls to which the messages have an answer."""
    return {message.tool_call_id for message in messages if isinstance(message, ToolMessage)}


def is_whole(messages: Sequence[BaseMessage]) -> bool:
    """Return whether each reply is followed directly by the answers to all its calls, and no answer has another place.

    Args:
        messages: messages of a conversation; the first one is not between a reply and its answers.
    """
    end_of_answers = 0
    for end, message in enumerate(messages, 1):
        if isinstance(message, ToolMessage):
            if end > end_of_answers:
                return False
            continue
        if not (calls := all_calls_in(message)):
            continue
        end_of_answers = end + len(calls)
        answer_ids = [answer.tool_call_id for answer in messages[end:end_of_answers] if isinstance(answer, ToolMessage)]
        # Usually in call order. Providers accept any order, and only then the ids are counted.
        is_in_call_order = answer_ids == [call["id"] for call in calls]
        if not is_in_call_order and Counter(answer_ids) != Counter(map(id_of, calls)):
            return False
    return True


@dataclass(slots=True)
class Exchange:
    """Message of a conversation, together with the answers to the calls in it."""

    message: BaseMessage
    answers: list[ToolMessage] = field(default_factory=list[ToolMessage])
    is_in_order: bool = True
    """`True` if the answers follow the message directly."""

    def answers_by_call(self) -> list[tuple[ToolCall, ToolMessage | None]]:
        """Return a list of pairs of a call and its answer (or `None`), in the order of the calls.

        If several calls share an id, each gets one answer.
        """
        answers_by_id: dict[str, deque[ToolMessage]] = {}
        for answer in self.answers:
            answers_by_id.setdefault(answer.tool_call_id, deque()).append(answer)
        pairs = ((call, answers_by_id.get(id_of(call))) for call in all_calls_in(self.message))
        return [(call, answers.popleft() if answers else None) for call, answers in pairs]

    def open_calls(self) -> list[ToolCall]:
        """Return the calls of the message that have no answer."""
        return without_answer(all_calls_in(self.message), self.answers)

    def in_call_order(self, answers: Sequence[ToolMessage]) -> list[ToolMessage]:
        """Return the given answers, sorted in the order of the message's calls."""
        positions = {id_of(call): number for number, call in enumerate(all_calls_in(self.message))}
        return sorted(answers, key=lambda answer: positions[answer.tool_call_id])


def exchanges_in(messages: Sequence[BaseMessage]) -> list[Exchange]:
    """Return the messages of a conversation, each with the answers to its calls."""
    exchanges: list[Exchange] = []
    exchanges_by_call: dict[str, list[Exchange]] = {}
    for message in messages:
        if isinstance(message, ToolMessage) and exchanges_by_call.get(message.tool_call_id):
            # As models reuse ids, an answer belongs to the last message before it that contains a call with its id.
            exchange = exchanges_by_call[message.tool_call_id].pop()
            exchange.answers.append(message)
            exchange.is_in_order &= exchange is exchanges[-1]
        else:
            exchanges.append(Exchange(message))
            for call in all_calls_in(message):
                exchanges_by_call.setdefault(id_of(call), []).append(exchanges[-1])
    return exchanges


def calls_in(message: object) -> Sequence[ToolCall]:
    """Return the tool calls in a message; an empty sequence if it is no AIMessage."""
    return message.tool_calls if isinstance(message, AIMessage) else ()


def all_calls_in(message: object) -> Sequence[ToolCall]:
    """Return all calls in a message, with its malformed ones, which never run; these are returned without arguments."""
    if not isinstance(message, AIMessage) or not message.invalid_tool_calls:
        return calls_in(message)
    malformed = (call for call in message.invalid_tool_calls if call["id"] is not None)  # others cannot be answered
    return [*message.tool_calls, *(tool_call(name=call["name"] or "", args={}, id=call["id"]) for call in malformed)]


def has_only_malformed(message: object) -> TypeGuard[AIMessage]:
    """Return whether a message has calls, all of them with arguments that are no JSON object, so that none can run."""
    return bool(all_calls_in(message)) and not calls_in(message)


def id_of(call: ToolCall) -> str:
    """Return the id of a call as text, as its ToolMessage has it; "" for a missing id."""
    call_id: object = call["id"]
    return call_id if isinstance(call_id, str) else "" if call_id is None else str(call_id)
