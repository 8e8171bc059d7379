"""Calls that wait for a person between two requests of a client, for protocol versions since 2026-07-28."""

import math
import secrets
from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._course import Course
from callboard_actors.mcp_service._work import Asking

MOST: Final = 1000
"""Limit of waiting calls of all clients."""
MOST_OF_ONE: Final = 100
"""Limit of waiting calls of one client."""
PATIENCE: Final = 3600.0
"""Seconds that a call waits for its answers."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Call that waits for a person, with its open questions."""

    caller: Caller
    name: str
    arguments: dict[str, Any]
    course: Course
    asking: Asking
    until: float = math.inf


class OpenQuestions:
    """Waiting calls by a secret state, which only the asked client knows. Each can be taken once, so none runs twice.

    Above the limit per client, the client's oldest call is dropped. Above the limit of all clients, the oldest call
    of the client with the most calls is dropped.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._of_owners: Counter[tuple[str, str]] = Counter()
        """Number of waiting calls per client: ("principal", identity), or the peer's address and port."""

    async def keep(self, waiting: Waiting) -> str:
        """Store a call, and return its secret state."""
        # There is no timer: expired calls are dropped here, or refused by `take`.
        for state in [state for state, one in self._waiting.items() if one.until <= anyio.current_time()]:
            await self._forget(state)
        owner = waiting.caller.owner
        # No await between insertion and count: `_forget` may wait, and other calls may be stored meanwhile.
        state = secrets.token_urlsafe(32)
        self._waiting[state] = replace(waiting, until=anyio.current_time() + PATIENCE)
        self._of_owners[owner] += 1
        while self._of_owners[owner] > MOST_OF_ONE:
            await self._forget(self._oldest_of(owner))
        while len(self._waiting) > MOST:
            await self._forget(self._oldest_of(self._largest()))
        return state

    def take(self, state: str, caller: Caller, name: str, arguments: dict[str, Any]) -> Waiting | None:
        """Remove and return a waiting call; `None` if it is unknown, expired, or of another client or request."""
        found = self._waiting.get(state)
        # The state is not enough: it must not continue a call of another client, or with other arguments.
        if found is None or (found.caller.principal, found.name, found.arguments) != (
            caller.principal,
            name,
            arguments,
        ):
            return None
        self._pop(state)
        return found if found.until > anyio.current_time() else None

    async def close(self) -> None:
        """Drop all waiting calls."""
        while self._waiting:
            await self._forget(next(iter(self._waiting)))

    async def _forget(self, state: str) -> None:
        if (found := self._pop(state)) is not None:
            await found.course.work.forget()

    def _pop(self, state: str) -> Waiting | None:
        if (found := self._waiting.pop(state, None)) is not None:
            owner = found.caller.owner
            self._of_owners[owner] -= 1
            if not self._of_owners[owner]:
                del self._of_owners[owner]
        return found

    def _oldest_of(self, owner: tuple[str, str]) -> str:
        return next(state for state, one in self._waiting.items() if one.caller.owner == owner)

    def _largest(self) -> tuple[str, str]:
        """Return the client with the most calls, at the address with the most calls in total."""
        # By address first: a client must not evade the limit by opening many connections.
        of_hosts: Counter[tuple[str, str]] = Counter()
        for (host, name), count in self._of_owners.items():
            of_hosts[_group(host, name)] += count
        return max(self._of_owners, key=lambda owner: (of_hosts[_group(*owner)], self._of_owners[owner]))


def _group(host: str, name: str) -> tuple[str, str]:
    """Return the group for the limit of all clients: an authenticated client, or all connections of an address."""
    return (host, name) if host == "principal" else (host, "")
