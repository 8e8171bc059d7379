"""A conversation that a model can be given: every call in it has its answer, directly behind it.

LangGraph refuses a history with unanswered calls, and the thread is lost. We answer them, where they were
asked, with a text that says what happened. Answers that came after something else are put where they belong: LangGraph
hands them over as they stand, and the provider refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from callboard.tools._bounds import unkept
from callboard.tools._unanswered import id_of, without_answer

UNANSWERED = (
    "Error: this call has no result. It was interrupted before it finished, and whether it had any effect is "
    "unknown. Call the tool again if the result is still needed."
)


def repaired(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The conversation, with the answer of every call directly behind the message that asks for it.

    No provider takes another. What came between them, as what a person said while a question was open, comes after
    the answers; a call without an answer gets one that says so.

    Args:
        messages: stays as it is.
    """
    if _is_whole(messages):
        return [*messages]
    exchanges: list[_Exchange] = []
    asking: dict[str, list[_Exchange]] = {}  # by call; models reuse ids, and an answer is for the last that asked
    for message in messages:
        if isinstance(message, ToolMessage) and asking.get(message.tool_call_id):
            exchange = asking[message.tool_call_id].pop()
            exchange.answers.append(message)
            exchange.is_in_order &= exchange is exchanges[-1]
        else:
            exchanges.append(_Exchange(message))
            for call in _calls(message):
                asking.setdefault(id_of(call), []).append(exchanges[-1])
    return [message for exchange in exchanges for message in exchange.whole()]


def _is_whole(messages: Sequence[BaseMessage]) -> bool:
    # Each class is asked once: `isinstance` takes long for pydantic's, and this is done for every request.
    kinds = set(map(type, messages))
    answers = {kind for kind in kinds if issubclass(kind, ToolMessage)}
    asks = {kind for kind in kinds if issubclass(kind, AIMessage)}
    owed: list[str] = []
    for message in messages:
        if type(message) not in answers:
            if owed:
                return False
            owed = [id_of(call) for call in _calls(message)] if type(message) in asks else []
        elif cast("ToolMessage", message).tool_call_id in owed:
            owed.remove(cast("ToolMessage", message).tool_call_id)
        elif owed:
            return False
    return not owed


@dataclass(slots=True)
class _Exchange:
    """A message, and the answers to its calls."""

    message: BaseMessage
    answers: list[ToolMessage] = field(default_factory=list[ToolMessage])
    is_in_order: bool = True

    def whole(self) -> Sequence[BaseMessage]:
        calls = _calls(self.message)
        missing = [_unanswered(call) for call in without_answer(calls, self.answers)]
        if self.is_in_order and not missing:
            return (self.message, *self.answers)
        place = {id_of(call): number for number, call in enumerate(calls)}
        answers = sorted([*self.answers, *missing], key=lambda answer: place[answer.tool_call_id])
        return (self.message, *answers)


def _calls(message: BaseMessage) -> Sequence[ToolCall]:
    return message.tool_calls if isinstance(message, AIMessage) else ()


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


def _unanswered(call: ToolCall) -> ToolMessage:
    return ToolMessage(content=UNANSWERED, name=call["name"], tool_call_id=id_of(call), status="error")
