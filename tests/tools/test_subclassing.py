"""Subclasses of `ToolNode`: their overrides apply to sync and async runs, or the class is refused (promise 13)."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, patch

import anyio
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from langgraph.graph import StateGraph
from langgraph.graph.message import MessagesState
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.types import Command, interrupt

from callboard import AgentState, CallsInterrupted, ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from tests.helpers import contents

pytestmark = pytest.mark.real_clock

INVOKES = ("invoke", "ainvoke")
"""Public methods that run the calls of an input, first the sync one."""

WAIT = 20

RAN: list[str] = []
"""Arguments of all calls of the two tools."""


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def delete(path: str) -> str:
    """Delete a file, in a thread."""
    RAN.append(path)
    return f"deleted {path}"


async def adelete(path: str) -> str:
    """Delete a file."""
    RAN.append(path)
    return f"deleted {path}"


def ask(path: str) -> str:
    """Ask."""
    return f"{path}: {interrupt('really?')}"


def reply(*names: str, **args: Any) -> Any:
    return calls(*(tool_call(name, **(args or {"path": "/"})) for name in names))


def deny_call(call: Any) -> ToolMessage:
    return ToolMessage("denied", name=call["name"], tool_call_id=call["id"])


async def run_with_answer(node: ToolNode, answer: str, *names: str) -> list[str]:
    """Return the contents after a run that asks and a run with the answer."""
    state = {"messages": [reply(*names)]}
    with anyio.fail_after(WAIT):
        with pytest.raises(CallsInterrupted) as caught:
            await node.ainvoke(state)
        return contents(await node.ainvoke(state, ledger=caught.value.ledger, resume=answer))


async def run(runnable: Any, *names: str, sync: bool = False) -> Any:
    """Run a node or a graph with calls of these tools."""
    with anyio.fail_after(WAIT):
        if sync:
            return await anyio.to_thread.run_sync(lambda: runnable.invoke({"messages": [reply(*names)]}))
        return await runnable.ainvoke({"messages": [reply(*names)]})


async def in_agent(node: ToolNode, version: Any, *names: str, sync: bool = False, **options: Any) -> Any:
    """Return the state of an agent after these calls."""
    agent = create_react_agent(ScriptedModel([reply(*names or ("delete",)), "done"]), node, version=version, **options)
    with anyio.fail_after(WAIT):
        if sync:
            return await anyio.to_thread.run_sync(lambda: agent.invoke({"messages": [("user", "go")]}))
        return await agent.ainvoke({"messages": [("user", "go")]})


DOORS = ["ainvoke", "invoke", "sync graph", "agent v1", "agent v2", "sync agent v1", "sync agent v2"]


async def by(door: str, node: Any) -> Any:
    """Run a call of each of the two tools."""
    names, sync = ("delete", "adelete"), "sync" in door or door == "invoke"
    if "agent" in door:
        return await in_agent(node, door[-2:], *names, sync=sync)
    if "graph" in door:
        node = StateGraph(MessagesState).add_node("tools", node).set_entry_point("tools").compile()
    return await run(node, *names, sync=sync)


Act = Callable[..., Any]
"""Body of overrides: takes the method's name, the method of the base class, and the arguments."""


def overriding(act: Act, *names: str, base: Any = ToolNode) -> Any:
    """Return a subclass that overrides these methods, sync or async."""

    def override(name: str) -> Any:
        original = getattr(base, name)

        @functools.wraps(original)  # with its signature, by which LangGraph passes arguments
        def method(self: Any, *args: Any, **options: Any) -> Any:
            return act(name, functools.partial(original, self), *args, **options)

        @functools.wraps(original)
        async def amethod(self: Any, *args: Any, **options: Any) -> Any:
            result = act(name, functools.partial(original, self), *args, **options)
            return await result if asyncio.iscoroutine(result) else result

        return amethod if asyncio.iscoroutinefunction(original) else method

    return type("Own", (base,), {name: override(name) for name in names})


def counting(*names: str) -> tuple[Any, list[str]]:
    """Return a subclass that records each call of these methods and calls the base class."""
    method_names: list[str] = []

    def count(name: str, base: Any, *args: Any, **options: Any) -> Any:
        method_names.append(name)
        return base(*args, **options)

    return overriding(count, *names), method_names


