"""Optional hooks of middleware: of the base class `Middleware`, and of objects that have the same methods."""

from collections.abc import Mapping
from typing import Any

import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, tool

from callboard import CallEvent, CallPolicy, IdleMiddlewareWarning, ToolNode, create_react_agent, observe, tool_call
from callboard.middleware import CallNext, Middleware, Output
from callboard.testing import Recorder, ScriptedModel

WAIT = 1000


@tool
async def extra() -> str:
    """Come along with a middleware."""
    return "extra"


class Hooks:
    """All hooks, and a log of their calls."""

    tools = (extra,)
    needs_checkpointer = True

    def __init__(self) -> None:
        super().__init__()
        self.received: dict[str, object] = {}

    async def awrap_tool_call(self, request: Any, call_next: Any) -> Any:
        self.received["wrapper"] = request.tool_call["name"]
        return await call_next(request)

    async def aerror_message(self, message: ToolMessage, request: Any) -> ToolMessage:
        return message.model_copy(update={"content": f"{request.tool_call['name']} failed"})

    def check_tools(self, tools: Mapping[str, BaseTool]) -> None:
        self.received["tools"] = [*tools]

    def check_policies(self, policies: Mapping[str, CallPolicy]) -> None:
        self.received["policies"] = {name: policy.idempotent for name, policy in policies.items()}

    def offers(self, tool: BaseTool) -> bool:
        return tool.name == "work"

    def covers(self, tool: BaseTool) -> bool:
        return tool.name == "broken"

    def redact_value(self, value: Any, *, thread_id: str = "") -> Any:
        return dict.fromkeys(value, "***")


class Derived(Hooks, Middleware):
    """Middleware that derives from the base class."""


class LangChains(Hooks, AgentMiddleware[Any, Any, Any]):
    """Middleware that derives from LangChain's class, which has no such hooks."""

    tools = [extra]


class WithoutHooks(Middleware):
    """Middleware with a wrapper only."""

    async def awrap_tool_call(self, request: Any, call_next: CallNext) -> Output:
        return await call_next(request)


KINDS = {"the base class": Derived, "no base class": Hooks, "LangChain's class": LangChains}
each_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.mark.real_clock  # on trio, LangChain's middleware crosses to asyncio
@each_kind
async def test_every_hook_is_called(kind: type[Any]) -> None:
    """A class of any kind has the hooks by their names."""
    one, recorder, events = kind(), Recorder(), list[CallEvent]()
    broken = recorder.tool("broken", raises=ValueError("no"))
    idempotent = {"work": CallPolicy(idempotent=True)}
    node = ToolNode([recorder.tool("work"), broken], middleware=[one], policies=idempotent, handle_tool_errors=True)

    with observe(events.append):
        calls = [tool_call("work", "1", query="secret"), tool_call("broken", "2"), tool_call("extra", "3")]
        messages = (await node.ainvoke(calls))["messages"]

    assert [message.content for message in messages] == ["secret", "broken failed", "extra"]
    assert one.received["tools"] == ["work", "broken", "extra"]
    assert one.received["policies"] == {"work": True, "broken": None, "extra": None}
    assert [one.name for one in node.offered_tools()] == ["work", "broken"]
    begun = next(event for event in events if event.phase == "begun" and event.call)
    assert begun.call["args"] == {"query": "***"}


@each_kind
def test_a_tool_that_is_given_twice_is_one_tool(kind: type[Any]) -> None:
    """The same tool from a middleware and from the list is no duplicate."""
    assert list(ToolNode([extra], middleware=[kind()]).tools_by_name) == ["extra"]


@each_kind
def test_an_agent_without_a_checkpointer_warns_of_middleware_that_asks_people(kind: type[Any]) -> None:
    """Its questions would be lost."""
    with pytest.warns(IdleMiddlewareWarning, match=f"{kind.__name__} asks a person"):
        create_react_agent(ScriptedModel(["done"]), [Recorder().tool("work")], middleware=[kind()])


def test_the_defaults_of_the_base_class_change_nothing() -> None:
    """A node does not even call them, so that they cost no time and hide no other middleware's decision."""
    called: list[str] = []

    class Watching(WithoutHooks):
        def __getattribute__(self, name: str) -> Any:
            if name in ("aerror_message", "check_tools", "check_policies", "offers", "covers", "redact_value"):
                called.append(name)
            return super().__getattribute__(name)

    node = ToolNode([Recorder().tool("work")], middleware=[Watching()])

    assert [offered_tool.name for offered_tool in node.offered_tools()] == ["work"]
    assert called == []


async def test_a_middleware_may_have_hooks_and_no_wrapper() -> None:
    """It may only bring a tool, or only hide one."""

    class Toolbox(Middleware):
        tools = (extra,)

    node = ToolNode([Recorder().tool("work")], middleware=[Toolbox()])

    result = await node.ainvoke([tool_call("extra", "1")])

    assert result["messages"][0].content == "extra"


def test_a_middleware_that_does_nothing_is_refused() -> None:
    """The wrapper of the base class must not hide that the user's own is missing, or misspelt."""

    class Empty(Middleware):
        pass

    class Slipped(Middleware):
        def offers(self, tool: BaseTool) -> bool:
            return True

        async def awrap_toolcall(self, request: Any, call_next: Any) -> Any:
            raise PermissionError

    for middleware, message in (
        (Empty(), "Empty overrides no method of Middleware; override awrap_tool_call"),
        (Slipped(), "'awrap_toolcall', did you mean 'awrap_tool"),
    ):
        with pytest.raises(TypeError, match=message):
            ToolNode([Recorder().tool("work")], middleware=[middleware])


@pytest.mark.real_clock
async def test_a_sync_wrapper_is_not_passed_over_for_the_one_of_the_base_class() -> None:
    """A guard in sync code must guard awaited calls, too."""

    class Guard(Middleware):
        def wrap_tool_call(self, request: Any, call_next: Any) -> ToolMessage:
            return ToolMessage("guarded", tool_call_id=request.tool_call["id"])

    node = ToolNode([Recorder().tool("work")], middleware=[Guard()])

    awaited = await node.ainvoke([tool_call("work", "1")])

    assert awaited["messages"][0].content == node.invoke([tool_call("work", "1")])["messages"][0].content == "guarded"


def test_a_hook_that_is_set_on_the_instance_is_called() -> None:
    """A redaction that is passed over would show the arguments to observers."""

    class Redacting(Middleware):
        def __init__(self) -> None:
            self.redact_value = lambda value, *, thread_id: {"secret": "hidden"}  # type: ignore[method-assign]

    events: list[CallEvent] = []
    with observe(events.append):
        ToolNode([Recorder().tool("work")], middleware=[Redacting()]).invoke([tool_call("work", "1", secret="s")])
    assert events[0].call is not None
    assert events[0].call["args"] == {"secret": "hidden"}
