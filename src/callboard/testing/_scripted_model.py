"""Chat model for tests that answers from a script, without a provider."""

import inspect
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeAlias, cast

import anyio
import anyio.lowlevel
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolCall, ToolMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from callboard._langchain._tool_call import tool_call
from callboard._util._callers import is_plain_function

# Short constructors for the replies of a model, and the numbering of their ids.

_AUTOMATIC = re.compile(r"call_\d+")


def calls(*requests: str | tuple[str, Mapping[str, object]] | ToolCall, content: str = "") -> AIMessage:
    """Return a message with tool calls: `calls("ping", ("search", {"query": "tea"}))`.

    Calls without an id are numbered by position: `call_1`, `call_2` and so on. A `ScriptedModel` replaces such an id
    if the conversation has it already. To repeat an id on purpose, use another form than `call_<number>`.

    Args:
        requests: names of tools, pairs of a name and its arguments, or results of `callboard.tool_call`.
        content: text of the message.

    Raises:
        TypeError: for a request in another form.
    """
    tool_calls = [_as_call(request) for request in requests]
    for number, call in enumerate(tool_calls, start=1):
        call["id"] = call["id"] or f"call_{number}"
    return AIMessage(content=content, tool_calls=tool_calls)


def _as_call(request: object) -> ToolCall:
    match request:
        case str():
            return tool_call(request)
        case (str() as name, Mapping() as args) if isinstance(request, tuple):
            return ToolCall(name=name, args=dict(args), id=None, type="tool_call")
        case {"name": str(), "args": Mapping()}:
            return cast("ToolCall", request).copy()
        case _:
            raise TypeError(
                "calls(...) takes names of tools, pairs such as ('search', {'query': 'tea'}), and results of "
                f"callboard.tool_call; got {request!r}"
            )


class Numbering:
    """Source of message and call ids that are the same in every test run, and not yet used in the conversation."""

    def __init__(self) -> None:
        self._replies = count(1)
        self._calls = count(1)
        self._issued: set[str] = set()

    def number(self, reply: AIMessage, history: Iterable[BaseMessage]) -> AIMessage:
        """Return a copy of a reply in which the message and each of its calls has an id."""
        # The history counts too: another model, or an earlier process, may have replied in the same thread.
        used_ids: set[str | None] = set(self._issued)
        for message in history:
            used_ids.add(message.id)
            if isinstance(message, ToolMessage):
                used_ids.update([message.tool_call_id])
            elif isinstance(message, AIMessage):
                used_ids.update(call["id"] for call in message.tool_calls)
        tool_calls: list[ToolCall] = []
        for call in reply.tool_calls:
            call_id = call["id"]
            if call_id is None or (call_id in used_ids and _AUTOMATIC.fullmatch(call_id)):
                call_id = _next_free_id("call", self._calls, used_ids)
            used_ids.add(call_id)
            self._issued.add(call_id)
            tool_calls.append(ToolCall(name=call["name"], args=call["args"], id=call_id, type="tool_call"))
        reply_id = reply.id or _next_free_id("reply", self._replies, used_ids)
        return reply.model_copy(update={"id": reply_id, "tool_calls": tool_calls})


def _next_free_id(word: str, numbers: Iterator[int], used_ids: Container[str | None]) -> str:
    while (name := f"{word}_{next(numbers)}") in used_ids:
        pass
    return name


def as_chunks(message: AIMessage) -> list[AIMessageChunk]:
    """Return the chunks of a message as a provider streams it: one chunk per word, then one per tool call."""
    content = message.content
    # Content blocks stay whole: providers split them in too many different ways.
    parts = re.findall(r"\s*\S+|\s+$", content) if isinstance(content, str) else [content]
    chunks = [AIMessageChunk(content=part, id=message.id) for part in parts if part]
    requests = [(call["name"], json.dumps(call["args"]), call["id"]) for call in message.tool_calls]
    requests += [(call["name"] or "", call["args"] or "", call["id"]) for call in message.invalid_tool_calls]
    for index, (name, args, call_id) in enumerate(requests):
        call = tool_call_chunk(name=name, args=args, id=call_id, index=index)
        chunks.append(AIMessageChunk(content="", id=message.id, tool_call_chunks=[call]))
    chunks = chunks or [AIMessageChunk(content="", id=message.id)]
    last = chunks[-1]
    last.chunk_position = "last"
    last.usage_metadata = message.usage_metadata
    last.response_metadata = message.response_metadata
    last.additional_kwargs = message.additional_kwargs
    return chunks


# The model.

Line: TypeAlias = AIMessage | str | Sequence[ToolCall]
"""Reply of the model: a message, its text, or its tool calls."""

ScriptedReply: TypeAlias = Line | Exception | Callable[[list[BaseMessage]], Line]
"""Entry of a script: a reply, an error to raise, or a function from the messages of the request to a reply."""


