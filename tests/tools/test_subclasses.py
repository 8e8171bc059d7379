"""Subclasses of `ToolNode`: their overrides apply to sync and async calls, or the class is refused (promise 13)."""

from typing import Annotated, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.graph import StateGraph
from langgraph.graph.message import MessagesState
from langgraph.prebuilt import ToolNode as LangGraphToolNode
from langgraph.types import Command, interrupt

from callboard import CallPolicy, CallsInterrupted, InjectedState, ToolNode, ToolRuntime, create_react_agent
from callboard.testing import ScriptedModel, calls, tool_call
from callboard.tools._subclassing import REFUSED

from ._doors import DOORS, RUNS, WAIT, adelete, contents, delete, denied, reply

pytestmark = pytest.mark.real_clock


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    RUNS.clear()


class SyncGuard(ToolNode):
    """Node subclass that denies every call in its sync method."""

    def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
        return denied(call)


class AsyncGuard(ToolNode):
    """Node subclass that denies every call in its async method."""

    async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
        return denied(call)


class SyncEntryGuard(ToolNode):
    """Node subclass that denies every call in `invoke`."""

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        made = input["messages"][-1].tool_calls if "messages" in input else [input["tool_call"]]
        return {"messages": [denied(call) for call in made]}


class AsyncEntryGuard(ToolNode):
    """Node subclass that denies every call in `ainvoke`."""

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        made = input["messages"][-1].tool_calls if "messages" in input else [input["tool_call"]]
        return {"messages": [denied(call) for call in made]}


GUARDS = [SyncGuard, AsyncGuard, SyncEntryGuard, AsyncEntryGuard]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("guard", GUARDS)
async def test_what_an_override_denies_does_not_run_by_any_door(guard: type[ToolNode], door: str) -> None:
    """A permission check in one method must not be bypassed through the other."""
    with anyio.fail_after(WAIT):
        result = await DOORS[door](guard([delete, adelete]))
    assert contents(result) == ["denied", "denied"]
    assert RUNS == []


def counting(*names: str) -> tuple[type[ToolNode], list[str]]:
    """Return a subclass that records each of these methods and calls the base class."""
    seen: list[str] = []

    class Counting(ToolNode):
        if "_run_one" in names:

            def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
                seen.append("_run_one")
                return super()._run_one(call, input_type, tool_runtime)

        if "_arun_one" in names:

            async def _arun_one(self, call: Any, input_type: Any, config: Any) -> Any:
                seen.append("_arun_one")
                return await super()._arun_one(call, input_type, config)

        if "invoke" in names:

            def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
                seen.append("invoke")
                return super().invoke(input, config, **kwargs)

        if "ainvoke" in names:

            async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
                seen.append("ainvoke")
                return await super().ainvoke(input, config, **kwargs)

    return Counting, seen


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    "names",
    [("_run_one",), ("_arun_one",), ("_run_one", "_arun_one"), ("invoke",), ("ainvoke",), ("invoke", "ainvoke")],
)
async def test_an_override_that_goes_on_runs_once(names: tuple[str, ...], door: str) -> None:
    """The override runs once, in the method that matches the entry point, also in a sync graph."""
    cls, seen = counting(*names)
    with anyio.fail_after(WAIT):
        result = await DOORS[door](cls([delete, adelete]))
    assert contents(result) == ["deleted /", "deleted /"]
    assert RUNS == ["/", "/"]
    by_call = "one" in names[0] or door.endswith("v2")
    sync = "sync" in door or door == "invoke"
    half = names[0] if len(names) == 1 else names[0 if sync else 1]
    assert seen == [half] * (2 if by_call else 1)


