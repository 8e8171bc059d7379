"""What a node was built with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from langchain_core.tools import BaseTool

from callboard._types import OnError, RunInfo, ToolCallLike
from callboard.middleware._chain import Chain
from callboard.tools._errors import Judge
from callboard.tools._plan import Plan, plan_for
from callboard.tools._supervision import Supervision


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a node was built with, ready to use."""

    name: str
    tools: Mapping[str, BaseTool]
    plans: dict[str, Plan]
    supervision: Supervision
    messages_key: str
    link: Chain | None
    offers: Callable[[BaseTool], bool]
    """Which tools the links let a model know of now."""
    shown: Callable[[ToolCallLike, RunInfo | None], ToolCallLike]
    """A call as the links let those who watch see it."""
    at_tool: Judge
    """What becomes of an error where the tool raised it: a text for the model, or `None` to raise it."""
    at_end: Judge
    """The same, where it is about to leave the call."""
    on_error: OnError

    def plan(self, name: str, tool: BaseTool) -> Plan:
        """How to run a tool; middleware may bring one that the node does not know."""
        plan = self.plans.get(name)
        if plan is None or plan.tool is not tool or not plan.holds():
            plan = plan_for(tool)
            if self.tools.get(name) is tool:
                self.plans[name] = plan
        return plan
