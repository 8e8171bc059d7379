"""Calls that wait for a person between two requests of one client: MCP since 2026-07-28."""

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
"""Calls of all clients that may wait at a time."""
MOST_OF_ONE: Final = 100
"""Calls of one client that may wait at a time."""
PATIENCE: Final = 3600.0
"""Seconds that a call waits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for a person, and what for."""

    caller: Caller
    name: str
    arguments: dict[str, Any]
    course: Course
    asking: Asking
    until: float = math.inf


class OpenQuestions:
    """Keeps calls by what only the client knows that was asked. Each can be taken once: no call runs twice by that.

    A client that has too many waiting loses the one that has waited longest. If all clients together have too many,
    the client with the most of them loses one.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()
        self._of_owners: Counter[tuple[str, str]] = Counter()
        """Calls of each client. A client is a pair: its kind and name, or the address and port that it came from."""

    async def keep(self, waiting: Waiting) -> str:
        """Keep a call; returns what it is asked for by."""
        for state in [state for state, one in self._waiting.items() if one.until <= anyio.current_time()]:
            await self._forget(state)
        owner = waiting.caller.owner
        # In one step with the insertion below, as far as counts go: `forget` may wait, and other calls come meanwhile.
        state = secrets.token_urlsafe(32)
        self._waiting[state] = replace(waiting, until=anyio.current_time() + PATIENCE)
        self._of_owners[owner] += 1
        while self._of_owners[owner] > MOST_OF_ONE:
            await self._forget(self._oldest_of(owner))
        while len(self._waiting) > MOST:
            await self._forget(self._oldest_of(self._largest()))
        return state

    def take(self, state: str, caller: Caller, name: str, arguments: dict[str, Any]) -> Waiting | None:
        """The call that waits, which no longer does; `None` if there is none, or it is another one."""
        found = self._waiting.get(state)
        if found is None or (found.caller.principal, found.name, found.arguments) != (
            caller.principal,
            name,
            arguments,
        ):
            return None
        self._pop(state)
        return found if found.until > anyio.current_time() else None

    async def close(self) -> None:
        """Forget every call whose client has not come back with the answers."""
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
        """Return the client with the most calls: of the address with the most, so that many connections do not help."""
        of_hosts: Counter[tuple[str, str]] = Counter()
        for (host, name), count in self._of_owners.items():
            of_hosts[_group(host, name)] += count
        return max(self._of_owners, key=lambda owner: (of_hosts[_group(*owner)], self._of_owners[owner]))


def _group(host: str, name: str) -> tuple[str, str]:
    """Return what connections are bounded together by: their address; an authenticated client is one by itself."""
    return (host, name) if host == "principal" else (host, "")
