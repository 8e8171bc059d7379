"""Nodes of an agent of `create_react_agent`: requests to its model, its structured response, and its hooks."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig

from callboard.agent._model import ChosenModel, FixedModel
from callboard.agent._run_context import NodeBodies, RunContext
from callboard.conversations._channels import MESSAGES
from callboard.conversations._flow import AGENT, RESPONSE, ReactFlow, for_model, value_in
from callboard.conversations._history import complete_calls, repair, storable_messages
from callboard.tools._unanswered import all_calls_in

NEEDS_MORE_STEPS = "Sorry, need more steps to process this request."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactParts:
    """Objects that the nodes of an agent of `create_react_agent` use in all runs: edges, model and response format."""

    flow: ReactFlow
    model: FixedModel | ChosenModel
    response_format: Any


class ReactNodes(NodeBodies):
    """Functions that run the nodes of an agent of `create_react_agent` in one run."""

    def __init__(self, parts: ReactParts, context: RunContext) -> None:
        super().__init__(context)
        self._parts = parts
        self._repaired_messages: list[BaseMessage] = []
        """Conversation as it was after its last repair, or after the last check that found nothing to repair."""
        self._is_conversation_in_order = False
        """`True` if the conversation of the thread itself is in an order that providers accept."""

    async def prepare(self, node: str) -> None:
        """Repair the calls and answers of the conversation before the model reads it."""
        if node != AGENT:
            return
        thread = self.context.thread
        messages = thread.state.get(MESSAGES) or []
        repaired = repair(messages, self._repaired_messages, self.context.text_about)
        self._repaired_messages = repaired.request
        self._is_conversation_in_order = repaired.request == messages
        if repaired.conversation != messages:
            await thread.amend([thread.state.replacing("messages", repaired.conversation)], None, "repair")

    def output(self, node: str, node_input: Any, config: RunnableConfig, *, is_sent: bool) -> Awaitable[Any]:
        if node == AGENT:
            return self._reply(node_input, config, is_sent)
        if node == RESPONSE:
            return self._response(node_input, config)
        return super().output(node, node_input, config, is_sent=is_sent)

    async def _reply(self, state: Any, config: RunnableConfig, is_sent: bool) -> dict[str, Any]:
        """Send the state to the model; return the reply as an update of the state, in a form that can be stored."""
        model, flow = self._parts.model, self._parts.flow
        if is_sent:
            model_input = for_model(state, before=flow.before)
        else:
            model_input = state if self._is_conversation_in_order and not flow.before else self._order_messages(state)
        reporter = self.context.reporter
        ask = partial(model.reply, model_input, config, self.context.plan.tools.offered_tools())
        reply = await (ask() if reporter is None else reporter.ask(model.bound_model, model_input, ask))
        if reply.name != self.context.plan.name:
            reply.name = self.context.plan.name
        complete_calls(reply)
        remaining = value_in(state, "remaining_steps") if is_sent else self.context.steps_left
        if remaining is not None and remaining < 2 and isinstance(reply, AIMessage):
            are_all_direct = all(call["name"] in flow.direct for call in reply.tool_calls)
            if (remaining < 1 and are_all_direct) or all_calls_in(reply):
                reply = AIMessage(id=reply.id, content=NEEDS_MORE_STEPS)
        return {"messages": storable_messages(reply, is_stored=self.context.thread.is_kept)}

    async def _response(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        model, reporter, form = self._parts.model, self.context.reporter, self._parts.response_format
        state = for_model(state, before=False)
        ask = partial(model.respond, state, config, form)
        response = ask() if reporter is None else reporter.ask(model.bound_model, state, ask, response_format=form)
        return {"structured_response": await response}

    def _order_messages(self, state: Any) -> Any:
        """Return the state with its messages in an order that providers accept."""
        # Messages that a hook before the model wrote for the model alone.
        llm_messages = self.context.thread.state.get("llm_input_messages") if self._parts.flow.before else None
        if llm_messages is None and self._is_conversation_in_order:
            return state
        ordered_messages = self._repaired_messages if llm_messages is None else repair(llm_messages).request
        if isinstance(state, dict):
            return {**state, "messages": ordered_messages}
        state.messages = ordered_messages
        return state
