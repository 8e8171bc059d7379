"""States of actors at each position in a thread's history; a state is stored once, and later positions refer to it."""

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Self

from langchain_core.messages import ToolCall, ToolMessage

from callboard._langgraph._serializers import MEND
from callboard.conversations._saver import Saver
from callboard.conversations._storage import (
    ActorState,
    Asked,
    Claimed,
    Entry,
    Failed,
    Finished,
    Held,
    Left,
    Said,
    StoredStates,
    entries_of,
)
from callboard.conversations._targets import call_id_in
from callboard.exceptions import StorageError
from callboard.tools._background import call_id_of_result, handle_in
from callboard.tools._call_record import keys_of

Name = tuple[str, str]
"""Name and key of an actor, both as text."""


@dataclass(frozen=True, slots=True)
class StateReference:
    digest: str
    checkpoint_id: str | None
    """Id of the checkpoint with the journal entry that contains the state; `None` for the current checkpoint."""
    entry: ActorState | None = None
    """Journal entry with the serialized state; `None` if it was not read yet."""


ByName = Mapping[Name, StateReference]


@dataclass(frozen=True, slots=True)
class ActorStates:
    """States of a thread's actors, by name and key: before the step in progress, and after its finished calls."""

    at_start: ByName = field(default_factory=dict)
    """States before any call of the step in progress; every branch from this position starts with them."""
    latest: ByName = field(default_factory=dict)
    """States after all calls of the step in progress that have finished so far."""

    @classmethod
    def read(cls, notes: StoredStates) -> Self:
        states = {(actor, key): StateReference(digest, checkpoint_id) for actor, key, digest, checkpoint_id in notes}
        return cls(states, states)

    def as_notes(self) -> StoredStates:
        return [[*name, state.digest, state.checkpoint_id] for name, state in sorted(self.at_start.items())]

    def changes_of_step(self) -> list[ActorState]:
        """Return the changed actor states of a step, as references that a new checkpoint's journal entries keep."""
        changed_states = [(name, state) for name, state in self.latest.items() if self.at_start.get(name) != state]
        return [ActorState(*name, state.digest, at=state.checkpoint_id) for name, state in changed_states]

    def with_state(self, entry: ActorState) -> "ActorStates":
        new_reference = StateReference(entry.digest, entry.at, entry if entry.at is None else None)
        return ActorStates(self.at_start, {**self.latest, entry.name: new_reference})

    def at_next_step(self) -> "ActorStates":
        return self if self.at_start is self.latest else ActorStates(self.latest, self.latest)

    def before_calls(self) -> "ActorStates":
        """Return the states before the step in progress, without the changes by its finished calls."""
        return ActorStates(self.at_start, self.at_start)

    def with_location(self, checkpoint_id: str | None) -> "ActorStates":
        """Return a copy in which states without a location (a checkpoint id) get the location `checkpoint_id`."""
        return ActorStates(_with_location(self.at_start, checkpoint_id), _with_location(self.latest, checkpoint_id))


def _with_location(states: ByName, checkpoint_id: str | None) -> ByName:
    return {
        name: state if state.checkpoint_id is not None else replace(state, checkpoint_id=checkpoint_id)
        for name, state in states.items()
    }