@pytest.mark.parametrize("half", ["_run_one", "_arun_one"])
async def test_an_override_is_given_what_langgraph_passes(half: str) -> None:
    """Public subclasses were written for LangGraph's arguments."""
    seen: dict[type, list[Any]] = {}

    def subclass(base: Any) -> Any:
        noted = seen[base] = []

        def note(call: Any, input_type: Any, runtime: Any) -> None:
            store = runtime.store
            noted.append((call, input_type, type(runtime), runtime.state, runtime.tool_call_id, store, runtime.context))
            noted.append([tool.name for tool in runtime.tools])

        class Noting(base):  # type: ignore[misc]
            def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
                note(call, input_type, tool_runtime)
                return super()._run_one(call, input_type, tool_runtime)

            async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
                note(call, input_type, tool_runtime)
                return await super()._arun_one(call, input_type, tool_runtime)

        return Noting([delete])

    state = {"messages": [reply("delete")]}
    for base in (ToolNode, LangGraphToolNode):
        graph = StateGraph(MessagesState).add_node("tools", subclass(base)).set_entry_point("tools").compile()
        with anyio.fail_after(WAIT):
            await anyio.to_thread.run_sync(lambda: graph.invoke(state))  # noqa: B023
    assert seen[ToolNode] == seen[LangGraphToolNode]


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
    assert RUNS == []


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


@pytest.mark.parametrize("half", ["_run_one", "_arun_one"])
async def test_an_override_cannot_swallow_a_question(half: str) -> None:
    """Promise 4: `except Exception` in public subclasses would turn an interrupt into a message."""

    def ask(path: str) -> str:
        """Ask."""
        return f"{path}: {interrupt('really?')}"

    class Swallowing(ToolNode):
        if half == "_run_one":

            def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
                try:
                    return super()._run_one(call, input_type, tool_runtime)
                except Exception as error:
                    return ToolMessage(repr(error), tool_call_id=call["id"])

        else:

            async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
                try:
                    return await super()._arun_one(call, input_type, tool_runtime)
                except Exception as error:
                    return ToolMessage(repr(error), tool_call_id=call["id"])

    node, state = Swallowing([ask]), {"messages": [reply("ask")]}
    with anyio.fail_after(WAIT):
        with pytest.raises(CallsInterrupted) as asked:
            await node.ainvoke(state)
        result = await node.ainvoke(state, ledger=asked.value.ledger, resume="yes")
    assert contents(result) == ["/: yes"]


async def test_an_override_may_ask_and_its_time_is_the_calls() -> None:
    """An interrupt in an override belongs to the call, and the call's budget ends an override that hangs."""

    class Asking(ToolNode):
        async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            if call["name"] == "adelete":
                await anyio.sleep(60)
            answer = interrupt("really?")
            return denied(call) if answer == "no" else await super()._arun_one(call, input_type, tool_runtime)

    node = Asking([delete, adelete], policies={"adelete": CallPolicy(budget=0.05)})
    state = {"messages": [reply("delete")]}
    with anyio.fail_after(WAIT):
        with pytest.raises(CallsInterrupted) as asked:
            await node.ainvoke(state)
        result = await node.ainvoke(state, ledger=asked.value.ledger, resume="no")
        assert contents(result) == ["denied"]
        result = await node.ainvoke({"messages": [reply("adelete")]})
    assert "budget" in contents(result)[0]
    assert RUNS == []


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


async def test_own_injection_is_used_for_each_call() -> None:
    """Forged values are removed before it, its values are hidden from the model, and the runtime is added after it."""

    async def whoami(name: str, user: Annotated[str, InjectedState("user")], runtime: ToolRuntime) -> str:
        """Say who asks."""
        return f"{name} {user} {runtime.tool_call_id}"

    given_args: list[Any] = []

    class Injecting(ToolNode):
        def inject_tool_args(self, tool_call: Any, input: Any, store: Any = None) -> Any:
            given_args.append(dict(tool_call["args"]))
            ready = super().inject_tool_args(tool_call, input, store)
            return {**ready, "args": {**ready["args"], "user": ready["args"]["user"].upper()}}

    call = tool_call("whoami", "c1", name="x", user="forged")
    with anyio.fail_after(WAIT):
        result = await Injecting([whoami]).ainvoke({"messages": [calls(call)], "user": "al"})
    assert contents(result) == ["x AL c1"]
    assert given_args == [{"name": "x"}]


@given(
    st.sampled_from(sorted(REFUSED)),
    st.booleans(),
)
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


