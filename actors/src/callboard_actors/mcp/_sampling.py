"""A model for a server that asks for one, where it may."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import anyio.to_thread
import sniffio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from mcp_types import (
    AudioContent,
    CreateMessageRequestParams,
    CreateMessageResult,
    ImageContent,
    SamplingMessage,
    TextContent,
)

from callboard_actors.mcp._content import as_block


class SamplingRefusedError(Exception):
    """A server asks for a model, and may have none, or not for that."""

    def __init__(self, server: str, what: str = "a model", *, remedy: str = "") -> None:
        super().__init__(f"the MCP server {server!r} asks for {what}, which is refused{remedy}")


_LENDS = "; McpServer(sampling=model) lets it have one, and sampling=True that of the agent that calls"
_NOT_KNOWN = (
    ": none is known here. Its calls are of no agent of create_react_agent, or of one that chooses its model for each "
    "step, or several agents have calls at once over a connection that does not say which of them is meant; "
    "McpServer(sampling=model) says which model"
)


def no_model(server: str) -> SamplingRefusedError:
    """Why a server without a model is refused."""
    return SamplingRefusedError(server, remedy=_LENDS)


class Sampler:
    """Asks a model for a server: with what the server says, and nothing of the conversation.

    Args:
        model: which one; the server's wishes are not asked. `None` for that of the agent whose call it is.
        server: the server's name, for errors.
    """

    def __init__(self, model: BaseChatModel | None, server: str) -> None:
        self._model = model
        self._server = server

    @property
    def is_of_agents(self) -> bool:
        """Whether it has to be told whose call it is."""
        return self._model is None

    async def __call__(
        self, params: CreateMessageRequestParams, own: BaseChatModel | None = None
    ) -> CreateMessageResult:
        """What the model says.

        Args:
            params: what the server asks.
            own: the model of the agent whose call it is, if it has one.

        Raises:
            SamplingRefusedError: the server wants it to call tools, or to read what is neither text nor picture; or
                there is no model.
        """
        if params.tools:
            raise SamplingRefusedError(self._server, "a model that calls its tools")
        model = self._model or own
        if model is None:
            raise SamplingRefusedError(self._server, "the model of the agent that calls", remedy=_NOT_KNOWN)
        reply = await _ask(model, self._messages(params), _options(params))
        name = reply.response_metadata.get("model_name") or getattr(model, "model", None) or "unknown"
        return CreateMessageResult(
            role="assistant",
            content=TextContent(text=reply.text),
            model=str(name),
            stop_reason="maxTokens" if _is_cut(reply) else "endTurn",
        )

    def _messages(self, params: CreateMessageRequestParams) -> list[BaseMessage]:
        system: list[BaseMessage] = [SystemMessage(params.system_prompt)] if params.system_prompt else []
        return [*system, *map(self._message, params.messages)]

    def _message(self, message: SamplingMessage) -> BaseMessage:
        blocks: list[Any] = []
        for part in message.content_as_list:
            if not isinstance(part, (TextContent, ImageContent, AudioContent)):
                raise SamplingRefusedError(self._server, "a model that calls its tools")
            blocks.append(as_block(part))
        content = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks
        return HumanMessage(content) if message.role == "user" else AIMessage(content)


def sampler_of(model: object, server: str) -> Sampler | None:
    """Asks the model that was given, or with `True` that of the agent whose call it is.

    Raises:
        TypeError: it is no model.
    """
    if model is None or model is False:
        return None
    if model is not True and not isinstance(model, BaseChatModel):
        raise TypeError(
            f"McpServer(sampling=...) is a chat model, or True for that of the agent that calls; got {model!r}"
        )
    return Sampler(None if model is True else model, server)


async def _ask(model: BaseChatModel, messages: Sequence[BaseMessage], options: dict[str, Any]) -> AIMessage:
    if sniffio.current_async_library() == "asyncio":
        return await model.ainvoke(messages, **options)
    # The clients of models know asyncio only; their sync halves know no event loop.
    ask = partial(model.invoke, messages, **options)
    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)


def _options(params: CreateMessageRequestParams) -> dict[str, Any]:
    wishes = {"stop": params.stop_sequences, "temperature": params.temperature, "max_tokens": params.max_tokens}
    return {name: value for name, value in wishes.items() if value is not None}


def _is_cut(reply: AIMessage) -> bool:
    said = cast("dict[str, Any]", reply.response_metadata)
    return said.get("finish_reason") == "length" or said.get("stop_reason") == "max_tokens"
