"""Snapshots of actors: stores in memory and in conversation threads, and the options for when to save.

Snapshots in a thread of conversation belong to a place in its history: a run from an earlier place restores the state
of that place.
"""

from collections.abc import Awaitable, Callable, Collection, Hashable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeGuard, get_args

from callboard._util._canonical import digest
from callboard.exceptions import ThreadBusyError


class Journal(Protocol):
    """Store of actor states for one conversation thread, at the current position in the thread's history.

    Any event loop may use it.

    An actor is identified by the name of its child spec and the text of its key.
    """

    @property
    def identity(self) -> Hashable:
        """Identity of the conversation thread, unique within the process."""
        ...

    @property
    def thread_id(self) -> str: ...

    def version(self, actor: str, key: str) -> str | None:
        """Return the version of an actor's stored state; `None` if no state is stored."""
        ...

    async def load(self, actor: str, key: str) -> object:
        """Return the stored state of an actor; `None` if no state is stored."""
        ...

    def keep(self, actor: str, key: str, snapshot: object, call_id: str | None) -> str:
        """Store an actor's new state together with the result of the call `call_id`; return the state's version."""
        ...


@dataclass(frozen=True, slots=True)
class InThread:
    """Key of an actor whose state is stored in a conversation thread: the id of the thread, and the user's key."""

    identity: Hashable
    text: str
    """Text of the user's key, by which the journal identifies the actor."""
    thread_id: str = field(compare=False)  # for the user only: `identity` and `text` identify the actor
    key: Hashable = field(compare=False)
    """Key as the user gave it; `None` for an actor without keys."""

    @classmethod
    def of(cls, journal: Journal, key: Hashable) -> "InThread":
        """Return the key of an actor whose state is stored in the conversation thread of a journal."""
        # The prefixes keep texts and digests of other keys apart, and both apart from no key.
        text = "" if key is None else f"={key}" if type(key) is str else f"%{digest(key)}"
        return cls(journal.identity, text, journal.thread_id, key)

    def __repr__(self) -> str:
        texts = [repr(self.thread_id)] if self.key is None else [repr(self.thread_id), repr(self.key)]
        return ", ".join(dict.fromkeys(texts))  # the user's key may be the id of the thread


def own_key(key: Hashable) -> Hashable:
    """Return the key as the actor sees it: the user's key, or else the id of the conversation thread."""
    if not isinstance(key, InThread):
        return key
    return key.thread_id if key.key is None else key.key


class JournalSnapshots:
    """Snapshot store for actors of agents: uses the journal of each conversation thread that has a run in progress."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Journal] = {}
        self._versions: dict[Hashable, str | None] = {}
        """Version under which a journal has the state of each running actor; missing if no journal has the state."""

    async def load(self, actor: str, key: Hashable) -> object:
        """Load an actor's state at the current position in its thread's history; return `None` if there is none."""
        assert isinstance(key, InThread)
        self._versions.pop(key, None)
        journal = self._open.get(key.identity)
        if journal is None:
            return None  # restarted between two runs: without a version here, the next run restarts it from its place
        # Read before the await: if the state changes during it, the version differs, and the next run loads again.
        version = journal.version(actor, key.text)
        state = await journal.load(actor, key.text)
        self._versions[key] = version
        return state

    async def keep(
        self, actor: str, key: Hashable, take_snapshot: Callable[[], Awaitable[object]], call_id: str | None
    ) -> None:
        """Take the snapshot of an actor after a call, and store it in the journal of its conversation thread."""
        assert isinstance(key, InThread)
        # Removed first: if this fails, the actor's state is in no journal, and the next run reverts it.
        self._versions.pop(key, None)
        if (snapshot := await take_snapshot()) is None:
            raise ValueError("`snapshot` returned None, which stands for no state; return what `restore` takes")
        journal = self._open.get(key.identity)
        if journal is not None:
            self._versions[key] = journal.keep(actor, key.text, snapshot, call_id)

    def forget(self, key: Hashable) -> None:
        """Forget the version of the state that an ended actor had in a journal."""
        self._versions.pop(key, None)

    def open(self, journal: Journal) -> None:
        """Use a journal as the store for the actors of its conversation thread, until `close`."""
        if journal.identity in self._open:
            raise ThreadBusyError(journal.thread_id, "another run, which uses the same actors")
        self._open[journal.identity] = journal

    def close(self, journal: Journal, alive: Collection[Hashable]) -> None:
        """Stop the use of a journal; forget the state versions of its actors that no longer run (not in `alive`)."""
        del self._open[journal.identity]
        for key in [key for key in list(self._versions) if _is_in(key, journal) and key not in alive]:
            self._versions.pop(key, None)

    def stale_keys(self, actor: str, journal: Journal, alive: Collection[Hashable]) -> list[Hashable]:
        """Return the keys of running actors whose state differs from the journal's current state."""
        return [
            key
            for key in alive
            if _is_in(key, journal)
            and (key not in self._versions or self._versions[key] != journal.version(actor, key.text))
        ]


def _is_in(key: Hashable, journal: Journal) -> TypeGuard[InThread]:
    return isinstance(key, InThread) and key.identity == journal.identity


Save = Literal["at_end", "each_call"]
"""Time of saving: at the end of an incarnation, or after each call."""
SAVES = get_args(Save)

InJournal = Literal["journal"]
"""Marker in place of a snapshot store: the state is stored in the conversation thread of the agent."""
JOURNAL: InJournal = "journal"


class InMemorySnapshots:
    """Snapshot store in memory; the snapshots are lost with this object."""

    def __init__(self) -> None:
        self._snapshots: dict[tuple[str, Hashable], object] = {}

    async def load(self, actor: str, key: Hashable) -> object:
        """Return a copy of the last saved snapshot of an actor; `None` if there is none."""
        return deepcopy(self._snapshots.get((actor, key)))

    async def save(self, actor: str, key: Hashable, snapshot: object) -> None:
        """Replace the saved snapshot of an actor by a copy of `snapshot`."""
        # A copy: the snapshot may share objects with the running actor, which later calls change.
        self._snapshots[actor, key] = deepcopy(snapshot)
