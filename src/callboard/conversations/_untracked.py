"""Removal of state keys that are never stored: LangGraph's `UntrackedValue`, such as a connection."""

from collections.abc import Collection, Iterable
from dataclasses import is_dataclass, replace
from typing import Any

from langgraph.types import Command, Send
from pydantic import BaseModel

from callboard.conversations._channels import Schema, Write
from callboard.conversations._journal_entries import Amended, Entry, Finished, Move


def tracked_writes(writes: Iterable[Write], untracked: Collection[str]) -> list[Write]:
    """Return the writes without untracked keys."""
    return [(name, value) for name, value in writes if name not in untracked]


def tracked_entry(entry: Entry, schema: Schema) -> Entry:
    """Return an entry without untracked keys."""
    # The common case: the entry itself, uncopied.
    if not schema.untracked:
        return entry
    if isinstance(entry, Amended):
        entry = replace(entry, writes=tracked_writes(entry.writes, schema.untracked))
    if isinstance(entry, Move):
        return replace(entry, sends=[tracked_send(one, schema) for one in entry.sends])
    if isinstance(entry, Finished):
        return replace(entry, output=_tracked(entry.output, schema))
    return entry


def _tracked(output: Any, schema: Schema) -> Any:
    """Return a node's output without untracked keys, also in its sends."""
    if isinstance(output, dict):
        return {name: value for name, value in output.items() if name not in schema.untracked}
    if isinstance(output, (list, tuple)):
        return [_tracked(one, schema) for one in output]
    if isinstance(output, Command):
        goto: Any = output.goto
        several = (
            [tracked_send(one, schema) for one in goto]
            if isinstance(goto, (list, tuple))
            else tracked_send(goto, schema)
        )
        return replace(output, update=_tracked_update(output.update, schema), goto=several)
    return _tracked_update(output, schema)


def _tracked_update(update: Any, schema: Schema) -> Any:
    if isinstance(update, dict):
        return _tracked(update, schema)
    if isinstance(update, (list, tuple)):
        pairs = all(isinstance(one, tuple) and len(one) == 2 for one in update)
        return tracked_writes(update, schema.untracked) if pairs else update
    if any(hasattr(update, name) for name in schema.untracked) and (
        isinstance(update, BaseModel) or is_dataclass(update)
    ):
        return dict(tracked_writes(schema.writes_of(update), schema.untracked))
    return update


def tracked_send(target: Any, schema: Schema) -> Any:
    """Return a `goto` target; the input of a send loses its untracked keys."""
    return Send(target.node, _tracked(target.arg, schema)) if isinstance(target, Send) else target
