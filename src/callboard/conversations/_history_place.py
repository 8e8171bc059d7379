"""Positions in the history of a thread: a checkpoint, or an entry on one."""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from types import MappingProxyType
from typing import NamedTuple

from langgraph.checkpoint.base import CheckpointTuple

from callboard._langgraph._serializers import MEND
from callboard.conversations._checkpoint import (
    FIRST_ID,
    NEXT,
    base_of,
    entries_of,
    input_in,
    is_incomplete,
    made_whole,
    notes_of,
)
from callboard.conversations._journal_entries import Amended, Entry, Move
from callboard.conversations._saver import Saver
from callboard.exceptions import StorageError


class HistoryPlace(NamedTuple):
    """Position in the history of a thread, as stored."""

    found: CheckpointTuple
    """Checkpoint at the position, or the last one before it."""
    entries: list[Entry]
    """Entries from the checkpoint to the position."""
    tasks: list[Entry]
    """Entries of tasks that ran at the position afterwards."""
    given: Amended | None = None
    """Input that had arrived at the position and was not applied yet."""


async def place_of(saver: Saver, checkpoint_id: str) -> HistoryPlace:
    """Find a position by its id; raise ValueError if the thread does not have it."""
    # A position with a checkpoint of its own; entries of other positions are on the newest checkpoint before them.
    found = await saver.get(checkpoint_id)
    if found is not None:
        entries = entries_of(found)
        move = next((entry for entry in entries if isinstance(entry, Move)), None)
        first = input_in(move) if move is not None and checkpoint_id == FIRST_ID else None
        return HistoryPlace(found, [], _until_moved(entries), first)
    for around in await saver.before(checkpoint_id, 1):
        entries = entries_of(around)
        for number, entry in enumerate(entries, 1):
            if isinstance(entry, Move) and entry.id == checkpoint_id:
                return HistoryPlace(around, entries[:number], _until_moved(entries[number:]))
            if isinstance(entry, Amended) and entry.received is not None and entry.received.id == checkpoint_id:
                return HistoryPlace(around, entries[: number - 1], [], entry)
    raise no_checkpoint(checkpoint_id)


async def whole(
    saver: Saver, found: CheckpointTuple, known: Mapping[str, CheckpointTuple] = MappingProxyType({})
) -> CheckpointTuple:
    """Return a checkpoint with its messages, which a later one may have; raise StorageError if that one is missing.

    Args:
        saver: the thread's part of a checkpointer.
        found: the checkpoint.
        known: later checkpoints by id, which need not be read again.
    """
    thin: list[CheckpointTuple] = []
    # The later checkpoint may be thin itself; a chain ends at the newest one, which is complete.
    while is_incomplete(found):
        thin.append(found)
        name = notes_of(found.checkpoint)[NEXT]
        later = known.get(name) or await saver.get(name)
        if later is None:
            raise StorageError(saver.told(found), f"has lost its messages with a later one. {MEND}")
        found = later
    for one in reversed(thin):
        found = made_whole(one, base_of(found).messages)
    return found


def no_checkpoint(checkpoint_id: str) -> ValueError:
    """Return the error for an unknown checkpoint id."""
    return ValueError(f"The thread has no checkpoint {checkpoint_id!r}")


def _until_moved(entries: Iterable[Entry]) -> list[Entry]:
    return list(takewhile(lambda entry: not isinstance(entry, Move), entries))
