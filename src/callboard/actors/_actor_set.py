"""The actors that somebody was given, such as a node: they live while it is open, or else for one block."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from callboard._types import ActorStatistics
from callboard.actors._child import ChildSpec
from callboard.actors._residents import Residents

Lodging = Mapping[int, Residents]
"""Where actors live, by the place of their terms in the set."""


class ActorSet:
    """Actors, and where they live now.

    Args:
        specs: their terms.
        owner: whose they are, for errors.
    """

    def __init__(self, specs: Sequence[ChildSpec[Any]], owner: str) -> None:
        self.specs = specs
        self._owner = owner
        self._open: Lodging | None = None
        self._is_open = False

    async def open(self) -> None:
        """Have them live until `close`; those without a key start now.

        Raises:
            ActorStartError: if one does not start.
            RuntimeError: if it is open.
        """
        if self._is_open:
            raise RuntimeError(f"{self._owner} is open already: one `async with` at a time")
        self._is_open = True
        lodging = self._lodging()
        try:
            for spec, residents in zip(self.specs, lodging.values(), strict=True):
                if spec.key is None:
                    await residents.start(None)
        except BaseException:
            self._is_open = False
            await _close(lodging)
            raise
        self._open = lodging  # only now: who asks before would have another one start beside it

    async def close(self) -> None:
        """Stop them, in the reverse order."""
        lodging, self._open, self._is_open = self._open, None, False
        if lodging is not None:
            await _close(lodging)

    @asynccontextmanager
    async def living(self) -> AsyncGenerator[None]:
        """Have them live while the block runs, unless they do anyway; each starts when it is asked."""
        if not self.specs or self.lodging() is not None:
            yield
            return
        lodging = self._lodging()
        token = _lodgings.set({**_lodgings.get(), id(self): lodging})
        try:
            yield
        finally:
            _lodgings.reset(token)
            await _close(lodging)

    def statistics(self) -> Mapping[str, ActorStatistics]:
        """What they do, by name; of those that live as the calling task knows it."""
        lodging = self.lodging()
        if lodging is None:
            return {}
        return {spec.name: one.statistics() for spec, one in zip(self.specs, lodging.values(), strict=True)}

    def lodging(self) -> Lodging | None:
        """Where they live now, as the calling task knows it."""
        # That of a run first: it goes on with the actors that it has, even if the owner is opened meanwhile.
        return _lodgings.get().get(id(self)) or self._open

    def _lodging(self) -> Lodging:
        return {number: Residents(spec) for number, spec in enumerate(self.specs)}


async def _close(lodging: Lodging) -> None:
    for residents in reversed(list(lodging.values())):
        await residents.close()


_lodgings: ContextVar[Mapping[int, Lodging]] = ContextVar("callboard_lodgings", default=MappingProxyType({}))
