"""Entries of a journal: every kind of change of a thread, and its stored form.

A stored entry is a plain dict with a `kind`. Earlier versions have written such dicts and later versions will read
them, so field names and kinds must not change. An unknown kind is refused: to skip it would be to lose a change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from langgraph.checkpoint.base.id import uuid6
from langgraph.types import Send

from callboard.conversations._channels import Write
from callboard.tools._call_record import CallRecord

Source = Literal["input", "loop", "update", "command", "fork", "repair"]
"""Source of a change of the state."""

Stored = dict[str, Any]
"""Entry in its stored form."""

Kinds = type | tuple[type, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a task of the step."""

    KIND: ClassVar[str] = "task"
    # The names of the fields are part of the stored format, in this and all other kinds.
    task: str
    output: Any

    def encode(self) -> Stored:
        return {"kind": "task", "task": self.task, "output": self.output}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(stored["task"], stored["output"])


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions and accepted answers of tasks; as the first entry on a checkpoint, all records of unfinished tasks."""

    KIND: ClassVar[str] = "asked"
    records: Mapping[str, CallRecord]

    def encode(self) -> Stored:
        return {"kind": "asked", "records": {task: record.encode() for task, record in self.records.items()}}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls({task: CallRecord.decode(record) for task, record in stored["records"].items()})


@dataclass(frozen=True, slots=True)
class Claimed:
    """Announcement that the body of a call is about to start."""

    KIND: ClassVar[str] = "claim"
    task: str
    known: CallRecord
    """Record with the answers that the body starts with."""

    def encode(self) -> Stored:
        return {"kind": "claim", "task": self.task, "known": self.known.encode()}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(stored["task"], CallRecord.decode(stored["known"]))


@dataclass(frozen=True, slots=True)
class Failed:
    """Error of a task of the step, in words."""

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
    """Start of a run, or renewal of its lease."""

    KIND: ClassVar[str] = "hold"
    holder: Mapping[str, Any] | None

    def encode(self) -> Stored:
        return {"kind": "hold", "holder": self.holder}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(stored["holder"])


@dataclass(frozen=True, slots=True)
class Left:
    """End of a run: the thread is free."""

    KIND: ClassVar[str] = "leave"

    def encode(self) -> Stored:
        return {"kind": "leave"}

    @classmethod
    def decode(cls, _: Stored) -> Self:
        return cls()


@dataclass(frozen=True, slots=True)
class ActorState:
    """State of an actor after a call of the step."""

    KIND: ClassVar[str] = "actor"
    actor: str
    key: str
    """Key among actors of the same name, as text."""
    digest: str
    """Digest of the packed state."""
    type: str = ""
    data: bytes = b""
    """State, packed by the checkpointer's serializer."""
    at: str | None = None
    """Id of the checkpoint whose entries have the packed state, if this entry has not."""

    def encode(self) -> Stored:
        packed = {"type": self.type, "data": self.data} if self.at is None else {"at": self.at}
        return {"kind": "actor", "actor": self.actor, "key": self.key, "digest": self.digest, **packed}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        packed = {name: stored[name] for name in ("type", "data", "at") if name in stored}
        return cls(stored["actor"], stored["key"], stored["digest"], **packed)


NotedStates = Sequence[Sequence[Any]]
"""Stored states of actors: actor name, key, digest, and the id of the checkpoint with the packed state."""


class Stamp(NamedTuple):
    """Id and time of a position in the thread's history."""

    id: str
    ts: str


def new_id(step: int) -> str:
    """Return a new checkpoint id; ids are ordered by time."""
    return str(uuid6(clock_seq=step))


def now() -> str:
    """Return the current time in the format of checkpoints."""
    return datetime.now(UTC).isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Move of the thread to a new position."""

    id: str
    ts: str
    next: Sequence[str] | None
    """Nodes that come next; `None` keeps the current ones."""
    sends: Sequence[Send] = ()
    """Nodes that come next with an input of their own."""

    def _where(self) -> Stored:
        sends = {"sends": self.sends} if self.sends else {}
        return {"next": self.next, **sends, "id": self.id, "ts": self.ts}


def _where_in(stored: Stored) -> dict[str, Any]:
    return {name: stored[name] for name in ("id", "ts", "next", "sends") if name in stored}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Move):
    """End of a step, with the outputs of all its tasks."""

    KIND: ClassVar[str] = "step"
    order: Sequence[str]
    """Task names, in the order in which their outputs count."""

    def encode(self) -> Stored:
        return {"kind": "step", "order": self.order, **self._where()}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        return cls(order=stored["order"], **_where_in(stored))


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended(Move):
    """Change of the state outside of a step."""

    KIND: ClassVar[str] = "amend"
    writes: Sequence[Write]
    source: Source
    received: Stamp | None = None
    """Position where the input had arrived and was not applied yet; `None` if the change has no such position."""

    def encode(self) -> Stored:
        received = {"received": self.received._asdict()} if self.received is not None else {}
        return {"kind": "amend", "writes": self.writes, "source": self.source, **received, **self._where()}

    @classmethod
    def decode(cls, stored: Stored) -> Self:
        place = stored.get("received")
        received = None if place is None else Stamp(place["id"], place["ts"])
        return cls(writes=stored["writes"], source=stored["source"], received=received, **_where_in(stored))


Entry = Finished | Asked | Claimed | Failed | Held | Left | ActorState | Stepped | Amended
"""Change of a thread, of any kind."""

_TYPES: Mapping[str, type[Entry]] = {kind.KIND: kind for kind in get_args(Entry)}


def entry_of(stored: Any) -> Entry:
    """Decode a stored entry; raise ValueError for an unknown kind."""
    return _type_of(stored).decode(stored)


def _type_of(stored: Any) -> type[Entry]:
    kind = stored.get("kind") if isinstance(stored, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"it has an entry that a newer version of callboard wrote, or that is damaged: {stored!r}")
    return _TYPES[kind]


class Fields(NamedTuple):
    """Fields of one kind of stored entry."""

    kinds: Mapping[str, Kinds]
    """Accepted types by field name."""
    needed: Sequence[str]


def fields_of(stored: Any) -> Fields:
    """Return the fields of a stored entry's kind; raise ValueError for an unknown kind."""
    return _fields_in(_type_of(stored).KIND)


@cache
def _fields_in(kind: str) -> Fields:
    entry = _TYPES[kind]
    hints = get_type_hints(entry)
    needed = [one.name for one in fields(entry) if one.default is MISSING]
    return Fields({one.name: _kinds_in(hints[one.name]) for one in fields(entry)}, needed)


def _kinds_in(hint: Any) -> Kinds:
    """Return the stored types of a field, from its annotation."""
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
