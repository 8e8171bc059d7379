"""Subclasses of `ToolNode`: their overrides apply to sync and async runs, or the class is refused (promise 13)."""

import asyncio
import functools
from collections.abc import Callable
from typing import Annotated, Any
from unittest.mock import AsyncMock, patch

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import StructuredTool
from langgraph.graph import StateGraph
from langgraph.graph.message import MessagesState
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt

from callboard import AgentState, CallPolicy, CallsInterrupted, InjectedState, ToolNode, ToolRuntime, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call
from callboard.tools._subclassing import CALLS, INVOKES, REFUSED, RUNS
from tests.helpers import contents

pytestmark = pytest.mark.real_clock

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


def denied(call: Any) -> ToolMessage:
    return ToolMessage("denied", name=call["name"], tool_call_id=call["id"])


async def answered(node: ToolNode, answer: str, *names: str) -> list[str]:
    """Return the contents after a run that asks and a run with the answer."""
    state = {"messages": [reply(*names)]}
    with anyio.fail_after(WAIT):
        with pytest.raises(CallsInterrupted) as asked:
            await node.ainvoke(state)
        return contents(await node.ainvoke(state, ledger=asked.value.ledger, resume=answer))


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
    seen: list[str] = []

    def count(name: str, base: Any, *args: Any, **options: Any) -> Any:
        seen.append(name)
        return base(*args, **options)

    return overriding(count, *names), seen


def deny(name: str, base: Any, given: Any, *_: Any, **__: Any) -> Any:
    if name in CALLS:
        return denied(given)
    made = given["messages"][-1].tool_calls if "messages" in given else [given["tool_call"]]
    return {"messages": [denied(call) for call in made]}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", [*INVOKES, *RUNS, *CALLS])
async def test_what_an_override_denies_does_not_run_by_any_door(name: str, door: str) -> None:
    """A permission check in one method must not be bypassed through the other, or through an agent."""
    result = await by(door, overriding(deny, name)([delete, adelete]))
    assert contents(result) == ["denied", "denied"]
    assert RAN == []


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "names", [*((name,) for name in (*INVOKES, *RUNS, *CALLS)), INVOKES, RUNS, CALLS, ("invoke", "_func")], ids="+".join
)
async def test_an_override_that_goes_on_runs_once(names: tuple[str, ...], door: str) -> None:
    """The override runs once, in the method that matches the entry point, also in a sync graph."""
    cls, seen = counting(*names)
    result = await by(door, cls([delete, adelete]))
    assert contents(result) == ["deleted /", "deleted /"]
    assert RAN == ["/", "/"]
    sync = "sync" in door or door == "invoke"
    expected = [names[0 if sync else 1]] if names in (INVOKES, RUNS, CALLS) else [*names]
    by_call = names[0] in CALLS or door.endswith("v2")
    assert sorted(seen) == sorted(expected * (2 if by_call else 1))


def plain(value: Any) -> Any:
    """Return an argument of an override as data that is the same for callboard and LangGraph."""
    if isinstance(value, ToolRuntime):
        tools = [tool.name for tool in value.tools]
        return value.state, value.tool_call_id, value.store, value.context, tools
    if isinstance(value, Runtime):
        return "runtime", value.context
    if isinstance(value, dict) and "configurable" in value:
        return value["metadata"]["langgraph_node"], value["configurable"]["who"]
    return value


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("pair", [RUNS, CALLS], ids="+".join)
async def test_an_override_is_given_what_langgraph_passes(pair: tuple[str, str], sync: bool) -> None:
    """Public subclasses were written for LangGraph's arguments and their names."""
    seen: dict[Any, list[Any]] = {ToolNode: [], LangGraphToolNode: []}
    state, config = {"messages": [reply("delete")]}, {"configurable": {"who": "al"}}
    for base, noted in seen.items():

        def note(name: str, original: Any, *args: Any, noted: Any = noted, **options: Any) -> Any:
            noted.append((name, [*map(plain, args)], {key: plain(value) for key, value in options.items()}))
            return original(*args, **options)

        builder: Any = StateGraph(MessagesState, context_schema=dict)
        builder.add_node("tools", overriding(note, *pair, base=base)([delete]))
        graph = builder.set_entry_point("tools").compile()
        run = graph.invoke if sync else lambda *a, g=graph, **k: asyncio.run(g.ainvoke(*a, **k))
        with anyio.fail_after(WAIT):
            await anyio.to_thread.run_sync(functools.partial(run, state, config, context={"a": 1}))
    assert seen[ToolNode] == seen[LangGraphToolNode]
    assert [name for name, *_ in seen[ToolNode]] == [pair[0 if sync else 1]]


