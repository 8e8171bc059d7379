"""Model of the measured agents."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult


class Parrot(BaseChatModel):
    """Model that requests this many calls in each of this many turns. Its replies depend on the conversation only.

    It does less than `callboard.testing.ScriptedModel`, so that less of the time is its own.
    """

    turns: int
    calls: int

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        asked = [
            ToolCall(name="look_up", args={"query": str(number)}, id=f"call_{turn}_{number}", type="tool_call")
            for number in range(self.calls if turn < self.turns else 0)
        ]
        reply = AIMessage(content="" if asked else "Done.", tool_calls=asked)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)
