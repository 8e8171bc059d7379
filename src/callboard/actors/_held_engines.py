"""Engines that are open for somebody from when they are first needed."""

from contextlib import AsyncExitStack

from callboard._types import Engine
from callboard.exceptions import EngineError


class HeldEngines:
    """What a node or one of its runs has open, to be closed with it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._held: set[int] = set()
        self._is_closed = False

    async def hold(self, engine: Engine, title: str) -> None:
        """Have an engine open until `close`.

        Args:
            engine: that is needed.
            title: of what needs it, for errors.

        Raises:
            ActorStartError: if it cannot be.
            EngineError: if they are closed, perhaps meanwhile.
        """
        if id(engine) in self._held:
            return
        self._refuse_if_closed(title)
        await engine.__aenter__()
        try:
            self._refuse_if_closed(title)
        except EngineError:
            await engine.__aexit__(None, None, None)
            raise
        # Two may get here at once: each has opened it, and each time it is left.
        self._stack.push_async_exit(engine)
        self._held.add(id(engine))

    def _refuse_if_closed(self, title: str) -> None:
        if self._is_closed:
            raise EngineError(title, None, "whoever had its engine open has closed it", ended="unavailable")

    async def close(self) -> None:
        """Close every engine that was opened for somebody here."""
        self._is_closed = True
        self._held.clear()
        await self._stack.aclose()
