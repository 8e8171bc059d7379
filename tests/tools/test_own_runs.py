"""Subclasses of `ToolNode` that override `_func` or `_afunc`, as most public ones do (promise 13)."""

import asyncio
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
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from callboard import CallsInterrupted, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, tool_call

from ._doors import DOORS, RUNS, WAIT, adelete, contents, delete, denied, reply

pytestmark = pytest.mark.real_clock


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    RUNS.clear()


def all_denied(input: Any) -> Any:
    made = input["messages"][-1].tool_calls if "messages" in input else [input["tool_call"]]
    return {"messages": [denied(call) for call in made]}


class SyncGuard(ToolNode):
    """Node subclass that denies every call in its sync method."""

    def _func(self, input: Any, config: Any, runtime: Any) -> Any:
        return all_denied(input)


class AsyncGuard(ToolNode):
    """Node subclass that denies every call in its async method."""

    async def _afunc(self, input: Any, config: Any, runtime: Any) -> Any:
        return all_denied(input)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("guard", [SyncGuard, AsyncGuard])
async def test_what_an_own_run_denies_does_not_run_by_any_door(guard: type[ToolNode], door: str) -> None:
    """A permission check in one method must not be bypassed through the other, or through an agent."""
    with anyio.fail_after(WAIT):
        result = await DOORS[door](guard([delete, adelete]))
    assert contents(result) == ["denied", "denied"]
    assert RUNS == []


def counting(base: Any, *names: str) -> tuple[Any, list[str]]:
    """Return a subclass that records each of these methods and calls the base class."""
    seen: list[str] = []

    class Counting(base):  # type: ignore[misc]
        if "_func" in names:

            def _func(self, input: Any, config: RunnableConfig, runtime: Runtime) -> Any:
                seen.append("_func")
                return super()._func(input, config, runtime)

        if "_afunc" in names:

            async def _afunc(self, input: Any, config: RunnableConfig, runtime: Runtime) -> Any:
                seen.append("_afunc")
                return await super()._afunc(input, config, runtime)

        if "invoke" in names:

            def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
                seen.append("invoke")
                return super().invoke(input, config, **kwargs)

    return Counting, seen


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("names", [("_func",), ("_afunc",), ("_func", "_afunc"), ("invoke", "_func")])
async def test_an_own_run_that_goes_on_runs_once(names: tuple[str, ...], door: str) -> None:
    """The override runs once per batch, in the method that matches the entry point."""
    cls, seen = counting(ToolNode, *names)
    with anyio.fail_after(WAIT):
        result = await DOORS[door](cls([delete, adelete]))
    assert contents(result) == ["deleted /", "deleted /"]
    assert RUNS == ["/", "/"]
    sync = "sync" in door or door == "invoke"
    once = list(names) if names != ("_func", "_afunc") else ["_func" if sync else "_afunc"]
    assert sorted(seen) == sorted(once * (2 if door.endswith("v2") else 1))


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_sync_code_reaches_the_sync_half_of_a_tool_through_an_own_run(version: Any) -> None:
    """Sync and async functions of a tool may use different clients, and an override must not change which one runs."""

    async def other(path: str) -> str:
        return f"awaited {path}"

    both = StructuredTool.from_function(delete, coroutine=other, name="delete", description="Delete.")
    cls, seen = counting(ToolNode, "_func")
    agent = create_react_agent(ScriptedModel([reply("delete"), "done"]), cls([both]), version=version)
    with anyio.fail_after(WAIT):
        state = await anyio.to_thread.run_sync(lambda: agent.invoke({"messages": [("user", "go")]}))
    assert (contents(state), seen) == (["deleted /"], ["_func"])


@pytest.mark.parametrize("half", ["_func", "_afunc"])
async def test_an_own_run_is_given_what_langgraph_passes(half: str) -> None:
    """The override gets the input, a complete config and the runtime under LangGraph's parameter names."""
    seen: dict[type, list[Any]] = {}

    def subclass(base: Any) -> Any:
        def note(input: Any, config: RunnableConfig, runtime: Runtime) -> None:
            node = config["metadata"]["langgraph_node"]
            seen[base] = [input, node, config["configurable"]["who"], type(runtime), runtime.context]

        class Noting(base):  # type: ignore[misc]
            def _func(self, input: Any, config: RunnableConfig, runtime: Runtime) -> Any:
                note(input, config, runtime)
                return super()._func(input, config, runtime)

            async def _afunc(self, input: Any, config: RunnableConfig, runtime: Runtime) -> Any:
                note(input, config, runtime)
                return await super()._afunc(input, config, runtime)

        return Noting([delete])

    state, config = {"messages": [reply("delete")]}, {"configurable": {"who": "al"}}
    for base in (ToolNode, LangGraphToolNode):
        builder: Any = StateGraph(MessagesState, context_schema=dict).add_node("tools", subclass(base))
        graph = builder.set_entry_point("tools").compile()
        run = graph.invoke if half == "_func" else lambda *a, **k: asyncio.run(graph.ainvoke(*a, **k))  # noqa: B023
        with anyio.fail_after(WAIT):
            await anyio.to_thread.run_sync(lambda: run(state, config, context={"a": 1}))  # noqa: B023
    assert seen[ToolNode] == seen[LangGraphToolNode]


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_what_an_own_run_changes_reaches_the_state_of_the_agent(version: Any) -> None:
    """Public subclasses merge commands and add keys. The input that they pass on is what runs."""

    def elsewhere(call: Any) -> Any:
        return {**call, "args": {"path": "/elsewhere"}}

    class Changing(ToolNode):
        async def _afunc(self, given: Any, config: RunnableConfig, runtime: Runtime) -> Any:
            if "tool_call" in given:
                changed = {"tool_call": elsewhere(given["tool_call"])}
            else:
                *before, last = given["messages"]
                reply = AIMessage("", tool_calls=[elsewhere(call) for call in last.tool_calls], id=last.id)
                changed = {"messages": [*before, reply]}
            result = await super()._afunc({**given, **changed}, config, runtime)
            return [Command(update={"messages": result["messages"], "note": "seen"})]

    from callboard import AgentState

    class Noted(AgentState):
        note: str

    agent = create_react_agent(
        ScriptedModel([reply("delete"), "done"]), Changing([delete]), version=version, state_schema=Noted
    )
    with anyio.fail_after(WAIT):
        state = await agent.ainvoke({"messages": [("user", "go")]})
    assert contents(state) == ["deleted /elsewhere"]
    assert state["note"] == "seen"


