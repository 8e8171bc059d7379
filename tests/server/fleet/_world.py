"""Actors of a fleet that report where they run, and a fleet of several processes within one."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from opentelemetry.trace import get_current_span
from structlog.contextvars import get_contextvars

from callboard import Actor, Reply, fencing_token, handler, keyed, progress, remaining
from callboard.actors._actor_set import Keyed

LEASE = 3.0
"""In seconds; short, because tests wait for leases to expire."""


class Fleets(Protocol):
    """Factory of fleets on one server; each fleet acts as a separate process."""

    def __call__(self, **options: Any) -> Any: ...


@dataclass
class Log:
    """Log of what actors have done, in all processes of a test."""

    lives: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    """Event, key and token of each start and stop."""
    done: list[str] = field(default_factory=list[str])
    rob: Callable[[], object] = list[str]
    """Makes another process the owner of all keys."""


LOGS: dict[str, Log] = {}
"""Logs by name: a restarted actor gets only its arguments, so it looks up its log here."""


def actions_in(log: str) -> list[str]:
    return LOGS.setdefault(log, Log()).done


class FatalError(Exception):
    """Error that ends an actor."""


class Counter(Actor):
    """Counting actor that saves its number when it stops."""

    fatal = (FatalError,)

    def __init__(self, log: str) -> None:
        self.log = LOGS.setdefault(log, Log())
        self.number = 0

    async def start(self) -> None:
        self.log.lives.append(("start", str(self.key), fencing_token() or 0))

    async def stop(self) -> None:
        self.log.lives.append(("stop", str(self.key), fencing_token() or 0))

    def snapshot(self) -> int:
        return self.number

    def restore(self, state: int) -> None:
        self.number = state

    @handler
    async def up(self) -> tuple[int, int | None]:
        """Count."""
        self.number += 1
        return self.number, fencing_token()

    @handler
    def up_in_thread(self) -> tuple[int, int | None]:
        """Count in the actor's thread."""
        self.number += 1
        return self.number, fencing_token()

    @handler
    async def note(self, what: str) -> int:
        """Note something."""
        self.log.done.append(what)
        return len(self.log.done)

    @handler
    async def fail(self, text: str) -> None:
        """Raise an error."""
        raise LookupError(text)

    @handler
    async def hold(self, what: str, seconds: float = 60.0) -> str:
        """Take long, and say how it ended."""
        self.log.done.append(f"{what} began")
        try:
            await anyio.sleep(seconds)
        except BaseException:
            self.log.done.append(f"{what} was cancelled")
            raise
        self.log.done.append(f"{what} ended")
        return what

    @handler(deferred=True)
    async def later(self, reply: Reply[str], text: str) -> None:
        """Take the reply along."""
        reply.send(text)

    @handler
    async def lose_key(self) -> int:
        """Count, and lose the key before the end."""
        self.number += 1
        self.log.rob()
        return self.number

    @handler
    async def around(self) -> tuple[dict[str, Any], int]:
        """Say what is bound here, and in which trace this is."""
        return dict(get_contextvars()), get_current_span().get_span_context().trace_id

    @handler
    async def give_up(self) -> None:
        """End the actor."""
        raise FatalError

    @handler
    async def time_left(self) -> float:
        """Say how much time the caller has left, and report progress."""
        progress("half way", done=1, total=2)
        return remaining()


@asynccontextmanager
async def two_processes(
    fleets: Fleets, log: str, **terms: Any
) -> AsyncGenerator[tuple[Keyed[Counter], Keyed[Counter]]]:
    """Open keyed counters in two processes of a fleet, for a minute at most."""
    with anyio.fail_after(60):
        async with keyed(Counter(log), fleet=fleets(), **terms) as first_actors:
            async with keyed(Counter(log), fleet=fleets(), **terms) as second_actors:
                yield first_actors, second_actors
