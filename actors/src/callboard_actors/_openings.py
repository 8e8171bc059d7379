"""Who has an engine open: in each event loop somebody works for it, from the first who opens it to the last who leaves.

Who works there is a `Staff`: the crew of a pool of processes, the connections to other machines.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from anyio.lowlevel import EventLoopToken, current_token

from callboard import ActorGoneError, ActorStartError, Drained
from callboard.engines import Bodies
from callboard_actors._own_task import spawn


class Staff(Protocol):
    """What an engine has in one event loop."""

    failure: ActorStartError | None
    """Why there is nothing to have."""

    async def keep(self) -> None:
        """Run in a task of its own, until it is dismissed; must not raise."""
        ...

    async def until_ready(self) -> None:
        """Wait until it can be used, or for the failure.

        Raises:
            ActorStartError: that did not come in time.
        """
        ...

    async def dismiss(self) -> None:
        """End all of it; wait until it has."""
        ...

    def abandon(self) -> None:
        """End all of it at once, where the event loop has been closed, and nobody can wait any more."""
        ...


S = TypeVar("S", bound=Staff)


@dataclass(slots=True)
class _Opening(Generic[S]):
    """A staff that is open in one event loop, and how many have it open there."""

    staff: S
    openers: int = 0


class Openings(Generic[S]):
    """The staffs of an engine. Each event loop looks only at its own, so that no lock is needed.

    Args:
        make: makes one, in the event loop that it is for.
        noun: what errors call the engine, after "its".
        task: the name of the task that keeps it.
    """

    def __init__(self, make: Callable[[], S], *, noun: str, task: str) -> None:
        self._make = make
        self._noun = noun
        self._task = task
        self._by_loop: dict[EventLoopToken, _Opening[S]] = {}
        self.bodies = Bodies(noun)
        """Those that run, in all event loops."""

    async def enter(self) -> None:
        """Have the engine in this event loop, ready.

        Raises:
            ActorStartError: it cannot be had.
        """
        self._leave_closed_loops()
        here = current_token()
        if not self._by_loop:
            self.bodies.reopen()
        opening = self._by_loop.get(here)
        if opening is None or opening.staff.failure is not None:
            opening = self._by_loop[here] = _Opening(self._make())
            spawn(opening.staff.keep, self._task)
        opening.openers += 1
        try:
            await opening.staff.until_ready()
            if (failure := opening.staff.failure) is not None:
                raise copy.copy(failure)  # each who waited has one
        except BaseException:
            await self._leave(opening)
            raise

    async def leave(self) -> None:
        """Need the engine in this event loop no more; the last one waits until all of it has ended."""
        await self._leave(self._by_loop[current_token()])

    async def _leave(self, opening: _Opening[S]) -> None:
        opening.openers -= 1
        if opening.openers:
            return
        here = current_token()
        if self._by_loop.get(here) is opening:
            del self._by_loop[here]  # who comes now has another one
        await opening.staff.dismiss()

    def _leave_closed_loops(self) -> None:
        """End what was left by event loops that were closed before their engine."""
        for token in list(self._by_loop):
            if getattr(token.native_token, "is_closed", bool)():
                opening = self._by_loop.pop(token, None)
                if opening is not None:
                    opening.staff.abandon()

    def here(self, title: str, call_id: str | None = None) -> S:
        """What there is in this event loop.

        Raises:
            ActorGoneError: the engine is not open.
            RuntimeError: it is, but in other event loops.
        """
        opening = self._by_loop.get(current_token())
        if opening is not None:
            return opening.staff
        noun = self._noun.partition(" ")[0]
        if self._by_loop:
            raise RuntimeError(
                f"{title!r} was called in another event loop than that of its {noun}; open it there, too, with "
                "`async with`"
            )
        reason = f"its {self._noun} is not open; call it within `async with` of the {noun}"
        raise ActorGoneError(title, call_id, reason)

    def all(self) -> list[S]:
        """What is open here, in whichever event loop."""
        return [opening.staff for opening in list(self._by_loop.values())]


Opened = TypeVar("Opened", bound=Openings[Any])


class OpenedEngine(Generic[Opened]):
    """An engine that users open with `async with`, as often as they like, and drain; see `callboard.Engine`."""

    _openings: Opened

    async def __aenter__(self) -> Self:
        """Have the engine in this event loop.

        Raises:
            callboard.ActorStartError: it cannot be had; `never` where it is no use to try again.
        """
        await self._openings.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        """Need it no more; the last one ends what was started for it."""
        await self._openings.leave()

    async def drain(self, timeout: float = 30.0) -> Drained:
        """Begin no body any more, wait for those that run, and end those that have not finished in time.

        A body that is not begun fails with `ended="unavailable"`, one that is ended with `ended="unknown"`. Actors that
        live here go on; their supervisor is drained before. Opened again after all have left, it begins bodies again.

        Args:
            timeout: seconds for them to finish; then they have their grace.

        Raises:
            ValueError: for a number out of range.
        """
        return await self._openings.bodies.drain(timeout)
