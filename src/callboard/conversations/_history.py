"""Repair of conversations: every call gets an answer directly after the message that contains it.

LangGraph refuses a conversation with unanswered calls, and its thread is lost. Here such calls get an error message.
Providers refuse answers in another position, which LangGraph passes on. Here they are moved to their calls.
"""

from collections.abc import Collection, Sequence
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
    """Return the conversation with the answers of every call directly after the message that contains the call."""
    # Messages in between, such as a remark of the user, come after the answers. `whole` is a conversation that needs no
    # repair: if `messages` begins with it, only the rest is checked.
    begins = all(map(is_, messages, whole)) and len(messages) >= len(whole)
    if is_whole(messages[len(whole) :] if begins else messages):
        return [*messages]
    return [message for exchange in exchanges_in(messages) for message in _made_whole(exchange)]


def _made_whole(exchange: Exchange) -> Sequence[BaseMessage]:
    missing = [_unanswered(call) for call in exchange.open_calls()]
    if exchange.is_in_order and not missing:
        return (exchange.message, *exchange.answers)
    return (exchange.message, *exchange.in_call_order([*exchange.answers, *missing]))


def complete_calls(reply: BaseMessage) -> None:
    """Set an id and a name of type `str` on each call of a model's reply, in place."""
    # Some providers give no id, and results are matched by id. A name of another type is the name of no tool.
    for call in calls_in(reply):
        call["id"] = f"call_{uuid4().hex}" if call["id"] is None else id_of(call)
        call["name"] = str(call["name"])


def keepable(reply: BaseMessage, answered: Collection[str] = (), *, is_stored: bool) -> list[BaseMessage]:
    """Return a list: the reply in a storable form, and an error message for each call that cannot be stored."""
    # A call with arguments that cannot be stored loses its arguments. It is answered by its error message, so it does
    # not run. Calls with the ids in `answered` have a message already. With `is_stored`, a database gets the reply.
    refused = unkept(reply.tool_calls, is_stored=is_stored) if isinstance(reply, AIMessage) else {}
    if not isinstance(reply, AIMessage) or not refused:
        return [reply]
    ids = {id_of(reply.tool_calls[place]) for place in refused}
    calls = [{**call, "args": {}} if place in refused else call for place, call in enumerate(reply.tool_calls)]
    content = reply.content
    if isinstance(content, list):  # some providers repeat the arguments in content blocks
        content = [_without_arguments(block) if _id_in(block) in ids else block for block in content]
    told = [error for place, error in refused.items() if id_of(reply.tool_calls[place]) not in answered]
    return [reply.model_copy(update={"tool_calls": calls, "content": content}), *told]


def _id_in(block: object) -> object:
    return cast("dict[str, object]", block).get("id") if isinstance(block, dict) else None


def _without_arguments(block: Any) -> dict[str, Any]:
    return {name: {} if name in ("input", "args") else value for name, value in block.items()}


def is_repair(message: BaseMessage) -> bool:
    """Return whether a message is the error message that `repaired` adds in place of a missing answer."""
    return message.content == UNANSWERED


def _unanswered(call: ToolCall) -> ToolMessage:
    return ToolMessage(content=UNANSWERED, name=call["name"], tool_call_id=id_of(call), status="error")
