"""Checkpoints as LangGraph stores them: how ours are made, made thin, and made whole again.

The last checkpoint of a thread is plain: any agent of LangGraph's reads it. The one before it is made thin as soon
as the next one is there, if its messages are the first ones of the next: then it says how many, and in which.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from callboard.agent._conversation._journal_entries import (
    Amended,
    Entry,
    Held,
    Left,
    Move,
    NotedStates,
    entry_of,
)
from callboard.agent._conversation._thread import now

FIRST_ID = "1ee00000-0000-6000-8000-000000000000"
"""Of the checkpoint before anything has happened: older than all others, and the same for all who begin at once."""

CHANNEL = "__callboard__"
"""Where entries are written."""

BRANCH = "branch:to:"
"""LangGraph's channels for the nodes that come next."""

MESSAGES = "messages"

NOTES = "__callboard__"
"""What we have to know of a checkpoint of ours: beside the nodes in `versions_seen`, which every copy keeps.

It is a JSON text in the place of a channel, whose version is 0: to LangGraph, a node that has seen nothing yet.
"""

OF = "of"
"""In the notes: the checkpoint that they are about. LangGraph hands them on to those that it makes of ours."""

PARENT = "parent"
"""In the notes: the place before, which may be an entry."""

NEXT = "next"
"""In the notes of a thin checkpoint: the checkpoint that has its messages."""

COUNT = "count"
"""In the notes of a thin checkpoint: how many messages it has."""


ACTORS = "actors"
"""In the notes: the states of actors, and where they are written. They hold for the checkpoints that follow, too."""

SENDS = "sends"
"""In the notes: how many of the sends are none of the conversation's calls."""

_OWN_METADATA = frozenset(("source", "step", "parents", "writes"))


@dataclass(frozen=True, slots=True)
class Base:
    """A stored checkpoint, on which entries are written."""

    checkpoint: Checkpoint
    metadata: Mapping[str, Any]
    parent_id: str | None

    @property
    def id(self) -> str:
        return self.checkpoint["id"]

    @property
    def notes(self) -> Mapping[str, Any]:
        """What we have noted of it; empty for a checkpoint of LangGraph's."""
        return notes_of(self.checkpoint)

    @property
    def is_ours(self) -> bool:
        return PARENT in self.notes

    @property
    def about(self) -> dict[str, Any]:
        """The metadata of a checkpoint that a user has given with the config."""
        return {name: value for name, value in self.metadata.items() if name not in _OWN_METADATA}

    @property
    def is_thin(self) -> bool:
        return NEXT in self.notes

    @property
    def messages(self) -> Sequence[BaseMessage]:
        return cast("Sequence[BaseMessage]", self.checkpoint["channel_values"].get(MESSAGES) or ())


def base_of(found: CheckpointTuple) -> Base:
    """A checkpoint that a saver has found, as a base for entries."""
    around: Any = found.parent_config or {}
    return Base(found.checkpoint, cast("Any", found.metadata), around.get("configurable", {}).get("checkpoint_id"))


def entries_of(found: CheckpointTuple) -> list[Entry]:
    """What happened after a checkpoint, in order."""
    commits = sorted(
        ((task_id, value) for task_id, channel, value in found.pending_writes or () if channel == CHANNEL),
        key=itemgetter(0),
    )
    return [entry_of(stored) for _, together in commits for stored in together]


def input_in(entry: Entry) -> Amended | None:
    """The entry, if it is by input that it changes a thread."""
    return entry if isinstance(entry, Amended) and entry.source == "input" else None


def holder_in(entries: Sequence[Entry]) -> Mapping[str, Any] | None:
    """The run that has the thread, as its entries tell."""
    last = next((entry for entry in reversed(entries) if isinstance(entry, (Held, Left))), None)
    return last.holder if isinstance(last, Held) else None


def commits_in(found: CheckpointTuple) -> int:
    """How many writes of entries a checkpoint has."""
    return sum(channel == CHANNEL for _, channel, _ in found.pending_writes or ())


def is_damaged(found: CheckpointTuple | None, checkpoint_id: str, commits: int) -> bool:
    """Return whether a checkpoint, or one of so many writes of entries to it, is missing although it was stored."""
    return found is None or (found.checkpoint["id"] == checkpoint_id and commits_in(found) < commits)


def last_id(found: CheckpointTuple, entries: Sequence[Entry]) -> str:
    """The id of the place where a thread stands after these entries."""
    ids = [entry.id for entry in entries if isinstance(entry, Move)]
    return ids[-1] if ids else found.checkpoint["id"]


def changed_channels(before: Base | None, values: Mapping[str, Any]) -> set[str]:
    """The channels that have to be written: those with a value, and those that have lost theirs."""
    old = {} if before is None else before.checkpoint["channel_values"]
    return {*values, *(old.keys() - values.keys())}


def unknown_values(before: Base | None, known: Collection[str]) -> dict[str, Any]:
    """The values of channels that another agent keeps in the state and this one does not know; they are kept."""
    old = {} if before is None else before.checkpoint["channel_values"]
    return {name: value for name, value in old.items() if name not in known and not name.startswith(("__", BRANCH))}


def may_be_thin(older: Base, newer: Base) -> bool:
    """Whether the messages of a checkpoint can be left out, because the next one begins with them."""
    if not older.is_ours or older.is_thin or not older.messages:
        return False
    return list(newer.messages[: len(older.messages)]) == list(older.messages)


def thinned(older: Base, newer: Base) -> Base:
    """A checkpoint without its messages, which the one after it has."""
    values = {name: value for name, value in older.checkpoint["channel_values"].items() if name != MESSAGES}
    notes = {**older.notes, NEXT: newer.id, COUNT: len(older.messages)}
    checkpoint = cast("Checkpoint", {**older.checkpoint, "channel_values": values})
    return Base(_noted(checkpoint, notes), older.metadata, older.parent_id)


def made_whole(found: CheckpointTuple, messages: Sequence[BaseMessage]) -> CheckpointTuple:
    """A thin checkpoint with its messages; `messages` are those of the one after it."""
    count = notes_of(found.checkpoint)[COUNT]
    values = {**found.checkpoint["channel_values"], MESSAGES: list(messages[:count])}
    return found._replace(checkpoint=cast("Checkpoint", {**found.checkpoint, "channel_values": values}))


def is_incomplete(found: CheckpointTuple) -> bool:
    """Whether a checkpoint is thin and its saver really left its messages out."""
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
    """A checkpoint of ours, to be stored.

    Args:
        before: the one before it.
        values: of its channels.
        checkpoint_id: its id.
        metadata: what is told about it.
        place_before: where the thread stood before, which may be an entry.
        sends: how many of the sends in it are none of the conversation's calls.
        actors: the states of actors.
        next_version: of a channel, after the one given.
    """
    old: Mapping[str, Any] = {} if before is None else before.checkpoint["channel_versions"]
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
    """What we have noted of a checkpoint; nothing if it is LangGraph's, and has the notes of the one before it."""
    notes = _last_notes(checkpoint)
    return notes if notes.get(OF) == checkpoint["id"] else {}


def noted_actors(checkpoint: Checkpoint) -> NotedStates:
    """The states of actors, where LangGraph may have gone on from a checkpoint of ours."""
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
    """What is told about a checkpoint of ours, as LangGraph tells it."""
    return cast("CheckpointMetadata", {"source": source, "step": step, "parents": {}})