async def test_an_override_may_change_the_call_and_the_runtime() -> None:
    """The call and runtime that the override passes on are used: another tool, arguments, state or tags."""

    async def whoami(name: str, user: Annotated[str, InjectedState("user")]) -> str:
        """Say who asks."""
        config = var_child_runnable_config.get() or {}
        return f"{name} {user} {config.get('metadata', {}).get('who')}"

    class Changing(ToolNode):
        async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            tool_runtime.config["metadata"]["who"] = "audit"
            tool_runtime.state = {**tool_runtime.state, "user": "bob"}
            return await super()._arun_one(
                {**call, "name": "whoami", "args": {"name": "call"}}, input_type, tool_runtime
            )

    with anyio.fail_after(WAIT):
        result = await Changing([whoami, delete]).ainvoke({"messages": [reply("delete")], "user": "al"})
    assert contents(result) == ["call bob audit"]
    assert RAN == []


async def test_an_override_sees_the_message_that_langgraph_would_show_it() -> None:
    """Errors and timeouts that become messages reach the override as messages. Its own errors are raised."""
    seen: list[str] = []

    async def slow() -> str:
        """Take long."""
        await anyio.sleep(60)
        return "late"

    class Looking(ToolNode):
        async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            message = await super()._arun_one(call, input_type, tool_runtime)
            seen.append(message.content)
            if call["name"] == "nobody":
                raise LookupError("nobody")
            return message

    with anyio.fail_after(WAIT):
        node = Looking([slow, delete], timeout=0.05, handle_tool_errors=True)
        await node.ainvoke({"messages": [reply("slow", p=1)]})
        await node.ainvoke({"messages": [reply("delete", wrong=1)]})
        with pytest.raises(LookupError, match=r"^'?nobody'?\nIn tool 'nobody' "):
            await node.ainvoke({"messages": [reply("nobody")]})
    assert "0.05" in seen[0]
    assert "Field required" in seen[1]
    assert "nobody is not a valid tool" in seen[2]


@pytest.mark.parametrize("name", CALLS)
async def test_an_override_cannot_swallow_a_question(name: str) -> None:
    """Promise 4: `except Exception` in public subclasses would turn an interrupt into a message."""

    def swallow(name: str, base: Any, call: Any, *args: Any) -> Any:
        async def later() -> Any:
            try:
                return await base(call, *args)
            except Exception as error:
                return ToolMessage(repr(error), tool_call_id=call["id"])

        try:
            return later() if name == "_arun_one" else base(call, *args)
        except Exception as error:
            return ToolMessage(repr(error), tool_call_id=call["id"])

    assert await answered(overriding(swallow, name)([ask]), "yes", "ask") == ["/: yes"]


async def test_an_override_may_ask_and_its_time_is_the_calls() -> None:
    """An interrupt in an override belongs to the call, and the call's budget ends an override that hangs."""

    class Asking(ToolNode):
        async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            if call["name"] == "adelete":
                await anyio.sleep(60)
            answer = interrupt("really?")
            return denied(call) if answer == "no" else await super()._arun_one(call, input_type, tool_runtime)

    node = Asking([delete, adelete], policies={"adelete": CallPolicy(budget=0.05)})
    assert await answered(node, "no", "delete") == ["denied"]
    with anyio.fail_after(WAIT):
        result = await node.ainvoke({"messages": [reply("adelete")]})
    assert "budget" in contents(result)[0]
    assert RAN == []


@pytest.mark.parametrize(
    ("answer", "error"),
    [(None, TypeError), ("text", TypeError), (ToolMessage("?", tool_call_id="another"), ValueError)],
)
async def test_an_override_that_answers_nothing_is_named(answer: Any, error: type[Exception]) -> None:
    """A missing `return` would break the conversation two steps later."""

    class Forgetful(ToolNode):
        async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            return answer

    with anyio.fail_after(WAIT), pytest.raises(error, match=r"Forgetful\._arun_one"):
        await Forgetful([delete]).ainvoke({"messages": [reply("delete")]})


@given(st.sampled_from(sorted(REFUSED)), st.booleans())
def test_an_override_that_would_not_be_heard_is_refused_with_a_remedy(name: str, mixed: bool) -> None:
    """LangGraph's inner methods are not called here, so the error comes when the class is defined."""
    body = {name: lambda self: None}
    bases: tuple[type, ...] = (type("Mixin", (), body), ToolNode) if mixed else (ToolNode,)
    with pytest.raises(TypeError, match=rf"Own\.{name} would never be called") as refused:
        type("Own", bases, {} if mixed else body)
    assert REFUSED[name] in str(refused.value)


