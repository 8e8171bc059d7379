"""Repair of conversations: every call gets an answer directly after the message that contains it.

LangGraph refuses a conversation with unanswered calls, and its thread is lost. Here such calls get an error message.
Providers refuse answers in another position, which LangGraph passes on. Here they are moved to their calls.
Providers also refuse an answer without its call, and a second answer to a call. Here both are left out of requests.
"""

from collections.abc import Callable, Collection, Sequence
from operator import is_
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, ToolCall, ToolMessage

from callboard.tools._bounds import refusals_of_storage, replace_surrogates
from callboard.tools._unanswered import calls_in, exchanges_in, id_of, is_whole

UNANSWERED = (
    "Error: this call has no result. It was interrupted before it finished, and whether it had any effect is "
    "unknown. Find out before calling the tool again."
)

NOT_BEGUN = (
    "Error: this call did not run: the conversation went on before it began, such as without the answer of a person. "
    "Call the tool again if it is still needed."
)

MALFORMED = (
    "Error: this call did not run, because its arguments are malformed or truncated: they are not a complete JSON "
    "object. Call the tool again with valid arguments. If they were cut off, make several calls with shorter ones."
)


class Repair(NamedTuple):
    """Repaired conversation: as the thread keeps it, and as a model reads it."""

    conversation: list[BaseMessage]
    """All messages. If an answer was missing, each answer stands directly after the message that contains its call."""
    request: list[BaseMessage]
    """Messages with each answer directly after its call; without answers that have no call, such as a second answer."""


def repair(
    messages: Sequence[BaseMessage],
    repaired_messages: Sequence[BaseMessage] = (),
    text_about: Callable[[ToolCall], str] = lambda _: UNANSWERED,
) -> Repair:
    """Return the repaired conversation; messages in between, such as a remark of the user, come after the answers."""
    # If `messages` begins with `repaired_messages`, a conversation that needs no repair, only the rest is checked.
    begins = all(map(is_, messages, repaired_messages)) and len(messages) >= len(repaired_messages)
    if is_whole(messages[len(repaired_messages) :] if begins else messages):
        return Repair([*messages], [*messages])
    # A result that came after its call was repaired takes the place of the error message.
    conversation: list[BaseMessage] = []
    request: list[BaseMessage] = []
    for exchange in exchanges_in([message for message in messages if not is_repair(message)]):
        runnable = calls_in(exchange.message)
        missing = [
            ToolMessage(
                content=text_about(call) if call in runnable else MALFORMED,
                name=call["name"],
                tool_call_id=id_of(call),
                status="error",
            )
            for call in exchange.open_calls()
        ]
        answers: Sequence[BaseMessage] = exchange.answers
        if missing or not exchange.is_in_order:
            answers = exchange.in_call_order([*exchange.answers, *missing])
        complete = (exchange.message, *answers)
        conversation += complete
        if not isinstance(exchange.message, ToolMessage):
            request += complete
    # A different order is for the model alone: the thread keeps its messages as they were added.
    has_all = {*map(id, conversation)} == {*map(id, messages)}
    return Repair([*messages] if has_all else conversation, request)


def complete_calls(reply: BaseMessage) -> None:
    """Set an id and a name of type `str` on each call of a model's reply, in place."""
    # Some providers give no id, and results are matched by id: a stored thread needs the ids that it will have when it
    # is read. A name of another type is the name of no tool.
    if not isinstance(reply, AIMessage):
        return
    content: Sequence[Any] = reply.content if isinstance(reply.content, list) else ()
    blocks: list[Any] = [block for block in content if isinstance(block, dict) and block.get("type") in _CALL_BLOCKS]
    calls: list[Any] = [*reply.tool_calls, *reply.invalid_tool_calls]
    for call in calls:
        # Some providers repeat the calls in content blocks, and match results by the ids of the blocks.
        name = (call["id"], call["name"])
        block = (
            next((block for block in blocks if (block.get("id"), block.get("name")) == name), None) if blocks else None
        )
        call["id"] = replace_surrogates(str(call["id"])) if call["id"] else f"call_{uuid4().hex}"
        call["name"] = str(call["name"])
        if block is not None:
            blocks.remove(block)
            block["id"] = call["id"]


_CALL_BLOCKS = frozenset({"tool_use", "tool_call", "invalid_tool_call"})
"""Types of content blocks that repeat a call of their message."""


def storable_messages(reply: BaseMessage, answered_ids: Collection[str] = (), *, is_stored: bool) -> list[BaseMessage]:
    """Return a list: the reply in a storable form, and an error message for each call that cannot be stored."""
    # A call with arguments that cannot be stored loses its arguments. It is answered by its error message, so it does
    # not run. Calls with the ids in `answered_ids` have a message already. With `is_stored`, a database gets the reply.
    refused = refusals_of_storage(reply.tool_calls, is_stored=is_stored) if isinstance(reply, AIMessage) else {}
    if not isinstance(reply, AIMessage) or not refused:
        return [reply]
    ids = {id_of(reply.tool_calls[index]) for index in refused}
    calls = [{**call, "args": {}} if index in refused else call for index, call in enumerate(reply.tool_calls)]
    content = reply.content
    if isinstance(content, list):  # some providers repeat the arguments in content blocks
        content = [
            {name: {} if name in ("input", "args") else value for name, value in block.items()}
            if isinstance(block, dict) and block.get("id") in ids
            else block
            for block in content
        ]
    error_messages = [error for index, error in refused.items() if id_of(reply.tool_calls[index]) not in answered_ids]
    return [reply.model_copy(update={"tool_calls": calls, "content": content}), *error_messages]


def is_repair(message: BaseMessage) -> bool:
    """Return whether a message is the error message for a call of unknown outcome, whose result may still come."""
    return message.content == UNANSWERED


def is_placeholder(message: BaseMessage) -> bool:
    """Return whether a message only stands for an answer: the model may call the tool again."""
    return message.content in (UNANSWERED, NOT_BEGUN)
