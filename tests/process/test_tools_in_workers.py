"""Tools of nodes and agents that run in worker processes, actors that live in one, and what both lose there."""

import os
import signal
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from callboard import (
    ActorDiedError,
    CallboardWarning,
    CallPolicy,
    ToolNode,
    child,
    create_react_agent,
    running,
    tool_call,
)
from callboard.testing import ScriptedModel, calls
from callboard_actors.process import Processes

from . import _cleans_up
from . import _configured as configured
from . import _plain_tools as plain
from ._processes import WAIT, alive, descendants, wait_for_starts

pytestmark = pytest.mark.real_clock


def _node(pool: Processes, **policy: Any) -> ToolNode:
    # The timeout covers the module import, which takes a second in a worker of a busy machine.
    policies = {"hang": CallPolicy(runs_in=pool, **policy), "later": CallPolicy(runs_in=pool)}
    return ToolNode([plain.hang, plain.later], policies=policies)


async def _run(node: ToolNode, *requests: Any) -> list[Any]:
    result = await node.ainvoke({"messages": [HumanMessage("go"), calls(*requests)]})
    return result if isinstance(result, list) else result["messages"]


async def test_a_tool_that_hangs_ends_with_its_timeout_and_its_neighbour_has_its_result(tmp_path: Path) -> None:
    """A hanging tool in a thread would occupy its slot for ever."""
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        node = _node(Processes(workers=2), timeout=1.0, grace=0.3)
        hung, fine = await _run(node, ("hang", {"folder": str(tmp_path)}), ("later", {"text": "fine"}))
    assert "did not finish within its timeout of 1 s" in hung.content
    assert fine.content.startswith("fine from ")
    assert alive(await wait_for_starts(tmp_path)) == set()
    assert descendants(os.getpid()) == before


async def test_an_agent_has_its_tools_run_in_one_pool_from_turn_to_turn() -> None:
    """The agent's workers are kept between turns."""
    model = ScriptedModel([calls(("later", {"text": "a"})), calls(("later", {"text": "b"})), AIMessage("done")])
    with anyio.fail_after(WAIT):
        agent = create_react_agent(model, _node(Processes(workers=1)))
        state = await agent.ainvoke({"messages": [HumanMessage("go")]})
    first, second = [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]
    assert first.removeprefix("a") == second.removeprefix("b")
    assert str(os.getpid()) not in first


async def test_the_key_of_an_order_is_the_same_in_a_worker_process() -> None:
    """An order that is planned again may run in another place than the first time."""
    thread: Any = {"configurable": {"thread_id": "t"}}
    in_workers = {"key_of_order": CallPolicy(runs_in=Processes(workers=1))}
    nodes = [ToolNode([plain.key_of_order]), ToolNode([plain.key_of_order], policies=in_workers)]
    with anyio.fail_after(WAIT):
        first, second = [
            await node.ainvoke([tool_call("key_of_order", order="A1", note=note)], thread)
            for node, note in zip(nodes, ("", "again"), strict=True)
        ]
    keys = [result["messages"][0].content for result in (first, second)]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 64


def test_sync_code_has_them_too() -> None:
    """The pool is opened for each synchronous run that needs it."""
    for _ in range(2):
        messages = _node(Processes(workers=1)).invoke([calls(("later", {"text": "a"}))])
        assert messages[0].content.startswith("a from ")


async def test_an_actor_lives_in_a_process_of_its_own_and_comes_back_in_another_with_its_state() -> None:
    """Sync handlers run there, too. The state is saved after each call where this is requested."""
    with anyio.fail_after(WAIT):
        async with (
            Processes(workers=1) as pool,
            running(child(plain.Desk, "the study", runs_in=pool, save="each_call")) as desk,
        ):
            assert await desk.put("a letter") == "in the study, a letter"
            first = await desk.where()
            assert first not in {os.getpid(), *pool.pids}
            os.kill(first, signal.SIGKILL)
            while (second := await _where(desk)) in (None, first):
                await anyio.sleep(0.01)
            assert await desk.put("a bill") == "in the study, a letter, a bill"
        assert alive([first, second]) == set()  # type: ignore[list-item]


async def _where(desk: plain.Desk) -> int | None:
    try:
        return await desk.where()
    except ActorDiedError:
        return None