def test_every_inner_method_of_langgraphs_class_is_heard_or_refused() -> None:
    """A new version of LangGraph may add methods that subclasses will override."""
    methods = {
        name for name, value in vars(LangGraphToolNode).items() if callable(value) or isinstance(value, property)
    }
    inner = {name for name in methods if not name.startswith("__") and not name.startswith("_abc")}
    assert inner <= REFUSED.keys() | {"_run_one", "_arun_one", "_func", "_afunc"}


async def _async(self: Any, *args: Any, **options: Any) -> None: ...


OLD: list[tuple[str, Any, str]] = [
    ("_run_one", lambda self, call, config: None, r"_run_one.* cannot be called .* with \(self, call, input_type"),
    ("_afunc", lambda self, state, config, *, store: None, r"_afunc.* cannot be called .* with \(self, input, config"),
    ("_run_one", _async, "_run_one is async"),
    ("_func", _async, "_func is async"),
]


@pytest.mark.parametrize(("name", "method", "error"), OLD, ids=["_run_one", "_afunc", "async call", "async run"])
def test_an_override_with_another_signature_is_refused(name: str, method: Any, error: str) -> None:
    """A signature from an older LangGraph would fail in the middle of a run."""
    with pytest.raises(TypeError, match=error):
        type("Old", (ToolNode,), {name: method})


async def test_the_base_methods_run_a_call_by_itself() -> None:
    """Users call these methods directly with a call and a runtime. The override of the same method runs once."""

    async def whoami(name: str, user: Annotated[str, InjectedState("user")], runtime: ToolRuntime) -> str:
        """Say who asks."""
        return f"{name} {user} {runtime.tool_call_id} {runtime.context}"

    cls, seen = counting("_run_one", "_arun_one")
    runtime: Any = ToolRuntime({"messages": [], "user": "al"}, "here", {}, lambda _: None, "c1", None)
    call = tool_call("whoami", "c1", name="x")
    for node in (ToolNode([whoami]), cls([whoami])):
        with anyio.fail_after(WAIT):
            first = await node._arun_one(call, "dict", runtime)
            second = await anyio.to_thread.run_sync(lambda: node._run_one(call, "list", runtime))  # noqa: B023
        assert (first.content, first.tool_call_id) == (second.content, second.tool_call_id) == ("x al c1 here", "c1")
    assert seen == ["_arun_one", "_run_one"]


async def test_a_call_by_itself_has_the_output_of_its_tool() -> None:
    """The output is a command or a list, as the tool returned it."""
    message = ToolMessage("done", name="give", tool_call_id="c1")
    outputs: dict[str, Any] = {
        "message": message,
        "command": Command(update={"messages": [message], "note": "x"}),
        "list": [message, Command(update={"note": "x"})],
    }

    def give(kind: str) -> Any:
        """Give."""
        return outputs[kind]

    runtime: Any = ToolRuntime({"messages": []}, None, {}, lambda _: None, "c1", None)
    for kind, output in outputs.items():
        for node in (ToolNode([give]), LangGraphToolNode([give])):
            with anyio.fail_after(WAIT):
                found = await anyio.to_thread.run_sync(
                    node._run_one, tool_call("give", "c1", kind=kind), "dict", runtime
                )
            assert found == output


@pytest.mark.parametrize("pair", [RUNS, CALLS], ids="+".join)
async def test_one_half_cannot_go_on_with_what_the_other_was_given(pair: tuple[str, str]) -> None:
    """The call would start again without its place and budget. The error names the method to call."""

    async def crossing(self: Any, *args: Any, **options: Any) -> Any:
        return getattr(self, pair[0])(*args, **options)

    crossed = type("Crossing", (ToolNode,), {pair[1]: crossing})
    with pytest.raises(RuntimeError, match=rf"super\(\)\.{pair[1]}"):
        await run(crossed([delete]), "delete")
    assert RAN == []


class CrossingToSync(ToolNode):
    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        RAN.append("ainvoke")
        return self.invoke(input, config)


class CrossingToAsync(ToolNode):
    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        RAN.append("invoke")
        return asyncio.run(self.ainvoke(input, config))


CROSSINGS = [(CrossingToSync, "ainvoke"), *((CrossingToAsync, door) for door in ("ainvoke", "agent v1", "agent v2"))]


@pytest.mark.parametrize(("cls", "door"), CROSSINGS)
async def test_entries_that_call_each_other_run_once(cls: type[ToolNode], door: str) -> None:
    """`asyncio.run(self.ainvoke(...))` in `invoke`, or the reverse, would otherwise recurse without end."""
    result = await by(door, cls([delete, adelete]))
    times = 2 if door.endswith("v2") else 1
    assert contents(result) == ["deleted /", "deleted /"]
    assert len(RAN) == 2 + times
    assert RAN.count("/") == 2


