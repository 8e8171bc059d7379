"""Checkpoints in LangGraph's format: how callboard makes them, thins them, and restores thin ones.

The last checkpoint of a thread is complete, and every LangGraph agent can read it. Once a newer one is stored, the one
before it becomes thin if its messages are the first messages of the newer one. A thin checkpoint has no messages, but
their number and the id of the checkpoint that has them.
"""

import json
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, cast

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.errors import GraphBubbleUp
from pydantic import ConfigDict, Strict, TypeAdapter
from typing_extensions import TypedDict

from callboard._langgraph._serializers import MEND, described
from callboard.conversations._journal_entries import (
    Amended,
    Entry,
    Held,
    Left,
    Move,
    NotedStates,
    entry_of,
    kind_of,
    now,
    validated,
)
from callboard.exceptions import StorageError

FIRST_ID = "1ee00000-0000-6000-8000-000000000000"
"""Id of the checkpoint before the first change: older than all others, and the same in all processes."""

CHANNEL = "__callboard__"
"""Channel of the pending writes that hold entries."""

BRANCH = "branch:to:"
"""Prefix of LangGraph's channels for the next nodes."""

MESSAGES = "messages"

NOTES = "__callboard__"
"""Key of callboard's notes in `versions_seen`, which every copy of a checkpoint keeps.

The notes are a JSON text in the place of a channel name, with version 0: a node that has seen nothing, to LangGraph.
"""

# Names of the notes.
OF = "of"  # id of the annotated checkpoint: LangGraph copies the notes into checkpoints that it makes from ours
PARENT = "parent"  # id of the previous position, which may be that of an entry
NEXT = "next"  # of a thin checkpoint: id of the checkpoint that has its messages
COUNT = "count"  # of a thin checkpoint: number of its messages
ACTORS = "actors"  # states of actors and where they are stored; valid for the following checkpoints, too
SENDS = "sends"  # number of sends that are not calls of the conversation

_OWN_METADATA = frozenset(("source", "step", "parents", "writes"))


@dataclass(frozen=True, slots=True)
class Base:
    """Stored checkpoint on which entries are written."""

    checkpoint: Checkpoint
    metadata: Mapping[str, Any]
    parent_id: str | None

    @property
    def id(self) -> str:
        return self.checkpoint["id"]

    @property
    def notes(self) -> Mapping[str, Any]:
        """Return callboard's notes; empty for a checkpoint made by LangGraph."""
        return notes_of(self.checkpoint)

    @property
    def is_ours(self) -> bool:
        return PARENT in self.notes

    @property
    def about(self) -> dict[str, Any]:
        return {name: value for name, value in self.metadata.items() if name not in _OWN_METADATA}

    @property
    def is_thin(self) -> bool:
        return NEXT in self.notes

    @property
    def messages(self) -> Sequence[BaseMessage]:
        return cast("Sequence[BaseMessage]", self.checkpoint["channel_values"].get(MESSAGES) or ())


def base_of(found: CheckpointTuple) -> Base:
    around: Any = found.parent_config or {}
    return Base(found.checkpoint, cast("Any", found.metadata), around.get("configurable", {}).get("checkpoint_id"))


def entries_of(found: CheckpointTuple) -> list[Entry]:
    return [entry_of(stored) for stored in _stored_entries(found)]


def holders_of(found: CheckpointTuple) -> list[Held | Left]:
    """Return the entries on a checkpoint, or on its outline, that tell which run holds the thread."""
    kinds = (Held.KIND, Left.KIND)
    entries = (entry_of(stored) for stored in _stored_entries(found) if kind_of(stored) in kinds)
    return cast("list[Held | Left]", list(entries))


def _stored_entries(found: CheckpointTuple) -> list[Any]:
    # Savers need not keep the order of writes; sorted by their zero-padded task ids, writes are in order again.
    commits = sorted((one for one in found.pending_writes or () if one[1] == CHANNEL), key=itemgetter(0))
    return [stored for _, _, together in commits for stored in together]


