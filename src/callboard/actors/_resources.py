"""Context managers that an actor has entered in `start`."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class Resources:
    """Context managers that are left together, in reverse order.

    The exit stack is created at first use: an actor without resources needs 0.8 KB less.
    """

    __slots__ = ("_stack",)

    def __init__(self) -> None:
        self._stack: AsyncExitStack | None = None

    async def enter(self, manager: AbstractAsyncContextManager[T] | AbstractContextManager[T]) -> T:
        """Enter a context manager, to be left when the actor ends."""
        if self._stack is None:
            self._stack = AsyncExitStack()
        if isinstance(manager, AbstractAsyncContextManager):
            return await self._stack.enter_async_context(manager)
        return self._stack.enter_context(manager)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return False if self._stack is None else bool(await self._stack.__aexit__(kind, error, traceback))