def test_an_override_with_another_signature_is_refused() -> None:
    """A signature from before LangGraph 0.4 would fail in the middle of a run."""
    with pytest.raises(TypeError, match=r"_run_one\(self, call: Any, config: Any\) -> Any cannot be called"):

        class Old(ToolNode):
            def _run_one(self, call: Any, config: Any) -> Any:  # type: ignore[override]
                return None

    with pytest.raises(TypeError, match="_run_one is async"):

        class Mixed(ToolNode):
            async def _run_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
                return None


async def test_the_base_methods_run_a_call_by_itself() -> None:
    """Users call these methods directly with a call and a runtime. The override of the same method runs once."""

    async def whoami(name: str, user: Annotated[str, InjectedState("user")], runtime: ToolRuntime) -> str:
        """Say who asks."""
        return f"{name} {user} {runtime.tool_call_id} {runtime.context}"

    cls, seen = counting("_run_one", "_arun_one")
    runtime: Any = ToolRuntime(
        state={"messages": [], "user": "al"},
        context="here",
        config={},
        stream_writer=lambda _: None,
        tool_call_id="c1",
        store=None,
    )
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


async def test_one_half_cannot_go_on_with_the_call_of_the_other() -> None:
    """The call would start again without its place and budget. The error names the method to call."""

    class Crossing(ToolNode):
        async def _arun_one(self, call: Any, input_type: Any, tool_runtime: Any) -> Any:
            return self._run_one(call, input_type, tool_runtime)

    with anyio.fail_after(WAIT), pytest.raises(RuntimeError, match=r"super\(\)._arun_one"):
        await Crossing([delete]).ainvoke({"messages": [reply("delete")]})


async def test_entries_that_call_each_other_run_once() -> None:
    """`asyncio.run(self.ainvoke(...))` in `invoke`, or the reverse, would otherwise recurse without end."""
    seen: list[str] = []

    class Crossing(ToolNode):
        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            seen.append("ainvoke")
            return self.invoke(input, config)

    with anyio.fail_after(WAIT):
        result = await Crossing([delete]).ainvoke({"messages": [reply("delete")]})
    assert (contents(result), seen) == (["deleted /"], ["ainvoke"])


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_what_an_entry_adds_reaches_the_state_of_the_agent(version: Any) -> None:
    """In LangGraph a node's result is a state update: changed messages, other keys and commands count."""

    class Adding(ToolNode):
        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            result = await super().ainvoke(input, config, **kwargs)
            for message in result["messages"]:
                message.content += "!"
            return [result, Command(update={"note": "seen"})]

    from callboard import AgentState

    class Noted(AgentState):
        note: str

    agent = create_react_agent(
        ScriptedModel([reply("delete"), "done"]), Adding([delete]), version=version, state_schema=Noted
    )
    with anyio.fail_after(WAIT):
        state = await agent.ainvoke({"messages": [("user", "go")]})
    assert contents(state) == ["deleted /!"]
    assert state["note"] == "seen"


@pytest.mark.parametrize("version", ["v1", "v2"])
async def test_an_entry_that_leaves_a_call_without_a_message_is_named(version: Any) -> None:
    """Promise 2: providers refuse a conversation with an unanswered call, so the error names the method."""

    class Dropping(ToolNode):
        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return {"messages": []}

    agent = create_react_agent(ScriptedModel([reply("delete"), "done"]), Dropping([delete]), version=version)
    with anyio.fail_after(WAIT), pytest.raises(ValueError, match=r"Dropping\.ainvoke returned no message for call"):
        await agent.ainvoke({"messages": [("user", "go")]})


async def test_an_entry_may_run_some_of_the_calls() -> None:
    """Public guards answer repeated calls themselves and pass the others on."""

    class Guarded(ToolNode):
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            *before, last = input["messages"]
            first, second = last.tool_calls
            rest = last.model_copy(update={"tool_calls": [second]})
            result = super().invoke({**input, "messages": [*before, rest]}, config, **kwargs)
            return {"messages": [denied(first), *result["messages"]]}

    agent = create_react_agent(
        ScriptedModel([reply("delete", "adelete"), "done"]), Guarded([delete, adelete]), version="v1"
    )
    with anyio.fail_after(WAIT):
        state = await agent.ainvoke({"messages": [("user", "go")]})
    assert contents(state) == ["denied", "deleted /"]
    assert RUNS == ["/"]


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
    assert RUNS == []
