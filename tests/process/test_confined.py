"""Operations that a confined worker cannot perform. Each test first shows that an unconfined worker can."""

import os
import resource
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import ActorStartError
from callboard_actors.process import Confine, Processes, WorkerCallError, WorkerDiedError
from tests.helpers import until

from . import _attempts as attempts
from . import _bodies as bodies
from ._processes import WAIT, confine_here, descendants, open_pool

pytestmark = pytest.mark.real_clock


@dataclass(frozen=True)
class World:
    """Folders, sockets and a process for the attempts; a worker may write to one folder and read another."""

    outside: Path
    readable: Path
    writable: Path
    tcp: tuple[str, int]
    udp: tuple[str, int]
    unix: str
    abstract: str
    neighbour: int

    def secret(self) -> str:
        """Path of a file that the worker may not read."""
        path = self.outside / "secret"
        path.write_text("secret")
        return str(path)

    def book(self) -> str:
        """Path of a file that the worker may only read."""
        path = self.readable / "book"
        path.write_text("book")
        return str(path)

    def new(self) -> str:
        """Path of a file in the writable folder that does not exist yet."""
        path = self.writable / "new"
        path.unlink(missing_ok=True)
        return str(path)

    def above(self) -> str:
        """Path to the secret that leads out of the writable folder."""
        self.secret()
        return f"{self.writable}/../outside/secret"

    def no_folder(self) -> str:
        """Path of a folder that does not exist."""
        path = self.outside / "folder"
        if path.exists():
            path.rmdir()
        return str(path)

    def contents(self) -> dict[str, str]:
        """Contents of the files that must not change."""
        folders = (self.outside, self.readable)
        return {str(path): path.read_text() for folder in folders for path in folder.iterdir() if path.is_file()}

    def confine(self, **options: Any) -> Confine:
        return confine_here(read=[self.readable], write=[self.writable], **options)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for name in ("outside", "readable", "writable"):
        (tmp_path / name).mkdir()
    abstract = f"\0callboard-{os.getpid()}-{id(tmp_path)}"
    path = str(tmp_path / "s")
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hidden,
        subprocess.Popen(["sleep", "600"]) as neighbour,
    ):
        try:
            udp.bind(("127.0.0.1", 0))
            unix.bind(path)
            hidden.bind(abstract)
            yield World(
                outside=tmp_path / "outside",
                readable=tmp_path / "readable",
                writable=tmp_path / "writable",
                tcp=tcp.getsockname(),
                udp=udp.getsockname(),
                unix=path,
                abstract=abstract,
                neighbour=neighbour.pid,
            )
        finally:
            neighbour.kill()


@asynccontextmanager
async def open_confined(confine: Confine, **options: Any) -> AsyncIterator[Processes]:
    async with open_pool(grace=0.2, confine=confine, **options) as pool:
        yield pool


Attempt = Callable[[World], tuple[Callable[..., object], tuple[object, ...]]]

