"""Calls of tools and actors that run at a remote worker, and calls that the worker refuses."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import ActorStartError, CallPolicy, ToolNode, child, running
from callboard.extend import Body, EngineError
from callboard.testing import calls
from callboard_actors.remote._engine import RemoteWorkers
from callboard_actors.remote._handshake import Address, Offer
from callboard_actors.remote._link import Link

from . import _bodies as bodies
from . import _exits as exits
from ._commands import Worker, engine, opened, worker

pytestmark = pytest.mark.real_clock
WAIT = 40


def _body(fn: Any, *args: Any, **options: Any) -> Body:
    return Body(fn=fn, args=args, title=fn.__name__, **options)


def _worker_of_the_module(*arguments: str) -> Any:
    """Return a fixture: a worker for the tests of this module."""

    @pytest.fixture(scope="module")
    def started() -> Iterator[Worker]:
        with worker(*arguments) as found:
            yield found

    return started


serves_exits = _worker_of_the_module(exits.__name__)
confined = _worker_of_the_module(bodies.__name__, "--confine")
confined_actor = _worker_of_the_module(f"{bodies.__name__}:Notebook", "--confine")


async def test_a_tool_runs_at_the_worker(served: Worker) -> None:
    """The tool runs in a child process of the worker, not in this process."""
    with anyio.fail_after(WAIT):
        remote = engine(served)
        policies = {"add": CallPolicy(runs_in=remote, timeout=20.0), "parent": CallPolicy(runs_in=remote)}
        async with ToolNode([bodies.add, bodies.parent], policies=policies) as node:
            sum_, above = await node.ainvoke([calls(("add", {"one": 1, "other": 2}), "parent")])

    assert sum_.content == "3"
    assert str(served.process.pid) in above.content


async def test_an_actor_among_the_tools_of_a_node_lives_at_the_worker(served: Worker) -> None:
    """`child(..., runs_in=engine)` is the only change that the node needs."""
    with anyio.fail_after(WAIT):
        async with ToolNode([child(bodies.Notebook, runs_in=engine(served))]) as node:
            [first] = await node.ainvoke([calls(("append", {"line": "a"}))])
            [second] = await node.ainvoke([calls(("append", {"line": "b"}))])

    assert (first.content, second.content) == ("1", "2")


async def test_what_is_not_served_is_refused_by_name(served: Worker) -> None:
    """The client's error lists the functions that are served, before anything is sent."""
    async with engine(served) as remote:
        with (
            anyio.fail_after(WAIT),
            pytest.raises(EngineError, match=r"serves posix:getpid, only .*_bodies:add") as why,
        ):
            await remote.run_body(_body(os.getpid))

    assert (why.value.ended, why.value.recurs) == ("unavailable", True)


async def test_the_worker_itself_refuses_what_is_not_served(served: Worker) -> None:
    """The worker does not rely on the checks of the client."""
    async with engine(served) as remote:
        [link] = remote._here("").links
        object.__setattr__(link.offer, "serves", (*link.offer.serves, "posix:getpid"))
        with anyio.fail_after(WAIT), pytest.raises(EngineError, match="posix:getpid is not served by its worker"):
            await remote.run_body(_body(os.getpid))


async def test_what_would_run_has_to_be_what_was_asked_for(served: Worker) -> None:
    """A call that names one function and carries another runs neither."""
    async with engine(served) as remote:
        with anyio.fail_after(WAIT), pytest.raises(TypeError, match=r"posix:getpid came with a call of .*:add"):
            await remote.run_body(_body(os.getpid, subject=bodies.add))


