"""Calls that wait for a person's answers between two requests of a client, and progress of running calls."""

import math
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._questions import Dialogue, NeedsAnswers

# Calls that wait between two requests of a client.

MOST: Final = 1000
"""Maximum number of waiting calls of all clients."""
MOST_OF_ONE: Final = 100
"""Maximum number of waiting calls of one client."""
PATIENCE: Final = 3600.0
"""Maximum seconds that a call waits for answers."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """Call that waits for a person, with its open questions."""

    caller: Caller
    name: str
    arguments: dict[str, Any]
    dialogue: Dialogue
    asking: NeedsAnswers
    until: float = math.inf


class OpenQuestions:
    """Calls that wait for answers, each stored under a secret token that only the asked client knows.

    A call can be taken once, so it never runs twice. Above the limit per client, the client's oldest call is
    dropped. Above the limit of all clients, the oldest call of the client with the most calls is dropped.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingCall] = {}
        """Waiting calls by their secret token, the oldest first."""

    async def keep(self, waiting: WaitingCall) -> str:
        """Store a call that waits for answers, and return its secret token."""
        # There is no timer: expired calls are dropped here, or refused by `take`.
        for state in [state for state, one in self._waiting.items() if one.until <= anyio.current_time()]:
            await self._forget(state)
        state = secrets.token_urlsafe(32)
        self._waiting[state] = replace(waiting, until=anyio.current_time() + PATIENCE)
        while (surplus := self._surplus(waiting.caller.owner)) is not None:
            await self._forget(surplus)
        return state

    def take(self, state: str, caller: Caller, name: str, arguments: dict[str, Any]) -> WaitingCall | None:
        """Remove and return the waiting call with this token.

        Return `None` if the token is unknown or expired, or belongs to another client or another request.
        """
        found = self._waiting.get(state)
        # The state is not enough: it must not continue a call of another client, or with other arguments.
        if found is None or (found.caller.principal, found.name, found.arguments) != (
            caller.principal,
            name,
            arguments,
        ):
            return None
        del self._waiting[state]
        return found if found.until > anyio.current_time() else None

    async def close(self) -> None:
        """Drop all waiting calls."""
        while self._waiting:
            await self._forget(next(iter(self._waiting)))

    async def _forget(self, state: str) -> None:
        # A call may be taken, or forgotten, while another one is being forgotten.
        if (found := self._waiting.pop(state, None)) is not None:
            await found.dialogue.work.forget()

    def _surplus(self, owner: tuple[str, str]) -> str | None:
        """Return the token of a waiting call to drop because a limit is exceeded, or `None`.

        `owner` is the client that has just stored a call.
        """
        counts = Counter(one.caller.owner for one in self._waiting.values())
        if counts[owner] <= MOST_OF_ONE:
            if len(self._waiting) <= MOST:
                return None
            # By address first: a client must not evade the limit by opening many connections.
            of_hosts = Counter(_group(*one.caller.owner) for one in self._waiting.values())
            owner = max(counts, key=lambda one: (of_hosts[_group(*one)], counts[one]))
        return next(state for state, one in self._waiting.items() if one.caller.owner == owner)


def _group(host: str, name: str) -> tuple[str, str]:
    """Return the group whose waiting calls are counted together.

    A group is an authenticated client, or all connections from one address.
    """
    return (host, name) if host == "principal" else (host, "")


# Progress notifications.

_STEP: Final = 1e-6
"""Minimum step between two progress numbers, as a fraction of the total."""


Report = tuple[float, float | None, str | None]
"""Progress report for a client: number, total (`None` if unknown), message (`None` without one)."""


class ProgressCounter:
    """Generator of progress reports with strictly rising numbers, as the protocol requires.

    The tools' own reports may lack numbers.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._total: float | None = None

    def report(self, message: object, done: object = None, total: object = None) -> Report:
        """Return the next progress report. Its number is higher than the last one, whatever `done` is."""
        # If `done` is missing or did not rise, the number rises by one, or by a millionth of the last known total.
        if isinstance(total, (int, float)):
            self._total = float(total)
        self._last = self._next(done)
        return self._last, self._total, message if isinstance(message, str) and message else None

    def _next(self, done: object) -> float:
        if isinstance(done, (int, float)) and done >= 0 and (self._last is None or done > self._last):
            return float(done)
        if self._last is None:
            return 0.0
        step = 1.0 if self._total is None else _STEP * max(self._total, 1.0)
        return max(self._last + step, math.nextafter(self._last, math.inf))  # a small step may vanish by rounding


@asynccontextmanager
async def progress_sender(
    report: Callable[[float, float | None, str | None], Awaitable[None]],
) -> AsyncGenerator[Callable[[object], None]]:
    """Send progress reports to the client during the block.

    Yield a function that takes the chunks of a stream. It sends the progress reports among them, and ignores other
    chunks.
    """
    # `waiting` holds at most one report, the newest: a call never waits for a slow client.
    rising = ProgressCounter()
    waiting: list[Report] = []
    due = anyio.Event()
    is_over = False

    def take(chunk: object) -> None:
        if isinstance(chunk, dict) and chunk.get("type") == "progress":
            waiting[:] = [rising.report(chunk.get("message"), chunk.get("done"), chunk.get("total"))]
            due.set()

    async def tell() -> None:
        nonlocal due
        while not is_over:
            await due.wait()
            due = anyio.Event()
            while waiting:
                await report(*waiting.pop())

    async with anyio.create_task_group() as group:
        group.start_soon(tell)
        yield take
        is_over = True
        due.set()
