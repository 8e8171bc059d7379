"""`open()` and `aclose()`: nodes, agents and supervisors that stay open without an `async with` block."""

import asyncio
import logging
import pickle
from typing import Any, ClassVar

import anyio
import pytest
import trio
from langchain_core.tools import tool

from callboard import (
    Actor,
    ActorDiedError,
    ActorGoneError,
    ActorStartError,
    Backoff,
    DrainingError,
    Supervisor,
    SupervisorError,
    ToolNode,
    create_react_agent,
    handler,
    tool_call,
)
from callboard.testing import ScriptedModel, calls
from tests.helpers import BrokenError, contents, live_tasks


class Counter(Actor):
    """Counts its calls."""

    fatal = (BrokenError,)
    log: ClassVar[list[str]] = []

    def __init__(self, slow: float = 0.0) -> None:
        self.slow = slow

    async def start(self) -> None:
        self.number = 0
        self.log.append("start")
        await anyio.sleep(self.slow)

    async def stop(self) -> None:
        self.log.append("stop")

    @handler
    async def count(self) -> int:
        """Count."""
        self.number += 1
        return self.number

    @handler
    async def die(self) -> None:
        """Die."""
        raise BrokenError("died")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Counter.log.clear()


def agent_of(*actors: Actor, times: int = 9) -> Any:
    script = [calls(tool_call("count", "1")), "done"] * times
    return create_react_agent(ScriptedModel(script), [*actors])


async def ask_count(agent: Any) -> str:
    state = await agent.ainvoke({"messages": "count"})
    return str(state["messages"][-2].content)


async def in_a_task(fn: Any, *args: Any) -> Any:
    """Await `fn` in a new task, as a notebook does with a cell."""
    results: list[Any] = []

    async def cell() -> None:
        results.append(await fn(*args))

    async with anyio.create_task_group() as group:
        group.start_soon(cell)
    return results[0]


@pytest.mark.real_clock
async def test_an_agent_stays_open_from_one_task_to_another() -> None:
    """Each cell of a notebook is a task; the actor keeps its state between them, and ends at `aclose`."""
    before = live_tasks()
    agent = agent_of(Counter())
    assert await in_a_task(agent.open) is agent
    assert [await in_a_task(ask_count, agent) for _ in range(3)] == ["1", "2", "3"]
    await in_a_task(agent.aclose)

    assert Counter.log == ["start", "stop"]
    assert live_tasks() == before


async def test_a_node_and_a_supervisor_stay_open_too() -> None:
    """All owners of actors share one mechanism."""
    node, tree = ToolNode([Counter()]), Supervisor([Counter()])
    await in_a_task(node.open)
    await in_a_task(tree.open)
    for number in ("1", "2"):
        assert contents(await in_a_task(node.ainvoke, [tool_call("count", number)])) == [number]
        assert await in_a_task(tree[Counter].count) == int(number)
    await in_a_task(node.aclose)
    await in_a_task(tree.aclose)

    assert Counter.log == ["start", "start", "stop", "stop"]


@pytest.mark.parametrize("kind", [agent_of, lambda actor: ToolNode([actor]), lambda actor: Supervisor([actor])])
async def test_opening_and_closing_twice_is_harmless(kind: Any) -> None:
    """A cell is often run again."""
    owner = kind(Counter())
    await owner.aclose()
    await owner.open()
    assert await owner.open() is owner
    await owner.aclose()
    await owner.aclose()

    assert Counter.log == ["start", "stop"]


@pytest.mark.parametrize("kind", [agent_of, lambda actor: ToolNode([actor]), lambda actor: Supervisor([actor])])
async def test_a_block_and_open_exclude_each_other(kind: Any) -> None:
    """Two owners would each close the actors of the other."""
    owner = kind(Counter())
    async with owner:
        with pytest.raises(RuntimeError, match=r"is (open|running) already"):
            await owner.open()
    await owner.open()
    with pytest.raises(RuntimeError, match=r"is (open|running) already"):
        async with owner:
            pass
    await owner.aclose()

    assert Counter.log == ["start", "stop"] * 2


async def test_the_error_of_an_opening_is_raised_by_open() -> None:
    """Nothing stays half open, and the next attempt begins anew."""
    before = live_tasks()
    tree = Supervisor([Counter(), Broken()])
    for _ in range(2):
        with pytest.raises(ActorStartError, match="no database"):
            await tree.open()
    await tree.aclose()

    assert Counter.log == ["start", "stop"] * 2
    assert live_tasks() == before


class Broken(Actor):
    async def start(self) -> None:
        raise BrokenError("no database")

    @handler
    async def never(self) -> None:
        """Never runs."""


@pytest.mark.parametrize("kind", [lambda actor: ToolNode([actor]), lambda actor: Supervisor([actor])])
async def test_an_interrupted_open_leaves_nothing_behind(kind: Any) -> None:
    """A cell that is interrupted while a server starts must not leave the server behind."""
    before = live_tasks()
    owner = kind(Counter(slow=5))
    with anyio.move_on_after(1) as scope:
        await owner.open()
    assert scope.cancelled_caught
    assert live_tasks() == before
    await owner.open()
    await owner.aclose()
    assert Counter.log == ["start", "start", "stop"]


