"""Chat model for tests that answers from a script, without a provider."""

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import PrivateAttr

from callboard.testing._replies import Numbering, as_chunks

Line: TypeAlias = AIMessage | str | Sequence[ToolCall]
"""Reply of the model: a message, its text, or its tool calls."""

Reply: TypeAlias = Line | Exception | Callable[[list[BaseMessage]], Line]
"""Entry of a script: a reply, an error to raise, or a function from the request's messages to a reply."""


class ScriptEndedError(AssertionError):
    """Raised for a request after the last reply of the script."""

    def __init__(self, replies: int) -> None:
        many = "1 reply" if replies == 1 else f"{replies} replies"
        super().__init__(f"the script has {many}, and the model was asked for one more")


class _Playback:
    """Script and recorded requests, shared by a model and all models bound from it."""

    def __init__(self, script: Iterable[Reply], *, loop: bool) -> None:
        self.script = tuple(script)
        self.requests: list[list[BaseMessage]] = []
        self.requested_tools: list[tuple[str, ...]] = []
        self._loop = loop
        self._numbering = Numbering()
        self._lock = threading.Lock()

    def take(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> Reply:
        """Record a request, and return its entry of the script."""
        with self._lock:  # requests may come from several threads; each takes one position of the script
            position = len(self.requests)
            self.requests.append(list(messages))
            self.requested_tools.append(tuple(_tool_name(tool) for tool in options.get("tools", ())))
        if self._loop and self.script:
            position %= len(self.script)
        if position >= len(self.script):
            raise ScriptEndedError(len(self.script))
        return self.script[position]

    def speak(self, reply: Reply, messages: list[BaseMessage]) -> AIMessage:
        """Return the message of an entry, or raise its error."""
        if isinstance(reply, Exception):
            raise reply
        line = reply(list(messages)) if callable(reply) else reply
        with self._lock:
            return self._numbering.number(_as_message(line), messages)


class ScriptedModel(BaseChatModel):
    """Chat model that answers each request with the next reply of a script.

    `ScriptedModel([calls("search"), "Here is what I found."])` asks for a tool call, then answers with a text.
    Missing ids of messages and calls are filled in (`reply_1`, `call_1` and so on), new to the conversation. Streams
    yield one chunk per word. All models bound from this one share its script and its recorded requests.

    The model itself runs on asyncio and trio. LangChain's `ainvoke` and `astream` need asyncio for every model,
    because LangChain runs callbacks as asyncio tasks.
    """

    loop: bool = False
    """Repeat the script from its beginning, instead of raising `ScriptEndedError`."""

    delay: float = 0.0
    """Seconds that each reply takes; a stream waits before its first word."""

    _playback: _Playback = PrivateAttr()

    def __init__(self, script: Iterable[Reply], /, *, loop: bool = False, delay: float = 0.0, **options: Any) -> None:
        super().__init__(loop=loop, delay=delay, **options)  # type: ignore[call-arg]
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
        """Return a model with tools bound in OpenAI's format."""
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _result(self._answer(messages, kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _result(await self._aanswer(messages, kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in as_chunks(self._answer(messages, kwargs)):
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
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


def _as_message(line: Line) -> AIMessage:
    if isinstance(line, AIMessage):
        return line
    if isinstance(line, str):
        return AIMessage(content=line)
    return AIMessage(content="", tool_calls=list(line))


def _tool_name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", tool).get("name"))


def _result(message: AIMessage) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=message)])
