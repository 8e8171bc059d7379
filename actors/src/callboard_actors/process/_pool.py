"""`Processes`: pool of worker processes for functions that may have to be killed."""

import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Self, TypeVar, TypeVarTuple, overload

import anyio

from callboard import ActorStartError
from callboard.extend import Body, inject_context
from callboard_actors._engine import _kernel
from callboard_actors._engine._codec import check_function, function_name, module_name_of, pack_call
from callboard_actors._engine._errors import REPORT_TIMEOUT, WorkerDiedError, describe_end, is_self_inflicted
from callboard_actors._engine._frames import Kind, encode_call
from callboard_actors._engine._lifecycle import OpenedEngine
from callboard_actors._engine._main_module import reason_against_pool
from callboard_actors.process._confinement._confine import Confine
from callboard_actors.process._crew import Crew
from callboard_actors.process._plain_codec import decode_worker_reply
from callboard_actors.process._settings import PoolOptions
from callboard_actors.process._worker_proxy import BrokenError, SeatProxy, WorkerProxy

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_MAX_ATTEMPTS = 3
"""Maximum number of workers to which a call is sent, if each worker ends before it has begun the call."""


class Processes(OpenedEngine[Crew]):
    """Pool of worker processes for functions that may have to be killed.

        async with Processes(workers=2, preload=["json"]) as pool:
            value = await pool.run(fn, *args)

    Workers are forked from one process that has loaded `preload`, so a killed worker is replaced within milliseconds.
    They are trusted, and exchange pickles with the pool, unless `confine` is given.

    A pool can be opened several times, from any number of event loops and threads. Each event loop has its own workers,
    from the first entry in this loop to the last exit.

    Args:
        workers: number of workers, and so of concurrent calls; further calls wait in FIFO order.
        start: "fork" requires Linux. With "spawn" each worker is a new interpreter that loads `preload` itself, and
            one more than `workers` waits to replace another one. `None` means "fork" on Linux, and "spawn" on macOS
            and other POSIX systems.
        preload: modules loaded before a worker's first call. With "fork" they must not start threads.
        grace: seconds between SIGTERM and SIGKILL for a worker that has to end, and for the processes that it started.
        max_calls: calls after which a worker is replaced, because libraries may leak memory; `None` for no limit.
        memory: bytes of address space of each process: a worker, and separately each process that it starts. Above the
            limit, allocations raise `MemoryError`, or the process ends. Kernel memory, such as the contents of pipes
            and sockets, is not counted.
        cpu: seconds of processor time of each call, after which SIGXCPU ends its worker. Each process that the call
            starts has its own limit of the same length.
        files: open files of each process. By default 256 for confined workers, otherwise the limit of this program.
        max_result: bytes of an encoded result at most.
        max_output: bytes of a call's stdout and stderr, counted from the end, that are kept for errors.
        start_timeout: seconds for the start of the workers, including `preload`.
        confine: permissions of workers that run untrusted code. They answer in JSON, and serve one call each by
            default.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if an option is out of range.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        start: Literal["fork", "spawn"] | None = None,
        preload: Sequence[str] = (),
        grace: float = 5.0,
        max_calls: int | None = None,
        memory: int | None = None,
        cpu: int | None = None,
        files: int | None = None,
        max_result: int = 64 * 1024 * 1024,
        max_output: int = 64 * 1024,
        start_timeout: float = 30.0,
        confine: Confine | None = None,
    ) -> None:
        if isinstance(preload, str):
            raise TypeError(f"preload={preload!r} is one string; give a list of names of modules")
        self._options = PoolOptions(
            workers=workers,
            start=("fork" if _kernel.FORKS else "spawn") if start is None else start,
            preload=tuple(preload),
            grace=grace,
            max_calls=max_calls,
            memory=memory,
            cpu=cpu,
            files=files,
            max_result=max_result,
            max_output=max_output,
            start_timeout=start_timeout,
            confine=confine,
        )
        # An ordered set. The crews share this very object: a module added later is loaded by the next zygote.
        self._optional_modules: dict[str, None] = {}
        super().__init__(
            lambda: Crew(self._options, self._optional_modules),
            noun="pool of processes",
            task_name="callboard_actors.process",
        )
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> Self:
        """Start the workers of the pool in this event loop, unless another `async with` block has started them already.

        Raises:
            callboard.ActorStartError: if it has no workers; `is_permanent` if trying again is of no use.
        """
        if (reason := reason_against_pool()) is not None:
            raise ActorStartError("Processes", reason, is_permanent=True)
        return await super().__aenter__()

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise `TypeError` for a function that cannot run in a worker; `title` is the function's name in the error.

        The function's module is added to the modules that are preloaded, if possible, when workers start from then on.
        """
        check_function(fn, title)
        module = module_name_of(fn)  # workers that start later import it first
        if module is not None:
            self._optional_modules[module] = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the live workers in all event loops; incomplete while a worker is being replaced."""
        return sorted(pid for opening in list(self._openings_by_loop.values()) for pid in opening.resources.pids())

    @overload
    async def run(self, fn: Callable[[*_Ts], Coroutine[Any, Any, _T]], *args: *_Ts) -> _T: ...
    @overload
    async def run(self, fn: Callable[[*_Ts], _T], *args: *_Ts) -> _T: ...
    async def run(self, fn: Callable[[*_Ts], object], *args: *_Ts) -> Any:
        """Run a sync or async function in a worker; return its result or raise its exception.

        If the caller is cancelled, its worker is ended with all processes that it started, before this returns.

        Raises:
            TypeError: the function or an argument cannot be pickled; nothing was sent.
            WorkerDiedError: the worker ended; `ended` tells whether the call had begun.
            ResultLostError: the function finished, but its result cannot be pickled, or is larger than `max_result`.
            callboard.ActorGoneError: the pool is not open.
        """
        return await self.run_body(Body(fn=fn, args=args, title=function_name(fn)))

    async def run_body(self, body: Body, /) -> Any:
        """Run one function call (`body`) of a tool or actor in a worker; raise the same errors as `run`.

        callboard calls this method of an engine; programs call `run`.

        On cancellation, the function call has the grace of `body` or of the pool, whichever is shorter.
        """
        pickled_call = pack_call(body)
        with self._operations.running(body, grace=self._options.grace) as running_body:
            for remaining_attempts in reversed(range(_MAX_ATTEMPTS)):
                crew = self._current_resources(running_body.title, running_body.call_id)
                worker = await crew.take_worker(running_body)
                # If the worker dies before the function has begun, another worker is tried.
                outcome = await self._run_in_worker(worker, crew, running_body, pickled_call)
                if not isinstance(outcome, WorkerDiedError):
                    kind, reply, output = outcome
                    return await self._decode_and_release(worker, crew, running_body, kind, reply, output=output)
                # Repeated only if it certainly had not begun: a body may have side effects.
                if outcome.begun or not remaining_attempts or crew.is_dismissed:
                    raise outcome
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[SeatProxy]:
        """Start a dedicated worker in addition to the pool's `workers`; end it when the `async with` block ends.

        The worker runs one event loop with concurrent async functions. `cpu` and `max_calls` do not apply.
        `title` names the owner of the worker, such as an actor, in errors.

        Raises:
            WorkerDiedError: the worker cannot be started.
            callboard.ActorGoneError: the pool is not open.
        """
        self._operations.check_open(title)
        crew = self._current_resources(title)
        worker = await crew.start_dedicated_worker(title)
        seat = SeatProxy(title, worker, crew.end_worker, self._options)
        # A task of the pool, not of this block: open calls must be failed even if the block is cancelled.
        crew.run_in_background(seat.run_until_ended)
        try:
            yield seat
        finally:
            await crew.end_worker(worker)
            with anyio.CancelScope(shield=True):
                # Before the files are closed: `run_until_ended` still reads from the worker until then.
                await seat.has_ended.wait()
                await crew.end_dedicated_worker(worker)

    async def _run_in_worker(
        self, worker: WorkerProxy, crew: Crew, body: Body, pickled_call: bytes
    ) -> tuple[Kind, bytes, str] | WorkerDiedError:
        """Run a call in a worker; return the reply's kind and bytes, and the text that a failed call has printed."""
        # If the worker dies, its error is returned: a `WorkerDiedError` that is raised here may be an observer's,
        # about another pool.
        call_number = next(self._numbers)
        # Keeps the worker's files open until the error has been built from them.
        worker.hold_open()
        try:
            if body.on_begin is not None:
                body.on_begin()  # first: it starts the deadline that `inject_context()` sends along
            max_result = self._options.max_result
            kind, reply = await worker.exchange(call_number, encode_call(inject_context(), pickled_call), max_result)
            return kind, reply, "" if kind is Kind.VALUE else worker.recent_output()
        except BrokenError as broken:
            return await self._end_broken_worker(worker, crew, body, call_number, broken.reason)
        except BaseException:
            # Cancelled, or an observer failed: the reply will not be read, so the worker cannot be reused.
            await crew.end_worker(worker, body.grace)
            raise
        finally:
            worker.release()

    async def _end_broken_worker(
        self, worker: WorkerProxy, crew: Crew, body: Body, call_number: int, reason: str | None
    ) -> WorkerDiedError:
        """End a worker that cannot finish its call, and return the error to raise for the call."""
        recurs = reason is not None
        with anyio.CancelScope(shield=True):
            # The socket was closed. The zygote's report with the exit code usually follows within milliseconds.
            if reason is None:
                with anyio.move_on_after(REPORT_TIMEOUT):
                    await worker.has_ended.wait()
            if worker.is_ending:
                reason, recurs = "its pool of processes was closed", False
            elif not worker.has_ended.is_set():
                reason, recurs = reason or "its worker process closed its socket", True
            elif reason is None:
                recurs = is_self_inflicted(worker.exitcode)
            # A worker that is broken but alive is killed here, so that no code of the call runs after its error.
            await crew.end_worker(worker, body.grace)
        reason = reason or describe_end(worker.exitcode, self._options.cpu)
        return worker.death_error(body, reason, begun=worker.last_begun() == call_number, recurs=recurs)

    async def _decode_and_release(
        self, worker: WorkerProxy, crew: Crew, body: Body, kind: Kind, reply: bytes, *, output: str
    ) -> Any:
        """Decode a worker's reply, release or end the worker, and return the call's result or raise its exception."""
        # The worker becomes available to the next call, or ends if it has to be replaced: decided before decoding,
        # because the `finally` block needs it even if decoding raises.
        options = self._options
        is_worn_out = options.serves_once or (options.max_calls is not None and worker.call_count >= options.max_calls)
        try:
            return await decode_worker_reply(
                kind, reply, body, is_plain=self._options.confine is not None, output=output
            )
        except MemoryError:
            is_worn_out = True  # the worker may never return this memory to the system
            raise
        finally:
            if is_worn_out:
                with anyio.CancelScope(shield=True):
                    await crew.request_end(worker, self._options.last_grace)
            else:
                crew.offer_worker(worker)
