"""Where and when the states of actors are kept."""

from collections.abc import Hashable
from copy import deepcopy
from typing import Literal, Protocol, get_args

Save = Literal["at_end", "each_call"]
"""When the state of an actor is kept."""
SAVES = get_args(Save)

InJournal = Literal["journal"]
"""In place of a store: with the conversation that an agent keeps, for the place where that stands."""
JOURNAL: InJournal = "journal"


class Snapshots(Protocol):
    """Keeps what `snapshot` returns, by actor and key, for `restore`."""

    async def load(self, actor: str, key: Hashable) -> object:
        """The snapshot that was saved last; `None` for none."""
        ...

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Keep a snapshot in place of the one before."""
        ...


class InMemorySnapshots:
    """Snapshots that last as long as this object."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Hashable], object] = {}

    async def load(self, actor: str, key: Hashable) -> object:
        """The snapshot that was saved last; `None` for none."""
        return deepcopy(self._kept.get((actor, key)))

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Keep a snapshot in place of the one before."""
        # What the actor goes on with may be in it, and would be changed by calls that are never saved.
        self._kept[actor, key] = deepcopy(snapshot)