FILES: dict[str, Attempt] = {
    "read": lambda world: (attempts.read, (world.secret(),)),
    "read by ..": lambda world: (attempts.read, (world.above(),)),
    "read below a folder": lambda world: (
        attempts.read_below_a_folder,
        (str(world.outside.parent), str(Path(world.secret()).relative_to(world.outside.parent))),
    ),
    "list": lambda world: (os.listdir, (str(world.outside),)),
    "list the root": lambda world: (os.listdir, ("/",)),
    "read a symlink to it": lambda world: (attempts.read_by_symlink, (world.secret(), world.new())),
    "write to a symlink to it": lambda world: (attempts.write_by_symlink, (world.secret(), world.new())),
    "read a hard link to it": lambda world: (attempts.hard_link, (world.secret(), world.new())),
    "hard link a book": lambda world: (attempts.hard_link, (world.book(), world.new())),
    "write": lambda world: (attempts.write, (world.secret(),)),
    "write a new one": lambda world: (attempts.write, (str(world.outside / "new"),)),
    "write a book": lambda world: (attempts.write, (world.book(),)),
    "append": lambda world: (attempts.append, (world.secret(),)),
    "truncate": lambda world: (os.truncate, (world.secret(), 0)),
    "truncate a book": lambda world: (os.truncate, (world.book(), 0)),
    "truncate a book by reading": lambda world: (attempts.truncate_by_reading, (world.book(),)),
    "unlink": lambda world: (os.unlink, (world.secret(),)),
    "unlink a book": lambda world: (os.unlink, (world.book(),)),
    "move out of the way": lambda world: (os.rename, (world.secret(), world.secret() + "2")),
    "move to where it may": lambda world: (os.rename, (world.secret(), world.new())),
    "make a folder": lambda world: (os.mkdir, (world.no_folder(),)),
    "make a fifo": lambda world: (os.mkfifo, (world.new(),)),
    "change mode": lambda world: (os.chmod, (world.secret(), 0o600)),
    "change the mode of a book": lambda world: (attempts.change_mode_by_fd, (world.book(),)),
    "change times": lambda world: (os.utime, (world.secret(),)),
    "change owner": lambda world: (attempts.change_owner, (world.secret(),)),
    "set an attribute": lambda world: (os.setxattr, (world.secret(), "user.callboard", b"1")),
    "environment of the parent": lambda world: (attempts.read, (f"/proc/{os.getpid()}/environ",)),
    "its own, as it was": lambda world: (attempts.read, ("/proc/self/environ",)),
    "memory of the parent": lambda world: (os.open, (f"/proc/{os.getpid()}/mem", os.O_RDONLY)),
    "files of the parent": lambda world: (os.listdir, (f"/proc/{os.getpid()}/fd",)),
    "users of the machine": lambda world: (attempts.read, ("/etc/passwd",)),
}
NETWORK: dict[str, Attempt] = {
    "TCP": lambda world: (attempts.connect, (socket.AF_INET, socket.SOCK_STREAM, world.tcp)),
    "listen": lambda world: (attempts.listen, ()),
    "UDP": lambda world: (attempts.connect, (socket.AF_INET, socket.SOCK_DGRAM, world.udp)),
    "UNIX": lambda world: (attempts.connect, (socket.AF_UNIX, socket.SOCK_DGRAM, world.unix)),
    "abstract": lambda world: (attempts.connect, (socket.AF_UNIX, socket.SOCK_DGRAM, world.abstract)),
    "UNIX from a pair": lambda world: (attempts.send_datagram, (world.unix,)),
    "bind to a path": lambda world: (attempts.bind_to_path, (world.new(),)),
}
OTHERS: dict[str, Attempt] = {
    "signal to the parent": lambda world: (os.kill, (os.getpid(), signal.SIGCONT)),
    "signal to a neighbour": lambda world: (os.kill, (world.neighbour, signal.SIGCONT)),
    "signal to a thread": lambda world: (attempts.send_signal_to_thread, (world.neighbour,)),
    "signal to a group": lambda world: (attempts.send_signal_to_group, (world.neighbour,)),
    "signal by pidfd": lambda world: (attempts.send_signal_by_pidfd, (world.neighbour,)),
    "signal by a file": lambda world: (attempts.have_signals_sent, (world.neighbour,)),
    "ptrace": lambda world: (attempts.trace, (world.neighbour,)),
    "memory": lambda world: (attempts.read_memory, (world.neighbour,)),
    "limits": lambda world: (attempts.change_limits, (world.neighbour,)),
    "priority": lambda world: (attempts.change_priority, (world.neighbour,)),
    "processors": lambda world: (attempts.choose_processors, (world.neighbour,)),
    "outlive the parent": lambda world: (attempts.outlive_the_parent, ()),
    "fork": lambda world: (attempts.fork, ()),
    "fork bomb": lambda world: (attempts.fork_bomb, (20,)),
    "clone": lambda world: (attempts.fork_by_clone, ()),
    "execute": lambda world: (attempts.execute, ("/bin/true",)),
    "namespace": lambda world: (attempts.new_namespace, ()),
    "keyring": lambda world: (attempts.keyring, ()),
    "memory without bound": lambda world: (attempts.memory_without_bound, ()),
    "shared memory": lambda world: (attempts.shared_memory, ()),
}
ALL = FILES | NETWORK | OTHERS
QUICK = ("read", "write", "TCP", "signal to the parent", "fork")


async def assert_refused(world: World, name: str, confine: Confine) -> None:
    """Check that an attempt works in a plain worker, and is refused without effect in a confined one."""
    async with open_pool(grace=0) as pool:
        fn, args = ALL[name](world)
        await pool.run(fn, *args)
    fn, args = ALL[name](world)
    before = world.contents()
    async with open_confined(confine) as pool:
        with pytest.raises(OSError) as caught:
            await pool.run(fn, *args)
        assert await pool.run(bodies.add, 1, 2) == 3
    assert any(f"[Errno {number}]" in str(caught.value) for number in (1, 13, 18))
    assert world.contents() == before


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.exhaustive) for name in ALL]
)
async def test_what_works_elsewhere_is_refused_to_a_confined_worker(world: World, name: str) -> None:
    """The kernel refuses the operation with an error that the call can handle, and nothing has changed."""
    await assert_refused(world, name, world.confine())