@contextmanager
def reading_stored_data(where: str) -> Generator[None]:
    """Raise StorageError for any error in a block that reads stored data; `where` names the data in the error."""
    try:
        yield
    # Control flow and storage errors pass; cancellation does too, since it is no `Exception`.
    except (StorageError, GraphBubbleUp):
        raise
    except Exception as error:
        raise StorageError(where, f"cannot be read: {described(error)}. {MEND}") from error


class _StoredCheckpoint(TypedDict):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    id: str
    ts: str
    channel_values: dict[Any, Any]
    channel_versions: dict[Any, Any]
    versions_seen: dict[Any, dict[Any, Any]]


class _StoredMetadata(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    source: str
    step: int
    parents: dict[Any, Any]


class _StoredNotes(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    of: str
    parent: str | None
    next: str
    count: int
    sends: int
    actors: list[Annotated[tuple[str, str, str, str], Strict(False)]]


_CHECKPOINT = TypeAdapter(_StoredCheckpoint)
_METADATA = TypeAdapter(_StoredMetadata)
_NOTES = TypeAdapter(_StoredNotes)
_WRITES: TypeAdapter[Any] = TypeAdapter(Sequence[tuple[str, str, Any]] | None)
_COMMIT: TypeAdapter[Any] = TypeAdapter(list[Any] | tuple[Any, ...])


def check_checkpoint(found: CheckpointTuple, *, outlined: bool = False) -> None:
    """Raise ValueError for a checkpoint that no agent can have written; in an outline, objects are `None`."""
    checkpoint = found.checkpoint
    validated("the checkpoint", _CHECKPOINT, checkpoint)
    validated("its metadata", _METADATA, found.metadata)
    validated("its notes", _NOTES, _last_notes(checkpoint))
    validated("what was written on it", _WRITES, found.pending_writes)
    kinds = {type(version).__name__ for version in checkpoint["channel_versions"].values()}
    if len(kinds) > 1:
        raise ValueError(f"its channels have versions of several kinds: {', '.join(sorted(kinds))}")
    for _, channel, value in found.pending_writes or ():
        if channel == CHANNEL:
            validated("what callboard wrote on it", _COMMIT, value)
    _ = holders_of(found) if outlined else entries_of(found)


def input_in(entry: Entry) -> Amended | None:
    """Return the entry if it applies input, otherwise `None`."""
    return entry if isinstance(entry, Amended) and entry.source == "input" else None


def holder_in(entries: Sequence[Entry]) -> Mapping[str, Any] | None:
    last = next((entry for entry in reversed(entries) if isinstance(entry, (Held, Left))), None)
    return last.holder if isinstance(last, Held) else None


def commits_in(found: CheckpointTuple) -> int:
    return sum(channel == CHANNEL for _, channel, _ in found.pending_writes or ())


def is_damaged(found: CheckpointTuple | None, checkpoint_id: str, commits: int) -> bool:
    """Return whether a stored checkpoint, or one of its `commits` entry writes, is missing."""
    return found is None or (found.checkpoint["id"] == checkpoint_id and commits_in(found) < commits)


def last_id(found: CheckpointTuple, entries: Sequence[Entry]) -> str:
    ids = [entry.id for entry in entries if isinstance(entry, Move)]
    return ids[-1] if ids else found.checkpoint["id"]


def changed_channels(before: Base | None, values: Mapping[str, Any]) -> set[str]:
    """Return the names of channels to write: channels with a value, and channels that lost their value."""
    old = {} if before is None else before.checkpoint["channel_values"]
    return {*values, *(old.keys() - values.keys())}


def unknown_values(before: Base | None, known: Collection[str]) -> dict[str, Any]:
    """Return the values of channels that another agent wrote and this agent does not know; they are kept."""
    old = {} if before is None else before.checkpoint["channel_values"]
    return {name: value for name, value in old.items() if name not in known and not name.startswith(("__", BRANCH))}


def may_be_thin(older: Base, newer: Base) -> bool:
    """Return whether a checkpoint's messages may be left out, because the next checkpoint begins with them."""
    if not older.is_ours or older.is_thin or not older.messages:
        return False
    # Compared by value: a message may have been replaced or removed since, and then the older one stays complete.
    return list(newer.messages[: len(older.messages)]) == list(older.messages)


def thinned(older: Base, newer: Base) -> Base:
    """Return a checkpoint without its messages, pointing to the next one that has them."""
    values = {name: value for name, value in older.checkpoint["channel_values"].items() if name != MESSAGES}
    notes = {**older.notes, NEXT: newer.id, COUNT: len(older.messages)}
    checkpoint = cast("Checkpoint", {**older.checkpoint, "channel_values": values})
    return Base(_noted(checkpoint, notes), older.metadata, older.parent_id)


def made_whole(found: CheckpointTuple, messages: Sequence[BaseMessage]) -> CheckpointTuple:
    """Return a thin checkpoint with its messages, taken from those of the next checkpoint."""
    count = notes_of(found.checkpoint)[COUNT]
    values = {**found.checkpoint["channel_values"], MESSAGES: list(messages[:count])}
    return found._replace(checkpoint=cast("Checkpoint", {**found.checkpoint, "channel_values": values}))


def is_incomplete(found: CheckpointTuple) -> bool:
    """Return whether a checkpoint is thin and its saver did not return the messages."""
    # Some savers keep the old value of a channel that a checkpoint is stored again without.
    return NEXT in notes_of(found.checkpoint) and MESSAGES not in found.checkpoint["channel_values"]


def new_base(
    before: Base | None,
    values: Mapping[str, Any],
    checkpoint_id: str,
    metadata: CheckpointMetadata,
    *,
    place_before: str | None,
    sends: int = 0,
    actors: NotedStates = (),
    next_version: Callable[[Any], Any],
) -> Base:
    """Return a checkpoint to be stored after `before`; `place_before` is the id of the previous position."""
    old: Mapping[str, Any] = {} if before is None else before.checkpoint["channel_versions"]
    # One new version for all channels, greater than every older one: LangGraph compares versions to find due nodes.
    version = next_version(max(old.values()) if old else None)
    checkpoint = Checkpoint(
        v=4,
        id=checkpoint_id,
        ts=now(),
        channel_values=dict(values),
        channel_versions=cast("Any", {**old, **dict.fromkeys(changed_channels(before, values), version)}),
        versions_seen={} if before is None else before.checkpoint["versions_seen"],
        updated_channels=None,
    )
    about: dict[str, Any] = {OF: checkpoint_id, PARENT: place_before}
    noted = _noted(checkpoint, about | ({SENDS: sends} if sends else {}) | ({ACTORS: actors} if actors else {}))
    return Base(noted, cast("Any", metadata), None if before is None else before.id)


def notes_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return callboard's notes on a checkpoint; empty if LangGraph copied them from an earlier one."""
    notes = _last_notes(checkpoint)
    return notes if notes.get(OF) == checkpoint["id"] else {}


def noted_actors(checkpoint: Checkpoint) -> NotedStates:
    """Return the noted states of actors, also from notes that LangGraph copied."""
    found: NotedStates = _last_notes(checkpoint).get(ACTORS, ())
    return found


def _last_notes(checkpoint: Checkpoint) -> Mapping[str, Any]:
    text = next(iter(checkpoint["versions_seen"].get(NOTES) or ()), "{}")
    notes: Mapping[str, Any] = json.loads(text)
    return notes


def _noted(checkpoint: Checkpoint, notes: Mapping[str, Any]) -> Checkpoint:
    seen = {**checkpoint["versions_seen"], NOTES: cast("Any", {json.dumps(dict(notes)): 0})}
    return cast("Checkpoint", {**checkpoint, "versions_seen": seen})


def metadata_of(source: str, step: int) -> CheckpointMetadata:
    """Return the metadata of a new checkpoint, in LangGraph's form."""
    return cast("CheckpointMetadata", {"source": source, "step": step, "parents": {}})
