"""Dedicated worker, on the pool's side: concurrent calls of one owner, with replies in any order."""

import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from anyio.abc import ByteSendStream

from callboard.extend import Body, inject_context
from callboard_actors._engine._codec import packed
from callboard_actors._engine._errors import TO_TELL, WorkerDiedError, end_of, is_own_doing
from callboard_actors._engine._frames import GarbageError, Kind, call_of, frame
from callboard_actors._engine._pickles import Variables
from callboard_actors._engine._plain_codec import opened_reply
from callboard_actors._engine._session import Connection, OpenCalls
from callboard_actors._util._own_task import finish
from callboard_actors.process._settings import PoolOptions
from callboard_actors.process._worker_proxy import WorkerProxy


class _Stream(ByteSendStream):
    """Socket of a worker process, which the pool closes."""

    def __init__(self, worker: WorkerProxy) -> None:
        self._worker = worker

    async def send(self, item: bytes) -> None:
        await self._worker.send(item)

    async def aclose(self) -> None: ...


class SeatProxy:
    """Worker process that one owner has for itself; see `callboard.Engine.seat`."""

    def __init__(
        self,
        title: str,
        worker: WorkerProxy,
        end: Callable[[WorkerProxy, float | None], Awaitable[None]],
        terms: PoolOptions,
        variables: Variables,
    ) -> None:
        self._title = title
        self._worker = worker
        self._end = end
        self._terms = terms
        self._variables = variables
        self._numbers = itertools.count(1)
        self._calls = OpenCalls(lambda _: None)
        self._connection = Connection(_Stream(worker), worker.reader(terms.max_result), heartbeat=None)
        # Why this side ended the worker; decided before its exit code is known, and stronger than it.
        self._broken: str | None = None
        # Why the worker ended. Set by `_settle` at the very end, so it also says that no call can be made.
        self._reason: str | None = None
        self._recurs = False
        self.over = anyio.Event()
        """Set when the worker has ended, and no task reads its socket or writes to it."""

    async def until_ended(self) -> str:
        """Wait until the worker has ended for any cause; return the reason as text."""
        await self.over.wait()
        assert self._reason is not None
        return self._reason

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function in the worker, concurrently with other calls; see `callboard.extend.Seat`."""
        if self._reason is not None or self._worker.asked_to_end:
            raise self._death(body, begun=False)
        data = call_of(inject_context(), packed(body, self._variables.values()))
        # No await from here to the `try`: a call that is registered is also ended.
        number = next(self._numbers)
        one = self._calls.send(self._connection, number, frame(Kind.CALL, number, data))
        try:
            if body.on_begin is not None:
                body.on_begin()  # in the `try`: after its error, the call must not stay registered
            await one.until_over()
        except GarbageError as error:
            await self._break(f"its worker process sent what is no reply: {error}")
            # The reply of a broken worker is its death, which has to be known before the error is built.
            with anyio.CancelScope(shield=True):
                await self.over.wait()
            one.reply = None
        except BaseException:
            # In a task of its own: the call is ended even if this task is cancelled by force.
            await finish(partial(self._cancel, number, body), "callboard_actors.process ending")
            raise
        if one.reply is None:
            # Calls are begun in the order of their numbers, so a greater begun counter proves that this call began,
            # too. Code in a confined worker could change the counter.
            begun = one.is_sent and (not self._worker.is_trusted or self._worker.last_begun() >= number)
            raise self._death(body, begun=begun)
        kind, said = one.reply
        output = "" if kind is Kind.VALUE else self._worker.output()
        return await opened_reply(kind, said, body, is_plain=self._terms.confine is not None, output=output)

    async def _cancel(self, number: int, body: Body) -> None:
        """Cancel a call in the worker and wait for its end; after the grace, end the worker."""
        grace = self._terms.grace if body.grace is None else min(body.grace, self._terms.grace)
        if not await self._calls.end(self._connection, number, grace):
            reason = f"{body.title!r} had been cancelled there and did not end within its grace"
            await self._break(reason, by_itself=False)

    def _death(self, body: Body, *, begun: bool) -> WorkerDiedError:
        reason = self._reason or f"the worker process of {self._title!r} is ended"
        return self._worker.death(body, reason, begun=begun, recurs=self._recurs)

    async def keep(self) -> None:
        """Read from the worker and write to it until it has ended; then fail its open calls."""
        # Keeps the worker's files open until `release` in `_settle`, even if the pool closes the worker before.
        self._worker.use()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._worker.collect_output)
                group.start_soon(self._listen)
                await self._worker.ended.wait()
                group.cancel_scope.cancel()
        finally:
            # Also if this task is cancelled: callers would otherwise wait for ever.
            self._settle()

    def _settle(self) -> None:
        worker = self._worker
        if self._broken is not None:
            self._reason = self._broken
        elif worker.asked_to_end:
            self._reason = "its worker process was ended with its block, or with its pool"
        else:
            self._reason = end_of(worker.exitcode, None)
            self._recurs = is_own_doing(worker.exitcode)
        self._calls.lose(self._reason)
        self._worker.release()
        self.over.set()

    async def _listen(self) -> None:
        reason = await self._connection.run(self._calls.take_in)
        if self._connection.is_garbled:
            await self._break(reason)
            return
        # Normally the worker has ended and the zygote's report is on its way, with the exit code as the better reason.
        with anyio.move_on_after(TO_TELL):
            await self._worker.ended.wait()
        if not self._worker.ended.is_set():
            await self._break("its worker process closed its socket")

    async def _break(self, reason: str, *, by_itself: bool = True) -> None:
        """End a worker that cannot be used any longer; `by_itself` if its own code is to blame."""
        # The first reason counts: later ones are consequences of it.
        if self._broken is None and not self._worker.asked_to_end:
            self._broken, self._recurs = reason, by_itself
        await self._end(self._worker, None if by_itself else 0.0)
        with anyio.CancelScope(shield=True):
            await self._worker.ended.wait()
