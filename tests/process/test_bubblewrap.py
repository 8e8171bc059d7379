"""Files, processes and networks that do not exist for a worker inside bubblewrap.

Each test first shows that they exist outside.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import ActorStartError
from callboard_actors.process import Confine, Processes, WorkerCallError, WorkerDiedError

from . import _attempts as attempts
from . import _bodies as bodies
from ._processes import WAIT, confined_here, descendants, needs_bubblewrap, opened, running, started
from .test_confined import ALL, World, assert_refused, confined
from .test_confined import world as world

pytestmark = [pytest.mark.real_clock, needs_bubblewrap]
OF_A_POOL = 4
"""Processes of a pool of one worker: bubblewrap's two, the zygote, the worker."""


def inside(**more: Any) -> Confine:
    return confined_here(isolation="bubblewrap", **more)


async def becomes(before: set[int], count: int) -> set[int]:
    """Wait until there are so many more descendant processes than before."""
    with anyio.fail_after(WAIT):
        while len(found := descendants(os.getpid()) - before) != count:
            await anyio.sleep(0.005)
    return found


@pytest.mark.backends("asyncio", "trio")
async def test_files_that_are_not_given_are_not_even_there(world: World) -> None:
    """Landlock alone shows names, sizes and times of files to a worker that guesses a path."""
    hidden = ["/etc/passwd", world.secret(), str(world.outside), "/home", "/var"]
    async with confined(world.confine()) as pool:
        assert all([await pool.run(os.path.exists, path) for path in hidden])
    async with confined(world.confine(isolation="bubblewrap", reuse=True)) as pool:
        assert not any([await pool.run(os.path.exists, path) for path in hidden])
        assert await pool.run(attempts.read, world.book())


async def test_processes_outside_are_not_even_there() -> None:
    """Neither the parent nor any other outside process has a process id inside bubblewrap."""
    ours = f"/proc/{os.getpid()}"
    async with confined(confined_here()) as pool:
        assert await pool.run(os.path.exists, ours)
    async with confined(inside(read=["/proc"])) as pool:
        assert not await pool.run(os.path.exists, ours)
        assert {int(one) for one in await pool.run(os.listdir, "/proc") if one.isdigit()} <= set(range(10))


async def test_pids_are_those_that_others_know_them_by() -> None:
    """Reported process ids are those of the outer namespace; a worker's inner id may be another process there."""
    async with confined(inside(reuse=True)) as pool:
        [pid] = pool.pids
        assert pid in descendants(os.getpid())
        assert await pool.run(bodies.pid) != pid
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(WAIT):
            while pool.pids == [pid] or not pool.pids:
                await anyio.sleep(0.005)
        assert await pool.run(bodies.add, 1, 2) == 3
        assert set(pool.pids) <= descendants(os.getpid())


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ALL)
async def test_what_is_refused_to_a_confined_worker_is_refused_inside_too(world: World, name: str) -> None:
    """Landlock and the system call filter hold inside bubblewrap, too."""
    await assert_refused(world, name, world.confine(isolation="bubblewrap"))


@pytest.mark.exhaustive
async def test_the_network_is_another_one_for_the_zygote_too(world: World) -> None:
    """The namespaces also confine the zygote, which the system call filter does not cover."""
    names = ["net", "pid", "ipc", "uts", "user", "cgroup", "mnt"]
    for network in (False, True):
        before = descendants(os.getpid())
        async with confined(inside(network=network)) as pool:
            [pid] = set(pool.pids) - before
            other = {name for name in names if _namespace(pid, name) != _namespace(os.getpid(), name)}
        assert other == set(names) - ({"net"} if network else set())


def _namespace(pid: int, name: str) -> str:
    return str(Path(f"/proc/{pid}/ns/{name}").readlink())


@pytest.mark.exhaustive
async def test_what_is_written_stays_where_it_may(world: World) -> None:
    """A readable folder is read-only, also below the temporary folder. Each worker has its own temporary folder."""
    own = f"/tmp/callboard-{os.getpid()}"
    async with opened() as pool:
        assert await pool.run(attempts.write, own)
    Path(own).unlink()
    async with confined(world.confine(isolation="bubblewrap", reuse=True)) as pool:
        assert await pool.run(attempts.write, world.new())
        assert await pool.run(attempts.write, own)
        assert await pool.run(os.getenv, "TMPDIR") == "/tmp"
        for path in (world.book(), str(world.readable / "new"), "/new", "/usr/lib/new", "/etc/new", "/dev/new"):
            with pytest.raises(OSError):
                await pool.run(attempts.write, path)

    assert (world.writable / "new").read_text() == "changed"
    assert not Path(own).exists()
    assert Path(world.book()).read_text() == "book"


