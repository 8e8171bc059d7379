"""Positions in the history of a stored thread: checkpoints, and journal entries that lead from one to a position."""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple, cast

from langgraph.checkpoint.base import Checkpoint, CheckpointTuple

from callboard._langgraph._serializers import MEND
from callboard.conversations._channels import Schema
from callboard.conversations._saver import Saver
from callboard.conversations._storage import (
    FIRST_ID,
    NEXT,
    Amended,
    Entry,
    Move,
    as_input_entry,
    base_of,
    entries_of,
    is_incomplete,
    notes_of,
    reading_stored_data,
    with_messages,
)
from callboard.exceptions import StorageError


class HistoryPosition(NamedTuple):
    """Stored data of one position in the history of a thread: a checkpoint, and journal entries on it."""

    checkpoint_tuple: CheckpointTuple
    """Checkpoint at the position, or the last checkpoint before it."""
    entries: list[Entry]
    """Journal entries that lead from the checkpoint to the position, in order."""
    tasks: list[Entry]
    """Journal entries of tasks that ran after the thread had reached the position."""
    input: Amended | None = None
    """Journal entry of input that had arrived at the position and was not applied yet; `None` without such input."""


async def read_position(saver: Saver, checkpoint_id: str) -> HistoryPosition:
    """Return the stored data of the position `checkpoint_id`; raise ValueError if the thread has no such position."""
    # A position with a checkpoint of its own; entries of other positions are on the newest checkpoint before them.
    checkpoint_tuple = await saver.get(checkpoint_id)
    if checkpoint_tuple is not None:
        entries = entries_of(checkpoint_tuple)
        move = next((entry for entry in entries if isinstance(entry, Move)), None)
        first_input = as_input_entry(move) if move is not None and checkpoint_id == FIRST_ID else None
        return HistoryPosition(checkpoint_tuple, [], _entries_before_move(entries), first_input)
    for base_tuple in await saver.before(checkpoint_id, 1):
        entries = entries_of(base_tuple)
        for entry_count, entry in enumerate(entries, 1):
            if isinstance(entry, Move) and entry.id == checkpoint_id:
                return HistoryPosition(base_tuple, entries[:entry_count], _entries_before_move(entries[entry_count:]))
            if isinstance(entry, Amended) and entry.received is not None and entry.received.id == checkpoint_id:
                return HistoryPosition(base_tuple, entries[: entry_count - 1], [], entry)
    raise no_checkpoint(checkpoint_id)


async def read_whole(
    saver: Saver,
    schema: Schema,
    checkpoint_tuple: CheckpointTuple,
    later_tuples: Mapping[str, CheckpointTuple] = MappingProxyType({}),
) -> CheckpointTuple:
    """Return a checkpoint with all its messages; messages that it lacks are read from a later checkpoint."""
    # `later_tuples` are checkpoints by id that need not be read again.
    thin: list[CheckpointTuple] = []
    # The later checkpoint may be thin itself; a chain ends at the newest one, which is complete.
    while is_incomplete(checkpoint_tuple):
        thin.append(checkpoint_tuple)
        later_id = notes_of(checkpoint_tuple.checkpoint)[NEXT]
        later_tuple = later_tuples.get(later_id) or await saver.get(later_id)
        if later_tuple is None:
            raise StorageError(saver.describe(checkpoint_tuple), f"has lost its messages with a later one. {MEND}")
        checkpoint_tuple = later_tuple
    for thin_tuple in reversed(thin):
        checkpoint_tuple = with_messages(thin_tuple, base_of(checkpoint_tuple).messages)
    return await _with_replayed(saver, schema, checkpoint_tuple)


async def _with_replayed(saver: Saver, schema: Schema, checkpoint_tuple: CheckpointTuple) -> CheckpointTuple:
    """Return a checkpoint with all its values; a value that LangGraph stores only as writes is computed from them."""
    checkpoint = checkpoint_tuple.checkpoint
    values = checkpoint["channel_values"]
    # The rule of LangGraph: a channel without a version was never written.
    names = [name for name in schema.replayable if name in checkpoint["channel_versions"] and name not in values]
    if not names:
        return checkpoint_tuple
    try:
        histories = await saver.delta_histories(checkpoint["id"], names)
    except NotImplementedError as error:
        # Read as empty, a conversation would be lost.
        raise StorageError(
            saver.describe(checkpoint_tuple),
            f"has the key {names[0]!r} in LangGraph's DeltaChannel, and the checkpointer cannot read its history. "
            "Continue the thread with LangGraph's agent, or begin a new one",
        ) from error
    with reading_stored_data(saver.describe(checkpoint_tuple)):
        replayed = {name: schema.replay(name, history) for name, history in histories.items()}
    return checkpoint_tuple._replace(
        checkpoint=cast("Checkpoint", {**checkpoint, "channel_values": {**values, **replayed}})
    )


def no_checkpoint(checkpoint_id: str) -> ValueError:
    return ValueError(f"The thread has no checkpoint {checkpoint_id!r}")


def _entries_before_move(entries: Iterable[Entry]) -> list[Entry]:
    return list(takewhile(lambda entry: not isinstance(entry, Move), entries))
