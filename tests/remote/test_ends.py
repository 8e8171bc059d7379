"""Outcomes of calls when their worker, their connection or their client ends."""

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, Drained, ToolNode, UnknownCall, running
from callboard.extend import Body, EngineError
from callboard.testing import calls
from callboard_actors.remote import RemoteEngine

from . import _bodies as bodies
from ._commands import BODIES, Worker, engine, opened, until, worker

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]
WAIT = 60


def _body(fn: Any, *args: Any, **options: Any) -> Body:
    return Body(fn=fn, args=args, title=fn.__name__, **options)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


async def _loses(remote: RemoteEngine, path: Path, why: str, call_id: str | None = None) -> None:
    """Run a body that would take a minute, and that ends with an unknown outcome."""
    with pytest.raises(EngineError, match=why) as ended:
        await remote.run_body(_body(bodies.note_and_sleep, str(path), 60.0, call_id=call_id))
    assert ended.value.ended == "unknown"


async def _until(holds: Any) -> None:
    while not holds():
        await anyio.sleep(0.005)


async def test_a_killed_worker_makes_its_calls_unknown_and_another_one_goes_on(tmp_path: Path) -> None:
    """After SIGKILL open calls fail at once, later calls use another worker, and no process is left."""
    path = tmp_path / "noted"
    found: list[EngineError] = []
    with worker() as doomed, worker() as other:
        async with engine(doomed, other) as remote:

            async def lost() -> None:
                try:
                    await remote.run_body(_body(bodies.note_and_sleep, str(path), 3.0))
                except EngineError as error:
                    found.append(error)

            with anyio.fail_after(WAIT):
                async with anyio.create_task_group() as group:
                    for _ in range(4):
                        group.start_soon(lost)
                    await _until(lambda: len(_lines(path)) == 4)
                    doomed.signal(signal.SIGKILL)
                    await _until(lambda: len(found) == 2)
                    sums = [await remote.run_body(_body(bodies.add, one)) for one in range(4)]
                    group.cancel_scope.cancel()

    assert sums == [1, 2, 3, 4]
    assert [error.ended for error in found] == ["unknown", "unknown"]
    assert f"its connection was lost (worker at {doomed.address})" in str(found[0])
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in _lines(path) if pid.isdigit()))


async def test_a_call_that_may_run_again_does_so_at_another_worker(tmp_path: Path) -> None:
    """The retry policy of the tool applies to remote workers as to any engine."""
    path = tmp_path / "noted"
    with worker() as first, worker() as second:
        policy = CallPolicy(runs_in=(remote := engine(first, second)), idempotent=True)
        async with remote, ToolNode([bodies.note_and_sleep], policies={"note_and_sleep": policy}) as node:
            with anyio.fail_after(WAIT):
                async with anyio.create_task_group() as group:

                    async def run() -> None:
                        one = ("note_and_sleep", {"path": str(path), "seconds": 1.0})
                        [message] = await node.ainvoke([calls(one)])
                        assert message.content == "done"

                    group.start_soon(run)
                    await _until(lambda: len(_lines(path)) == 1)
                    pid = int(_lines(path)[0])
                    _worker_of(pid, first, second).signal(signal.SIGKILL)

    assert len([line for line in _lines(path) if line.isdigit()]) == 2


def _worker_of(pid: int, *workers: Worker) -> Worker:
    while pid not in {one.process.pid for one in workers}:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return next(one for one in workers if one.process.pid == pid)


async def test_a_cancelled_call_has_ended_there_when_its_caller_goes_on(served: Worker, tmp_path: Path) -> None:
    """The worker ends the call's process within its grace period before the caller continues."""
    path = tmp_path / "noted"
    async with opened(served) as remote:
        async with anyio.create_task_group() as group:
            group.start_soon(remote.run_body, _body(bodies.note_and_sleep, str(path), 30.0, grace=0.2))
            await _until(lambda: _lines(path))
            began = time.monotonic()
            group.cancel_scope.cancel()
        assert not Path(f"/proc/{_lines(path)[0]}").exists()
        assert time.monotonic() - began < 3

        assert await remote.run_body(_body(bodies.add, 1)) == 2


