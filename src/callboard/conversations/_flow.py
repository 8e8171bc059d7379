"""Order of the steps: nodes and edges as in LangGraph's drawing of the same agent."""

from collections.abc import Sequence
from dataclasses import dataclass

from langchain_core.messages import BaseMessage, ToolCall, ToolMessage

from callboard.conversations._history import is_repair
from callboard.tools._bounds import is_unkept
from callboard.tools._unanswered import answered_ids, calls_in, last_reply, unanswered

AGENT = "agent"
TOOLS = "tools"
BEFORE = "pre_model_hook"
AFTER = "post_model_hook"
RESPONSE = "generate_structured_response"
END = "__end__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Nodes of one agent."""

    tools: bool
    """`True` if there are tools to call."""
    before: bool
    """`True` if a hook runs before the model."""
    after: bool
    """`True` if a hook runs after the model."""
    response: bool
    """`True` if a structured response is the last step."""
    direct: frozenset[str]
    """Names of tools with `return_direct`: their results end the run."""

    @property
    def entry(self) -> str:
        return BEFORE if self.before else AGENT

    @property
    def nodes(self) -> tuple[str, ...]:
        optional = ((BEFORE, self.before), (AGENT, True), (TOOLS, self.tools), (AFTER, self.after))
        return tuple(name for name, there in (*optional, (RESPONSE, self.response)) if there)

    def following(self, node: str, messages: Sequence[BaseMessage]) -> str:
        """Return the node after `node`, given the conversation; `END` for none."""
        if node == BEFORE:
            return AGENT
        if node == AGENT:
            return AFTER if self.after else self._after_reply(messages, calls=_goes_on(messages))
        if node == AFTER:
            return self._after_reply(messages)
        if node == TOOLS:
            return END if self._answered_directly(messages) else self.entry
        return END

    def open_calls(self, messages: Sequence[BaseMessage]) -> list[ToolCall]:
        """Return the calls of the last reply that are still to run.

        With a hook after the model, LangGraph treats a call as answered if any message of the conversation has its id.
        So a model that repeats itself comes to an end. This agent does the same only if the whole call is equal: some
        models start their ids anew in each reply.
        """
        calls = unanswered(messages)
        if not self.after or not calls:
            return calls
        earlier = messages[: last_reply(messages)]
        answered = answered_ids(message for message in earlier if not is_repair(message))
        return [call for call in calls if not (call["id"] in answered and _asks(earlier, call))]

    def _after_reply(self, messages: Sequence[BaseMessage], *, calls: bool = True) -> str:
        if self.tools and calls and self.open_calls(messages):
            return TOOLS
        last = messages[-1] if messages else None
        if self.tools and isinstance(last, ToolMessage) and (self.after or is_unkept(last)):
            return self.entry  # the hook answered the calls, or no call was storable
        return RESPONSE if self.response else END

    def _answered_directly(self, messages: Sequence[BaseMessage]) -> bool:
        if not self.direct:
            return False
        for message in reversed(messages):
            if not isinstance(message, ToolMessage):
                return any(call["name"] in self.direct for call in calls_in(message))
            if message.name in self.direct:
                return True
        return False


def _asks(messages: Sequence[BaseMessage], call: ToolCall) -> bool:
    return any(call in calls_in(message) for message in messages)


def _goes_on(messages: Sequence[BaseMessage]) -> bool:
    """Return whether only tool results came after the model's last reply."""
    place = last_reply(messages)
    return place is not None and all(isinstance(message, ToolMessage) for message in messages[place + 1 :])