@pytest.mark.parametrize("names", [("_func",), ("_afunc",)])
async def test_a_run_within_an_own_one_keeps_its_ledger(names: tuple[str, ...]) -> None:
    """Calls that finished before a question do not run again, although the override knows nothing of ledgers."""

    def ask(path: str) -> str:
        """Ask."""
        return f"{path}: {interrupt('really?')}"

    cls, _ = counting(ToolNode, *names)
    node, state = cls([ask, delete]), {"messages": [reply("ask", "delete")]}
    with anyio.fail_after(WAIT):
        with pytest.raises(CallsInterrupted) as asked:
            await node.ainvoke(state)
        result = await node.ainvoke(state, ledger=asked.value.ledger, resume="yes")
    assert contents(result) == ["/: yes", "deleted /"]
    assert RUNS == ["/"]


async def test_the_base_methods_run_by_themselves() -> None:
    """Tests and wrappers call these methods directly with an input, a config and a runtime."""
    node, state = ToolNode([delete]), {"messages": [reply("delete")]}
    with anyio.fail_after(WAIT):
        first = await node._afunc(state, {}, Runtime())
        second = await anyio.to_thread.run_sync(lambda: node._func(state, {}, Runtime()))
    assert contents(first) == contents(second) == ["deleted /"]


async def test_one_half_cannot_go_on_with_the_run_of_the_other() -> None:
    """The run would start again without what the agent knows of it. The error names the method to call."""

    class Crossing(ToolNode):
        async def _afunc(self, input: Any, config: RunnableConfig, runtime: Runtime) -> Any:
            return self._func(input, config, runtime)

    with anyio.fail_after(WAIT), pytest.raises(RuntimeError, match=r"super\(\)\._afunc"):
        await Crossing([delete]).ainvoke({"messages": [reply("delete")]})
    assert RUNS == []


def test_an_own_run_with_another_signature_is_refused() -> None:
    """A signature from before LangGraph 1.0 would fail in the middle of a run."""
    with pytest.raises(TypeError, match=r"_afunc.* cannot be called as ToolNode calls it, with \(self, input, config"):

        class Old(ToolNode):
            async def _afunc(self, input: Any, config: Any, *, store: Any) -> Any:  # type: ignore[override]
                return None

    with pytest.raises(TypeError, match="_func is async"):

        class Mixed(ToolNode):
            async def _func(self, input: Any, config: Any, runtime: Any) -> Any:
                return None


@pytest.mark.parametrize("name", ["ainvoke", "_afunc"])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_mock_on_the_class_is_called_by_the_agent(name: str, version: Any) -> None:
    """Public tests use `patch.object(ToolNode, ...)` to keep tools from running. A missed patch would run them."""
    answer = {"messages": [ToolMessage("mocked", tool_call_id="c1")]}
    agent = create_react_agent(ScriptedModel([reply_with_id(), "done"]), ToolNode([delete]), version=version)
    with anyio.fail_after(WAIT), patch.object(ToolNode, name, AsyncMock(return_value=answer)) as mock:
        state = await agent.ainvoke({"messages": [("user", "go")]})
    assert contents(state) == ["mocked"]
    assert mock.await_count == 1
    assert RUNS == []


def reply_with_id() -> AIMessage:
    return AIMessage("", tool_calls=[tool_call("delete", "c1", path="/")])


async def test_a_mock_of_the_inner_method_is_called_by_the_node() -> None:
    """LangGraph's `ainvoke` only calls the inner method, so tests patch it, on the class or an instance."""
    answer = {"messages": [ToolMessage("mocked", tool_call_id="c1")]}
    node, state = ToolNode([delete]), {"messages": [reply_with_id()]}
    with anyio.fail_after(WAIT):
        with patch.object(ToolNode, "_afunc", AsyncMock(return_value=answer)):
            assert contents(await node.ainvoke(state)) == ["mocked"]
        with patch.object(node, "_afunc", AsyncMock(return_value=answer)):
            assert contents(await node.ainvoke(state)) == ["mocked"]
        assert contents(await node.ainvoke(state)) == ["deleted /"]
