"""Public entry point for keyed actors outside a node: `keyed`."""

from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from callboard._calls._draining import PATIENCE
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._records._policies import unhashable
from callboard._records._reports import Drained
from callboard._statistics import ActorStatistics
from callboard.actors._actor import Actor
from callboard.actors._child import ChildSpec, check_store, child
from callboard.actors._reference import reference_to
from callboard.actors._residents import Residents

A = TypeVar("A", bound=Actor)


class Keyed(Generic[A]):
    """References to keyed actors, see `keyed`."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents

    def __getitem__(self, key: Hashable) -> A:
        """Return a reference to the actor of a key, whether the actor runs or not.

        Raises:
            TypeError: if the key cannot be hashed.
        """
        try:
            hash(key)
        except TypeError as error:
            raise unhashable(f"{self._residents.spec.name}[...]", key) from error
        reference: A = reference_to(self._residents.cell(key), self._residents.spec.kind)
        return reference

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Finish the calls that the actors have accepted, and return a report; see `Supervisor.drain`.

        Args:
            timeout: seconds for the calls to finish. After that, running handlers are cancelled and have their grace.

        Raises:
            ValueError: for a number out of range.
        """
        return await self._residents.drain(timeout)

    def statistics(self) -> ActorStatistics:
        """Return numbers of running actors, calls, restarts and evictions."""
        return self._residents.statistics()


@asynccontextmanager
async def keyed(actor: type[A] | A | ChildSpec[A], **terms: Any) -> AsyncGenerator[Keyed[A]]:
    """Run keyed actors for the duration of an `async with` block, one for each key.

    An actor starts at its first call (`await books["mine"].append("hello")`). It is evicted when it is idle for long,
    or when another key needs its place. If its class has `snapshot` and `restore`, it starts again with its last state.

    Args:
        actor: an actor object, an actor class, or a child spec made by `child`.
        terms: options for `child`, such as `cap` and `idle`.

    Raises:
        KeyboardInterrupt: or the like, if a handler raised it; at the end of the block, which is cancelled.
        TypeError: for an option of the wrong kind.
        ValueError: for an option out of range.
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
        # Called in a supervisor's task: the error is raised in the owner's task, at the end of its block.
        scope.cancel()

    scope = current_loop().scope(float("inf"), DEFAULT_GRACE)
    residents = Residents(spec, interrupted)
    try:
        with scope:
            yield Keyed(residents)
    finally:
        # Outside the scope: stopping the actors must not be cancelled together with the block.
        await residents.close()
    if interrupts:
        raise interrupts[0]
