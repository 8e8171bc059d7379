"""What a node was built with, checked and ready to use: the same for all of its runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import ToolCall
from langchain_core.tools import BaseTool

from callboard._call_events import RunInfo
from callboard._calls._under_way import UnderWay
from callboard._loops._door import from_sync
from callboard._types import OnError, ToolCallLike
from callboard.actors._actor_set import ActorSet
from callboard.tools._chain import Chain, Middleware
from callboard.tools._elsewhere import elsewhere
from callboard.tools._errors import Judge
from callboard.tools._handler_calls import by_reference
from callboard.tools._inject import InjectedArgs, inject
from callboard.tools._own_methods import Injecting
from callboard.tools._plan import Plan, plan_for
from callboard.tools._supervision import Supervision
from callboard.tools._tool_facts import ToolFacts
from callboard.tools._vocabulary import ToolCallRequest, ToolRuntime


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a node was built with, ready to use."""

    name: str
    tools: Mapping[str, BaseTool]
    plans: ToolFacts[Plan]
    """Of the tools that have been called."""
    supervision: Supervision
    messages_key: str
    chain: Chain | None
    offers: Callable[[BaseTool], bool]
    """Which tools the middleware lets a model know of now."""
    shown: Callable[[ToolCallLike, RunInfo | None], ToolCallLike]
    """A call as the middleware lets observers see it."""
    at_tool: Judge
    """What becomes of an error where the tool raised it: a text for the model, or `None` to raise it."""
    at_end: Judge
    """What becomes of an error where it is about to leave the call."""
    at_override: Judge
    """What becomes of an error where it is about to leave what a subclass of the node has around the call."""
    on_error: OnError
    own_call: Callable[[str], Middleware] | None
    """From the kind of an input to what a subclass has around each call."""
    own_injection: Injecting | None
    """What a subclass has in place of our injection."""
    actors: ActorSet
    """Those whose handlers are among the tools."""
    under_way: UnderWay
    """The runs of the node that go on now."""
    max_calls: int | None
    """How many calls of one reply run; `None` for all."""

    def without_own_call(self) -> "Setup":
        """The same, with nothing of a subclass's around each call."""
        return replace(self, own_call=None)

    def plan(self, tool: BaseTool) -> Plan:
        """How to run a tool by the door that was entered; middleware may bring one that the node does not know."""
        # A tool that a middleware makes for one call is not kept: its plan would keep it alive.
        plan = self.plans.of(tool) if self.tools.get(tool.name) is tool else by_reference(plan_for(tool))
        if plan.from_sync is not None and from_sync():
            plan = plan.from_sync
        engine = self.supervision.engines.get(tool.name) if self.supervision.engines else None
        return plan if engine is None else elsewhere(plan, engine, self.actors)

    def description(self, name: str) -> str | None:
        """What a tool says of itself; `None` for one that there is not."""
        return getattr(self.tools.get(name), "description", None)

    def inject(self, call: ToolCall, injected: InjectedArgs, runtime: ToolRuntime[Any, Any]) -> ToolCall:
        """A call with what its tool asks for; what the model forged is gone before a subclass sees it."""
        if self.own_injection is None:
            return inject(call, injected, runtime, self.messages_key)
        written = {name: value for name, value in call["args"].items() if name not in injected.forbidden}
        ready = self.own_injection({**call, "args": written}, runtime.state, runtime.store)
        if injected.runtime is None:
            return ready
        return {**ready, "args": {**ready["args"], injected.runtime: runtime}}

    def overrides(self, kind: str, entries: Middleware | None) -> Chain | None:
        """What a subclass has around each call, for a kind of input, the first outermost; `None` for nothing."""
        if entries is None and self.own_call is None:
            return None
        own = None if self.own_call is None else self.own_call(kind)
        return Chain([one for one in (entries, own) if one is not None], [])

    def request(self, call: ToolCall, runtime: ToolRuntime[Any, Any]) -> ToolCallRequest:
        """A request, past the check in its `__setattr__`, which costs more than all the rest of a middleware."""
        request = object.__new__(ToolCallRequest)
        request.__dict__.update(tool_call=call, tool=self.tools.get(call["name"]), state=runtime.state, runtime=runtime)
        return request
