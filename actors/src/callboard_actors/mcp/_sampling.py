"""Sampling: requests of an MCP server to a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import anyio.to_thread
import sniffio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from mcp import types

from callboard_actors.mcp._tools import as_block


class SamplingRefusedError(Exception):
    """Raised if a server asks for a model that it may not use, or uses a model in a way that is not allowed."""

    def __init__(self, server: str, what: str = "a model", *, remedy: str = "") -> None:
        super().__init__(f"the MCP server {server!r} asks for {what}, which is refused{remedy}")


_LENDS = "; McpServer(sampling=model) lets it have one, and sampling=True that of the agent that calls"
_NOT_KNOWN = (
    ": none is known here. Its calls are of no agent of create_react_agent, or of one that chooses its model for each "
    "step, or several agents have calls at once over a connection that does not say which of them is meant; "
    "McpServer(sampling=model) says which model"
)


def no_model(server: str) -> SamplingRefusedError:
    """Return the error for a server that asks for a model, although the option `sampling` is off."""
    return SamplingRefusedError(server, remedy=_LENDS)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Function that sends the messages of a server, and nothing else, to a model.

    The model is `model` or, if this is `None`, that of the agent whose call made the server ask.
    """

    model: BaseChatModel | None
    server: str

    @property
    def is_of_agents(self) -> bool:
        """`True` if requests go to the model of the calling agent; this agent must be found for each request."""
        return self.model is None

    async def __call__(
        self, params: types.CreateMessageRequestParams, own: BaseChatModel | None = None
    ) -> types.CreateMessageResult:
        """Return the reply of the model to a server's messages; `own` is the model of the calling agent.

        Raise `SamplingRefusedError` for a use that is not allowed.
        """
        if params.tools:
            raise SamplingRefusedError(self.server, "a model that calls its tools")
        model = self.model or own
        if model is None:
            raise SamplingRefusedError(self.server, "the model of the agent that calls", remedy=_NOT_KNOWN)
        reply = await _ask(model, self._messages(params), _options(params))
        name = reply.response_metadata.get("model_name") or getattr(model, "model", None) or "unknown"
        return types.CreateMessageResult(
            role="assistant",
            content=types.TextContent(text=reply.text),
            model=str(name),
            stop_reason="maxTokens" if _is_cut(reply) else "endTurn",
        )

    def _messages(self, params: types.CreateMessageRequestParams) -> list[BaseMessage]:
        system: list[BaseMessage] = [SystemMessage(params.system_prompt)] if params.system_prompt else []
        return [*system, *map(self._message, params.messages)]

    def _message(self, message: types.SamplingMessage) -> BaseMessage:
        blocks: list[Any] = []
        for part in message.content_as_list:
            if not isinstance(part, (types.TextContent, types.ImageContent, types.AudioContent)):
                raise SamplingRefusedError(self.server, "a model that calls its tools")
            blocks.append(as_block(part))
        content = blocks[0]["text"] if len(blocks) == 1 and blocks[0]["type"] == "text" else blocks
        return HumanMessage(content) if message.role == "user" else AIMessage(content)


def sampler_of(model: object, server: str) -> Sampler | None:
    """Return the sampler for the option `sampling` of `McpServer`, or `None` if sampling is off.

    Raise `TypeError` for a value that is neither a model nor a bool.
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
    # Async clients of models need asyncio. Their sync methods need no event loop, so trio runs them in a thread.
    ask = partial(model.invoke, messages, **options)
    return await anyio.to_thread.run_sync(ask, abandon_on_cancel=True)


def _options(params: types.CreateMessageRequestParams) -> dict[str, Any]:
    wishes = {"stop": params.stop_sequences, "temperature": params.temperature, "max_tokens": params.max_tokens}
    return {name: value for name, value in wishes.items() if value is not None}


def _is_cut(reply: AIMessage) -> bool:
    said = cast("dict[str, Any]", reply.response_metadata)
    return said.get("finish_reason") == "length" or said.get("stop_reason") == "max_tokens"
