"""Keys of a state that are never stored: those of LangGraph's `UntrackedValue`, such as a connection."""

from collections.abc import Collection, Iterable
from dataclasses import is_dataclass, replace
from typing import Any

from langgraph.types import Command, Send
from pydantic import BaseModel

from callboard.agent._conversation._channels import Schema, Write
from callboard.agent._conversation._journal_entries import Amended, Entry, Finished, Move


def tracked_writes(writes: Iterable[Write], untracked: Collection[str]) -> list[Write]:
    """Writes without those to keys that are never stored."""
    return [(name, value) for name, value in writes if name not in untracked]


def tracked_entry(entry: Entry, schema: Schema) -> Entry:
    """An entry without the keys that are never stored."""
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
    """A node's output without the keys that are never stored, also in what it sends to other nodes."""
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
    """Where a command goes to, without the keys that are never stored in what it sends."""
    return Send(target.node, _tracked(target.arg, schema)) if isinstance(target, Send) else target
