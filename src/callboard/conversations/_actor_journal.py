"""Journal of a thread, as its actors use it: packs and unpacks their states."""

from collections.abc import Hashable
from hashlib import blake2b
from typing import Any, Protocol

from callboard._langgraph._serializers import MEND
from callboard.conversations._actor_states import ActorStates, KeptStates, Name, StateAt, name_of
from callboard.conversations._checkpoint import entries_of
from callboard.conversations._journal_entries import ActorState
from callboard.conversations._saver import Saver
from callboard.exceptions import StorageError


class KeepsStates(Protocol):
    """Part of a thread that its actors need."""

    @property
    def saver(self) -> Saver: ...

    @property
    def actor_states(self) -> ActorStates: ...

    @property
    def kept_by_actors(self) -> KeptStates: ...


class ActorJournal:
    """Journal of a thread for its actors, used from any event loop; see `callboard.actors._snapshots`.

    Args:
        thread: stores the kept states with its entries.
    """

    def __init__(self, thread: KeepsStates) -> None:
        self._saver = thread.saver
        self._kept = thread.kept_by_actors
        # Read once, when the run starts; afterwards only `keep` changes it.
        self._states = dict(thread.actor_states.now)

    @property
    def identity(self) -> Hashable:
        return self._saver.identity

    @property
    def thread_id(self) -> str:
        return self._saver.thread_id

    def version(self, actor: str, key: str) -> str | None:
        """Return the digest of an actor's state, or `None` if it has none."""
        found = self._states.get((actor, key))
        return None if found is None else found.digest

    async def load(self, actor: str, key: str) -> object:
        """Return the state of an actor, or `None`; raise StorageError if it cannot be read."""
        found = self._states.get((actor, key))
        if found is None:
            return None
        entry = found.entry or await self._read((actor, key), found)
        return self._saver.unpacked(entry.type, entry.data)

    def keep(self, actor: str, key: str, snapshot: object, call_id: str | None) -> str:
        """Keep a new state of an actor and return its digest; an unchanged state is not stored again.

        Raises the serializer's exception if it does not accept the state.
        """
        kind, data = self._saver.packed(snapshot)
        entry = ActorState(actor, key, _digest(kind, data), kind, data)
        if self.version(actor, key) != entry.digest:
            # At once, for later calls of this run. The entry itself is stored together with the result of the call.
            self._states[actor, key] = StateAt(entry.digest, None, entry)
            self._kept.add(call_id, entry)
        return entry.digest

    async def _read(self, name: Name, state: StateAt) -> ActorState:
        assert state.at is not None
        found = await self._saver.get(state.at)
        entries: list[Any] = [] if found is None else entries_of(found)
        for entry in entries:
            if isinstance(entry, ActorState) and (name_of(entry), entry.digest, entry.at) == (name, state.digest, None):
                return entry
        raise StorageError(self._saver.described_at(state.at), f"has lost the state of the actor {name[0]!r}. {MEND}")


def _digest(kind: str, data: bytes) -> str:
    return blake2b(data, digest_size=16, key=kind.encode()).hexdigest()
