"""Results, exceptions, output and arguments of calls in worker processes."""

import inspect
import logging
import math
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
import sniffio

from callboard import ActorStartError, CallboardError
from callboard.extend import EngineError
from callboard_actors._engine import _kernel
from callboard_actors.process import Processes, ResultLostError, WorkerDiedError
from callboard_actors.process._worker_proxy import BrokenError, WorkerProxy

from . import _bodies as bodies
from . import _decorated
from . import _hostile as hostile
from ._processes import WAIT, descendants, open_pool

pytestmark = pytest.mark.real_clock


@pytest.mark.backends("asyncio", "trio")
async def test_functions_run_elsewhere_and_their_values_come_back() -> None:
    """Sync and async functions run in a worker; async ones run on the kind of event loop that the caller has."""
    async with open_pool(workers=2, preload=["json"]) as pool:
        assert await pool.run(bodies.add, 1, 2) == 3
        assert await pool.run(bodies.add_later, 1, 2) == (3, sniffio.current_async_library())
        assert await pool.run(partial(math.pow, 2), 3) == 8
        assert await pool.run(bodies.pid) in pool.pids
        assert os.getpid() not in pool.pids


async def test_an_exception_comes_back_as_itself_with_the_workers_traceback() -> None:
    """Code that handles ValueError works unchanged; the exception shows the worker's traceback and earlier output."""
    async with open_pool() as pool:
        with pytest.raises(ValueError, match=r"^outer") as caught:
            await pool.run(bodies.raise_group)
        assert await pool.run(bodies.add, 1, 1) == 2

    assert str(caught.value) == "outer"
    notes = "\n".join(caught.value.__notes__)
    assert "in raise_group" in notes
    assert "KeyError: 'inner'" in notes
    assert "before it" in notes


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (bodies.raise_unpicklable, r"it raised UnpicklableError\(1 and 2\), which cannot be pickled"),
        (bodies.return_unpicklable, "it returned an object of type socket, which cannot be pickled"),
        (bodies.return_unreadable, r"it cannot be read here: ValueError\(invalid literal"),
        (partial(bodies.return_bytes, 10_000), "is 100.. bytes as a pickle, and max_result is 5000"),
    ],
)
async def test_a_result_that_cannot_come_back_is_an_error_that_says_it_finished(
    fn: Callable[[], object], reason: str
) -> None:
    """A call whose result cannot be pickled had its effect, so the error says that it finished. The worker is kept."""
    async with open_pool(max_result=5_000) as pool:
        before = pool.pids
        with pytest.raises(ResultLostError, match=reason) as caught:
            await pool.run(fn)
        assert await pool.run(bodies.pid) == before[0]

    assert caught.value.ended == "finished"
    assert isinstance(caught.value, CallboardError)


@pytest.mark.parametrize(
    ("fn", "args", "message"),
    [
        (lambda: 1, (), "lambda.*' cannot run in a worker process: its function, which has to be importable"),
        (bodies.add, (1, lambda: 1), r"^'add' cannot run in a worker process: its argument 2 \(<function .*lambda"),
        (bodies.add, (threading.Lock(), 1), r"argument 1 \(<unlocked _thread.lock"),
    ],
)
async def test_what_cannot_cross_is_refused_before_anything_is_sent(
    fn: Callable[..., Any], args: tuple[object, ...], message: str
) -> None:
    """The error names the function and the argument, and is raised in the calling process."""
    async with open_pool() as pool:
        with pytest.raises(TypeError, match=message):
            await pool.run(fn, *args)
        assert await pool.run(bodies.add, 1, 2) == 3


async def test_whatever_a_call_writes_is_kept_and_shown_in_its_error() -> None:
    """Output of print, file descriptors and child processes reaches neither our stdout nor the worker's socket."""
    async with open_pool() as pool:
        with pytest.raises(RuntimeError) as caught:
            await pool.run(bodies.write_to_every_stream)
        with pytest.raises(RuntimeError) as much:
            await pool.run(bodies.write_much, 4 * 1024 * 1024)
        with pytest.raises(WorkerDiedError) as died:
            await pool.run(bodies.end_with, 3)

    note = caught.value.__notes__[-1]
    assert all(f"by {writer}\n" in note for writer in ("print", "file descriptor 1", "file descriptor 2", "a child"))
    assert len(much.value.__notes__[-1]) < 3_000
    assert much.value.__notes__[-1].endswith("the end\n")
    assert died.value.output == "last words\n"


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize(
    ("fn", "args", "reason", "recurs"),
    [
        (bodies.end_with, (3,), "its worker process exited with code 3", True),
        (bodies.end_at_once, (0,), "its worker process exited with code 0", True),
        (bodies.segfault, (), "its worker process was killed by SIGSEGV", True),
        (bodies.signal_oneself, (signal.SIGKILL,), "by SIGKILL, which the kernel also does when memory runs", False),
        (bodies.signal_oneself, (signal.SIGTERM,), "by SIGTERM", False),
        (bodies.cancel_itself, (), "its worker process exited with code 1", True),
        (bodies.hold_socket_in_a_child_and_end, (), "its worker process exited with code 4", True),
        (hostile.close_socket, (), "its worker process closed its socket", True),
    ],
)
async def test_the_end_of_a_worker_is_an_error_that_says_how_it_ended(
    fn: Callable[..., object], args: tuple[object, ...], reason: str, recurs: bool
) -> None:
    """After an exit, a crash or a signal the call's outcome is unknown; other calls continue in a new worker.

    A call that crashes its worker should not be retried; a worker that was killed from outside is another matter.
    """
    async with open_pool(grace=0.2) as pool:
        before = pool.pids
        with pytest.raises(WorkerDiedError, match=reason) as caught:
            await pool.run(fn, *args)
        assert await pool.run(bodies.pid) not in before

    assert isinstance(caught.value, EngineError)
    assert (caught.value.begun, caught.value.ended, caught.value.recurs) == (True, "unknown", recurs)
    assert caught.value.pid == before[0]