@pytest.mark.backends("asyncio")
async def test_an_agent_that_is_killed_leaves_nothing_running(served: Worker, tmp_path: Path) -> None:
    """The worker ends the client's calls and actors."""
    path = tmp_path / "noted"
    code = (
        "import anyio, sys\n"
        f"sys.path.append({str(Path(bodies.__file__).parents[bodies.__name__.count('.')])!r})\n"
        f"from {BODIES} import note_and_sleep\n"
        "from callboard.extend import Body\n"
        "from callboard_actors.remote import RemoteEngine\n"
        "async def main():\n"
        f"    async with RemoteEngine([{served.address!r}]) as remote:\n"
        f"        await remote.run_body(Body(fn=note_and_sleep, args=({str(path)!r}, 60.0), title='t'))\n"
        "anyio.run(main)\n"
    )
    environment = {**os.environ, "CALLBOARD_WORKER_SECRET": "a secret of sixteen bytes or more"}
    async with await anyio.open_process([sys.executable, "-c", code], env=environment) as process:
        with anyio.fail_after(WAIT):
            await _until(lambda: _lines(path))
            process.kill()
            await process.wait()
            await _until(lambda: not Path(f"/proc/{_lines(path)[0]}").exists())

    assert len(_lines(path)) == 1


async def test_a_drained_worker_lets_finish_what_runs_and_begins_nothing(tmp_path: Path) -> None:
    """Clients choose another worker; the exit code says that no call was ended by force."""
    path = tmp_path / "noted"
    found: list[str] = []
    with worker() as first, worker() as second:
        async with engine(first, second) as remote:

            async def run() -> None:
                found.append(await remote.run_body(_body(bodies.note_and_sleep, str(path), 1.0)))

            with anyio.fail_after(WAIT):
                async with anyio.create_task_group() as group:
                    for _ in range(4):
                        group.start_soon(run)
                    await _until(lambda: len(_lines(path)) == 4)
                    first.signal(signal.SIGTERM)
                    [link] = [one for one in _links(remote) if str(one.address) == first.address]
                    await _until(lambda: not link.is_up)
                    others = [await remote.run_body(_body(bodies.parent)) for _ in range(3)]
                code = await anyio.to_thread.run_sync(first.wait)

    assert found == ["done"] * 4
    assert all(second.process.pid in above for above in others)
    assert code == 0


@pytest.mark.parametrize("signals", [1, 2])
async def test_what_does_not_finish_in_a_drain_is_ended_and_the_exit_code_says_so(tmp_path: Path, signals: int) -> None:
    """The client is told of the unknown outcome before the connection ends. A second signal ends the drain early."""
    path = tmp_path / "noted"
    with worker(BODIES, "--grace", "0.3", *(("--drain", "0.3") if signals == 1 else ())) as found:
        async with opened(found) as remote:
            async with anyio.create_task_group() as group:
                group.start_soon(_loses, remote, path, "its worker was stopped")
                await _until(lambda: _lines(path))
                found.signal(signal.SIGTERM)
                if signals == 2:
                    await _until(lambda: not _links(remote)[0].is_up)
                    found.signal(signal.SIGTERM)
            code = await anyio.to_thread.run_sync(found.wait)

    assert code == 4


async def test_a_call_that_waits_at_a_drained_worker_goes_to_another_one_and_is_not_unknown(tmp_path: Path) -> None:
    """Two clients share a worker with one slot.

    A call that has not begun there is not lost, and the exit code says so.
    """
    path = tmp_path / "noted"
    options = ("--workers", "1", "--drain", "0.3", "--grace", "0.3")
    with worker(BODIES, *options, log=tmp_path / "log") as first, worker() as second:
        async with opened(first) as busy, engine(first, second) as other:
            async with anyio.create_task_group() as group:

                async def ended() -> None:
                    with pytest.raises(EngineError) as caught:
                        await busy.run_body(_body(bodies.note_id, str(path), "lost", 60.0, call_id="c1"))
                    assert caught.value.ended == "unknown"

                group.start_soon(ended)
                await _until(lambda: not _links(busy)[0].has_room)
                [link] = [one for one in _links(other) if str(one.address) == first.address]
                found: list[Any] = []

                async def run(ident: str) -> None:
                    found.append(await other.run_body(_body(bodies.note_id, str(path), ident, 0.1)))

                for number in range(3):  # two slots at the second worker, so that one call waits at the first
                    group.start_soon(run, str(number))
                await _until(lambda: link.load)
                first.signal(signal.SIGTERM)
            code = await anyio.to_thread.run_sync(first.wait)

    assert sorted(found) == sorted(_lines(path)) == ["0", "1", "2"]
    assert code == 4
    assert "0 finished, 2 ended; unknown: note_id (call 'c1')" in (tmp_path / "log").read_text()


