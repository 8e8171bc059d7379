"""Who has a pool open: in each event loop a crew, from the first who opens it to the last who leaves."""

import copy
from dataclasses import dataclass

from anyio.lowlevel import EventLoopToken, current_token

from callboard import ActorGoneError, ActorStartError
from callboard_actors.process._crew import Crew
from callboard_actors.process._main_module import why_no_pool
from callboard_actors.process._own_task import spawn
from callboard_actors.process._settings import Terms


@dataclass(slots=True)
class _Opening:
    crew: Crew
    openers: int = 0


class Openings:
    """The crews of a pool. Each event loop looks only at its own, so that no lock is needed."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._wanted: dict[str, None] = {}
        self._by_loop: dict[EventLoopToken, _Opening] = {}

    def want(self, module: str) -> None:
        """Have crews that start from now on preload a module, if that is possible."""
        self._wanted[module] = None

    async def enter(self) -> None:
        """Have a crew in this event loop, at full strength.

        Raises:
            ActorStartError: there is none.
        """
        if (reason := why_no_pool()) is not None:
            raise ActorStartError("Processes", reason, never=True)
        self._leave_closed_loops()
        here = current_token()
        opening = self._by_loop.get(here)
        if opening is None or opening.crew.failure is not None:
            opening = self._by_loop[here] = _Opening(Crew(self._terms, self._wanted))
            spawn(opening.crew.keep, "callboard_actors.process")
        opening.openers += 1
        try:
            await opening.crew.until_full()
            if (failure := opening.crew.failure) is not None:
                raise copy.copy(failure)  # each who waited has one
        except BaseException:
            await self._leave(opening)
            raise

    async def leave(self) -> None:
        """Need the crew of this event loop no more; the last one waits until all of it has ended."""
        await self._leave(self._by_loop[current_token()])

    async def _leave(self, opening: _Opening) -> None:
        opening.openers -= 1
        if opening.openers:
            return
        here = current_token()
        if self._by_loop.get(here) is opening:
            del self._by_loop[here]  # who comes now has another one
        await opening.crew.dismiss()

    def _leave_closed_loops(self) -> None:
        """End what was left by event loops that were closed before their pool."""
        for token in list(self._by_loop):
            if getattr(token.native_token, "is_closed", bool)():
                opening = self._by_loop.pop(token, None)
                if opening is not None:
                    opening.crew.abandon()

    def here(self, title: str, call_id: str | None = None) -> Crew:
        """The crew of this event loop.

        Raises:
            ActorGoneError: the pool is not open.
            RuntimeError: it is, but in other event loops.
        """
        opening = self._by_loop.get(current_token())
        if opening is not None:
            return opening.crew
        if self._by_loop:
            raise RuntimeError(
                f"{title!r} was called in another event loop than that of its pool; "
                "open it there, too, with `async with`"
            )
        reason = "its pool of processes is not open; call it within `async with` of the pool"
        raise ActorGoneError(title, call_id, reason)

    def pids(self) -> list[int]:
        """Of all workers in all event loops."""
        return sorted(pid for opening in list(self._by_loop.values()) for pid in opening.crew.pids())