def test_what_another_program_could_not_find_is_refused_when_a_node_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function of `__main__` cannot be served, because `__main__` is another module at the worker."""

    def local(one: int) -> int:
        """A function in a function."""
        return one

    remote = engine("127.0.0.1:1")
    with pytest.raises(TypeError, match="local"):
        ToolNode([local], policies={"local": CallPolicy(runs_in=remote)})
    with pytest.raises(TypeError, match="defined in __main__, which is another program there"):
        monkeypatch.setattr(bodies.add, "__module__", "__main__")
        monkeypatch.setattr(__import__("sys").modules["__main__"], "add", bodies.add, raising=False)
        remote.check(bodies.add, title="add")


async def test_surplus_calls_wait_here_for_their_turn(served: Worker, tmp_path: Path) -> None:
    """The client queues surplus calls: a worker never gets more than its announced number of slots."""
    most = 0
    path = str(tmp_path / "ids")
    async with engine(served) as remote:
        [link] = remote._here("").links
        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as group:
                for number in range(12):
                    group.start_soon(remote.run_body, _body(bodies.note_id, path, str(number), 0.02))
                while len(Path(path).read_text().splitlines() if Path(path).exists() else ()) < 12:
                    most = max(most, len(link._calls))
                    await anyio.sleep(0.002)

    assert most == 2


async def test_large_arguments_and_results_cross(served: Worker) -> None:
    """Arguments and results are sent in chunks, in both directions."""
    async with opened(served) as remote:
        assert await remote.run_body(_body(bodies.length, b"x" * 5_000_000)) == 5_000_000
        assert len(await remote.run_body(_body(bodies.big, 5_000_000))) == 5_000_000


async def test_what_is_too_large_is_refused_and_nothing_else_suffers(served: Worker) -> None:
    """A large argument is refused before it is sent; a large result is an error that the call finished."""
    async with opened(served, max_result=1_000_000) as remote:
        with pytest.raises(TypeError, match="its worker takes 67108864"):
            await remote.run_body(_body(bodies.length, b"x" * 68_000_000))
        with pytest.raises(EngineError, match="max_result is 1000000") as lost:
            await remote.run_body(_body(bodies.big, 2_000_000))
        assert await remote.run_body(_body(bodies.add, 1)) == 2

    assert lost.value.ended == "finished"


@pytest.mark.parametrize(("body", "why", "recurs"), [(exits.die, "SIGKILL", False), (exits.leave, "code 3", True)])
async def test_a_body_that_ends_its_process_is_unknown_and_ends_alone(
    serves_exits: Worker, body: Any, why: str, recurs: bool
) -> None:
    """`max_result` must not turn its error into "finished"; other calls of the worker go on."""
    async with opened(serves_exits, max_result=20) as remote:
        with pytest.raises(EngineError, match=why) as caught:
            await remote.run_body(_body(body))
        assert await remote.run_body(_body(exits.stay)) == "here"

    assert (caught.value.ended, caught.value.recurs) == ("unknown", recurs)


async def test_no_worker_is_an_error_that_says_which_and_why() -> None:
    """Opening the engine fails within its timeout, with the address and the reason."""
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError, match=r"127\.0\.0\.1:1: .*refused") as why:
        async with engine("127.0.0.1:1", start_timeout=0.3):
            pass

    assert not why.value.never


async def test_a_worker_that_is_not_confined_may_run_code_here(served: Worker) -> None:
    """Results of an unconfined worker are pickles: a worker that has the secret is trusted with this process."""
    async with opened(served) as remote:
        assert await remote.run_body(_body(bodies.wherever)) == os.getpid()


async def test_what_a_confined_worker_answers_is_never_unpickled_here(
    confined: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of a confined worker arrive by name, and its results as plain data."""
    monkeypatch.setattr("callboard_actors._engine._codec.loads", _never)
    monkeypatch.setattr("callboard_actors._engine._pickles.loads", _never)
    async with opened(confined) as remote:
        assert await remote.run_body(_body(bodies.add, 1)) == 2
        with pytest.raises(TypeError, match=r"unsupported operand|can only concatenate"):
            await remote.run_body(_body(bodies.add, "a"))
        with pytest.raises(PermissionError):
            await remote.run_body(_body(bodies.note_and_sleep, "/tmp/never", 0.0))
        assert await remote.run_body(_body(bodies.add_later, 1)) == 2


async def test_an_actor_lives_in_a_confined_worker_that_serves_nothing_else(confined_actor: Worker) -> None:
    """The actor's module is imported before the confinement, which makes its folder unreadable."""
    async with opened(confined_actor) as remote, running(bodies.Notebook, runs_in=remote) as notebook:
        assert [await notebook.append("a"), await notebook.append("b")] == [1, 2]


def _never(data: object) -> None:
    raise AssertionError("something was unpickled")


async def test_a_call_that_finds_no_connection_does_not_begin() -> None:
    """The engine tries another worker, so a call that also began at the first one would run twice."""
    begun: list[str] = []
    link = Link(Address("localhost", 1), Any, lambda: None)  # type: ignore[arg-type]
    with anyio.fail_after(WAIT), pytest.raises(EngineError):
        await link.run_body(_body(bodies.add, 1, 2, on_begin=lambda: begun.append("here")), b"")

    assert not begun


async def test_patience_counts_from_the_loss_of_the_last_worker_that_could_serve_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call waits on while a busy worker is connected, and its patience begins when that worker is lost."""
    remote = engine("localhost:1", "localhost:2", patience=2.0)
    workers = RemoteWorkers(remote._addresses, remote._terms)
    now = anyio.current_time()
    for link in workers.links:
        link.offer = Offer(capacity=1, seats=0, is_plain=False, max_call=1, serves=("module:fn",))
    with monkeypatch.context() as patch:
        patch.setattr(Link, "is_up", True)
        assert workers._patience_left("module:fn", now - 100) == 2.0
    workers.links[0].gone_at = now - 0.5
    assert workers._patience_left("module:fn", now - 100) == pytest.approx(1.5, abs=0.1)
    assert workers._patience_left("module:other", now - 100) < 0