class ScriptEndedError(AssertionError):
    """Raised for a request after the last reply of the script."""

    def __init__(self, replies: int) -> None:
        many = "1 reply" if replies == 1 else f"{replies} replies"
        super().__init__(f"the script has {many}, and the model was asked for one more")


class _Playback:
    """Script and recorded requests, shared by a model and its copies that `bind_tools` makes."""

    def __init__(self, script: Iterable[ScriptedReply], *, loop: bool) -> None:
        if isinstance(script, (str, Mapping)):
            raise TypeError(f"ScriptedModel(...) takes a list of replies, got {script!r}; write [{script!r}]")
        self.script = tuple(script)
        for reply in self.script:
            if is_plain_function(reply) and not inspect.isclass(reply):
                continue  # what it returns is checked when it replies
            if not isinstance(reply, Exception):
                _message_of(reply)
        self.requests: list[list[BaseMessage]] = []
        self.requested_tools: list[tuple[str, ...]] = []
        self._loop = loop
        self._numbering = Numbering()
        self._lock = threading.Lock()

    def take(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> ScriptedReply:
        """Record a request, and return the next entry of the script, which answers it."""
        with self._lock:  # requests may come from several threads; each takes one position of the script
            position = len(self.requests)
            self.requests.append(list(messages))
            tools = options.get("tools", ())
            self.requested_tools.append(tuple(str(tool.get("function", tool).get("name")) for tool in tools))
        if self._loop and self.script:
            position %= len(self.script)
        if position >= len(self.script):
            raise ScriptEndedError(len(self.script))
        return self.script[position]

    def speak(self, reply: ScriptedReply, messages: list[BaseMessage]) -> AIMessage:
        """Return the message that an entry of the script stands for, or raise the entry's error."""
        if isinstance(reply, Exception):
            raise reply
        answer = _message_of(reply(list(messages)) if callable(reply) else reply)
        with self._lock:
            return self._numbering.number(answer, messages)


def _message_of(reply: object) -> AIMessage:
    """Return the message that a reply stands for; raise `TypeError` for what is no reply."""
    if isinstance(reply, AIMessage):
        return reply
    if isinstance(reply, str):
        return AIMessage(content=reply)
    if isinstance(reply, Sequence) and all(isinstance(call, dict) for call in reply):
        return AIMessage(content="", tool_calls=[_as_call(call) for call in reply])
    raise TypeError(
        "a reply of a ScriptedModel is a text, calls(...), an AIMessage, tool calls in a list, an exception such as "
        f"ValueError(), or a plain function of the messages that returns a reply; got {reply!r}"
    )


class ScriptedModel(BaseChatModel):
    """Chat model that answers each request with the next reply of a script.

    `ScriptedModel([calls("search"), "Here is what I found."])` asks for a tool call, then answers with a text.
    Missing ids of messages and calls are filled in (`reply_1`, `call_1` and so on), new to the conversation. Streams
    yield one chunk per word. All models bound from this one share its script and its recorded requests.

    The model itself runs on asyncio and trio. LangChain's `ainvoke` and `astream` need asyncio for every model,
    because LangChain runs callbacks as asyncio tasks.

    Args:
        script: replies in order, each a message, a text, tool calls, an error to raise, or a function of the messages.
        loop: start the script again after its last reply.
        delay: seconds that each reply takes.
        options: fields of LangChain's `BaseChatModel`, such as `callbacks`.

    Raises `TypeError` for what is no reply; for the result of a function, when the function replies.
    """

    loop: bool = False
    """`True` to start the script again after its last reply, instead of raising `ScriptEndedError`."""

    delay: float = 0.0
    """Seconds that each reply takes; a stream waits before its first word."""

    _playback: _Playback = PrivateAttr()

    def __init__(
        self, script: Iterable[ScriptedReply], /, *, loop: bool = False, delay: float = 0.0, **options: Any
    ) -> None:
        super().__init__(loop=loop, delay=delay, **options)  # type: ignore[call-arg]  # fields of this model
        self._playback = _Playback(script, loop=loop)

    @property
    def requests(self) -> list[list[BaseMessage]]:
        """Messages of each request so far."""
        return self._playback.requests

    @property
    def requested_tools(self) -> list[tuple[str, ...]]:
        """Names of the tools bound in each request so far."""
        return self._playback.requested_tools

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return a model with tools bound in OpenAI's format; it shares the script of this model."""
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        return _result(self._answer(messages, kwargs))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        # The same as `_aanswer`, without a coroutine of its own: a request should take little time.
        return _result(await self._aanswer(messages, kwargs))

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in as_chunks(self._answer(messages, kwargs)):
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in as_chunks(await self._aanswer(messages, kwargs)):
            yield ChatGenerationChunk(message=chunk)
            await anyio.lowlevel.checkpoint()

    def _answer(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        reply = self._playback.take(messages, options)
        time.sleep(self.delay)
        return self._playback.speak(reply, messages)

    async def _aanswer(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> AIMessage:
        reply = self._playback.take(messages, options)
        await anyio.sleep(self.delay)
        return self._playback.speak(reply, messages)


def _result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])
