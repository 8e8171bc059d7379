"""All that can happen to a thread, each kind as a type of its own, and how a journal stores it.

A journal has plain dicts with a `kind`, which earlier versions have written and later ones will read. What is no kind
of ours is refused, for to pass over what happened would be to forget it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from langgraph.types import Send

from callboard.agent._conversation._channels import Write
from callboard.tools._call_record import CallRecord

Source = Literal["input", "loop", "update", "command", "fork", "repair"]
"""What a change of the state comes from."""

Stored = dict[str, Any]
"""An entry as a journal has it."""

Kinds = type | tuple[type, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A task of the step has a result."""

    KIND: ClassVar[str] = "task"
    task: str
    output: Any

    def encode(self) -> Stored:
        return {"kind": "task", "task": self.task, "output": self.output}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(stored["task"], stored["output"])


@dataclass(frozen=True, slots=True)
class Asked:
    """Tasks of the step wait for answers; as the first entry of a checkpoint, all that is known of unfinished tasks."""

    KIND: ClassVar[str] = "asked"
    records: Mapping[str, CallRecord]

    def encode(self) -> Stored:
        return {"kind": "asked", "records": {task: record.encode() for task, record in self.records.items()}}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls({task: CallRecord.decode(record) for task, record in stored["records"].items()})


@dataclass(frozen=True, slots=True)
class Claimed:
    """The body of a call is about to start."""

    KIND: ClassVar[str] = "claim"
    task: str
    known: CallRecord
    """The answers that it starts with."""

    def encode(self) -> Stored:
        return {"kind": "claim", "task": self.task, "known": self.known.encode()}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(stored["task"], CallRecord.decode(stored["known"]))


@dataclass(frozen=True, slots=True)
class Failed:
    """A task of the step raised."""

    KIND: ClassVar[str] = "failed"
    task: str
    error: str

    def encode(self) -> Stored:
        return {"kind": "failed", "task": self.task, "error": self.error}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(stored["task"], stored["error"])


@dataclass(frozen=True, slots=True)
class Held:
    """A run has begun, or is still going on."""

    KIND: ClassVar[str] = "hold"
    holder: Mapping[str, Any] | None

    def encode(self) -> Stored:
        return {"kind": "hold", "holder": self.holder}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(stored["holder"])


@dataclass(frozen=True, slots=True)
class Left:
    """A run has ended, and the thread is free for the next one."""

    KIND: ClassVar[str] = "leave"

    def encode(self) -> Stored:
        return {"kind": "leave"}

    @classmethod
    def decode(cls, _: Stored) -> Self:
        return cls()


@dataclass(frozen=True, slots=True)
class ActorState:
    """The state of an actor, as a call of the step has left it."""

    KIND: ClassVar[str] = "actor"
    actor: str
    key: str
    """Which of several actors of that name; text that only tells them apart."""
    digest: str
    """Of what is packed."""
    type: str = ""
    data: bytes = b""
    """As the checkpointer's serializer has packed it."""
    at: str | None = None
    """The checkpoint with the entry that has it, if this one has not."""

    def encode(self) -> Stored:
        packed = {"type": self.type, "data": self.data} if self.at is None else {"at": self.at}
        return {"kind": "actor", "actor": self.actor, "key": self.key, "digest": self.digest, **packed}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        packed = {name: stored[name] for name in ("type", "data", "at") if name in stored}
        return cls(stored["actor"], stored["key"], stored["digest"], **packed)


NotedStates = Sequence[Sequence[Any]]
"""Of each actor its name, its key, the digest of its state, and the checkpoint on which that is written."""


class Stamp(NamedTuple):
    """A place where a thread stood: its id among checkpoints, and when it was reached."""

    id: str
    ts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The thread has come to another place."""

    id: str
    ts: str
    next: Sequence[str] | None
    """The nodes that come next; `None` for the same as before."""
    sends: Sequence[Send] = ()
    """What nodes of that step are sent."""

    def _where(self) -> Stored:
        sends = {"sends": self.sends} if self.sends else {}
        return {"next": self.next, **sends, "id": self.id, "ts": self.ts}


def _where_in(stored: Stored) -> dict[str, Any]:
    return {name: stored[name] for name in ("id", "ts", "next", "sends") if name in stored}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Move):
    """A step has ended: all of its tasks have their output."""

    KIND: ClassVar[str] = "step"
    order: Sequence[str]
    """Its tasks, in the order in which their outputs count."""

    def encode(self) -> Stored:
        return {"kind": "step", "order": self.order, **self._where()}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(order=stored["order"], **_where_in(stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended(Move):
    """The state was changed outside of any step."""

    KIND: ClassVar[str] = "amend"
    writes: Sequence[Write]
    source: Source
    received: Stamp | None = None
    """Where input had come to what there was before, and had not been taken in."""

    def encode(self) -> Stored:
        received = {"received": self.received._asdict()} if self.received is not None else {}
        return {"kind": "amend", "writes": self.writes, "source": self.source, **received, **self._where()}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        place = stored.get("received")
        received = None if place is None else Stamp(place["id"], place["ts"])
        return cls(writes=stored["writes"], source=stored["source"], received=received, **_where_in(stored))


Entry = Finished | Asked | Claimed | Failed | Held | Left | ActorState | Stepped | Amended
"""Something that happened to a thread."""

_TYPES: Mapping[str, type[Entry]] = {kind.KIND: kind for kind in get_args(Entry)}


def entry_of(stored: Any) -> Entry:
    """An entry as its journal has it.

    Raises:
        ValueError: if it is none that this version knows.
    """
    return _type_of(stored).decode(stored)


def _type_of(stored: Any) -> type[Entry]:
    kind = stored.get("kind") if isinstance(stored, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"it has an entry that a newer version of callboard wrote, or that is damaged: {stored!r}")
    return _TYPES[kind]


class Fields(NamedTuple):
    """What a stored entry of some kind has."""

    kinds: Mapping[str, Kinds]
    """The types that a field may have, by its name."""
    needed: Sequence[str]


def fields_of(stored: Any) -> Fields:
    """What a stored entry should have.

    Raises:
        ValueError: if it is none that this version knows.
    """
    return _fields_in(_type_of(stored).KIND)


@cache
def _fields_in(kind: str) -> Fields:
    entry = _TYPES[kind]
    hints = get_type_hints(entry)
    needed = [one.name for one in fields(entry) if one.default is MISSING]
    return Fields({one.name: _kinds_in(hints[one.name]) for one in fields(entry)}, needed)


def _kinds_in(hint: Any) -> Kinds:
    """The types of what is stored for a field, as its annotation says."""
    origin: Any = get_origin(hint) or hint
    if origin is UnionType:
        return tuple(one for part in get_args(hint) for one in _listed(_kinds_in(part)))
    if origin is Literal:
        return str
    if origin is Sequence:
        return (list, tuple)
    if origin in (Mapping, CallRecord, Stamp):
        return Mapping
    return object if origin is Any else origin


def _listed(kinds: Kinds) -> tuple[type, ...]:
    return kinds if isinstance(kinds, tuple) else (kinds,)
