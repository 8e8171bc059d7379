"""Reads the threads of a database, whichever agent has written them: ours or one of LangGraph's. Changes nothing."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Interrupt, StateSnapshot

from callboard._langgraph._node_scope import INTERRUPT
from callboard.agent._conversation._channels import Schema
from callboard.agent._conversation._checkpoint import base_of, entries_of
from callboard.agent._conversation._journal import SavedThread
from callboard.agent._conversation._journal_entries import Amended, Entry
from callboard.agent._conversation._langgraph_threads import open_calls
from callboard.agent._conversation._saver import Saver
from callboard.agent._conversation._snapshots import history_of, snapshot_of
from callboard.agent._drawing import drawing
from callboard.agent._flow import Flow
from callboard.agent._state import AgentState
from callboard.tools._unanswered import Exchange, exchanges_in

CallState = Literal["done", "failed", "waits", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredThread:
    """A conversation at one moment."""

    thread_id: str
    messages: Sequence[BaseMessage]
    when: str
    """When it came to stand there, in ISO format with a time zone."""
    next: Sequence[str]
    questions: Sequence[Interrupt]
    waiting: AbstractSet[str | None]
    """The ids of calls that have asked."""
    errors: Mapping[str | None, str]
    """Of calls that raised, by id; of other nodes, by name."""
    other_keys: Sequence[str]
    """What the state has beside the messages."""

    @property
    def turns(self) -> int:
        """How many messages the user has written."""
        return sum(isinstance(message, HumanMessage) for message in self.messages)

    def exchanges(self) -> list[Exchange]:
        """The messages, each with the results of its calls; a result that belongs to none is a message by itself."""
        return exchanges_in(self.messages)

    def state_of(self, call_id: str | None, result: ToolMessage | None) -> CallState:
        """What has become of a call."""
        if result is not None:
            return "failed" if result.status == "error" else "done"
        if call_id in self.waiting:
            return "waits"
        return "failed" if call_id in self.errors else "open"


class _AnyThread(SavedThread):
    """A thread of which only the conversation is known, whatever else its state has."""

    def take(self, entry: Entry, *, live: bool = False) -> None:
        if isinstance(entry, Amended):
            known = [(name, value) for name, value in entry.writes if name in self.schema.specs]
            entry = replace(entry, writes=known)
        super().take(entry, live=live)


async def read_thread(
    saver: "BaseCheckpointSaver[Any]", thread_id: str, checkpoint_id: str | None = None
) -> StoredThread | None:
    """A thread as it stands, or stood at a checkpoint; `None` if there is none.

    Raises:
        ValueError: if it has no such checkpoint.
    """
    thread = _thread(saver, thread_id)
    found = await thread.saver.get(checkpoint_id)
    if found is None and await thread.saver.get() is None:
        return None
    await thread.open(checkpoint_id)
    snapshot = snapshot_of(thread, by_call=True, past=checkpoint_id is not None)
    return _conversation(thread, snapshot, found)


async def read_history(saver: "BaseCheckpointSaver[Any]", thread_id: str) -> list[StateSnapshot]:
    """Every place where a thread has been, the latest first."""
    thread = _thread(saver, thread_id)
    return [place async for place in history_of(thread, filter=None, before=None, limit=None, by_call=True)]


def _thread(saver: "BaseCheckpointSaver[Any]", thread_id: str) -> _AnyThread:
    flow = Flow(tools=True, before=False, after=False, response=False, direct=frozenset())
    return _AnyThread(Schema(drawing(flow, AgentState, None, {}), flow), Saver(saver, thread_id, ""), "exit")


def _conversation(thread: _AnyThread, snapshot: StateSnapshot, found: CheckpointTuple | None) -> StoredThread:
    values: Any = snapshot.values
    records = {call["id"]: thread.known_of(key) for key, call in open_calls(thread)}
    records |= {name: thread.known_of(name) for name in thread.next}
    questions = [*snapshot.interrupts, *(_questions_beside(found) if found is not None else ())]
    channels = found.checkpoint["channel_values"] if found is not None else {}
    return StoredThread(
        thread_id=thread.saver.thread_id,
        messages=values.get("messages") or [],
        when=snapshot.created_at or "",
        next=list(dict.fromkeys(snapshot.next)),
        questions=list({question.id: question for question in questions}.values()),
        waiting={name for name, record in records.items() if record.pending},
        errors={name: record.error for name, record in records.items() if record.error is not None},
        other_keys=sorted(name for name in channels if name != "messages" and not name.startswith(("branch:", "__"))),
    )


def _questions_beside(found: CheckpointTuple) -> list[Interrupt]:
    """Questions that LangGraph has left beside a checkpoint, also those of no call in particular."""
    if base_of(found).is_ours or entries_of(found):
        return []  # ours are in the journal, and what else stands there is past
    return [
        question
        for _, channel, value in found.pending_writes or ()
        if channel == INTERRUPT
        for question in (value if isinstance(value, list | tuple) else [value])
    ]
