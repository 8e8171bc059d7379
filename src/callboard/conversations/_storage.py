"""Stored form of a thread: the entries of its journal, and its checkpoints in LangGraph's format.

A stored entry is a plain dict with a `kind`. Earlier versions have written such dicts and later versions will read
them, so field names and kinds must not change. An unknown kind is refused: to skip it would be to lose a change.

The last checkpoint of a thread is complete, and every LangGraph agent can read it. Once a newer one is stored, the one
before it becomes thin if its messages are the first messages of the newer one. A thin checkpoint has no messages, but
their number and the id of the checkpoint that has them.
"""

import json
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from typing import Annotated, Any, ClassVar, Literal, cast, get_args

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from langgraph.errors import GraphBubbleUp
from langgraph.types import Interrupt, Send
from pydantic import ConfigDict, InstanceOf, PlainValidator, Strict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from callboard._langgraph._serializers import MEND, error_text
from callboard.conversations._channels import MESSAGES, Write
from callboard.exceptions import StorageError
from callboard.tools._call_record import CallRecord

Source = Literal["input", "loop", "update", "command", "fork", "repair"]
"""Name of the cause of a state change, such as "input" or "loop" (a step); most names are LangGraph's."""


@with_config(ConfigDict(strict=True))
class _StoredRecord(TypedDict, total=False):
    """Fields of a stored `CallRecord` that are validated when the record is read."""

    answers: Sequence[Any]
    digests: Sequence[str | None]
    pending: Sequence[InstanceOf[Interrupt]]
    error: str
    tool: str


_STORED_RECORD = TypeAdapter(_StoredRecord)


def _record_of(stored: Any) -> CallRecord:
    _STORED_RECORD.validate_python(stored)
    return CallRecord.decode(stored)


_Record = Annotated[CallRecord, PlainValidator(_record_of)]


@with_config(ConfigDict(strict=True))
class _Holder(TypedDict):
    """Stored description of the run that holds a thread: only this run may change the thread.

    See `callboard.conversations._lease`. Further keys are optional.
    """

    token: str
    host: str
    boot: str
    pid: int
    until: float


_HOLDER: TypeAdapter[Any] = TypeAdapter(_Holder | None)


def _holder_of(stored: Any) -> Mapping[str, Any] | None:
    _HOLDER.validate_python(stored)
    holder: Mapping[str, Any] | None = stored  # as stored: holders are compared
    return holder


# The names of the fields of all kinds are part of the stored format. Fields with their default are not stored.


@dataclass(frozen=True, slots=True)
class Stamp:
    """Id and time (ISO format) of a position in the history of a thread."""

    id: str
    ts: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Journal entry: a task has finished, with its output."""

    KIND: ClassVar[str] = "task"
    task: str
    output: Any


@dataclass(frozen=True, slots=True)
class Asked:
    """Journal entry: records of unfinished tasks, with their questions and the answers that they have taken.

    If it is the first entry on a checkpoint, it has the records of all unfinished tasks of the step.
    """

    KIND: ClassVar[str] = "asked"
    records: Mapping[str, _Record]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Journal entry: a call is about to run its tool.

    If no later entry of the call follows, its outcome is unknown.
    """

    KIND: ClassVar[str] = "claim"
    task: str
    known: _Record
    """Record of the call with the accepted answers that its tool gets."""


@dataclass(frozen=True, slots=True)
class Failed:
    KIND: ClassVar[str] = "failed"
    task: str
    error: str


@dataclass(frozen=True, slots=True)
class Held:
    """Journal entry: a run takes the thread or renews its lease, during which no other run may change the thread."""

    KIND: ClassVar[str] = "hold"
    holder: Annotated[Mapping[str, Any] | None, PlainValidator(_holder_of)]


@dataclass(frozen=True, slots=True)
class Left:
    """Journal entry: the run that held the thread has ended, and another run may start."""

    KIND: ClassVar[str] = "leave"


@dataclass(frozen=True, slots=True)
class ActorState:
    """Journal entry: the state of an actor after a call."""

    KIND: ClassVar[str] = "actor"
    actor: str
    key: str
    """Key of the actor, as text: distinguishes actors of the same name."""
    digest: str
    """Digest of the serialized state."""
    type: str = ""
    data: bytes = b""
    """State of the actor, serialized by the checkpointer's serializer; empty if `at` is set."""
    at: str | None = None
    """Id of the checkpoint whose journal entries contain the serialized state; `None` if this entry contains it."""

    @property
    def name(self) -> tuple[str, str]:
        return self.actor, self.key


