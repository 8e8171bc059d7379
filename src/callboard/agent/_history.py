"""A conversation that a model can be given: every call in it has its answer.

LangGraph refuses a history with unanswered calls, and the thread is lost. We answer them, where they were
asked, with a text that says what happened.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import cast

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

UNANSWERED = (
    "Error: this call has no result. It was interrupted before it finished, and whether it had any effect is "
    "unknown. Call the tool again if the result is still needed."
)


def repaired(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation, with a message for every call that has none.

    Args:
        messages: stays as it is; a message that answers keeps its place.
    """
    answers = Counter(message.tool_call_id for message in messages if isinstance(message, ToolMessage))
    asking = (message for message in messages if isinstance(message, AIMessage))
    called = Counter(call["id"] for message in asking for call in message.tool_calls)
    if None not in called and called <= answers:
        return [*messages]
    history: list[BaseMessage] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        arrived = cast("list[ToolMessage]", list(takewhile(_is_answer, islice(messages, place + 1, None))))
        place += 1 + len(arrived)
        history.append(message)
        if isinstance(message, AIMessage):
            owed = [_unanswered(call) for call in message.tool_calls if not _take(answers, call["id"])]
            order = {call["id"]: number for number, call in enumerate(message.tool_calls)}
            if owed:
                arrived = sorted([*arrived, *owed], key=lambda answer: order.get(answer.tool_call_id, len(order)))
        history.extend(arrived)
    return history


def is_repair(message: ToolMessage) -> bool:
    """Whether it stands for an answer that there is not."""
    return message.content == UNANSWERED


def _is_answer(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage)


def _take(answers: "Counter[str]", call_id: str | None) -> bool:
    if call_id is None or not answers[call_id]:
        return False
    answers[call_id] -= 1
    return True


def _unanswered(call: ToolCall) -> ToolMessage:
    return ToolMessage(content=UNANSWERED, name=call["name"], tool_call_id=call["id"], status="error")