def deny(name: str, base: Any, node_input: Any, *_: Any, **__: Any) -> Any:
    requested_calls = node_input["messages"][-1].tool_calls if "messages" in node_input else [node_input["tool_call"]]
    return {"messages": [deny_call(call) for call in requested_calls]}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", INVOKES)
async def test_what_an_override_denies_does_not_run_by_any_door(name: str, door: str) -> None:
    """A permission check in one method must not be bypassed through the other, or through an agent."""
    result = await by(door, overriding(deny, name)([delete, adelete]))
    assert contents(result) == ["denied", "denied"]
    assert RAN == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("names", [("invoke",), ("ainvoke",), INVOKES], ids="+".join)
async def test_an_override_that_goes_on_runs_once(names: tuple[str, ...], door: str) -> None:
    """The override runs once; of two overrides, that of the entry point alone."""
    cls, method_names = counting(*names)
    result = await by(door, cls([delete, adelete]))
    assert contents(result) == ["deleted /", "deleted /"]
    assert RAN == ["/", "/"]
    is_sync = "sync" in door or door == "invoke"
    expected = [names[0 if is_sync else -1]]
    assert sorted(method_names) == sorted(expected * (2 if door.endswith("v2") else 1))


INNER = [
    name
    for name, value in vars(LangGraphToolNode).items()
    if (callable(value) or isinstance(value, property)) and not name.startswith(("__", "_abc"))
]
"""Methods of LangGraph's class. A new version may add some that subclasses will override."""


@pytest.mark.every_variant
@pytest.mark.parametrize("is_mixed_in", [False, True])
@pytest.mark.parametrize("name", [*INNER, "_tools_by_name", "_injected_args", "_handle_tool_errors", "_messages_key"])
def test_an_override_that_would_not_be_heard_is_refused_with_a_remedy(name: str, is_mixed_in: bool) -> None:
    """LangGraph's private methods are not called here, so the error comes when the class is defined."""
    body = {name: lambda self: None}
    bases: tuple[type, ...] = (type("Mixin", (), body), ToolNode) if is_mixed_in else (ToolNode,)
    remedy = "(use middleware=|override ainvoke|give it to the constructor)"
    with pytest.raises(TypeError, match=rf"Own\.{name} would never be called by callboard's ToolNode: {remedy}"):
        type("Own", bases, {} if is_mixed_in else body)


def test_an_async_invoke_is_refused() -> None:
    """Sync code would get a coroutine that nobody awaits."""

    async def invoke(self: Any, *args: Any, **options: Any) -> None: ...

    with pytest.raises(TypeError, match=r"Own\.invoke is async"):
        type("Own", (ToolNode,), {"invoke": invoke})


def test_an_override_of_inject_tool_args_is_called_by_those_who_call_it() -> None:
    """langgraph-bigtool and others call this method themselves; a node injects arguments on its own."""

    class Own(ToolNode):
        def inject_tool_args(self, tool_call: Any, input: Any, store: Any = None) -> Any:
            return {**super().inject_tool_args(tool_call, input, store), "seen": True}

    assert Own([delete]).inject_tool_args(tool_call("delete", path="/"), {"messages": []})["seen"]


class CrossingToSync(ToolNode):
    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        RAN.append("ainvoke")
        return self.invoke(input, config)


class CrossingToAsync(ToolNode):
    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        RAN.append("invoke")
        return asyncio.run(self.ainvoke(input, config))


@pytest.mark.parametrize("door", ["ainvoke", "agent v1", "agent v2"])
async def test_an_override_of_invoke_that_runs_ainvoke_runs_once(door: str) -> None:
    """`asyncio.run(self.ainvoke(...))` in `invoke` would otherwise recurse without end."""
    result = await by(door, CrossingToAsync([delete, adelete]))
    times = 2 if door.endswith("v2") else 1
    assert contents(result) == ["deleted /", "deleted /"]
    assert len(RAN) == 2 + times
    assert RAN.count("/") == 2


@pytest.mark.parametrize("door", ["ainvoke", "agent v1"])
async def test_an_override_of_ainvoke_that_runs_invoke_is_told_what_to_call(door: str) -> None:
    """`invoke` runs `ainvoke`: the override would recurse without end."""
    with pytest.raises(RuntimeError, match=r"CrossingToSync\.ainvoke calls invoke.* super\(\)\.ainvoke"):
        await by(door, CrossingToSync([delete]))
    assert "/" not in RAN


