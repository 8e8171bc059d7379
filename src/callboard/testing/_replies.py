"""Short constructors for the replies of a model, and the numbering of their ids."""

import json
import re
from collections.abc import Iterable, Mapping
from itertools import count

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall, ToolMessage
from langchain_core.messages.tool import ToolCallChunk, tool_call_chunk

_AUTOMATIC = re.compile(r"call_\d+")


def tool_call(name: str, call_id: str | None = None, /, **args: object) -> ToolCall:
    """Return one tool call: `tool_call("search", query="tea")`.

    Args:
        name: name of the tool.
        call_id: id of the call. A `ScriptedModel` fills in a missing id; without one use `calls`, which numbers them.
        args: arguments of the call.
    """
    return ToolCall(name=name, args=dict(args), id=call_id, type="tool_call")


def calls(*requests: str | tuple[str, Mapping[str, object]] | ToolCall, content: str = "") -> AIMessage:
    """Return a message with tool calls: `calls("ping", ("search", {"query": "tea"}))`.

    Calls without an id are numbered by position: `call_1`, `call_2` and so on. A `ScriptedModel` replaces such an id
    if the conversation has it already. To repeat an id on purpose, use another form than `call_<number>`.

    Args:
        requests: for each call the name of a tool, its name and arguments, or a whole tool call.
        content: text of the message.
    """
    made = [_as_call(request) for request in requests]
    for place, call in enumerate(made, start=1):
        call["id"] = call["id"] or f"call_{place}"
    return AIMessage(content=content, tool_calls=made)


def _as_call(request: str | tuple[str, Mapping[str, object]] | ToolCall) -> ToolCall:
    if isinstance(request, str):
        return tool_call(request)
    if isinstance(request, tuple):
        name, args = request
        return ToolCall(name=name, args=dict(args), id=None, type="tool_call")
    return request.copy()


class Numbering:
    """Source of ids that are equal in every run, and new to the conversation."""

    def __init__(self) -> None:
        self._replies = count(1)
        self._calls = count(1)
        self._issued: set[str] = set()

    def number(self, reply: AIMessage, history: Iterable[BaseMessage]) -> AIMessage:
        """Return a copy of a reply with an id for the message and for each of its calls."""
        # The history counts too: another model, or an earlier process, may have replied in the same thread.
        taken = self._issued | set(_ids(history))
        made: list[ToolCall] = []
        for call in reply.tool_calls:
            call_id = call["id"]
            if call_id is None or (call_id in taken and _AUTOMATIC.fullmatch(call_id)):
                call_id = _first_free("call", self._calls, taken)
            taken.add(call_id)
            self._issued.add(call_id)
            made.append(ToolCall(name=call["name"], args=call["args"], id=call_id, type="tool_call"))
        reply_id = reply.id or _first_free("reply", self._replies, taken)
        return reply.model_copy(update={"id": reply_id, "tool_calls": made})


def _first_free(word: str, numbers: Iterable[int], taken: set[str]) -> str:
    return next(name for number in numbers if (name := f"{word}_{number}") not in taken)


def _ids(messages: Iterable[BaseMessage]) -> Iterable[str]:
    for message in messages:
        if message.id:
            yield message.id
        if isinstance(message, ToolMessage):
            yield message.tool_call_id
        if isinstance(message, AIMessage):
            yield from (call["id"] for call in message.tool_calls if call["id"])


def as_chunks(message: AIMessage) -> list[AIMessageChunk]:
    """Split a message as a provider streams it: one chunk per word, then one chunk per tool call."""
    content = message.content
    # Content blocks stay whole: providers split them in too many different ways.
    parts = re.findall(r"\s*\S+|\s+$", content) if isinstance(content, str) else [content]
    chunks = [AIMessageChunk(content=part, id=message.id) for part in parts if part]
    chunks.extend(AIMessageChunk(content="", id=message.id, tool_call_chunks=[call]) for call in _call_chunks(message))
    chunks = chunks or [AIMessageChunk(content="", id=message.id)]
    last = chunks[-1]
    last.chunk_position = "last"
    last.usage_metadata = message.usage_metadata
    last.response_metadata = message.response_metadata
    last.additional_kwargs = message.additional_kwargs
    return chunks


def _call_chunks(message: AIMessage) -> list[ToolCallChunk]:
    spoken = [(call["name"], json.dumps(call["args"]), call["id"]) for call in message.tool_calls]
    spoken += [(call["name"] or "", call["args"] or "", call["id"]) for call in message.invalid_tool_calls]
    return [
        tool_call_chunk(name=name, args=args, id=call_id, index=index)
        for index, (name, args, call_id) in enumerate(spoken)
    ]
