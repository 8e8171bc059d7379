"""Actors whose states are kept with a conversation: each place where that has stood has the state of that place."""

from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

from callboard._canonical import digest
from callboard.exceptions import ThreadBusyError


class Journal(Protocol):
    """Keeps the states of actors with one thread, for the place where it stands. May be asked from any loop.

    An actor is named by the name of its terms and the text of its key.
    """

    @property
    def identity(self) -> Hashable:
        """Which thread, of all that there are in the process."""
        ...

    @property
    def thread_id(self) -> str: ...

    def version(self, actor: str, key: str) -> str | None:
        """Which state of an actor there is; `None` for none."""
        ...

    async def load(self, actor: str, key: str) -> object:
        """The state of an actor; `None` for none."""
        ...

    def keep(self, actor: str, key: str, snapshot: object, call_id: str | None) -> str:
        """Keep a state in place of the one before; returns its version. It is stored with the result of its call.

        Raises:
            Exception: if it cannot be stored.
        """
        ...


@dataclass(frozen=True, slots=True)
class InThread:
    """Which actor of several: that of a thread, and of a key in it."""

    identity: Hashable
    text: str
    """The key, for the journal."""
    thread_id: str = field(compare=False)
    key: Hashable = field(compare=False)
    """As the user has it; `None` where there is one for the thread."""

    @classmethod
    def of(cls, journal: Journal, key: Hashable) -> "InThread":
        """The actor of a key, in the thread of a journal.

        Raises:
            ValueError: for a key that no other process could write again.
        """
        return cls(journal.identity, _text(key), journal.thread_id, key)

    def __repr__(self) -> str:
        return repr(self.thread_id) if self.key is None else f"{self.thread_id!r}, {self.key!r}"


def own_key(key: Hashable) -> Hashable:
    """The key as the actor knows it: that of its user, or else its thread."""
    if not isinstance(key, InThread):
        return key
    return key.thread_id if key.key is None else key.key


def _text(key: Hashable) -> str:
    if key is None:
        return ""
    return f"={key}" if type(key) is str else f"%{digest(key)}"


class JournalSnapshots:
    """The snapshots of actors of one kind, each in the journal of its thread, as long as a run has that open."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Journal] = {}
        self._versions: dict[Hashable, str | None] = {}
        """Of those that live: which state of the journal theirs is; none for those whose state is in no journal."""

    async def load(self, actor: str, key: Hashable) -> object:
        """The state of the place where its thread stands; `None` for none."""
        assert isinstance(key, InThread)
        self._versions.pop(key, None)
        journal = self._open.get(key.identity)
        if journal is None:
            return None  # it was restarted between two runs; the next one has it come anew
        version = journal.version(actor, key.text)
        found = await journal.load(actor, key.text)
        self._versions[key] = version
        return found

    async def keep(
        self, actor: str, key: Hashable, taken: Callable[[], Awaitable[object]], call_id: str | None
    ) -> None:
        """Take the state of an actor after a call, and keep it with its thread."""
        assert isinstance(key, InThread)
        self._versions.pop(key, None)
        if (snapshot := await taken()) is None:
            raise ValueError("`snapshot` returned None, which stands for no state; return what `restore` takes")
        journal = self._open.get(key.identity)
        if journal is not None:
            self._versions[key] = journal.keep(actor, key.text, snapshot, call_id)

    def forget(self, key: Hashable) -> None:
        """Forget one that does not live any more."""
        self._versions.pop(key, None)

    def open(self, journal: Journal) -> None:
        """Keep what comes of one thread in its journal.

        Raises:
            ThreadBusyError: if another run does; the two would share actors, and each has a state of its own.
        """
        if journal.identity in self._open:
            raise ThreadBusyError(journal.thread_id, "another run, which uses the same actors")
        self._open[journal.identity] = journal

    def close(self, journal: Journal, alive: Collection[Hashable]) -> None:
        """End what `open` began; of those that do not live nothing is remembered."""
        del self._open[journal.identity]
        for key in [key for key in list(self._versions) if _is_in(key, journal) and key not in alive]:
            self._versions.pop(key, None)

    def strayed(self, actor: str, journal: Journal, alive: Collection[Hashable]) -> list[Hashable]:
        """The actors that live and have another state than that of the place where their thread stands."""
        return [
            key
            for key in alive
            if _is_in(key, journal)
            and (key not in self._versions or self._versions[key] != journal.version(actor, key.text))
        ]


def _is_in(key: Hashable, journal: Journal) -> TypeGuard[InThread]:
    return isinstance(key, InThread) and key.identity == journal.identity