@dataclass(frozen=True, slots=True)
class Said:
    """Journal entry: the thread has received a message while a run used it.

    The message joins the conversation before the next turn, by an `Amended` entry that names it in `read`.
    """

    KIND: ClassVar[str] = "said"
    message: InstanceOf[BaseMessage]
    """Message with an id."""


StoredStates = Sequence[Sequence[Any]]
"""List of actor states in callboard's notes on a checkpoint.

Each is a list of the actor's name, its key, the digest, and the id of the checkpoint with the serialized state.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Base class of journal entries that move the thread to a new position, which has an id and a time."""

    next: Sequence[str] | None
    """Names of the next nodes that get the state as input; `None` keeps the current next nodes."""
    sends: Sequence[InstanceOf[Send]] = ()
    """LangGraph sends of the next step: nodes that get an input other than the state."""
    id: str
    ts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped(Move):
    """Journal entry: a step has ended, and the outputs of its tasks are applied to the state."""

    KIND: ClassVar[str] = "step"
    order: Sequence[str]
    """Names of the step's tasks, in the order in which their outputs are applied to the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amended(Move):
    """Journal entry: the state was changed outside of a step, such as by input or by an update of the user."""

    KIND: ClassVar[str] = "amend"
    writes: Sequence[Write]
    source: Source
    received: Stamp | None = None
    """Position at which input had arrived and was not applied yet; LangGraph's histories have such a position, too.

    `None` if the change has no such position.
    """
    read: Sequence[str] = ()
    """Ids of received messages (`Said`) that this change adds to the conversation."""


Entry = Finished | Asked | Claimed | Failed | Held | Left | ActorState | Said | Stepped | Amended
"""Journal entry of any kind: one change of a thread."""

_TYPES: Mapping[str, type[Entry]] = {kind.KIND: kind for kind in get_args(Entry)}

_MOVE_FIELDS = {entry_field.name for entry_field in fields(Move)}  # stored after the fields of each kind

_FIELDS: Mapping[type, Sequence[tuple[str, bool]]] = {
    kind: [
        (entry_field.name, entry_field.default is MISSING)
        for entry_field in sorted(fields(kind), key=lambda entry_field: entry_field.name in _MOVE_FIELDS)
    ]
    for kind in get_args(Entry)
}
"""Fields of each kind of journal entry, as pairs: the name, and `True` if the field is required.

A field that is not required is stored only if its value is not empty.
"""


def encode_entry(entry: Entry) -> dict[str, Any]:
    form: dict[str, Any] = {"kind": entry.KIND}
    for name, required in _FIELDS[type(entry)]:
        value = getattr(entry, name)
        if required or value:
            form[name] = value
    if isinstance(entry, Asked):
        form["records"] = {task: record.encode() for task, record in entry.records.items()}
    elif isinstance(entry, Claimed):
        form["known"] = entry.known.encode()
    elif isinstance(entry, Amended) and entry.received is not None:
        form["received"] = asdict(entry.received)
    return form


def entry_of(stored: Any) -> Entry:
    """Return a stored dict as a journal entry; raise ValueError for an unknown kind or an invalid field."""
    kind = kind_of(stored)
    entry: Entry = validate(f"the entry {kind!r}", _adapter(kind), stored)
    return entry


def kind_of(stored: Any) -> str:
    kind = stored.get("kind") if isinstance(stored, dict) else None
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"it has an entry that a newer version of callboard wrote, or that is damaged: {stored!r}")
    return kind


@cache
def _adapter(kind: str) -> TypeAdapter[Entry]:
    return TypeAdapter(_TYPES[kind])


def validate(description: str, adapter: TypeAdapter[Any], stored: object) -> Any:
    """Return stored data, validated and converted to the type of a pydantic adapter."""
    try:
        return adapter.validate_python(stored)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(map(str, first["loc"])) or "all of it"
        # Of a container only the type is said: it may be the whole record, with messages of the conversation.
        value = first["input"]
        got = repr(value) if isinstance(value, int | float | str | None) else f"a {type(value).__name__}"
        # `from None`: the text of pydantic's error quotes the stored data, too.
        raise ValueError(f"{description}, wrong at {location}: {first['msg']}, got {got[:80]}") from None


def new_id(step: int) -> str:
    """Return a new checkpoint id for a step; ids are ordered by the time at which they were made."""
    return str(uuid6(clock_seq=step))


def now() -> str:
    return datetime.now(UTC).isoformat()


# Checkpoints


FIRST_ID = "1ee00000-0000-6000-8000-000000000000"
"""Id of the empty checkpoint of a new thread, on which the thread's first journal entries are written.

