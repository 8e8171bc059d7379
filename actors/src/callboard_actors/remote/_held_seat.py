"""A seat at a worker, as its owner holds it; see `callboard.Engine.seat`."""

from typing import Any, Protocol

import anyio

from callboard.engines import Body, EngineError
from callboard_actors.process._crossing import packed
from callboard_actors.process._variables import Variables


class Runs(Protocol):
    """Has a body run at a worker."""

    async def run_body(self, body: Body, pickled: bytes, seat: int | None = None) -> Any:
        """Run a body in the seat, on the other machine."""
        ...


class RemoteSeat:
    """A worker of a worker that one owner has for itself."""

    def __init__(self, title: str, number: int, link: Runs, variables: Variables) -> None:
        self.number = number
        self._title = title
        self._link = link
        self._variables = variables
        self._settled = anyio.Event()
        self._gone = anyio.Event()
        self._useless = anyio.Event()
        self._reason: str | None = None
        self.is_there = False
        """Whether there was one."""

    @property
    def reason(self) -> str:
        """Why it is of no more use."""
        return self._reason or "it was left"

    def begin(self) -> None:
        """Note that the worker has given the seat."""
        self.is_there = True
        self._settled.set()

    def drain(self, reason: str) -> None:
        """Be told that nothing new begins there; what runs goes on."""
        self._reason = self._reason or reason
        self._useless.set()

    def end(self, reason: str) -> None:
        """Note that the seat has ended there, and of what."""
        self.drain(reason)
        self._settled.set()
        self._gone.set()

    async def until_settled(self) -> None:
        """Wait until it is there, or will not be."""
        await self._settled.wait()

    async def until_gone(self) -> None:
        """Wait until nothing of it is left."""
        await self._gone.wait()

    async def until_ended(self) -> str:
        """Wait until it has ended by itself, was killed, or has to go; says how, in words."""
        await self._useless.wait()
        return self.reason

    async def run_body(self, body: Body, /) -> Any:
        """Run an async function there, beside those that run; see `callboard.Seat`."""
        if self._useless.is_set():
            raise EngineError(body.title, body.call_id, self.reason, ended="unavailable")
        return await self._link.run_body(body, packed(body, self._variables.values()), self.number)
