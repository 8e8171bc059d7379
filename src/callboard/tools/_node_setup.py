"""Setup of a node: its checked configuration, shared by all its runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool

from callboard._calls._draining import UnderWay
from callboard._loops._entry_mode import from_sync
from callboard._records._events import RunInfo
from callboard._records._policies import OnError, ToolCallLike
from callboard.actors._actor_set import ActorSet
from callboard.tools._chain import Chain, Middleware
from callboard.tools._errors import Judge
from callboard.tools._handler_calls import by_reference
from callboard.tools._inject import InjectedArgs, inject
from callboard.tools._on_engine import elsewhere
from callboard.tools._plan import Plan, plan_for
from callboard.tools._subclassing import Injecting
from callboard.tools._supervision import Supervision
from callboard.tools._tool_facts import ToolFacts
from callboard.tools._vocabulary import ToolCallRequest, ToolRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Checked configuration of a node."""

    name: str
    tools: Mapping[str, BaseTool]
    plans: ToolFacts[Plan]
    """Plans of the tools that have been called."""
    supervision: Supervision
    messages_key: str
    chain: Chain | None
    offers: Callable[[BaseTool], bool]
    """Function that tells whether the middleware lets the model know of a tool now."""
    shown: Callable[[ToolCallLike, RunInfo | None], ToolCallLike]
    """Function that makes the call for observers, redacted by middleware."""
    at_tool: Judge
    """Judge of an error at the tool, inside of all middleware."""
    at_end: Judge
    """Judge of an error that leaves the middleware."""
    at_override: Judge
    """Judge of an error that leaves a subclass's override around the call."""
    on_error: OnError
    own_call: Callable[[str], Middleware] | None
    """Subclass's override around each call, by the kind of the input."""
    own_injection: Injecting | None
    """Subclass's override of the injection."""
    actors: ActorSet
    """Actors that have handlers among the node's tools."""
    under_way: UnderWay
    """Running runs of the node, for drains."""
    max_calls: int | None
    """Maximum number of calls of one reply that run; `None` for all."""

    def without_own_call(self) -> "Setup":
        """Return the setup without a subclass's override around each call."""
        return replace(self, own_call=None)

    def plan(self, tool: BaseTool) -> Plan:
        """Return the plan of a tool for the run's entry mode (sync or async).

        A middleware may pass a tool of its own.
        """
        # A tool that a middleware makes for one call is not cached: its plan would keep it alive.
        plan = self.plans.of(tool) if self.tools.get(tool.name) is tool else by_reference(plan_for(tool))
        if plan.from_sync is not None and from_sync():
            plan = plan.from_sync
        engine = self.supervision.engines.get(tool.name) if self.supervision.engines else None
        return plan if engine is None else elsewhere(plan, engine, self.actors)

    def description(self, name: str) -> str | None:
        """Return the description of a tool; `None` for an unknown tool."""
        return getattr(self.tools.get(name), "description", None)

    def inject(self, call: ToolCall, injected: InjectedArgs, runtime: ToolRuntime[Any, Any]) -> ToolCall:
        """Return a call with its injected arguments.

        Forged values are removed before a subclass's override sees the call.
        """
        if self.own_injection is None:
            return inject(call, injected, runtime, self.messages_key)
        written = {name: value for name, value in call["args"].items() if name not in injected.forbidden}
        ready = self.own_injection({**call, "args": written}, runtime.state, runtime.store)
        if injected.runtime is None:
            return ready
        return {**ready, "args": {**ready["args"], injected.runtime: runtime}}

    def overrides(self, kind: str, entries: Middleware | None) -> Chain | None:
        """Return a subclass's overrides around each call as a chain, the outermost first; `None` if there are none."""
        if entries is None and self.own_call is None:
            return None
        own = None if self.own_call is None else self.own_call(kind)
        return Chain([one for one in (entries, own) if one is not None], [])

    def request(self, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> ToolCallRequest:
        """Return a request without its `__setattr__`, as the check there costs more than the rest of a middleware."""
        request = object.__new__(ToolCallRequest)
        request.__dict__.update(tool_call=call, tool=self.tools.get(call["name"]), state=runtime.state, runtime=runtime)
        return request
