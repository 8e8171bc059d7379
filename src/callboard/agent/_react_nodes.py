"""Nodes of an agent of `create_react_agent`: requests to its model, its structured response, and its hooks."""

from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig

from callboard.agent._model import ChosenModel, FixedModel
from callboard.agent._run_context import NodeBodies, RunContext
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

    model_node = AGENT

    def __init__(self, parts: ReactParts, context: RunContext) -> None:
        super().__init__(context)
        self._parts = parts

    def output(self, node: str, node_input: Any, config: RunnableConfig, *, is_sent: bool) -> Awaitable[Any]:
        if node == AGENT:
            return self._reply(node_input, config, is_sent)
        if node == RESPONSE:
            return self._response(node_input, config)
        return super().output(node, node_input, config, is_sent=is_sent)

    async def _reply(self, state: Any, config: RunnableConfig, is_sent: bool) -> dict[str, Any]:
        """Send the state to the model; return the reply as an update of the state, in a form that can be stored."""
        model, flow = self._parts.model, self._parts.flow
        model_input, reporter = state, self.context.reporter
        # Messages that a hook before the model wrote for the model alone.
        llm_messages = self.context.thread.state.get("llm_input_messages") if flow.before else None
        if is_sent:
            model_input = for_model(state, before=flow.before)
        elif llm_messages is not None or not self.is_conversation_in_order:
            ordered_messages = self.repaired_messages if llm_messages is None else repair(llm_messages).request
            if isinstance(state, dict):
                model_input = {**state, "messages": ordered_messages}
            else:
                state.messages = ordered_messages
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
