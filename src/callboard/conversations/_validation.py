"""Validation of stored conversations: a run goes on only from data that an agent can have written."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from types import NoneType
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphBubbleUp
from langgraph.types import Interrupt, Send

from callboard._langgraph._serializers import MEND, described
from callboard.conversations._checkpoint import (
    ACTORS,
    CHANNEL,
    COUNT,
    NEXT,
    OF,
    PARENT,
    SENDS,
    noted_actors,
    notes_of,
)
from callboard.conversations._journal_entries import Kinds, fields_of
from callboard.exceptions import StorageError

_CHECKPOINT: Mapping[str, Kinds] = {
    "id": str,
    "ts": str,
    "channel_values": Mapping,
    "channel_versions": Mapping,
    "versions_seen": Mapping,
}

_METADATA: Mapping[str, Kinds] = {"source": str, "step": int, "parents": Mapping}

_NOTES: Mapping[str, Kinds] = {OF: str, PARENT: (str, NoneType), NEXT: str, COUNT: int, SENDS: int, ACTORS: list}

_STAMP: Mapping[str, Kinds] = {"id": str, "ts": str}

_RECORD: Mapping[str, Kinds] = {"answers": (list, tuple), "pending": (list, tuple), "error": str}

_HOLDER: Mapping[str, Kinds] = {"token": str, "host": str, "boot": str, "pid": int, "until": Real}


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


def check_checkpoint(found: CheckpointTuple, *, outlined: bool = False) -> None:
    """Raise ValueError or TypeError for a checkpoint that no agent can have written.

    With `outlined`, objects in it were read as `None`.
    """
    checkpoint: Any = found.checkpoint
    _has("checkpoint", checkpoint, _CHECKPOINT, _CHECKPOINT)
    _has("its metadata", found.metadata, _METADATA)
    for seen in checkpoint["versions_seen"].values():
        _is("versions seen", seen, Mapping)
    _has("its notes", notes_of(checkpoint), _NOTES)
    for state in noted_actors(checkpoint):
        _is("the state of an actor", state, list)
        if len(state) != 4 or not all(isinstance(part, str) for part in state):
            raise ValueError(f"its notes have a state of an actor that is none: {state!r}")
    kinds = {type(version) for version in checkpoint["channel_versions"].values()}
    if len(kinds) > 1:
        raise TypeError(f"its channels have versions of several kinds: {sorted(kind.__name__ for kind in kinds)}")
    for task_id, channel, value in found.pending_writes or ():
        _is("the task of a write", task_id, str)
        _is("the channel of a write", channel, str)
        if channel == CHANNEL:
            _is("what callboard wrote", value, (list, tuple))
            for entry in value:
                _check_entry(entry, outlined=outlined)


def check_messages(messages: object) -> None:
    """Raise TypeError if a stored conversation contains anything but messages; checks one object of each type."""
    _is("the conversation", messages, list)
    assert isinstance(messages, list)
    for message in {type(message): message for message in messages}.values():
        _is("a message", message, BaseMessage)


def _check_entry(entry: Any, *, outlined: bool) -> None:
    known = fields_of(entry)
    _has(f"the entry {entry['kind']!r}", entry, known.kinds, known.needed)
    for write in entry.get("writes", ()):
        _is("a write", write, (list, tuple))
        if len(write) != 2 or not isinstance(write[0], str):
            raise ValueError(f"an entry has a write that is none: {write!r}")
    for send in entry.get("sends", ()):
        _is("a send", send, (Send, NoneType) if outlined else Send)
    question = (Interrupt, NoneType) if outlined else Interrupt
    for record in (*entry.get("records", {}).values(), entry.get("known", {})):
        _check_record(record, question)
    if entry.get("holder") is not None:
        _has("the holder", entry["holder"], _HOLDER, _HOLDER)
    if "received" in entry:
        _has("the input", entry["received"], _STAMP, _STAMP)


def _check_record(record: Any, question: Kinds) -> None:
    _has("a record", record, _RECORD)
    for asked in record.get("pending", ()):
        _is("a question", asked, question)


def _has(what: str, given: Any, kinds: Mapping[str, Kinds], needed: Iterable[str] = ()) -> None:
    """Check the types of known keys of a mapping, and that the needed keys are present."""
    _is(what, given, Mapping)
    if missing := [name for name in needed if name not in given]:
        raise ValueError(f"{what} has no {', '.join(missing)}")
    for name, kind in kinds.items():
        if name in given:
            _is(f"{name!r} of {what}", given[name], kind)


def _is(what: str, given: Any, kind: Kinds) -> None:
    if not isinstance(given, kind):
        kinds: Sequence[type] = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join("None" if one is NoneType else one.__name__ for one in kinds)
        raise TypeError(f"{what} should be {names}, and is {type(given).__name__}")
