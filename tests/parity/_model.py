"""A chat model that replays messages and records its requests."""

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel


class Answer(BaseModel):
    """The answer."""

    number: int


class ReplayModel(BaseChatModel):
    """Returns its replies in order, then the last one again."""

    replies: list[AIMessage]
    log: list[Any] = []
    turns: list[int] = []

    def __init__(self, *replies: AIMessage | str, log: list[Any] | None = None) -> None:
        messages = [AIMessage(reply) if isinstance(reply, str) else reply for reply in replies]
        super().__init__(replies=messages)
        self.log = log if log is not None else []
        self.turns = []

    @property
    def _llm_type(self) -> str:
        return "replay"

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kw: Any
    ) -> ChatResult:
        tools = [tool["function"]["name"] if "function" in tool else tool for tool in kw.get("tools", [])]
        # An intended difference: callboard leaves out answers without a call, which providers refuse.
        ids = {call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls}
        read = [entry for entry in messages if not isinstance(entry, ToolMessage) or entry.tool_call_id in ids]
        self.log.append(("model", [(message.type, message.content, message.name) for message in read], tools))
        reply = self.replies[min(len(self.turns), len(self.replies) - 1)]
        self.turns.append(1)
        return ChatResult(generations=[ChatGeneration(message=reply.model_copy(deep=True))])

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: Any = None, **kwargs: Any) -> Any:
        formatted = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools]
        return self.bind(tools=formatted, **kwargs)