async def test_an_interrupted_close_has_closed() -> None:
    """The interrupt ends the wait for runs; the actors are stopped before it is raised."""
    before = live_tasks()
    node = ToolNode([Counter(), wait])
    async with anyio.create_task_group() as group:
        await node.open()
        group.start_soon(assert_draining, node)
        await anyio.sleep(1)
        with anyio.move_on_after(1) as scope:
            await node.aclose()
        assert scope.cancelled_caught
        assert Counter.log == ["start", "stop"]
    assert live_tasks() == before


async def assert_draining(node: ToolNode) -> None:
    with pytest.raises(DrainingError):
        await node.ainvoke([tool_call("wait", "1")])


@tool
async def wait() -> str:
    """Wait for a long time."""
    await anyio.sleep(1000)
    return "waited"


@pytest.mark.real_clock
async def test_aclose_waits_for_runs_up_to_its_timeout() -> None:
    """`aclose(timeout)` has one meaning, with `open()` and without it."""
    began = anyio.Event()

    @tool
    async def stay() -> str:
        """Stay."""
        began.set()
        await anyio.sleep_forever()
        return "never"

    async def run() -> None:
        with pytest.raises(DrainingError):
            await agent.ainvoke({"messages": "stay"})

    agent = create_react_agent(ScriptedModel([calls(tool_call("stay", "1"))]), [Counter(), stay])
    async with anyio.create_task_group() as group:
        await agent.open()
        group.start_soon(run)
        await began.wait()
        await agent.aclose(timeout=0.1)
        assert Counter.log == ["start", "stop"]


async def test_a_supervisor_that_gives_up_says_so_at_the_close(caplog: pytest.LogCaptureFixture) -> None:
    """In a block, the error is raised at its end; here a warning comes at once, and the error at `aclose`."""
    tree = Supervisor([Counter()], intensity=0, backoff=Backoff(first=0))
    with caplog.at_level(logging.WARNING, "callboard"):
        await tree.open()
        book = tree[Counter]
        with pytest.raises(Exception, match="died"):
            await book.die()
        await anyio.sleep(1)
        assert "has closed without aclose(), because of SupervisorError" in caplog.text
        with pytest.raises(ActorGoneError):
            await book.count()
        with pytest.raises(SupervisorError):
            await tree.aclose()
        await tree.aclose()


def test_the_end_of_the_loop_closes_and_warns(anyio_backend_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A forgotten `aclose()` is reported, the actors stop, and the agent can be opened in the next loop."""
    agent = agent_of(Counter())

    async def forgets() -> None:
        await agent.open()
        assert await ask_count(agent) == "1"

    async def closes() -> None:
        await agent.open()
        assert await ask_count(agent) == "1"
        await agent.aclose()

    _run(forgets, anyio_backend_name)
    assert Counter.log == ["start", "stop"]
    assert "has closed without aclose(), because its event loop has ended" in caplog.text
    caplog.clear()
    _run(closes, anyio_backend_name)
    assert Counter.log == ["start", "stop"] * 2
    assert caplog.text == ""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _run(fn: Any, name: str) -> None:
    if name == "trio":
        trio.run(fn)
    else:
        asyncio.run(fn())


@pytest.mark.real_clock
async def test_another_event_loop_cannot_close() -> None:
    """`agent.close()` in a cell would wait in the very thread that has to stop the actors."""
    agent = agent_of(Counter())
    await agent.open()
    with pytest.raises(RuntimeError, match=r"was opened in another event loop: `await \.\.\.\.aclose\(\)` there"):
        agent.close()
    assert await ask_count(agent) == "1"
    await agent.aclose()
    agent.close()


async def test_an_open_node_can_be_pickled() -> None:
    """The copy is not open."""
    node = ToolNode([Counter()])
    await node.open()
    copy = pickle.loads(pickle.dumps(node))
    await copy.aclose()
    await copy.open()
    await copy.aclose()
    await node.aclose()
    assert Counter.log == ["start", "start", "stop", "stop"]


class Closer(Actor):
    """Closes the supervisor that it belongs to."""

    def __init__(self, tree: list[Supervisor]) -> None:
        self.tree = tree

    @handler
    async def close(self) -> None:
        """Close."""
        await self.tree[0].aclose()


async def test_a_handler_that_closes_its_own_supervisor_is_cancelled() -> None:
    """The supervisor waits for the handler, and the handler for the supervisor; both waits have an end."""
    tree: list[Supervisor] = []
    supervisor = Supervisor([Closer(tree)])
    tree.append(supervisor)
    await supervisor.open()
    with pytest.raises(ActorDiedError, match="had begun"):
        await supervisor[Closer].close()
    await supervisor.aclose()
