"""A conversation that a model can be given: every call in it has its answer, directly behind it.

LangGraph refuses a history with unanswered calls, and the thread is lost. We answer them, where they were
asked, with a text that says what happened. Answers that came after something else are put where they belong: LangGraph
hands them over as they stand, and the provider refuses.
"""

from collections.abc import Sequence
from operator import is_
from typing import Any, cast
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from callboard.tools._bounds import unkept
from callboard.tools._unanswered import Exchange, calls_in, exchanges_in, id_of, is_whole

UNANSWERED = (
    "Error: this call has no result. It was interrupted before it finished, and whether it had any effect is "
    "unknown. Find out before calling the tool again."
)


def repaired(messages: Sequence[BaseMessage], whole: Sequence[BaseMessage] = ()) -> list[BaseMessage]:
    """The conversation, with the answer of every call directly behind the message that asks for it.

    No provider takes another. What came between them, as what a person said while a question was open, comes after
    the answers; a call without an answer gets one that says so.

    Args:
        messages: stays as it is.
        whole: a conversation that is known to need nothing; where the other begins with it, only the rest is looked at.
    """
    begins = all(map(is_, messages, whole)) and len(messages) >= len(whole)
    if is_whole(messages[len(whole) :] if begins else messages):
        return [*messages]
    return [message for exchange in exchanges_in(messages) for message in _made_whole(exchange)]


def _made_whole(exchange: Exchange) -> Sequence[BaseMessage]:
    """The message of an exchange, and behind it an answer to each of its calls."""
    missing = [_unanswered(call) for call in exchange.open_calls()]
    if exchange.is_in_order and not missing:
        return (exchange.message, *exchange.answers)
    return (exchange.message, *exchange.in_call_order([*exchange.answers, *missing]))


def complete_calls(reply: BaseMessage) -> None:
    """Let every call of a reply have a name and an id that are texts.

    Some providers give no id, and a result needs one to go by. A name of another kind is that of no tool.
    """
    for call in calls_in(reply):
        call["id"] = f"call_{uuid4().hex}" if call["id"] is None else id_of(call)
        call["name"] = str(call["name"])


def keepable(reply: BaseMessage) -> list[BaseMessage]:
    """A reply that a checkpointer can store, and the messages of calls whose arguments it could not.

    Those calls stay without their arguments; as they have their messages, they do not run.
    """
    refused = unkept(reply.tool_calls) if isinstance(reply, AIMessage) else {}
    if not isinstance(reply, AIMessage) or not refused:
        return [reply]
    ids = {id_of(reply.tool_calls[place]) for place in refused}
    calls = [{**call, "args": {}} if place in refused else call for place, call in enumerate(reply.tool_calls)]
    content = reply.content
    if isinstance(content, list):  # where some providers repeat the arguments
        content = [_without_arguments(block) if _id_in(block) in ids else block for block in content]
    return [reply.model_copy(update={"tool_calls": calls, "content": content}), *refused.values()]


def _id_in(block: object) -> object:
    return cast("dict[str, object]", block).get("id") if isinstance(block, dict) else None


def _without_arguments(block: Any) -> dict[str, Any]:
    return {name: {} if name in ("input", "args") else value for name, value in block.items()}


def is_repair(message: BaseMessage) -> bool:
    """Whether a message was put in by us for an answer that was missing."""
    return message.content == UNANSWERED


def _unanswered(call: ToolCall) -> ToolMessage:
    return ToolMessage(content=UNANSWERED, name=call["name"], tool_call_id=id_of(call), status="error")
