"""Model requests of a server (sampling)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import anyio.to_thread
import sniffio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from mcp import types

from callboard_actors.mcp._content import as_block


class SamplingRefusedError(Exception):
    """Raised if a server asks for a model that it may not have, or for a use that is not allowed."""

    def __init__(self, server: str, what: str = "a model", *, remedy: str = "") -> None:
        super().__init__(f"the MCP server {server!r} asks for {what}, which is refused{remedy}")


_LENDS = "; McpServer(sampling=model) lets it have one, and sampling=True that of the agent that calls"
_NOT_KNOWN = (
    ": none is known here. Its calls are of no agent of create_react_agent, or of one that chooses its model for each "
    "step, or several agents have calls at once over a connection that does not say which of them is meant; "
    "McpServer(sampling=model) says which model"
)


def no_model(server: str) -> SamplingRefusedError:
    """Return the refusal for a server that may not use a model."""
    return SamplingRefusedError(server, remedy=_LENDS)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Sends a server's messages, and nothing else, to a model; without a `model`, to the calling agent's own."""

    model: BaseChatModel | None
    server: str

    @property
    def is_of_agents(self) -> bool:
        """`True` if each request needs the model of the calling agent."""
        return self.model is None

    async def __call__(
        self, params: types.CreateMessageRequestParams, own: BaseChatModel | None = None
    ) -> types.CreateMessageResult:
        """Return the model's reply, or that of `own`, the agent's; raise `SamplingRefusedError` for refused uses."""
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
    """Return the sampler for the option `sampling`, or `None` if it is off; raise `TypeError` for another value."""
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