async def test_a_call_that_was_not_begun_runs_in_another_worker() -> None:
    """A worker that is killed before it takes the call has run none of it, so another worker may run it."""
    async with open_pool() as pool, anyio.create_task_group() as group:
        [first] = pool.pids
        os.kill(first, signal.SIGSTOP)
        pids: list[int] = []

        async def call() -> None:
            pids.append(await pool.run(bodies.pid))

        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()  # the call has been sent
        os.kill(first, signal.SIGKILL)

    assert pids
    assert pids != [first]


async def test_after_so_many_workers_a_call_that_was_not_begun_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pool whose workers keep dying must not retry a call for ever."""
    killed: list[int | None] = []

    async def dies(worker: WorkerProxy, *_: object) -> None:
        killed.append(worker.pid)
        os.kill(worker.pid or 0, signal.SIGKILL)
        raise BrokenError

    monkeypatch.setattr(WorkerProxy, "exchange", dies)
    async with open_pool() as pool:
        with pytest.raises(WorkerDiedError, match=r"^'pid' was not started: its worker process was kill") as caught:
            await pool.run(bodies.pid)

    assert (caught.value.begun, caught.value.ended) == (False, "unavailable")
    assert len(set(killed)) == 3


@pytest.mark.exhaustive
async def test_processor_time_beyond_the_bound_ends_the_worker() -> None:
    """The processor time limit holds without any timeout and is counted for each call."""
    async with open_pool(cpu=1) as pool:
        with pytest.raises(WorkerDiedError, match="SIGXCPU, for it had used its 1 s of processor time"):
            await pool.run(bodies.burn)
        assert await pool.run(bodies.add, 1, 2) == 3


async def test_a_module_that_starts_a_thread_is_refused_at_the_start() -> None:
    """The error is raised when the pool is opened, not by each call."""
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError, match="starts a thread, which a fork would") as caught:
        async with Processes(workers=1, preload=[f"{__package__}._starts_a_thread"]):
            pass

    assert caught.value.is_permanent


@pytest.mark.usefixtures("any_start")
@pytest.mark.parametrize(
    ("preload", "message"),
    [
        ("no_such_module", "preload='no_such_module' cannot be imported: ModuleNotFoundError"),
        ("_takes_for_ever", r"was not ready within 0\.5 s"),
    ],
)
async def test_a_pool_that_cannot_start_says_why_and_leaves_nothing(preload: str, message: str) -> None:
    """Also if a module import never returns; several workers may be starting when the pool gives up."""
    before = descendants(os.getpid())
    name, timeout = (f"{__package__}.{preload}", 0.5) if preload.startswith("_") else (preload, WAIT)
    with anyio.fail_after(WAIT), pytest.raises(ActorStartError, match=message):
        async with Processes(workers=2, preload=[name], start_timeout=timeout):
            pass

    assert descendants(os.getpid()) == before


async def test_an_error_of_the_block_leaves_it_as_it_is() -> None:
    """An exception from the block of the pool is not wrapped into an exception group."""
    with anyio.fail_after(WAIT), pytest.raises(KeyError, match="mine"):
        async with Processes(workers=1):
            raise KeyError("mine")


@pytest.mark.parametrize("name", ["workers", "max_calls", "memory", "cpu", "max_result", "max_output"])
def test_numbers_that_cannot_be_meant_are_refused_by_name(name: str) -> None:
    """Invalid numbers raise an error with the argument's name before any process starts."""
    for value in (0, "2"):
        with pytest.raises(ValueError, match=rf"Processes\({name}={value!r}\) is a whole number, at least 1"):
            Processes(**{name: value})


