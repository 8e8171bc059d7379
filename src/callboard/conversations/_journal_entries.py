"""Entries of a journal: every kind of change of a thread, and its stored form.

A stored entry is a plain dict with a `kind`. Earlier versions have written such dicts and later versions will read
them, so field names and kinds must not change. An unknown kind is refused: to skip it would be to lose a change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

from langgraph.checkpoint.base.id import uuid6
from langgraph.types import Interrupt, Send
from pydantic import BeforeValidator, ConfigDict, InstanceOf, PlainValidator, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from callboard.conversations._channels import Write
from callboard.tools._call_record import CallRecord

Source = Literal["input", "loop", "update", "command", "fork", "repair"]
"""Source of a change of the state."""


class _StoredRecord(TypedDict, total=False):
    """Stored form of a call's record, as far as it is validated."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    answers: Sequence[Any]
    digests: Sequence[str | None]
    pending: Sequence[InstanceOf[Interrupt]]
    error: str


_STORED_RECORD = TypeAdapter(_StoredRecord)


def _record_of(stored: Any) -> CallRecord:
    _STORED_RECORD.validate_python(stored)
    return CallRecord.decode(stored)


_Record = Annotated[CallRecord, PlainValidator(_record_of)]


class _Holder(TypedDict):
    """Holder of a thread; see `callboard.conversations._lease`. Other keys are optional."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    token: str
    host: str
    boot: str
    pid: int
    until: float


_HOLDER: TypeAdapter[Any] = TypeAdapter(_Holder | None)


def _holder_of(stored: Any) -> Mapping[str, Any] | None:
    _HOLDER.validate_python(stored)
    found: Mapping[str, Any] | None = stored  # as stored: holders are compared
    return found


class Stamp(NamedTuple):
    """Id and time of a position in the thread's history."""

    id: str
    ts: str

    @classmethod
    def known(cls, stored: Any) -> Any:
        """Return stored fields without those that a later version may have added, as in other entries."""
        return {name: stored[name] for name in cls._fields if name in stored} if isinstance(stored, dict) else stored


# The names of the fields of all kinds are part of the stored format. Fields with their default are not stored.


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a task of the step."""

    KIND: ClassVar[str] = "task"
    task: str
    output: Any


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions and accepted answers of tasks; as the first entry on a checkpoint, all records of unfinished tasks."""

    KIND: ClassVar[str] = "asked"
    records: Mapping[str, _Record]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Announcement that the body of a call is about to start."""

    KIND: ClassVar[str] = "claim"
    task: str
    known: _Record
    """Record with the answers that the body starts with."""


@dataclass(frozen=True, slots=True)
class Failed:
    KIND: ClassVar[str] = "failed"
    task: str
    error: str


@dataclass(frozen=True, slots=True)
class Held:
    """Start of a run, or renewal of its lease."""

    KIND: ClassVar[str] = "hold"
    holder: Annotated[Mapping[str, Any] | None, PlainValidator(_holder_of)]


@dataclass(frozen=True, slots=True)
class Left:
    """End of a run: the thread is free."""

    KIND: ClassVar[str] = "leave"


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

    @property
    def name(self) -> tuple[str, str]:
        return self.actor, self.key


NotedStates = Sequence[Sequence[Any]]
"""Stored states of actors: actor name, key, digest, and the id of the checkpoint with the packed state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Move of the thread to a new position."""

    next: Sequence[str] | None
    """Nodes that come next; `None` keeps the current ones."""
    sends: Sequence[InstanceOf[Send]] = ()
    """Nodes that come next with an input of their own."""
    id: str
    ts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Move):
    """End of a step, with the outputs of all its tasks."""

    KIND: ClassVar[str] = "step"
    order: Sequence[str]
    """Task names, in the order in which their outputs count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended(Move):
    """Change of the state outside of a step."""

    KIND: ClassVar[str] = "amend"
    writes: Sequence[Write]
    source: Source
    received: Annotated[Stamp | None, BeforeValidator(Stamp.known)] = None
    """Position where the input had arrived and was not applied yet; `None` if the change has no such position."""


Entry = Finished | Asked | Claimed | Failed | Held | Left | ActorState | Stepped | Amended
"""Change of a thread, of any kind."""

_TYPES: Mapping[str, type[Entry]] = {kind.KIND: kind for kind in get_args(Entry)}

_OF_A_MOVE = {one.name for one in fields(Move)}  # stored after the fields of each kind

_FIELDS: Mapping[type, Sequence[tuple[str, bool]]] = {
    kind: [(one.name, one.default is MISSING) for one in sorted(fields(kind), key=lambda one: one.name in _OF_A_MOVE)]
    for kind in get_args(Entry)
}
"""Fields of each kind, and whether they are required; the others are stored only if they have a value."""


def stored_form(entry: Entry) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": entry.KIND}
    for name, required in _FIELDS[type(entry)]:
        value = getattr(entry, name)
        if required or value:
            found[name] = value
    if isinstance(entry, Asked):
        found["records"] = {task: record.encode() for task, record in entry.records.items()}
    elif isinstance(entry, Claimed):
        found["known"] = entry.known.encode()
    elif isinstance(entry, Amended) and entry.received is not None:
        found["received"] = entry.received._asdict()
    return found


def entry_of(stored: Any) -> Entry:
    """Decode a stored entry; raise ValueError for an unknown kind or a wrong field."""
    kind = kind_of(stored)
    found: Entry = validated(f"the entry {kind!r}", _adapter(kind), stored)
    return found


def kind_of(stored: Any) -> str:
    kind = stored.get("kind") if isinstance(stored, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"it has an entry that a newer version of callboard wrote, or that is damaged: {stored!r}")
    return kind


@cache
def _adapter(kind: str) -> TypeAdapter[Entry]:
    return TypeAdapter(_TYPES[kind])


def validated(what: str, adapter: TypeAdapter[Any], stored: object) -> Any:
    """Return stored data as a value of a type; raise ValueError with the place of the first wrong value."""
    try:
        return adapter.validate_python(stored)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "all of it"
        # Of a container only the type is said: it may be the whole record, with messages of the conversation.
        value = first["input"]
        got = repr(value) if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"
        # `from None`: the text of pydantic's error quotes the stored data, too.
        raise ValueError(f"{what}, wrong at {where}: {first['msg']}, got {got[:80]}") from None


def new_id(step: int) -> str:
    """Return a new checkpoint id; ids are ordered by time."""
    return str(uuid6(clock_seq=step))


def now() -> str:
    return datetime.now(UTC).isoformat()
