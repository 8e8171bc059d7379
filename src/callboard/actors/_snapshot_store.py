"""Snapshot stores of actors, and the time of saving."""

from collections.abc import Hashable
from copy import deepcopy
from typing import Literal, Protocol, get_args

Save = Literal["at_end", "each_call"]
"""Time of saving: at the end of an incarnation, or after each call."""
SAVES = get_args(Save)

InJournal = Literal["journal"]
"""Marker in place of a store: the state is stored in the agent's thread."""
JOURNAL: InJournal = "journal"


class Snapshots(Protocol):
    """Store of snapshots, by actor name and key."""

    async def load(self, actor: str, key: Hashable) -> object:
        """Return the last saved snapshot; `None` for none."""
        ...

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Replace the saved snapshot."""
        ...


class InMemorySnapshots:
    """Snapshot store in memory; it lasts as long as this object."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Hashable], object] = {}

    async def load(self, actor: str, key: Hashable) -> object:
        """Return a copy of the last saved snapshot; `None` for none."""
        return deepcopy(self._kept.get((actor, key)))

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Replace the saved snapshot by a copy of this one."""
        # A copy: the snapshot may share objects with the running actor, which later calls change.
        self._kept[actor, key] = deepcopy(snapshot)