It is older than all other ids, and the same in all processes.
"""

CHANNEL = "__callboard__"
"""Name of the channel under which journal entries are stored as pending writes."""

BRANCH = "branch:to:"
"""Prefix of the channels in which LangGraph stores the next nodes: `branch:to:<node>`."""

NOTES = "__callboard__"
"""Key of callboard's notes in `versions_seen` of a checkpoint, a dict that every copy of the checkpoint keeps.

The notes are a JSON text in the place of a channel name, with version 0: a node that has seen nothing, to LangGraph.
"""

# Names of the notes.
OF = "of"  # id of the annotated checkpoint: LangGraph copies the notes into checkpoints that it makes from ours
ORIGIN = "origin"  # see `Thread.origin`, if it is another position
PARENT = "parent"  # id of the previous position, which may be that of an entry
NEXT = "next"  # of a thin checkpoint: id of the checkpoint that has its messages
COUNT = "count"  # of a thin checkpoint: number of its messages
ACTORS = "actors"  # states of actors and where they are stored; valid for the following checkpoints, too
SENDS = "sends"  # number of sends that are not calls of the conversation
BEFORE = "before"  # true if a run has ended before the next step: no call of that step has begun

_OWN_METADATA = frozenset(("source", "step", "parents", "writes"))


@dataclass(frozen=True, slots=True)
class Base:
    """Stored checkpoint to which the next journal entries are added."""

    checkpoint: Checkpoint
    metadata: Mapping[str, Any]
    parent_id: str | None

    @property
    def id(self) -> str:
        return self.checkpoint["id"]

    @property
    def notes(self) -> Mapping[str, Any]:
        """Values (notes) that callboard stores inside the checkpoint, by name; empty if LangGraph made it."""
        return notes_of(self.checkpoint)

    @property
    def is_ours(self) -> bool:
        return PARENT in self.notes

    @property
    def user_metadata(self) -> dict[str, Any]:
        return {name: value for name, value in self.metadata.items() if name not in _OWN_METADATA}

    @property
    def messages(self) -> Sequence[BaseMessage]:
        return self.checkpoint["channel_values"].get(MESSAGES) or ()

    def make_thin(self, newer: "Base") -> "Base | None":
        """Return a copy of the checkpoint that refers to `newer` for its messages; `None` if that is impossible."""
        count = len(self.messages)
        if not self.is_ours or NEXT in self.notes or not count:
            return None  # LangGraph's, or thin as it was stored, or without messages
        # Compared by value: a message may have been replaced or removed since, and then this checkpoint stays complete.
        if list(newer.messages[:count]) != list(self.messages):
            return None
        values = {name: value for name, value in self.checkpoint["channel_values"].items() if name != MESSAGES}
        checkpoint = cast("Checkpoint", {**self.checkpoint, "channel_values": values})
        annotated_checkpoint = _with_notes(checkpoint, {**self.notes, NEXT: newer.id, COUNT: count})
        return Base(annotated_checkpoint, self.metadata, self.parent_id)


def base_of(checkpoint_tuple: CheckpointTuple) -> Base:
    parent_config: Any = checkpoint_tuple.parent_config or {}
    return Base(
        checkpoint_tuple.checkpoint,
        checkpoint_tuple.metadata,
        parent_config.get("configurable", {}).get("checkpoint_id"),
    )


def entries_of(checkpoint_tuple: CheckpointTuple) -> list[Entry]:
    return [entry_of(stored) for stored in _read_entries(checkpoint_tuple)]


def holders_of(checkpoint_tuple: CheckpointTuple) -> list[Held | Left]:
    """Return the journal entries `Held` and `Left` on a checkpoint, in order."""
    # No other entries: the checkpoint may be an outline, with `None` in place of objects.
    kinds = (Held.KIND, Left.KIND)
    entries = (entry_of(stored) for stored in _read_entries(checkpoint_tuple) if kind_of(stored) in kinds)
    return cast("list[Held | Left]", list(entries))


def _read_entries(checkpoint_tuple: CheckpointTuple) -> list[Any]:
    # Savers need not keep the order of writes; sorted by their zero-padded task ids, writes are in order again.
    commits = sorted(
        (write for write in checkpoint_tuple.pending_writes or () if write[1] == CHANNEL), key=itemgetter(0)
    )
    return [stored for _, _, commit in commits for stored in commit]


@contextmanager
def reading_stored_data(location: str) -> Generator[None]:
    """Convert errors of the `with` block, which reads stored data, to `StorageError`."""
    try:
        yield
    # Control flow and storage errors pass; cancellation does too, since it is no `Exception`.
    except (StorageError, GraphBubbleUp):
        raise
    except Exception as error:
        raise StorageError(location, f"cannot be read: {error_text(error)}. {MEND}") from error


@with_config(ConfigDict(strict=True))
class _StoredCheckpoint(TypedDict):
    id: str
    ts: str
    channel_values: dict[Any, Any]
    channel_versions: dict[Any, Any]
    versions_seen: dict[Any, dict[Any, Any]]


@with_config(ConfigDict(strict=True))
class _StoredMetadata(TypedDict, total=False):
    source: str
    step: int
    parents: dict[Any, Any]


@with_config(ConfigDict(strict=True))
class _StoredNotes(TypedDict, total=False):
    of: str
    parent: str | None
    origin: Annotated[tuple[str, int], Strict(False)]
    next: str
    count: int
    sends: int
    before: bool
    actors: list[Annotated[tuple[str, str, str, str], Strict(False)]]


_CHECKPOINT = TypeAdapter(_StoredCheckpoint)
_METADATA = TypeAdapter(_StoredMetadata)
_NOTES = TypeAdapter(_StoredNotes)
_WRITES: TypeAdapter[Any] = TypeAdapter(Sequence[tuple[str, str, Any]] | None)
_COMMIT: TypeAdapter[Any] = TypeAdapter(list[Any] | tuple[Any, ...])


def check_checkpoint(checkpoint_tuple: CheckpointTuple, *, is_outline: bool = False) -> None:
    """Raise ValueError if a checkpoint has an invalid form, which no agent writes."""
    checkpoint = checkpoint_tuple.checkpoint
    validate("the checkpoint", _CHECKPOINT, checkpoint)
    validate("its metadata", _METADATA, checkpoint_tuple.metadata)
    validate("its notes", _NOTES, _last_notes(checkpoint))
    validate("what was written on it", _WRITES, checkpoint_tuple.pending_writes)
    kinds = {type(version).__name__ for version in checkpoint["channel_versions"].values()}
    if len(kinds) > 1:
        raise ValueError(f"its channels have versions of several kinds: {', '.join(sorted(kinds))}")
    for _, channel, value in checkpoint_tuple.pending_writes or ():
        if channel == CHANNEL:
            validate("what callboard wrote on it", _COMMIT, value)
    # An outline has `None` in place of objects, so only the entries of holders can be checked.
    _ = holders_of(checkpoint_tuple) if is_outline else entries_of(checkpoint_tuple)


def as_input_entry(entry: Entry) -> Amended | None:
    """Return a journal entry if it is an `Amended` entry that applies input to the state, otherwise `None`."""
    return entry if isinstance(entry, Amended) and entry.source == "input" else None


def holder_in(entries: Sequence[Entry]) -> Mapping[str, Any] | None:
    last = next((entry for entry in reversed(entries) if isinstance(entry, (Held, Left))), None)
    return last.holder if isinstance(last, Held) else None


def commits_in(checkpoint_tuple: CheckpointTuple) -> int:
    return sum(channel == CHANNEL for _, channel, _ in checkpoint_tuple.pending_writes or ())


def last_id(checkpoint_tuple: CheckpointTuple, entries: Sequence[Entry]) -> str:
    ids = [entry.id for entry in entries if isinstance(entry, Move)]
    return ids[-1] if ids else checkpoint_tuple.checkpoint["id"]


def unknown_values(before: Base | None, channel_names: Collection[str]) -> dict[str, Any]:
    """Return the values of a checkpoint by channel, for all channels that this agent's state does not have."""
    # Another agent wrote them; they are kept in the next checkpoint.
    old = {} if before is None else before.checkpoint["channel_values"]
    return {
        name: value for name, value in old.items() if name not in channel_names and not name.startswith(("__", BRANCH))
    }