class PendingStates:
    """New states of actors, to be stored together with the results of the calls that made them; thread-safe.

    A state is stored in one write with the result of its call. A process that is killed before the write leaves
    neither, and the call may run again. A process that is killed afterwards leaves both.
    """

    def __init__(self) -> None:
        # Handlers of actors add states on their own event loops, while the run's loop takes them out.
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, ActorState]] = []
        self._in_background: set[str] = set()
        """Calls that go on in the background: their results are messages of their own."""

    def add(self, call_id: str | None, state: ActorState) -> None:
        """Keep a new state until its call, or the call's step, ends; `call_id` is `None` for a call without an id."""
        with self._lock:
            self._waiting.append((_task_of(call_id), state))

    def due(self, entry: Entry) -> list[ActorState]:
        """Remove and return the kept states that have to be stored before `entry`, or in the same write as `entry`."""
        own_tasks = self._own_tasks(entry)
        # Without the lock: a state that is added at this moment belongs to a call whose result comes later.
        if not self._waiting or own_tasks == () or isinstance(entry, (Asked, Claimed, Failed, Held)):
            return []
        with self._lock:
            if isinstance(entry, Left):
                self._waiting.clear()  # their calls have no result and will start from the earlier state
            # Earlier states of an actor are part of its last one and have to be stored with it, also if another call
            # made them. States of calls without an id count as the task's own.
            last: dict[Name, int] = {
                state.name: number
                for number, (task, state) in enumerate(self._waiting)
                if (task not in self._in_background if own_tasks is None else task in own_tasks)
            }
            due = [number <= last.get(item.name, -1) for number, (_, item) in enumerate(self._waiting)]
            states = [state for (_, state), is_due in zip(self._waiting, due, strict=True) if is_due]
            self._waiting = [item for item, is_due in zip(self._waiting, due, strict=True) if not is_due]
        return states

    def _own_tasks(self, entry: Entry) -> Sequence[str] | None:
        """Return the tasks whose result is in an entry; `None` for an entry that is not about the result of a call."""
        if isinstance(entry, Finished):
            task = call_id_in(entry.task)
            if isinstance(entry.output, ToolMessage) and handle_in(entry.output) is not None:
                self._in_background.add(task)  # the message says only that the call goes on
                return ()
            return task, ""
        if not isinstance(entry, Said):
            return None
        if (call_id := call_id_of_result(entry.message)) is None:
            return ()  # the word of a person
        task = _task_of(call_id)
        self._in_background.discard(task)
        return task, ""


def _task_of(call_id: str | None) -> str:
    (task,) = keys_of([ToolCall(name="", args={}, id=call_id)])
    return task


class ActorJournal:
    """Access of actors to their states in a stored thread of conversation; used from any event loop.

    New states go to `new_states`, and the thread stores them with the results of their calls.
    """

    def __init__(self, saver: Saver, states: ActorStates, new_states: PendingStates) -> None:
        self._saver = saver
        self._new_states = new_states
        # Read once, when the run starts; afterwards only `keep` changes it.
        self._states = dict(states.latest)

    @property
    def identity(self) -> Hashable:
        return self._saver.identity

    @property
    def thread_id(self) -> str:
        return self._saver.thread_id

    def version(self, actor: str, key: str) -> str | None:
        state = self._states.get((actor, key))
        return None if state is None else state.digest

    async def load(self, actor: str, key: str) -> object:
        """Return the stored state of an actor, or `None` if it has none; raise StorageError if it cannot be read."""
        state = self._states.get((actor, key))
        if state is None:
            return None
        entry = state.entry
        if entry is None:
            assert state.checkpoint_id is not None
            checkpoint_tuple = await self._saver.get(state.checkpoint_id)
            entries: list[Any] = [] if checkpoint_tuple is None else entries_of(checkpoint_tuple)
            states = [entry for entry in entries if isinstance(entry, ActorState) and entry.name == (actor, key)]
            entry = next((entry for entry in states if (entry.digest, entry.at) == (state.digest, None)), None)
        if entry is None:
            position = self._saver.describe_position(str(state.checkpoint_id))
            raise StorageError(position, f"has lost the state of the actor {actor!r}. {MEND}")
        return self._saver.deserialize(entry.type, entry.data)

    def keep(self, actor: str, key: str, snapshot: object, call_id: str | None) -> str:
        """Pass a new state of an actor to the thread of conversation, which stores it; return the state's digest."""
        kind, data = self._saver.serialize(snapshot)
        digest = blake2b(data, digest_size=16, key=kind.encode()).hexdigest()
        entry = ActorState(actor, key, digest, kind, data)
        if self.version(actor, key) != entry.digest:
            # At once, for later calls of this run. The entry itself is stored together with the result of the call.
            self._states[actor, key] = StateReference(entry.digest, None, entry)
            self._new_states.add(call_id, entry)
        return entry.digest
