"""Dedicated worker process on another machine, on the owner's side; see `callboard.Engine.seat`."""

from typing import Any, Protocol

import anyio

from callboard.extend import Body, EngineError
from callboard_actors._engine._codec import packed
from callboard_actors._engine._variables import Variables


class Runs(Protocol):
    """Link that runs bodies on a worker."""

    async def run_body(self, body: Body, pickled: bytes, seat: int | None = None) -> Any:
        """Run a body in the dedicated worker with the number `seat`."""
        ...


class RemoteSeat:
    """Dedicated worker process of one owner, on another machine."""

    def __init__(self, title: str, number: int, link: Runs, variables: Variables) -> None:
        self.number = number
        self._title = title
        self._link = link
        self._variables = variables
        # Set in this order: `_settled` (granted or refused), `_useless` (no new bodies), `_gone` (nothing of it is
        # left). A drain sets the second one long before the third.
        self._settled = anyio.Event()
        self._gone = anyio.Event()
        self._useless = anyio.Event()
        self._reason: str | None = None
        self.is_there = False
        """`True` if the worker has granted it."""

    @property
    def reason(self) -> str:
        """Reason why it cannot be used any more."""
        return self._reason or "it was left"

    def begin(self) -> None:
        """Record that the worker has granted it."""
        self.is_there = True
        self._settled.set()

    def drain(self, reason: str) -> None:
        """Refuse new bodies; running ones continue."""
        self._reason = self._reason or reason
        self._useless.set()

    def end(self, reason: str) -> None:
        """Record that it has ended, or was refused."""
        # Keeps an earlier reason: after a drain, that is why it ended.
        self.drain(reason)
        self._settled.set()
        self._gone.set()

    async def until_settled(self) -> None:
        """Wait until it was granted or refused."""
        await self._settled.wait()

    async def until_gone(self) -> None:
        """Wait until its process has ended, as far as known."""
        await self._gone.wait()

    async def until_ended(self) -> str:
        """Wait until it cannot be used any more: ended, lost or draining. Return the reason."""
        await self._useless.wait()
        return self.reason

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function in the worker, concurrently with others; see `callboard.extend.Seat`."""
        if self._useless.is_set():
            raise EngineError(body.title, body.call_id, self.reason, ended="unavailable")
        return await self._link.run_body(body, packed(body, self._variables.values()), self.number)