def with_messages(checkpoint_tuple: CheckpointTuple, messages: Sequence[BaseMessage]) -> CheckpointTuple:
    """Return a copy of a checkpoint with its missing messages, which are the first messages of the list `messages`."""
    count = notes_of(checkpoint_tuple.checkpoint)[COUNT]
    values = {**checkpoint_tuple.checkpoint["channel_values"], MESSAGES: list(messages[:count])}
    return checkpoint_tuple._replace(checkpoint={**checkpoint_tuple.checkpoint, "channel_values": values})


def is_incomplete(checkpoint_tuple: CheckpointTuple) -> bool:
    """Return whether a checkpoint is stored without its messages, because a later checkpoint has them."""
    # Some savers keep the old value of a channel that a checkpoint is stored again without.
    return (
        NEXT in notes_of(checkpoint_tuple.checkpoint) and MESSAGES not in checkpoint_tuple.checkpoint["channel_values"]
    )


def new_base(
    before: Base | None,
    values: Mapping[str, Any],
    checkpoint_id: str,
    *,
    source: str,
    step: int,
    previous_id: str | None,
    sends: int = 0,
    actors: StoredStates = (),
    origin: tuple[str, int] | None = None,
    is_before_step: bool = False,
    parents: Mapping[str, str],
    next_version: Callable[[Any], Any],
) -> tuple[Base, Mapping[str, Any]]:
    """Return a new checkpoint with the given values, and the new versions of its changed channels."""
    # `previous_id` is the id of the position before the new one, which may be the position of a journal entry. `sends`
    # is the number of sends that are not calls of the conversation. `parents` has the checkpoints of the outer graphs,
    # by namespace.
    versions: Mapping[str, Any] = {} if before is None else before.checkpoint["channel_versions"]
    old_values: Mapping[str, Any] = {} if before is None else before.checkpoint["channel_values"]
    # One new version for all channels, greater than every older one: LangGraph compares versions to find due nodes. A
    # channel that lost its value has a new version, too.
    new_versions = dict.fromkeys(
        {*values, *(old_values.keys() - values.keys())}, next_version(max(versions.values()) if versions else None)
    )
    checkpoint = Checkpoint(
        v=4,
        id=checkpoint_id,
        ts=now(),
        channel_values=dict(values),
        channel_versions=cast("Any", {**versions, **new_versions}),
        versions_seen={} if before is None else before.checkpoint["versions_seen"],
        updated_channels=None,
    )
    notes: dict[str, Any] = {OF: checkpoint_id, PARENT: previous_id}
    notes |= {
        name: value
        for name, value in ((SENDS, sends), (ACTORS, actors), (ORIGIN, origin), (BEFORE, is_before_step))
        if value
    }
    annotated_checkpoint = _with_notes(checkpoint, notes)
    metadata = {"source": source, "step": step, "parents": parents}
    return Base(annotated_checkpoint, metadata, None if before is None else before.id), new_versions


def notes_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return the values (notes) that callboard stores inside a checkpoint, by name."""
    # Empty if LangGraph copied the notes from an earlier checkpoint, because they describe that checkpoint.
    notes = _last_notes(checkpoint)
    return notes if notes.get(OF) == checkpoint["id"] else {}


def actor_notes_of(checkpoint: Checkpoint) -> StoredStates:
    """Return the actor states inside a checkpoint, also if LangGraph copied them from an earlier checkpoint."""
    states: StoredStates = _last_notes(checkpoint).get(ACTORS, ())
    return states


def _last_notes(checkpoint: Checkpoint) -> Mapping[str, Any]:
    text = next(iter(checkpoint["versions_seen"].get(NOTES) or ()), "{}")
    notes: Mapping[str, Any] = json.loads(text)
    return notes


def _with_notes(checkpoint: Checkpoint, notes: Mapping[str, Any]) -> Checkpoint:
    versions_seen = {**checkpoint["versions_seen"], NOTES: cast("Any", {json.dumps(dict(notes)): 0})}
    return cast("Checkpoint", {**checkpoint, "versions_seen": versions_seen})
