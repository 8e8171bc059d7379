"""Engines that are open for somebody from when they are first needed."""

from contextlib import AsyncExitStack

from callboard._types import Engine


class HeldEngines:
    """What a node or one of its runs has open, to be closed with it. Belongs to one event loop."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._held: set[int] = set()

    async def hold(self, engine: Engine) -> None:
        """Have an engine open until `close`.

        Raises:
            ActorStartError: if it cannot be.
        """
        if id(engine) not in self._held:
            # Two may get here at once: each opens it, and each time it is left.
            await self._stack.enter_async_context(engine)
            self._held.add(id(engine))

    async def close(self) -> None:
        """Need none of them any more."""
        self._held.clear()
        await self._stack.aclose()
