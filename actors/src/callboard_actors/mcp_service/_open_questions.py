"""Calls that wait for a person between two requests of one client: MCP since 2026-07-28."""

import math
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import anyio

from callboard_actors.mcp_service._course import Course
from callboard_actors.mcp_service._work import Asking

MOST: Final = 1000
"""Calls that may wait at a time; the one that has waited longest is forgotten for another."""
PATIENCE: Final = 3600.0
"""Seconds that a call waits."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for a person, and what for."""

    name: str
    arguments: dict[str, Any]
    course: Course
    asking: Asking
    until: float = math.inf


class OpenQuestions:
    """Keeps calls by what only the client knows that was asked. Each can be taken once: no call runs twice by that."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()

    async def keep(self, waiting: Waiting) -> str:
        """Keep a call; returns what it is asked for by."""
        for state in [state for state, one in self._waiting.items() if one.until <= anyio.current_time()]:
            await self._waiting.pop(state).course.work.forget()
        while len(self._waiting) >= MOST:
            await self._waiting.popitem(last=False)[1].course.work.forget()
        state = secrets.token_urlsafe(32)
        until = anyio.current_time() + PATIENCE
        self._waiting[state] = Waiting(waiting.name, waiting.arguments, waiting.course, waiting.asking, until)
        return state

    def take(self, state: str, name: str, arguments: dict[str, Any]) -> Waiting | None:
        """The call that waits, which no longer does; `None` if there is none, or it is another one."""
        found = self._waiting.get(state)
        if found is None or (found.name, found.arguments) != (name, arguments):
            return None
        del self._waiting[state]
        return found if found.until > anyio.current_time() else None

    async def close(self) -> None:
        """Forget every call whose client has not come back with the answers."""
        while self._waiting:
            await self._waiting.popitem()[1].course.work.forget()
