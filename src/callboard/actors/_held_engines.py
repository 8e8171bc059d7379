"""Engines that are opened at first use and closed together."""

from contextlib import AsyncExitStack

from callboard._records._policies import Engine
from callboard.exceptions import EngineError


class HeldEngines:
    """Open engines of a node or of one of its runs. Belongs to one event loop."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._held: set[int] = set()
        self._is_closed = False

    async def hold(self, engine: Engine, title: str) -> None:
        """Open an engine, unless it is open here already, until `close`.

        Raises:
            ActorStartError: if the engine cannot be opened.
            EngineError: if `close` was called, perhaps during the await.
        """
        if id(engine) in self._held:
            return
        self._refuse_if_closed(title)
        # Other tasks run during this await: `close` may be called, or the same engine opened twice.
        await engine.__aenter__()
        try:
            self._refuse_if_closed(title)
        except EngineError:
            await engine.__aexit__(None, None, None)
            raise
        # Two tasks may open the same engine at once. Each opening is closed, because engines count them.
        self._stack.push_async_exit(engine)
        self._held.add(id(engine))

    def _refuse_if_closed(self, title: str) -> None:
        if self._is_closed:
            raise EngineError(title, None, "whoever had its engine open has closed it", ended="unavailable")

    async def close(self) -> None:
        """Close all engines that were opened here."""
        # First: a `hold` in progress closes its engine itself when it sees this.
        self._is_closed = True
        self._held.clear()
        await self._stack.aclose()
