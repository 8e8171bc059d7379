"""Mistakes that would otherwise be silent.

A misspelt hook, a wrapper that returns nothing, a missing `super()` call.
"""

from collections.abc import Callable
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langgraph.graph import START, MessagesState, StateGraph

from callboard import IgnoredHooksWarning, ToolNode, create_react_agent, tool_call
from callboard.middleware import Supervise
from callboard.testing import Recorder, ScriptedModel, calls

pytestmark = pytest.mark.real_clock

BUILDS: dict[str, Callable[[Any], object]] = {
    "ToolNode": lambda one: ToolNode([Recorder().tool("work")], middleware=[one]),
    "create_react_agent": lambda one: create_react_agent(
        ScriptedModel([]), [Recorder().tool("work")], middleware=[one]
    ),
    "Supervise": lambda one: Supervise(middleware=[one]),
}


class Guard:
    """Middleware with a misspelt hook: it would block calls."""

    def warp_tool_call(self, request: Any, handler: Any) -> Any:
        raise PermissionError


class AgentGuard(AgentMiddleware):
    """LangChain middleware with a misspelt hook."""

    async def awrap_toolcall(self, request: Any, handler: Any) -> Any:
        raise PermissionError


class Watcher(AgentMiddleware):
    """LangChain middleware with a misspelt hook of the model."""

    def befor_model(self, state: Any, runtime: Any) -> None:
        raise PermissionError


class HalfGuard(AgentMiddleware):
    """Middleware with one correct and one misspelt hook."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return handler(request)

    async def awarp_tool_call(self, request: Any, handler: Any) -> Any:
        raise PermissionError


class Tidy(AgentMiddleware):
    """Middleware with methods whose names resemble no hook."""

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return self.wrap_result(self._wrap_tool_call(handler(request)))

    def wrap_result(self, result: Any) -> Any:
        return result

    def check_tools(self, tools: Any) -> None:
        for name in tools:
            self.check_tool(name)

    def check_tool(self, name: str) -> None:
        """Accept every name."""

    def _wrap_tool_call(self, result: Any) -> Any:
        return result


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.parametrize(
    ("middleware", "written", "hook_name"),
    [
        (Guard(), "warp_tool_call", "wrap_tool_call"),
        (AgentGuard(), "awrap_toolcall", "awrap_tool_call"),
        (Watcher(), "befor_model", "before_model"),
    ],
)
def test_a_middleware_whose_only_hook_is_misspelt_is_refused(
    build: Any, middleware: Any, written: str, hook_name: str
) -> None:
    """The error shows the misspelt letter instead of only saying that there is no hook."""
    with pytest.raises(TypeError, match=f"it has '{written}', did you mean '{hook_name}'"):
        build(middleware)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_a_misspelt_hook_beside_another_is_warned_of(build: Any) -> None:
    """The middleware would work for sync or async calls only. The name may be intended, so this is a warning."""
    with pytest.warns(IgnoredHooksWarning, match="HalfGuard .* it has 'awarp_tool_call', did you mean 'awrap_tool_"):
        build(HalfGuard())


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_methods_of_its_own_are_not_taken_for_hooks(build: Any) -> None:
    """A false warning would fail the tests of users who treat warnings as errors."""
    build(Tidy())


STATE = {"messages": [calls(tool_call("work", "c1", item="x"))]}


def forgetful(request: Any, execute: Any) -> Any:
    """Wrapper without a `return`."""
    execute(request)


async def aforgetful(request: Any, execute: Any) -> Any:
    """Async wrapper without a `return`."""
    await execute(request)


@pytest.mark.parametrize("wrapper", [{"wrap_tool_call": forgetful}, {"awrap_tool_call": aforgetful}])
async def test_a_wrapper_that_returns_nothing_is_told(wrapper: Any, caplog: pytest.LogCaptureFixture) -> None:
    """LangGraph passes `None` on and tests for it. Then the next node fails, and the model gets no result."""
    node = ToolNode([Recorder().tool("work")], **wrapper)
    agent = create_react_agent(ScriptedModel([calls(("work", {"item": "x"})), "done"]), node)
    warning = "wrap_tool_call returned None for call 'c1'; it has to return a ToolMess"
    assert await node.ainvoke(STATE) == {"messages": [None]}
    assert warning in caplog.text
    caplog.clear()
    await agent.ainvoke({"messages": [("user", "go")]})
    assert "wrap_tool_call returned None for call" in caplog.text


async def test_what_a_wrapper_returns_else_goes_on_as_in_langgraph() -> None:
    """LangGraph accepts other values here, and users return messages for other calls."""
    other_message = ToolMessage("other", tool_call_id="another")
    result = await ToolNode([Recorder().tool("work")], wrap_tool_call=lambda *_: other_message).ainvoke(STATE)
    assert result == {"messages": [other_message]}


def test_an_async_function_as_the_sync_wrapper_is_refused() -> None:
    """The wrapper would return a coroutine instead of a message, and nothing would await the coroutine."""
    with pytest.raises(TypeError, match=r"give <function aforgetful .* as awrap_tool_call="):
        ToolNode([Recorder().tool("work")], wrap_tool_call=aforgetful)


class Hasty(ToolNode):
    """Node subclass that does not call its base constructor."""

    def __init__(self, tools: Any) -> None:
        self.tools = tools


USES: dict[str, Callable[[ToolNode], object]] = {
    "invoke": lambda node: node.invoke(STATE),
    "tools_by_name": lambda node: node.tools_by_name,
    "agent": lambda node: create_react_agent(ScriptedModel([]), node),
    "graph": lambda node: (
        StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile().invoke(STATE)
    ),
    "repr": repr,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_subclass_that_does_not_call_its_base_is_told(use: Any) -> None:
    """An error about a missing attribute would tell the author nothing, so the error names the `super()` call."""
    with pytest.raises(AttributeError, match=r"Hasty is not ready: its __init__ has to call super\(\).__init__\(tools"):
        use(Hasty([]))