async def test_a_handler_that_hangs_in_c_ends_its_process_and_the_model_is_told_what_is_lost(tmp_path: Path) -> None:
    """The process ends after the timeout and the grace period; a restarted actor answers the next call."""
    with anyio.fail_after(WAIT):
        policies = {"hang": CallPolicy(timeout=0.5, grace=0.3)}
        async with ToolNode([child(plain.Desk, "the hall", runs_in=Processes(workers=1))], policies=policies) as node:
            await _run(node, ("put", {"paper": "a letter"}))
            [hung] = await _run(node, ("hang", {"folder": str(tmp_path)}))
            [put] = await _run(node, ("put", {"paper": "a bill"}))
    assert "did not finish within its timeout of 0.5 s" in hung.content
    assert "in the hall, a bill" in put.content
    assert "lost" in put.content
    assert alive(await wait_for_starts(tmp_path)) == set()


CONFIG: RunnableConfig = {
    "configurable": {"thread_id": "t", "user": "ann", "socket": threading.Lock()},
    "metadata": {"team": "blue", "lock": threading.Lock()},
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # LangGraph and LangChain support asyncio only
async def test_a_handler_in_a_worker_reads_the_config_of_the_run() -> None:
    """Objects that cannot be pickled and LangGraph's internal entries stay in this process."""
    call = calls(tool_call("look", "1", place="a"), tool_call("look_around", "2", place="b"))
    node = ToolNode([child(configured.Desk, runs_in=Processes(workers=1))], handle_tool_errors=False)
    with anyio.fail_after(WAIT):
        async with create_react_agent(ScriptedModel([call, "done"]), node, checkpointer=InMemorySaver()) as agent:
            messages = (await agent.ainvoke({"messages": [("user", "go")]}, CONFIG))["messages"]
        alone = await node.tools_by_name["look"].ainvoke({"place": "a"}, CONFIG)
    contents = [message.content for message in messages if message.type == "tool"]
    assert contents == ['["a", "t", "ann", "blue", []]', '["b", "2", "t"]']
    assert alone.startswith('["a", "t", "ann", "blue", []]')  # LangChain itself runs the tool, without its node


SHIELDING = [_cleans_up.hold, _cleans_up.hold_by_the_name_of_the_package]


@pytest.mark.parametrize("tool", SHIELDING, ids=lambda tool: tool.__name__)
def test_a_tool_with_clean_up_that_would_be_killed_is_warned_about(tool: Callable[..., Any]) -> None:
    """The warning comes when the node is built, because a killed process can log nothing."""
    with pytest.warns(CallboardWarning, match=rf"'{tool.__name__}' uses cleanup\(\), and where it runs its process is"):
        ToolNode([tool], policies={tool.__name__: CallPolicy(runs_in=Processes())})


def test_a_tool_without_clean_up_of_its_own_is_not() -> None:
    """The kernel closes files and connections, so no warning is needed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ToolNode([_cleans_up.plain], policies={"plain": CallPolicy(runs_in=Processes())})
        ToolNode([_cleans_up.hold])


async def test_an_async_tool_in_a_process_is_killed_without_its_clean_up(tmp_path: Path) -> None:
    """As `choose-isolation.md` says, a killed tool does not clean up; in the event loop the same tool does."""
    for cleans_up, policy in ((False, CallPolicy(runs_in=(pool := Processes(workers=1)))), (True, CallPolicy())):
        folder = tmp_path / str(cleans_up)
        folder.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CallboardWarning)
            node = ToolNode([_cleans_up.hold], policies={"hold": policy})
        with anyio.fail_after(60):
            async with pool, anyio.create_task_group() as group:
                group.start_soon(node.ainvoke, [tool_call("hold", "1", folder=str(folder))])
                while not (folder / "began").exists():
                    await anyio.sleep(0.01)
                group.cancel_scope.cancel()

        assert (folder / "cleaned").exists() is cleans_up


async def test_a_call_that_is_cancelled_alone_ends_its_worker_and_its_neighbour_has_its_result(tmp_path: Path) -> None:
    """A hand on what runs reaches other processes: nothing of the call goes on there."""
    before, results = descendants(os.getpid()), list[Any]()
    node = _node(Processes(workers=2), grace=0.3)

    async def run() -> None:
        hang = tool_call("hang", "h", folder=str(tmp_path))
        results.extend(await _run(node, hang, tool_call("later", "l", text="fine")))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            pids = await wait_for_starts(tmp_path)
            assert await node.cancel("h", "too long")
    hung, fine = results
    assert "was cancelled by the application before it had a result: too long" in hung.content
    assert fine.content.startswith("fine from ")
    assert alive(pids) == set()
    assert descendants(os.getpid()) == before