async def test_a_secret_in_the_environment_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret variable is neither in the worker's environment nor in its memory; requested variables are there."""
    monkeypatch.setenv("CALLBOARD_SECRET", "secret")
    monkeypatch.setenv("LC_TIME", "C")
    async with open_pool() as pool:
        assert await pool.run(attempts.has_variable, "CALLBOARD_SECRET")
        helpers = descendants(os.getpid())
    async with open_confined(confine_here(environment={"GIVEN": "1"})) as pool:
        with pytest.raises(PermissionError):
            await pool.run(attempts.has_variable, "CALLBOARD_SECRET")
        assert await pool.run(attempts.has_variable, "GIVEN")
        assert await pool.run(attempts.has_variable, "LC_TIME")
        below = descendants(os.getpid()) - helpers
        environments = [read_environment(pid) for pid in below]

    assert any(b"GIVEN=1" in environment for environment in environments)
    assert not any(b"CALLBOARD_SECRET" in environment for environment in environments)


def read_environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # the process has ended


async def test_a_confined_worker_has_no_files_but_its_own() -> None:
    """The worker has not even the file of another worker's begun counter.

    Capabilities would let root pass the confinement, so the worker has none.
    """
    async with open_confined(confine_here(read=["/proc"])) as pool:
        kinds = await pool.run(attempts.kinds_of_open_files)
        lines = await pool.run(attempts.capabilities)

    assert sorted(kinds.values()) == ["device", "pipe", "pipe", "socket"]
    assert {line.split()[1] for line in lines if not line.startswith("CapBnd")} == {"0" * 16}


@pytest.mark.parametrize(
    ("fn", "args", "value"),
    [
        (attempts.thread_sum, (), 10),
        (attempts.thread_sum_later, (), 10),
        (attempts.compute_in_c, (), "10.5 CERT_REQUIRED"),
        (attempts.import_late, (["xml.sax", "mailbox", "wave"],), ["xml", "mailbox", "wave"]),
        (attempts.own_pair, (), b"hello"),
        (attempts.signal_oneself_and_hear, (), True),
        (attempts.what_time_it_is, (), "2026-07-01T00:00:00+02:00"),
        (attempts.append, ("/dev/null",), True),
        (attempts.read_a_little, ("/dev/urandom",), True),
        (attempts.choose_processors, (0,), True),
        (attempts.dies_with_its_parent, (), True),
    ],
)
async def test_what_python_needs_goes_on_in_a_confined_worker(
    fn: Callable[..., Any], args: tuple[object, ...], value: object
) -> None:
    """Threads, late imports of C modules, socket pairs, signals to itself and time zones work in a confined worker."""
    async with open_confined(confine_here()) as pool:
        assert await pool.run(fn, *args) == value


async def test_a_folder_may_be_read_and_another_written_to(world: World) -> None:
    """Access includes subfolders; a written file can be read, moved and deleted."""
    new = world.new()
    async with open_confined(world.confine()) as pool:
        assert await pool.run(attempts.read, world.book())
        assert await pool.run(attempts.write, new)
        assert await pool.run(attempts.append, new)
        assert await pool.run(attempts.read, new)
        await pool.run(os.mkdir, f"{world.writable}/folder")
        await pool.run(os.rename, new, f"{world.writable}/folder/moved")

    assert (world.writable / "folder" / "moved").read_text() == "changedmore"


async def test_network_that_was_asked_for_is_there_and_nothing_beside_it(world: World) -> None:
    """With network access a worker still has no UNIX sockets, which lead to other programs of this machine."""
    async with open_confined(confine_here(network=True)) as pool:
        assert await pool.run(attempts.connect, socket.AF_INET, socket.SOCK_STREAM, world.tcp)
        assert await pool.run(attempts.connect, socket.AF_INET, socket.SOCK_DGRAM, world.udp)
        assert await pool.run(attempts.listen)
        for name in ("UNIX", "abstract", "UNIX from a pair", "fork", "signal to the parent", "read"):
            fn, args = ALL[name](world)
            with pytest.raises(OSError):
                await pool.run(fn, *args)


