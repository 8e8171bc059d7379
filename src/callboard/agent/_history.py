"""A conversation that a model can be given: every call in it has its answer.

LangGraph refuses a history with unanswered calls, and the thread is lost. We answer them, where they were
asked, with a text that says what happened.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from callboard.tools._bounds import unkept
from callboard.tools._unanswered import id_of, of_kind

UNANSWERED = (
    "Error: this call has no result. It was interrupted before it finished, and whether it had any effect is "
    "unknown. Call the tool again if the result is still needed."
)


def repaired(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation, with a message for every call that has none.

    Args:
        messages: stays as it is; a message that answers keeps its place.
    """
    answers = Counter([message.tool_call_id for message in of_kind(messages, ToolMessage)])
    called = Counter([id_of(call) for message in of_kind(messages, AIMessage) for call in message.tool_calls])
    if all(answers[call_id] >= count for call_id, count in called.items()):
        return [*messages]
    history: list[BaseMessage] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        arrived = cast("list[ToolMessage]", list(takewhile(_is_answer, islice(messages, place + 1, None))))
        place += 1 + len(arrived)
        history.append(message)
        if isinstance(message, AIMessage):
            owed = [_unanswered(call) for call in message.tool_calls if not _take(answers, id_of(call))]
            order = {id_of(call): number for number, call in enumerate(message.tool_calls)}
            if owed:
                arrived = sorted([*arrived, *owed], key=lambda answer: order.get(answer.tool_call_id, len(order)))
        history.extend(arrived)
    return history


def give_ids(reply: BaseMessage) -> None:
    """Let every call of a reply have an id; some providers give none, and a result needs one to go by."""
    for call in reply.tool_calls if isinstance(reply, AIMessage) else ():
        if call["id"] is None:
            call["id"] = f"call_{uuid4().hex}"


def keepable(reply: BaseMessage) -> list[BaseMessage]:
    """A reply that a checkpointer can store, and the messages of calls whose arguments it could not.

    Those calls stay without their arguments; as they have their messages, they do not run.
    """
    refused = unkept(reply.tool_calls) if isinstance(reply, AIMessage) else {}
    if not isinstance(reply, AIMessage) or not refused:
        return [reply]
    ids = {message.tool_call_id for message in refused.values()}
    calls = [{**call, "args": {}} if place in refused else call for place, call in enumerate(reply.tool_calls)]
    content = reply.content
    if isinstance(content, list):  # where some providers repeat the arguments
        content = [_without_arguments(block) if _id_in(block) in ids else block for block in content]
    return [reply.model_copy(update={"tool_calls": calls, "content": content}), *refused.values()]


def _id_in(block: object) -> object:
    return cast("dict[str, object]", block).get("id") if isinstance(block, dict) else None


def _without_arguments(block: Any) -> dict[str, Any]:
    return {name: {} if name in ("input", "args") else value for name, value in block.items()}


def is_repair(message: ToolMessage) -> bool:
    """Whether it stands for an answer that there is not."""
    return message.content == UNANSWERED


def _is_answer(message: BaseMessage) -> bool:
    return isinstance(message, ToolMessage)


def _take(answers: "Counter[str]", call_id: str) -> bool:
    if not answers[call_id]:
        return False
    answers[call_id] -= 1
    return True


def _unanswered(call: ToolCall) -> ToolMessage:
    return ToolMessage(content=UNANSWERED, name=call["name"], tool_call_id=id_of(call), status="error")