@pytest.mark.exhaustive
async def test_a_folder_that_may_be_written_lies_in_one_that_may_be_read(world: World) -> None:
    """A writable folder inside a readable one works in either order of options, as without bubblewrap."""
    below = world.readable / "below"
    below.mkdir()
    for confine in (
        inside(read=[world.readable], write=[below], reuse=True),
        inside(read=[below], write=[world.readable], reuse=True),
    ):
        async with confined(confine) as pool:
            assert await pool.run(attempts.write, str(below / "new"))


@pytest.mark.exhaustive
async def test_a_fork_bomb_ends_with_its_call(world: World) -> None:
    """Processes that leave their group and their parent end with the call, too."""
    before = descendants(os.getpid())
    async with opened(grace=0) as pool:
        assert await pool.run(attempts.fork_bomb, 20)
        assert len(descendants(os.getpid()) - before) >= 20
    async with confined(inside(processes=True, read=["/usr/bin"], write=[world.writable])) as pool:
        await becomes(before, OF_A_POOL)
        assert await pool.run(attempts.execute, "/bin/true")
        with pytest.raises(WorkerCallError, match="CalledProcessError"):
            await pool.run(attempts.execute, "/bin/cat", world.secret())
        assert await pool.run(attempts.fork_bomb, 20)
        await becomes(before, OF_A_POOL)
        with anyio.move_on_after(1):
            await pool.run(bodies.daemonise, str(world.writable))
        await becomes(before, OF_A_POOL)
    await becomes(before, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("which", [0, 1, 2])
async def test_who_is_killed_takes_all_the_others_along(tmp_path: Path, which: int) -> None:
    """If bubblewrap, its first inner process or the zygote is killed, the call fails and the pool starts new ones."""
    before = descendants(os.getpid())
    async with confined(inside(write=[tmp_path], processes=True)) as pool:
        began = time.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(_dies, pool, str(tmp_path))
            await started(tmp_path, 2)
            below = descendants(os.getpid()) - before
            began = time.monotonic()
            os.kill(_in_line(os.getpid(), below)[which], signal.SIGKILL)
            with anyio.fail_after(WAIT):
                while running(below):
                    await anyio.sleep(0.005)
        assert time.monotonic() - began < 1
        assert await pool.run(bodies.add, 1, 2) == 3


async def _dies(pool: Processes, folder: str) -> None:
    with pytest.raises(WorkerDiedError):
        await pool.run(bodies.fork_a_grandchild, folder)


def _in_line(pid: int, below: set[int]) -> list[int]:
    """Return the process ids of bubblewrap, its first inner process and the zygote."""
    first = next(one for one in below if pid in _parents(one))
    init = next(one for one in below if first in _parents(one))
    return [first, init, next(one for one in below if init in _parents(one))]


def _parents(pid: int) -> list[int]:
    return [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])]


async def test_what_cannot_be_had_is_refused_at_the_start(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the requested confinement is unavailable, the pool refuses to start; it never falls back to a weaker one."""
    with pytest.raises(ValueError, match="isolation='jail' is neither 'landlock' nor 'bubblewrap'"):
        inside_of: Any = "jail"
        Confine(isolation=inside_of)
    await _refused(inside(read=["/"]), "has '/', and isolation='bubblewrap' has a root")
    await _refused(inside(write=["/tmp"]), "has '/tmp', and isolation='bubblewrap' has a root")
    moved = inside(read=[world.readable])
    world.readable.rmdir()
    world.readable.symlink_to("/etc")
    await _refused(moved, "leads to /etc now")

    monkeypatch.setenv("PATH", str(tmp_path))
    await _refused(inside(), "the package is called bubblewrap")
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    await _refused(inside(), r"user namespaces allowed\?\): bwrap: No permissions to create new namespace")


async def _refused(confine: Confine, text: str) -> None:
    with pytest.raises(ActorStartError, match=text) as caught:
        async with confined(confine):
            pass
    assert caught.value.never
