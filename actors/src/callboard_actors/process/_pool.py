"""`Processes`: functions in worker processes, which can be killed."""

import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, TypeVarTuple, overload

import anyio

from callboard.engines import Body, carried, deliver
from callboard_actors._lost_cleanup import warn_of_lost_cleanup
from callboard_actors._openings import OpenedEngine
from callboard_actors.process import _kernel
from callboard_actors.process._confine import Confine
from callboard_actors.process._crew import Crew
from callboard_actors.process._crossing import check, module_of, name_of, packed
from callboard_actors.process._errors import TO_TELL, WorkerDiedError, end_of, is_own_doing
from callboard_actors.process._frames import Kind, call
from callboard_actors.process._held_seat import HeldSeat
from callboard_actors.process._held_worker import BrokenError, HeldWorker
from callboard_actors.process._openings import Openings
from callboard_actors.process._plain_crossing import opener
from callboard_actors.process._settings import Terms
from callboard_actors.process._variables import Variables

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_ATTEMPTS = 3
"""Workers that a call is given, if they end before they have begun it."""


class Processes(OpenedEngine[Openings]):
    """A pool of worker processes, for functions that may have to be killed.

        async with Processes(workers=2, preload=["json"]) as pool:
            value = await pool.run(fn, *args)

    Workers are forked from one process that has loaded `preload`; so one that was killed is replaced within
    milliseconds. They are trusted, unless `confine` says otherwise: what crosses are pickles.

    It may be opened by several at once, in any number of event loops and threads: each event loop has workers of its
    own, from the first who opens it there until the last has left.

    Args:
        workers: how many there are, and so how many calls run at once; others wait their turn.
        start: "fork" is for Linux. With "spawn" each worker is a new interpreter, which loads `preload` by itself; one
            more waits to replace another. `None` is "fork" on Linux, "spawn" on macOS and other POSIX systems.
        preload: modules that workers have before their first call. They must not start threads, if workers are forked.
        grace: seconds between SIGTERM and SIGKILL for a worker that has to end, and for what it has started.
        max_calls: after so many calls a worker is replaced; `None` for never.
        max_resident: a worker that holds more bytes than that in memory after a call is replaced, as one does that a
            library has leaked in; what it shares with others counts, `preload` too. `memory` bounds it within a call.
        memory: bytes of address space for each process: a worker, and by itself each process that it starts. Beyond is
            a `MemoryError`, or its end. Memory of the kernel is not counted, such as what pipes and sockets hold.
        cpu: seconds of processor time for each call; then SIGXCPU ends its worker. Each process that the call starts
            has as many seconds of its own.
        files: how many files each process may have open; 256 by default for confined workers, else as many as this
            program may.
        nice: by how much workers stand back where processor time is short, up to 19.
        max_result: bytes that a result may have as a pickle.
        max_output: bytes that are kept of what a call writes to stdout and stderr, the last, to be shown in errors.
        start_timeout: seconds for the start, `preload` included.
        carries: context variables of yours that go with each call, as `"package.module:variable"`; their values are
            pickled.
        confine: what workers may do, if what runs in them is not trusted. They answer in JSON, and serve one call.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        start: Literal["fork", "spawn"] | None = None,
        preload: Sequence[str] = (),
        grace: float = 5.0,
        max_calls: int | None = None,
        max_resident: int | None = None,
        memory: int | None = None,
        cpu: int | None = None,
        files: int | None = None,
        nice: int | None = None,
        max_result: int = 64 * 1024 * 1024,
        max_output: int = 64 * 1024,
        start_timeout: float = 30.0,
        carries: Sequence[str] = (),
        confine: Confine | None = None,
    ) -> None:
        if isinstance(preload, str):
            raise TypeError(f"preload={preload!r} is one string; give a list of names of modules")
        self._terms = Terms(
            workers=workers,
            start=_kernel.best_start() if start is None else start,
            preload=tuple(preload),
            grace=grace,
            max_calls=max_calls,
            max_resident=max_resident,
            memory=memory,
            cpu=cpu,
            files=files,
            nice=nice,
            max_result=max_result,
            max_output=max_output,
            start_timeout=start_timeout,
            confine=confine,
        )
        self._variables = Variables(carries)
        self._open = opener(is_plain=confine is not None)
        self._openings = Openings(self._terms)
        self._numbers = itertools.count(1)

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Refuse a function that could not run in a worker, before it is called.

        Its module is preloaded, if it can be, whenever workers are started from then on.

        Raises:
            TypeError: says why it could not; `title` is what to call it.
        """
        check(fn, title)
        warn_of_lost_cleanup(fn, title)
        module = module_of(fn)
        if module is not None:
            self._openings.want(module)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that live; fewer than there should be while one is replaced."""
        return self._openings.pids()

    @overload
    async def run(self, fn: Callable[[*_Ts], Coroutine[Any, Any, _T]], *args: *_Ts) -> _T: ...
    @overload
    async def run(self, fn: Callable[[*_Ts], _T], *args: *_Ts) -> _T: ...
    async def run(self, fn: Callable[[*_Ts], object], *args: *_Ts) -> Any:
        """Run a function, sync or async, in a worker; return what it returns, raise what it raises.

        If the caller is cancelled, its worker is ended with all that it has started, and waited for.

        Raises:
            TypeError: the function or an argument cannot be pickled; nothing was sent.
            WorkerDiedError: its worker ended; `ended` tells whether it had begun.
            ResultLostError: it finished, but its result cannot be pickled, or is larger than `max_result`.
            callboard.ActorGoneError: the pool is not open.
        """
        return await self.run_body(Body(fn=fn, args=args, title=name_of(fn)))

    async def _run_with_file(self, file: int, fn: Callable[[*_Ts], _T], *args: *_Ts) -> _T:
        """Run a function, which gets an open file by `sent_file()`; otherwise as `run`.

        A confined worker can use this file, and cannot open it by any name.
        """
        body = Body(fn=fn, args=args, title=name_of(fn))
        data = packed(body, self._variables.values())
        with self._openings.bodies.running(body, grace=self._terms.grace) as noted:
            found: _T = await self._run(noted, data, file)
        return found

    async def run_body(self, body: Body, /) -> Any:
        """Run a body, as engines do; `run` is the short way.

        It is ended within its own grace, if that is shorter than the pool's.

        Raises:
            TypeError: as `run`; so the others.
            WorkerDiedError: its worker ended.
            ResultLostError: it finished.
            callboard.ActorGoneError: the pool is not open.
        """
        data = packed(body, self._variables.values())
        with self._openings.bodies.running(body, grace=self._terms.grace) as noted:
            return await self._run(noted, data)

    async def _run(self, body: Body, data: bytes, file: int | None = None) -> Any:
        """Run a body in one worker after the other, until one can begin it."""
        for left in reversed(range(_ATTEMPTS)):
            crew = self._openings.here(body.title, body.call_id)
            worker = await crew.take(body)
            found = await self._exchange(worker, crew, body, data, file)
            if not isinstance(found, WorkerDiedError):
                kind, reply, output = found
                return await self._finish(worker, crew, body, kind, reply, output=output)
            if found.begun or not left or crew.is_dismissed:
                raise found
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[HeldSeat]:
        """Have a worker for oneself while the block runs; it is none of the `workers`.

        One event loop runs there, and async functions beside each other on it. `cpu`, `max_calls` and
        `max_resident` are not for it.

        Raises:
            WorkerDiedError: there is none.
            callboard.ActorGoneError: the pool is not open.
        """
        self._openings.bodies.check_open(title)
        crew = self._openings.here(title)
        worker = await crew.hire(title)
        seat = HeldSeat(title, worker, crew.end, self._terms, self._variables)
        crew.look_after(seat.keep)
        try:
            yield seat
        finally:
            await crew.end(worker)
            with anyio.CancelScope(shield=True):
                await seat.over.wait()
                await crew.let_go(worker)

    async def _exchange(
        self, worker: HeldWorker, crew: Crew, body: Body, data: bytes, file: int | None
    ) -> tuple[Kind, bytes | bytearray, str] | WorkerDiedError:
        """Have a worker run a body; its reply and its output, or that it died.

        The latter is returned, because a body, or who observes it, may raise such an error of another pool's.
        """
        number = next(self._numbers)
        worker.use()
        if body.on_begin is not None:
            body.on_begin()  # first, because its deadline, which is carried along, runs from now
        try:
            most = self._terms.max_result
            kind, reply = await worker.exchange(number, call(carried(), data), most, deliver, file)
            return kind, reply, "" if kind is Kind.VALUE else worker.output()
        except BrokenError as broken:
            return await self._death(worker, crew, body, number, broken.reason)
        except BaseException:
            await crew.end(worker, body.grace)
            raise
        finally:
            worker.release()

    async def _finish(
        self, worker: HeldWorker, crew: Crew, body: Body, kind: Kind, reply: bytes | bytearray, *, output: str
    ) -> Any:
        """Open a reply, and let the worker go on, or go."""
        worn = worker.is_worn(self._terms)
        try:
            return await self._open(kind, reply, body, output=output)
        except MemoryError:
            worn = True  # what it holds, it may hold for ever
            raise
        finally:
            if worn:
                with anyio.CancelScope(shield=True):
                    await crew.ask_to_end(worker, self._terms.last_grace)
            else:
                crew.give_back(worker)

    async def _death(
        self, worker: HeldWorker, crew: Crew, body: Body, number: int, reason: str | None
    ) -> WorkerDiedError:
        """Wait until the worker has ended, and say how."""
        recurs = reason is not None
        with anyio.CancelScope(shield=True):
            if reason is None:
                with anyio.move_on_after(TO_TELL):
                    await worker.ended.wait()
            if worker.asked_to_end:
                reason, recurs = "its pool of processes was closed", False
            elif not worker.ended.is_set():
                reason, recurs = reason or "its worker process closed its socket", True
            elif reason is None:
                recurs = is_own_doing(worker.exitcode)
            await crew.end(worker, body.grace)
        return WorkerDiedError(
            body.title,
            reason or end_of(worker.exitcode, self._terms.cpu),
            call_id=body.call_id,
            begun=worker.has_begun(number),
            exitcode=worker.exitcode,
            pid=worker.pid,
            output=worker.output(),
            recurs=recurs,
        )
