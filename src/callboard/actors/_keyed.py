"""`keyed`: actors by key, for who holds references to them."""

from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from callboard._calls._under_way import PATIENCE
from callboard._drained import Drained
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._statistics import ActorStatistics
from callboard._types import unhashable
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec, check_store, child
from callboard.actors._reference import reference_to
from callboard.actors._residents import Residents

A = TypeVar("A", bound=Actor)


class Keyed(Generic[A]):
    """References to actors by key; each lives when it is asked, see `keyed`."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents

    def __getitem__(self, key: Hashable) -> A:
        """A reference to the actor of a key, whether it lives or not."""
        try:
            hash(key)
        except TypeError as error:
            raise unhashable(f"{self._residents.spec.name}[...]", key) from error
        reference: A = reference_to(self._residents.cell(key), self._residents.spec.kind)
        return reference

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Have them answer what they have been asked, and nothing else; as `Supervisor.drain`.

        Args:
            timeout: seconds for them to answer; then what runs is cancelled, and has its grace.

        Raises:
            ValueError: for a number out of range.
        """
        return await self._residents.drain(timeout)

    def statistics(self) -> ActorStatistics:
        """How many live now, and what they do."""
        return self._residents.statistics()


@asynccontextmanager
async def keyed(actor: type[A] | A | ChildSpec[A], **terms: Any) -> AsyncGenerator[Keyed[A]]:
    """Have actors live while the block does, one for each key.

    One starts when somebody asks it (`await books["mine"].append("hello")`), and goes when nobody does, or others need
    its place. If its class has `snapshot` and `restore`, it comes back with the state that it had.

    Args:
        actor: an object that describes them, their class, or what `child` made of it.
        terms: for `child`; `cap` and `idle` among them.

    Raises:
        KeyboardInterrupt: and the like, of a handler; at the end of the block, which is cancelled.
    """
    if isinstance(actor, ChildSpec) and terms:
        raise TypeError(f"keyed(child(...)): its terms are there already; got {terms!r} besides")
    spec = actor if isinstance(actor, ChildSpec) else child(actor, **terms)
    if spec.key is not None:
        raise ValueError("keyed(...) is given the key in brackets, as in books['mine']; key=... is for a node")
    check_store(spec, "keyed(...)")
    interrupts: list[BaseException] = []

    def interrupted(error: BaseException) -> None:
        interrupts.append(error)
        scope.cancel()

    scope = current_loop().scope(float("inf"), DEFAULT_GRACE)
    residents = Residents(spec, interrupted)
    try:
        with scope:
            yield Keyed(residents)
    finally:
        await residents.close()
    if interrupts:
        raise interrupts[0]
