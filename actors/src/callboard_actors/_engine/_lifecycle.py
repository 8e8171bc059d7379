"""Resources of an engine in each event loop: their start and end, and a queue of idle workers.

Each engine has its own class of `LoopResources`, of which it creates one object for each event loop.
"""

import copy
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import anyio
from anyio.lowlevel import EventLoopToken, current_token

from callboard import ActorGoneError, ActorStartError, Drained
from callboard.extend import EngineOperations
from callboard_actors._util._own_task import start_background_task


class LoopResources(Protocol):
    """Resources of an engine in one event loop, such as worker processes or Ray actors."""

    failure: ActorStartError | None
    """Error that explains why the resources cannot be used; `None` if they can be used."""

    async def run_until_dismissed(self) -> None:
        """Start the resources and keep them until `dismiss()` is called. Runs in a separate task; must not raise."""
        ...

    async def until_ready(self) -> None:
        """Wait until the resources can be used, or have failed; raise ActorStartError if neither happens in time."""
        ...

    async def dismiss(self) -> None:
        """Stop the engine's resources in this event loop, such as worker processes, and wait for their end."""
        ...

    def abandon(self) -> None:
        """Stop the resources of a closed event loop. Do not wait: no task can run in that event loop any more."""
        ...


S = TypeVar("S", bound=LoopResources)


@dataclass(slots=True)
class _Opening(Generic[S]):
    """Resources of an engine in one event loop, and the number of `async with` blocks that use them."""

    resources: S
    user_count: int = 0


class OpenedEngine(Generic[S]):
    """Base class of engines that can be opened several times with `async with`, and drained; see `callboard.Engine`."""

    def __init__(self, make_resources: Callable[[], S], *, noun: str, task_name: str) -> None:
        self._make_resources = make_resources
        self._noun = noun
        self._task_name = task_name
        # Each event loop reads only its own entry, so no lock is needed.
        self._openings_by_loop: dict[EventLoopToken, _Opening[S]] = {}
        self._operations = EngineOperations(noun)
        """Running bodies (function calls) of this engine, in all event loops."""

    async def __aenter__(self) -> Self:
        """Open the engine in this event loop, and wait until it is ready.

        Raises:
            callboard.ActorStartError: if the engine cannot be started; `is_permanent` if trying again is of no use.
        """
        # Stop the resources of each event loop that was closed while the engine was open in it.
        for token in list(self._openings_by_loop):
            # Only asyncio's loops tell whether they are closed; a token of trio has no such method.
            if getattr(token.native_token, "is_closed", lambda: False)():
                closed_opening = self._openings_by_loop.pop(token, None)
                if closed_opening is not None:
                    closed_opening.resources.abandon()
        loop_token = current_token()
        if not self._openings_by_loop:
            self._operations.reopen()
        opening = self._openings_by_loop.get(loop_token)
        if opening is None or opening.resources.failure is not None:
            opening = self._openings_by_loop[loop_token] = _Opening(self._make_resources())
            start_background_task(opening.resources.run_until_dismissed, self._task_name)
        opening.user_count += 1
        try:
            await opening.resources.until_ready()
            if (failure := opening.resources.failure) is not None:
                raise copy.copy(failure)  # one exception for each waiting task, so that tracebacks do not mix
        except BaseException:
            await self._release_opening(opening)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Leave an `async with` block; if it is the engine's last one in this event loop, stop the resources there."""
        await self._release_opening(self._openings_by_loop[current_token()])

    async def _release_opening(self, opening: _Opening[S]) -> None:
        opening.user_count -= 1
        if opening.user_count:
            return
        loop_token = current_token()
        if self._openings_by_loop.get(loop_token) is opening:
            del self._openings_by_loop[loop_token]  # before the await: a new opener gets new resources
        await opening.resources.dismiss()

    def _current_resources(self, title: str, call_id: str | None = None) -> S:
        """Return the engine's resources in the current event loop; raise an error if the engine is not open there."""
        opening = self._openings_by_loop.get(current_token())
        if opening is not None:
            return opening.resources
        noun = self._noun.partition(" ")[0]
        # Open elsewhere only: a mistake of the program, and no condition that a model could react to.
        if self._openings_by_loop:
            raise RuntimeError(
                f"{title!r} was called in another event loop than that of its {noun}; open it there, too, with "
                "`async with`"
            )
        reason = f"its {self._noun} is not open; call it within `async with` of the {noun}"
        raise ActorGoneError(title, call_id, reason)

    async def drain(self, timeout: float = 30.0) -> Drained:
        """Refuse new function calls (bodies), wait for running ones, and end those that do not finish within `timeout`.

        A refused body fails with `ended="unavailable"`, and an ended body with `ended="unknown"`. Actors on this engine
        go on; their supervisor is drained first. An engine that was left by all its users accepts bodies when it is
        opened again.

        Args:
            timeout: seconds for bodies to finish; after that they have their grace.

        Raises:
            ValueError: for a number out of range.
        """
        return await self._operations.drain(timeout)


