"""Which step follows which: the nodes and edges that LangGraph's drawing of such an agent shows."""

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from callboard.tools._input import id_of

AGENT = "agent"
TOOLS = "tools"
BEFORE = "pre_model_hook"
AFTER = "post_model_hook"
RESPONSE = "generate_structured_response"
END = "__end__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The nodes of one agent."""

    tools: bool
    """Whether there are any to call."""
    before: bool
    """Whether a hook runs before the model."""
    after: bool
    """Whether a hook runs after it."""
    response: bool
    """Whether a structured response is the last step."""
    direct: frozenset[str]
    """Tools whose results are the answer."""

    @property
    def entry(self) -> str:
        return BEFORE if self.before else AGENT

    @property
    def nodes(self) -> tuple[str, ...]:
        optional = ((BEFORE, self.before), (AGENT, True), (TOOLS, self.tools), (AFTER, self.after))
        return tuple(name for name, there in (*optional, (RESPONSE, self.response)) if there)

    def following(self, node: str, messages: Sequence[BaseMessage]) -> str:
        """The node after `node`, given the conversation; `END` for none."""
        if node == BEFORE:
            return AGENT
        if node == AGENT:
            return AFTER if self.after else self._after_reply(messages)
        if node == AFTER:
            return self._after_reply(messages)
        if node == TOOLS:
            return END if self._answered_directly(messages) else self.entry
        return END

    def _after_reply(self, messages: Sequence[BaseMessage]) -> str:
        if self.tools and unanswered(messages):
            return TOOLS
        if self.tools and messages and isinstance(messages[-1], ToolMessage):
            return self.entry  # the hook has answered the calls, or none of them could be kept
        return RESPONSE if self.response else END

    def _answered_directly(self, messages: Sequence[BaseMessage]) -> bool:
        if not self.direct:
            return False
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                calls = message.tool_calls if isinstance(message, AIMessage) else []
                return any(call["name"] in self.direct for call in calls)
            if message.name in self.direct:
                return True
        return False


def unanswered(messages: Sequence[BaseMessage]) -> bool:
    """Whether the last reply of the model has calls without a result."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage):
            return any(id_of(call) not in answered for call in message.tool_calls)
    return False
