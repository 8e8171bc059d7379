"""Leased runner: runs an actor's code while this process owns its key. Each handler checks the ownership first."""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TypeVar

from callboard._calls._attempt import fenced_by
from callboard._loops._current import current_loop
from callboard._loops._deadline import cap_grace
from callboard._records._fleets import KeyMovedError, Ownership
from callboard.actors._code import Code
from callboard.actors._message import Message
from callboard.actors._resources import Resources

T = TypeVar("T")

Begin = Callable[[], Awaitable[bool]]

beginning: ContextVar[Begin | None] = ContextVar("callboard_beginning", default=None)
"""Callback that a remote call's handler must await before it begins; calls made by the handler must not see it."""


class OwnedCode:
    """Runner that checks the ownership of the key, and sets the fencing token, around another runner.

    Args:
        inner: the runner of the code.
        ownership: ownership of the key.
        clean_up: seconds in which the code must end after the key is lost.
    """

    __slots__ = ("_clean_up", "_inner", "_ownership")

    def __init__(self, inner: Code, ownership: Ownership, clean_up: float) -> None:
        self._inner = inner
        self._ownership = ownership
        self._clean_up = clean_up

    async def start(self, resources: Resources, snapshot: object) -> None:
        fenced_by(self._ownership.token)  # in the incarnation's task, so `snapshot` and `stop` have it, too
        cap_grace(current_loop(), self._clean_up)
        await self._inner.start(resources, snapshot)

    async def handle(self, message: Message) -> object:
        begin = beginning.get()
        # Calls that the handler makes inherit the context, and must not ask again for this call.
        beginning.set(None)
        if begin is not None and not await begin():
            raise KeyMovedError(f"{message.title} was taken back before it began")
        # After the await above, not before it: the lease may have expired meanwhile.
        if not self._ownership.is_current:
            raise KeyMovedError(f"{message.title} would begin in a process that owns its key no more")
        fenced_by(self._ownership.token)
        # Again: the handler runs in the caller's context, with the caller's grace.
        cap_grace(current_loop(), self._clean_up)
        return await self._inner.handle(message)

    def is_lost(self, error: BaseException) -> bool:
        return self._inner.is_lost(error)

    def never_began(self, error: BaseException) -> bool:
        return self._inner.never_began(error)

    async def snapshot(self) -> object:
        return await self._inner.snapshot()

    async def stop(self) -> None:
        await self._inner.stop()

    def close(self) -> None:
        self._inner.close()