async def test_processes_that_were_asked_for_are_confined_too(world: World) -> None:
    """Child processes can execute readable files, are confined, and end with the call."""
    confine = confine_here(read=["/usr/bin", "/bin"], processes=True)
    async with open_confined(confine) as pool:
        helpers = descendants(os.getpid()) - set(pool.pids)
        assert await pool.run(attempts.fork)
        assert await pool.run(attempts.execute, "/bin/true")
        assert await pool.run(attempts.fork_bomb, 20)
        assert await pool.run(bodies.add, 1, 2) == 3
        for name in ("signal to the parent", "signal to a group", "ptrace", "TCP", "namespace", "memory"):
            fn, args = ALL[name](world)
            with pytest.raises(OSError):
                await pool.run(fn, *args)
        with pytest.raises(WorkerCallError, match=r"CalledProcessError: .* returned non-zero exit status 1"):
            await pool.run(attempts.execute, "/bin/cat", world.secret())
        await until(lambda: pool.pids and descendants(os.getpid()) - helpers == set(pool.pids), WAIT)


@pytest.mark.parametrize("confine", [None, confine_here()])
async def test_limits_hold_with_and_without_confinement(confine: Confine | None) -> None:
    """Limits of open files and memory hold in both kinds of workers; a worker without memory is replaced."""
    limit = 2 * 1024**3
    async with open_pool(grace=0, files=64, memory=limit, confine=confine) as pool:
        assert await pool.run(bodies.limits) == (limit, 0)
        assert await pool.run(attempts.open_many, 10) == 10
        with pytest.raises(OSError, match="Too many open files"):
            await pool.run(attempts.open_many, 100)
        before = pool.pids
        with pytest.raises(MemoryError):
            await pool.run(bodies.fill_memory)
        assert await pool.run(bodies.pid) not in before


@pytest.fixture
def cores() -> Iterator[None]:
    """Allow this process core files of any size, if the system permits it."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY))
    yield
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.usefixtures("cores")
async def test_a_confined_worker_has_few_files_and_no_core_and_cannot_raise_its_limits() -> None:
    """With many descriptors or large buffers, sockets could hold gigabytes of kernel memory that no limit counts."""
    async with open_pool(grace=0) as pool:
        assert await pool.run(attempts.grow_buffers)
    async with open_confined(confine_here(), memory=512 * 1024**2) as pool:
        assert await pool.run(attempts.limits_of_files_and_core) == [[256, 256], [0, 0]]
        assert await pool.run(attempts.raise_limits) == []
        assert not await pool.run(attempts.grow_buffers)
        pairs, written = await pool.run(attempts.fill_sockets)

    assert pairs < 128
    assert written < 256 * 512 * 1024


@pytest.mark.exhaustive
async def test_processor_time_cannot_be_had_by_ignoring_the_signal() -> None:
    """A process can catch SIGXCPU; the kernel then sends SIGKILL at the hard limit."""
    async with open_confined(confine_here(), cpu=1) as pool:
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            await pool.run(attempts.burn_deaf)
        assert await pool.run(bodies.add, 1, 2) == 3


async def test_a_worker_serves_one_call_unless_told_otherwise() -> None:
    """A thread that a call leaves behind could read the arguments of the next call and answer for it."""
    async with open_confined(confine_here()) as pool:
        assert len({await pool.run(bodies.pid) for _ in range(4)}) == 4
    async with open_confined(confine_here(reuse=True)) as pool:
        assert len({await pool.run(bodies.pid) for _ in range(4)}) == 1


async def test_a_path_that_has_become_a_link_is_refused_at_the_start(world: World) -> None:
    """An earlier worker could have put the link there to widen its access."""
    confine = confine_here(read=[world.readable])
    world.readable.rmdir()
    world.readable.symlink_to("/etc")
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError, match="leads to /etc now") as caught:
        async with Processes(workers=1, confine=confine):
            pass

    assert caught.value.is_permanent


async def test_that_a_file_is_there_can_be_seen(world: World) -> None:
    """Landlock does not hide names, sizes and times of files, as the documentation says."""
    async with open_confined(confine_here()) as pool:
        assert await pool.run(os.path.getsize, world.secret()) == len("secret")


async def test_of_other_processes_only_their_existence_and_owner_can_be_seen(world: World) -> None:
    """Command lines contain passwords, and variables contain keys. `read=["/proc"]` would open the command lines."""
    files = [f"/proc/{world.neighbour}/{name}" for name in ("cmdline", "environ", "maps", "status", "comm", "mem")]
    async with open_pool() as pool:
        assert all([await pool.run(attempts.read, path) for path in files[:-1]])
    async with open_confined(confine_here(processes=True, reuse=True)) as pool:
        for path in files:
            with pytest.raises(PermissionError):
                await pool.run(attempts.read, path)
        for folder in ("/proc", f"/proc/{world.neighbour}/fd", f"/proc/{world.neighbour}/cwd"):
            with pytest.raises(PermissionError):
                await pool.run(os.listdir, folder)
        assert await pool.run(os.path.exists, f"/proc/{world.neighbour}")