async def test_an_engine_that_is_drained_ends_its_bodies_there_and_its_worker_goes_on(
    served: Worker, tmp_path: Path
) -> None:
    """Only calls of the drained engine are ended; other clients keep using the worker."""
    path = tmp_path / "noted"
    async with opened(served, grace=0.3) as remote, engine(served) as other:
        async with anyio.create_task_group() as group:
            group.start_soon(_loses, remote, path, "its remote engine was drained", "c1")
            await _until(lambda: _lines(path))
            report = await remote.drain(0.2)
        assert not Path(f"/proc/{_lines(path)[0]}").exists()
        with pytest.raises(EngineError, match="its remote engine is being drained"):
            await remote.run_body(_body(bodies.add, 1))
        assert await other.run_body(_body(bodies.add, 1)) == 2

    assert report == Drained(ended=1, unknown=(UnknownCall(tool="note_and_sleep", call_id="c1"),))


async def test_an_actor_whose_worker_is_drained_lives_on_at_another_one() -> None:
    """Open calls of the actor are answered first; then the actor restarts at another worker."""
    with worker() as first, worker() as second:
        async with opened(first, second) as remote:
            async with running(bodies.Notebook, runs_in=remote) as notebook:
                pid = await notebook.pid()
                drained = _worker_of(pid, first, second)
                drained.signal(signal.SIGTERM)
                assert await anyio.to_thread.run_sync(drained.wait) == 0
                again = await notebook.pid()
                assert _worker_of(again, first, second) is not drained


async def test_a_silent_worker_is_away(tmp_path: Path) -> None:
    """The socket is open but no bytes come: calls that were sent are unknown, others are unavailable."""
    path = tmp_path / "noted"
    with worker() as found:
        remote = engine(found, heartbeat=0.1, silence=0.6, connect_timeout=0.3, patience=0.2)
        async with remote:
            with anyio.fail_after(WAIT):
                async with anyio.create_task_group() as group:
                    group.start_soon(_loses, remote, path, r"it was silent for 0.6 s")
                    await _until(lambda: _lines(path))
                    found.signal(signal.SIGSTOP)
                with pytest.raises(EngineError, match=r"did not answer within 0\.3 s|was silent") as ended:
                    await remote.run_body(_body(bodies.add, 1))
                assert ended.value.ended == "unavailable"
                found.signal(signal.SIGCONT)
                # A worker ends calls of a client that has been silent for too long.
                await _until(lambda: not Path(f"/proc/{_lines(path)[0]}").exists())


async def test_a_silent_agent_is_away(served: Worker, tmp_path: Path) -> None:
    """If a cable is pulled, the worker does not keep running calls whose results no client waits for."""
    path = tmp_path / "noted"
    async with opened(served, heartbeat=0.1, silence=0.5) as remote:
        async with anyio.create_task_group() as group:
            group.start_soon(_loses, remote, path, "worker at")
            await _until(lambda: _lines(path))
            [link] = _links(remote)
            link._connection._heartbeat = 1000  # the client is silent from here on
            await _until(lambda: not Path(f"/proc/{_lines(path)[0]}").exists())


def _links(remote: Any) -> Any:
    return remote._here("").links


def test_an_address_that_is_taken_is_an_error_that_says_so(served: Worker) -> None:
    """The command has a separate exit code for an address in use."""
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(AssertionError, match=r"Error: it cannot listen at .*in use"),
    ):
        with worker(BODIES, "--listen", "127.0.0.1:{}".format(taken.getsockname()[1])):
            pass
