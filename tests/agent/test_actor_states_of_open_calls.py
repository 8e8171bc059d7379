"""A state is stored together with the result of its call; a state that cannot be stored is discarded."""

from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import Actor, ToolNode, child, create_react_agent, handler
from callboard.testing import ScriptedModel, tool_call

pytestmark = pytest.mark.real_clock

WAIT = 20
AT: Any = {"configurable": {"thread_id": "1"}}
GO: Any = {"messages": [("user", "go")]}


class Notebook(Actor):
    """Lines of text."""

    async def start(self) -> None:
        self.lines: list[Any] = []

    async def snapshot(self) -> list[Any] | None:
        return None if "nothing" in self.lines else self.lines

    async def restore(self, snapshot: list[Any]) -> None:
        self.lines = snapshot

    @handler
    async def append(self, line: str) -> str:
        """Append a line."""
        self.lines.append(line)
        return ",".join(self.lines)

    @handler
    async def spoil(self) -> str:
        """Append a value that no serializer accepts."""
        self.lines.append(lambda: None)
        return "spoilt"

    @handler
    async def spoil_and_fail(self) -> str:
        """Append a value that no serializer accepts, and fail."""
        self.lines.append(lambda: None)
        raise KeyError("of its own")

    @handler
    async def append_and_ask(self, line: str) -> str:
        """Append a line, and ask."""
        self.lines.append(line)
        return f"{interrupt('really?')} {','.join(self.lines)}"


def asking(*requests: Any) -> ScriptedModel:
    def reply(sent: list[Any]) -> Any:
        return AIMessage("", tool_calls=list(requests)) if sent[-1].type == "human" else "done"

    return ScriptedModel([reply], loop=True)


def results(state: Any) -> list[str]:
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


def agent_with(model: ScriptedModel, saver: Any, *more: Any, around: Any = None) -> Any:
    notebook = child(Notebook, snapshots="journal")
    node = ToolNode([notebook, *more], awrap_tool_call=around, handle_tool_errors=True, on_unknown="rerun")
    return create_react_agent(model, node, checkpointer=saver)


@pytest.mark.parametrize("is_open", [False, True])
async def test_the_result_of_a_neighbour_stores_no_state_of_a_call_that_has_none(is_open: bool) -> None:
    """The run is cancelled while a middleware holds the result, so the call runs again on the state before it."""
    held, has_ended = anyio.Event(), anyio.Event()

    @tool
    async def look() -> str:
        """Look."""
        await held.wait()
        return "fine"

    async def hold(request: Any, execute: Any) -> Any:
        result = await execute(request)
        if request.tool_call["name"] == "append" and not has_ended.is_set():
            held.set()
            await anyio.sleep_forever()
        has_ended.set() if request.tool_call["name"] == "append" else scope.cancel()
        return result

    model = asking(tool_call("append", "c1", line="a"), tool_call("look", "c2"))
    agent = agent_with(model, InMemorySaver(), look, around=hold)
    with anyio.fail_after(WAIT):
        if is_open:
            await agent.__aenter__()
        with anyio.CancelScope() as scope:
            await agent.ainvoke(GO, AT)
        has_ended.set()
        assert results(await agent.ainvoke(None, AT)) == ["a", "fine"]
        await agent.__aexit__(None, None, None)


@pytest.mark.parametrize("is_open", [False, True])
async def test_a_call_that_waits_for_a_person_runs_again_on_the_state_before_it(is_open: bool) -> None:
    """A change that the call made before its question is not made twice."""
    agent = agent_with(asking(tool_call("append_and_ask", "c1", line="a")), InMemorySaver())
    with anyio.fail_after(WAIT):
        if is_open:
            await agent.__aenter__()
        await agent.ainvoke(GO, AT)
        assert results(await agent.ainvoke(Command(resume="yes"), AT)) == ["yes a"]
        await agent.__aexit__(None, None, None)


async def test_a_state_that_cannot_be_stored_is_no_state_for_the_next_call() -> None:
    """The actor is restarted with the last stored state, and the model is told."""
    saver = InMemorySaver()
    with anyio.fail_after(WAIT):
        async with agent_with(asking(tool_call("append", "c1", line="a")), saver) as agent:
            await agent.ainvoke(GO, AT)
        async with agent_with(asking(tool_call("spoil", "c2")), saver) as agent:
            spoilt = results(await agent.ainvoke(GO, AT))[-1]
        async with agent_with(asking(tool_call("append", "c3", line="b")), saver) as agent:
            after = results(await agent.ainvoke(GO, AT))[-1]

    assert "cannot be kept" in spoilt
    assert after == "a,b"


async def test_within_a_run_the_actor_comes_back_with_the_state_that_is_kept() -> None:
    """Otherwise each later call would fail because of the call that made the state unserializable."""

    def reply(sent: list[Any]) -> Any:
        steps = [("append", {"line": "a"}), ("spoil", {}), ("append", {"line": "b"})]
        done = sum(message.type == "tool" for message in sent)
        if done == len(steps):
            return "done"
        name, args = steps[done]
        return AIMessage("", tool_calls=[tool_call(name, f"c{done}", **args)])

    agent = agent_with(ScriptedModel([reply], loop=True), InMemorySaver())
    with anyio.fail_after(WAIT):
        found = results(await agent.ainvoke(GO, AT))

    assert found[0] == "a"
    assert "cannot be kept" in found[1]
    assert found[2].startswith("a,b")
    assert "is lost" in found[2]


async def test_a_handlers_own_error_is_what_its_caller_reads() -> None:
    """The caller gets the handler's error; the error of storing the state goes to the log."""
    agent = agent_with(asking(tool_call("spoil_and_fail", "c1")), InMemorySaver())
    with anyio.fail_after(WAIT):
        [found] = results(await agent.ainvoke(GO, AT))
    assert "of its own" in found


async def test_a_snapshot_that_is_none_is_told() -> None:
    """A `snapshot` that returns None probably lacks its `return`; each run would begin with an empty state."""
    agent = agent_with(asking(tool_call("append", "c1", line="nothing")), InMemorySaver())
    with anyio.fail_after(WAIT):
        [found] = results(await agent.ainvoke(GO, AT))
    assert "`snapshot` returned None" in found


async def test_a_snapshot_that_restore_does_not_take_is_named() -> None:
    """The class may have changed since the state was stored; the error names the actor."""

    class Changed(Notebook):
        async def restore(self, snapshot: Any) -> None:
            self.lines = snapshot["lines"]

    saver = InMemorySaver()
    with anyio.fail_after(WAIT):
        await agent_with(asking(tool_call("append", "c1", line="a")), saver).ainvoke(GO, AT)
        node = ToolNode([child(Changed, name="Notebook", snapshots="journal")], handle_tool_errors=True)
        agent = create_react_agent(asking(tool_call("append", "c2", line="b")), node, checkpointer=saver)
        found = results(await agent.ainvoke(GO, AT))[-1]
    assert "`restore` failed with the snapshot that is kept" in found


async def test_an_open_agent_remembers_no_thread_whose_actor_has_gone() -> None:
    """An open agent may run any number of threads, so it must not keep records of evicted actors."""
    node = ToolNode([child(Notebook, snapshots="journal", cap=2)])
    agent = create_react_agent(asking(tool_call("append", "c1", line="a")), node, checkpointer=InMemorySaver())
    with anyio.fail_after(WAIT):
        async with agent:
            for number in range(6):
                await agent.ainvoke(GO, {"configurable": {"thread_id": str(number)}})
            session: Any = node._setup.actors.session()
            kept = session.keyed_actors[0].spec.snapshots
            assert len(kept._versions) <= 2