class Noted(AgentState):
    note: str


class Changing(ToolNode):
    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        if "tool_call" in input:
            changed = {"tool_call": {**input["tool_call"], "args": {"path": "/new"}}}
        else:
            *before, last = input["messages"]
            changed_calls = [{**call, "args": {"path": "/new"}} for call in last.tool_calls]
            changed = {"messages": [*before, AIMessage("", tool_calls=changed_calls, id=last.id)]}
        result = await super().ainvoke({**input, **changed}, config, **kwargs)
        for message in result["messages"]:
            message.content += "!"
        return [result, Command(update={"note": "seen"})]


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_what_an_override_adds_or_changes_reaches_the_state_of_the_agent(version: Any) -> None:
    """In LangGraph a node's result is a state update, and the input that an override passes on is what runs."""
    state = await in_agent(Changing([delete]), version, state_schema=Noted)
    assert contents(state) == ["deleted /new!"]
    assert state["note"] == "seen"


class Dropping(ToolNode):
    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return {"messages": []}


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_entry_that_leaves_a_call_without_a_message_is_named(version: Any) -> None:
    """Promise 2: providers refuse a conversation with an unanswered call, so the error names the method."""
    with pytest.raises(ValueError, match=r"Dropping\.ainvoke returned no message for call"):
        await in_agent(Dropping([delete]), version)


class GuardOfFirst(ToolNode):
    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        *before, last = input["messages"]
        first, second = last.tool_calls
        reply_with_second = last.model_copy(update={"tool_calls": [second]})
        result = super().invoke({**input, "messages": [*before, reply_with_second]}, config, **kwargs)
        return {"messages": [deny_call(first), *result["messages"]]}


async def test_an_entry_may_run_some_of_the_calls() -> None:
    """Public guards answer repeated calls themselves and pass the others on."""
    state = await in_agent(GuardOfFirst([delete, adelete]), "v1", "delete", "adelete")
    assert contents(state) == ["denied", "deleted /"]
    assert RAN == ["/"]


async def test_a_nested_call_of_the_same_node_is_heard_too() -> None:
    """A tool that calls its own node must not bypass the guard."""
    node: ToolNode

    async def outer() -> str:
        """Call the node again."""
        return str(contents(await node.ainvoke({"messages": [reply("delete")]})))

    class Guard(ToolNode):
        def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
            if any(call["name"] == "delete" for call in input["messages"][-1].tool_calls):
                return {"messages": [deny_call(call) for call in input["messages"][-1].tool_calls]}
            return super().invoke(input, config, **kwargs)

    node = Guard([outer, delete])
    result = await node.ainvoke({"messages": [reply("outer", p=1)]})
    assert contents(result) == ["['denied']"]
    assert RAN == []


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_sync_code_reaches_the_sync_half_of_a_tool_through_an_own_run(version: Any) -> None:
    """Sync and async functions of a tool may use different clients, and an override must not change which one runs."""

    async def other(path: str) -> str:
        return f"awaited {path}"

    delete_tool = StructuredTool.from_function(delete, coroutine=other, name="delete", description="Delete.")
    for name in INVOKES:
        cls, method_names = counting(name)
        state = await in_agent(cls([delete_tool]), version, sync=True)
        assert (contents(state), method_names) == (["deleted /"], [name])


@pytest.mark.parametrize("name", INVOKES)
async def test_a_run_within_an_own_one_keeps_its_ledger(name: str) -> None:
    """Calls that finished before a question do not run again, although the override knows nothing of ledgers."""
    cls, _ = counting(name)
    assert await run_with_answer(cls([ask, delete]), "yes", "ask", "delete") == ["/: yes", "deleted /"]
    assert RAN == ["/"]


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_mock_on_the_class_is_called_by_the_agent(version: Any) -> None:
    """Public tests use `patch.object(ToolNode, ...)` to keep tools from running. A missed patch would run them."""
    answer = {"messages": [ToolMessage("mocked", tool_call_id="call_1")]}
    with patch.object(ToolNode, "ainvoke", AsyncMock(return_value=answer)) as mock:
        state = await in_agent(ToolNode([delete]), version)
    assert contents(state) == ["mocked"]
    assert mock.await_count == 1
    assert RAN == []