class Noted(AgentState):
    note: str


class AddingInEntry(ToolNode):
    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        result = await super().ainvoke(input, config, **kwargs)
        for message in result["messages"]:
            message.content += "!"
        return [result, Command(update={"note": "seen"})]


def elsewhere(call: Any) -> Any:
    return {**call, "args": {"path": "/!"}}


class ChangingRun(ToolNode):
    async def _afunc(self, given: Any, config: RunnableConfig, runtime: Runtime) -> Any:
        if "tool_call" in given:
            changed = {"tool_call": elsewhere(given["tool_call"])}
        else:
            *before, last = given["messages"]
            reply = AIMessage("", tool_calls=[elsewhere(call) for call in last.tool_calls], id=last.id)
            changed = {"messages": [*before, reply]}
        result = await super()._afunc({**given, **changed}, config, runtime)
        return [Command(update={"messages": result["messages"], "note": "seen"})]


@pytest.mark.parametrize("cls", [AddingInEntry, ChangingRun])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_what_an_override_adds_or_changes_reaches_the_state_of_the_agent(cls: Any, version: Any) -> None:
    """In LangGraph a node's result is a state update, and the input that an override passes on is what runs."""
    state = await in_agent(cls([delete]), version, state_schema=Noted)
    assert contents(state) == ["deleted /!"]
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
        rest = last.model_copy(update={"tool_calls": [second]})
        result = super().invoke({**input, "messages": [*before, rest]}, config, **kwargs)
        return {"messages": [denied(first), *result["messages"]]}


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
                return {"messages": [denied(call) for call in input["messages"][-1].tool_calls]}
            return super().invoke(input, config, **kwargs)

    node = Guard([outer, delete])
    with anyio.fail_after(WAIT):
        result = await node.ainvoke({"messages": [reply("outer", p=1)]})
    assert contents(result) == ["['denied']"]
    assert RAN == []


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_sync_code_reaches_the_sync_half_of_a_tool_through_an_own_run(version: Any) -> None:
    """Sync and async functions of a tool may use different clients, and an override must not change which one runs."""

    async def other(path: str) -> str:
        return f"awaited {path}"

    both = StructuredTool.from_function(delete, coroutine=other, name="delete", description="Delete.")
    cls, seen = counting("_func")
    state = await in_agent(cls([both]), version, sync=True)
    assert (contents(state), seen) == (["deleted /"], ["_func"])


@pytest.mark.parametrize("name", RUNS)
async def test_a_run_within_an_own_one_keeps_its_ledger(name: str) -> None:
    """Calls that finished before a question do not run again, although the override knows nothing of ledgers."""
    cls, _ = counting(name)
    assert await answered(cls([ask, delete]), "yes", "ask", "delete") == ["/: yes", "deleted /"]
    assert RAN == ["/"]


async def test_the_base_methods_run_by_themselves() -> None:
    """Tests and wrappers call these methods directly with an input, a config and a runtime."""
    node, state = ToolNode([delete]), {"messages": [reply("delete")]}
    with anyio.fail_after(WAIT):
        first = await node._afunc(state, {}, Runtime())
        second = await anyio.to_thread.run_sync(lambda: node._func(state, {}, Runtime()))
    assert contents(first) == contents(second) == ["deleted /"]


@pytest.mark.parametrize("name", ["ainvoke", "_afunc"])
@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_a_mock_on_the_class_is_called_by_the_agent(name: str, version: Any) -> None:
    """Public tests use `patch.object(ToolNode, ...)` to keep tools from running. A missed patch would run them."""
    answer = {"messages": [ToolMessage("mocked", tool_call_id="call_1")]}
    with patch.object(ToolNode, name, AsyncMock(return_value=answer)) as mock:
        state = await in_agent(ToolNode([delete]), version)
    assert contents(state) == ["mocked"]
    assert mock.await_count == 1
    assert RAN == []


async def test_a_mock_of_the_inner_method_is_called_by_the_node() -> None:
    """LangGraph's `ainvoke` only calls the inner method, so tests patch it, on the class or an instance."""
    answer = {"messages": [ToolMessage("mocked", tool_call_id="call_1")]}
    node, state = ToolNode([delete]), {"messages": [reply("delete")]}
    with anyio.fail_after(WAIT):
        with patch.object(ToolNode, "_afunc", AsyncMock(return_value=answer)):
            assert contents(await node.ainvoke(state)) == ["mocked"]
        with patch.object(node, "_afunc", AsyncMock(return_value=answer)):
            assert contents(await node.ainvoke(state)) == ["mocked"]
        assert contents(await node.ainvoke(state)) == ["deleted /"]
