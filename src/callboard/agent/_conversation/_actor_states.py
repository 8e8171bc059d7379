"""Which states of actors belong to the place where a thread stands; each is written once, and noted from then on."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from langchain_core.messages import ToolCall

from callboard.agent._conversation._journal_entries import (
    ActorState,
    Asked,
    Claimed,
    Entry,
    Failed,
    Finished,
    Held,
    Left,
    NotedStates,
)
from callboard.agent._sends import id_key_in
from callboard.tools._keys import keys_of

Name = tuple[str, str]
"""Of an actor, and the text of its key."""


@dataclass(frozen=True, slots=True)
class StateAt:
    """A state, and where it is written."""

    digest: str
    at: str | None
    """The checkpoint with the entry; `None` for the one on which entries are written now."""
    entry: ActorState | None = None
    """`None` if it has not been read."""


ByName = Mapping[Name, StateAt]


@dataclass(frozen=True, slots=True)
class ActorStates:
    """The states of actors where a thread stands."""

    here: ByName = field(default_factory=dict)
    """Those of the place: what the calls of its step find when they run anew, on whichever branch."""
    now: ByName = field(default_factory=dict)
    """Those that the calls of the step have left since."""

    @classmethod
    def read(cls, notes: NotedStates) -> Self:
        """The states that a checkpoint has noted."""
        found = {(actor, key): StateAt(digest, at) for actor, key, digest, at in notes}
        return cls(found, found)

    def noted(self) -> NotedStates:
        """The states of the place, as a checkpoint notes them."""
        return [[*name, one.digest, one.at] for name, one in sorted(self.here.items())]

    def kept(self) -> list[ActorState]:
        """Entries that say which states the calls of the step have left, and where those are written."""
        changed = [(name, one) for name, one in self.now.items() if self.here.get(name) != one]
        return [ActorState(*name, one.digest, at=one.at) for name, one in changed]

    def changed(self, entry: ActorState) -> "ActorStates":
        """The states, with one that a call has left."""
        written = StateAt(entry.digest, entry.at, entry if entry.at is None else None)
        return ActorStates(self.here, {**self.now, name_of(entry): written})

    def at_next(self) -> "ActorStates":
        """The states of the place to which the step leads."""
        return ActorStates(self.now, self.now)

    def before_calls(self) -> "ActorStates":
        """The states of the place, whatever its calls have done."""
        return ActorStates(self.here, self.here)

    def written_at(self, checkpoint_id: str | None) -> "ActorStates":
        """The states, now that entries are written on another checkpoint than the one given."""
        return ActorStates(_written_at(self.here, checkpoint_id), _written_at(self.now, checkpoint_id))


def _written_at(states: ByName, checkpoint_id: str | None) -> ByName:
    return {name: one if one.at is not None else replace(one, at=checkpoint_id) for name, one in states.items()}


def name_of(entry: ActorState) -> Name:
    """The actor and the key that a stored state belongs to."""
    return entry.actor, entry.key


class KeptStates:
    """What calls have made of actors, as long as the calls have no result. From any event loop.

    A state is stored in one write with the result of its call: of a process that is killed before, neither is there,
    and the call may run again; of one that is killed afterwards, both are.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[str, ActorState]] = []

    def add(self, call_id: str | None, state: ActorState) -> None:
        """Keep a state until its call, or the step, has ended."""
        (task,) = keys_of([ToolCall(name="", args={}, id=call_id)])
        with self._lock:
            self._waiting.append((task, state))

    def due(self, entry: Entry) -> list[ActorState]:
        """The states that have to be stored no later than an entry; each is named once."""
        if not self._waiting or isinstance(entry, (Asked, Claimed, Failed, Held)):
            return []
        with self._lock:
            if isinstance(entry, Left):
                self._waiting.clear()  # their calls have no result, and run again on the state before them
            last = _last(self._waiting, entry.task if isinstance(entry, Finished) else None)
            due = [number <= last.get(name_of(one), -1) for number, (_, one) in enumerate(self._waiting)]
            found = [state for (_, state), is_due in zip(self._waiting, due, strict=True) if is_due]
            self._waiting = [one for one, is_due in zip(self._waiting, due, strict=True) if not is_due]
        return found


def _last(waiting: list[tuple[str, ActorState]], task: str | None) -> dict[Name, int]:
    """Of each actor that a call has changed, the number of the last state; those before are in it, whosever they are.

    Those of calls that have no id are taken for its own. `None` stands for all calls.
    """
    own = None if task is None else (id_key_in(task), "")
    return {name_of(state): number for number, (one, state) in enumerate(waiting) if own is None or one in own}