# Idle workers.

_Worker = TypeVar("_Worker")


@dataclass(eq=False, slots=True)
class WaitingCall(Generic[_Worker]):
    """Function call that waits until a worker is idle."""

    worker: _Worker | None = None
    has_answer: anyio.Event = field(default_factory=anyio.Event)

    def answer(self, worker: _Worker | None) -> None:
        """Give the call a worker, or `None` if it gets none."""
        self.worker = worker
        self.has_answer.set()


class IdleWorkers(Generic[_Worker]):
    """FIFO queue that pairs idle workers with waiting calls.

    Args:
        max_busy: number of workers that may be taken at a time; further ones are spare.
    """

    def __init__(self, max_busy: int) -> None:
        self._max_busy = max_busy
        self._busy_workers = set[_Worker]()
        self._idle_workers = deque[_Worker]()
        self._waiting_calls = deque[WaitingCall[_Worker]]()

    def put(self, worker: _Worker) -> None:
        """Assign an idle worker to the call that has waited longest; if no call waits, keep the worker in the queue."""
        # Spare workers are taken last, so that the ones in use stay the same.
        goes_to_front = worker in self._busy_workers and self._has_spare_workers()
        self._busy_workers.discard(worker)
        (self._idle_workers.appendleft if goes_to_front else self._idle_workers.append)(worker)
        self._assign_workers()

    def _has_spare_workers(self) -> bool:
        return len(self._idle_workers) + len(self._busy_workers) > self._max_busy

    def _assign_workers(self) -> None:
        while self._waiting_calls and self._idle_workers and len(self._busy_workers) < self._max_busy:
            self._busy_workers.add(worker := self._idle_workers.popleft())
            self._waiting_calls.popleft().answer(worker)

    async def take(self) -> _Worker | None:
        """Wait for an idle worker and return it; return `None` if `fail_waiting_calls()` is called meanwhile."""
        if self._idle_workers and not self._waiting_calls and len(self._busy_workers) < self._max_busy:
            self._busy_workers.add(worker := self._idle_workers.popleft())
            return worker
        call = WaitingCall[_Worker]()
        self._waiting_calls.append(call)
        try:
            await call.has_answer.wait()
        except BaseException:
            # Cancelled after a worker was assigned: pass it on. Otherwise it would stay idle for ever, in no queue.
            if call.worker is not None:
                self.put(call.worker)
            elif not call.has_answer.is_set():
                self._waiting_calls.remove(call)
            raise
        return call.worker

    def take_spare(self) -> _Worker | None:
        """Remove and return an idle worker if idle and busy workers together exceed `max_busy`; else return `None`."""
        return self._idle_workers.pop() if self._idle_workers and self._has_spare_workers() else None

    def remove(self, worker: _Worker) -> None:
        """Remove a worker that has ended, or is about to end, from this queue."""
        self._busy_workers.discard(worker)
        with suppress(ValueError):  # it is not idle
            self._idle_workers.remove(worker)
        self._assign_workers()

    def fail_waiting_calls(self) -> None:
        """Let all waiting calls fail, because they get no worker, and remove the idle workers from this queue."""
        self._idle_workers.clear()
        self._busy_workers.clear()
        while self._waiting_calls:
            self._waiting_calls.popleft().answer(None)