def test_other_mistakes_are_refused_by_name() -> None:
    """A string is a sequence of strings, so a single module name would be loaded character by character."""
    with pytest.raises(TypeError, match="preload='json' is one string"):
        Processes(preload="json")
    with pytest.raises(ValueError, match=r"Processes\(grace=-1\) is a number of seconds, at least 0"):
        Processes(grace=-1)


async def test_workers_have_no_files_of_ours() -> None:
    """A worker that inherited a socket of the pool could keep it open or send replies for other workers."""
    async with open_pool(workers=2) as pool:
        files = await pool.run(bodies.open_files)

    other_files = [file for file in files if not file.startswith(("/dev/", "/proc/"))]
    assert other_files == ["/memfd", "pipe", "pipe", "socket"]


async def test_a_call_from_another_event_loop_is_refused() -> None:
    """The pool's sockets are watched by one event loop; a call from another loop would wait for ever."""
    async with open_pool() as pool:

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="'add' was called in another event loop"):
                anyio.run(pool.run, bodies.add, 1, 2)

        await anyio.to_thread.run_sync(elsewhere)
        assert await pool.run(bodies.add, 1, 2) == 3


async def test_signals_are_as_a_program_finds_them() -> None:
    """The zygote ignores Ctrl-C, but a tool and its child processes must have the default signal handlers."""
    async with open_pool() as pool:
        handlers = [await pool.run(signal.getsignal, number) for number in (signal.SIGTERM, signal.SIGHUP)]
        with pytest.raises(WorkerDiedError, match="exited with code 1"):
            await pool.run(bodies.signal_oneself, signal.SIGINT)

    assert handlers == [signal.SIG_DFL, signal.SIG_DFL]


def test_children_are_found_where_the_kernel_has_no_list_of_them() -> None:
    """Some kernels are built without the list of children in /proc."""
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in _kernel._search_child_pids(os.getpid())
        assert _kernel._search_child_pids(os.getpid()) >= _kernel.child_pids()
        child.kill()


def test_errors_can_be_pickled() -> None:
    """A worker may itself have a pool, whose errors it has to send to its parent."""
    import pickle

    died = WorkerDiedError("spin", "it ended", begun=True, exitcode=-9, pid=7, output="words")
    lost = ResultLostError("spin", "too large", output="words")
    reread_errors = pickle.loads(pickle.dumps([died, lost]))

    assert [str(error) for error in reread_errors] == [str(died), str(lost)]
    assert (reread_errors[0].ended, reread_errors[0].exitcode, reread_errors[1].output) == ("unknown", -9, "words")


async def test_workers_are_replaced_after_so_many_calls() -> None:
    """Regular replacement limits the harm of leaking libraries."""
    async with open_pool(max_calls=2) as pool:
        pids = [await pool.run(bodies.pid) for _ in range(6)]

    assert pids[0::2] == pids[1::2]
    assert len(set(pids)) == 3


async def test_functions_behind_decorators_are_found() -> None:
    """Wrapped functions are found behind the object under their name; methods are sent with their objects."""
    async with open_pool() as pool:
        for fn in (_decorated.double.fn, _decorated.triple.fn):
            pool.check(fn, title="tool")
        assert await pool.run(_decorated.double.fn, 2) == 4
        assert await pool.run(_decorated.triple.fn, 2) == 6
        assert await pool.run(inspect.unwrap(_decorated.triple.fn), 2) == 6
        assert await pool.run(partial(_decorated.double.fn, 4)) == 8
        assert await pool.run(_decorated.Counter(3).plus, 2) == 5


def _lists() -> Any:
    yield 1


async def _lists_later() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda: 1, "'tool' cannot run in a worker process: its function, which has to be importable"),
        (_lists, "'tool' cannot run .* it is a generator function, .* have it return a list"),
        (_lists_later, "it is a generator function"),
        (partial(_lists), "it is a generator function"),
    ],
)
def test_what_no_worker_could_run_is_refused_with_a_remedy(fn: Callable[..., Any], message: str) -> None:
    """The error is raised when the node is built."""
    with pytest.raises(TypeError, match=message):
        Processes().check(fn, title="tool")


async def test_modules_that_cannot_be_preloaded_are_left_to_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    """A module that starts a thread or ends its process is logged and skipped; the others are still preloaded."""
    caplog.set_level(logging.INFO, "callboard_actors.process")
    pool = Processes(workers=1)
    thread = f"{__package__}._starts_a_thread"
    for name in ("no_such_module", thread):
        pool._optional_modules[name] = None
    pool.check(_decorated.double.fn, title="double")
    with anyio.fail_after(WAIT):
        async with pool:
            assert await pool.run(bodies.is_loaded, _decorated.__name__)
            assert not await pool.run(bodies.is_loaded, thread)

    messages = [record.getMessage() for record in caplog.records if record.name == "callboard_actors.process"]
    assert messages == [f"{thread} starts threads or ends its process, so each worker loads it by itself"]
