"""Reader of stored threads, written by callboard's or LangGraph's agents. Changes nothing."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Literal

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Interrupt, StateSnapshot

from callboard._langgraph._node_scope import INTERRUPT
from callboard.conversations._channels import Schema
from callboard.conversations._checkpoint import base_of, entries_of
from callboard.conversations._drawing import drawing
from callboard.conversations._flow import Flow
from callboard.conversations._journal import SavedThread
from callboard.conversations._journal_entries import Amended, Entry
from callboard.conversations._langgraph_threads import open_calls
from callboard.conversations._saver import Saver
from callboard.conversations._snapshots import history_of, snapshot_of
from callboard.conversations._state import AgentState
from callboard.tools._unanswered import Exchange, exchanges_in

CallState = Literal["done", "failed", "waits", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredThread:
    """Conversation at one moment."""

    thread_id: str
    messages: Sequence[BaseMessage]
    when: str
    """Time at which this state was reached, in ISO format with a time zone."""
    next: Sequence[str]
    questions: Sequence[Interrupt]
    waiting: AbstractSet[str | None]
    """Ids of the calls that have asked a question."""
    errors: Mapping[str | None, str]
    """Error texts: of calls by their id, of other nodes by their name."""
    other_keys: Sequence[str]
    """Keys of the state other than the messages."""

    @property
    def turns(self) -> int:
        """Number of messages written by the user."""
        return sum(isinstance(message, HumanMessage) for message in self.messages)

    def exchanges(self) -> list[Exchange]:
        """Return the messages, each with the results of its calls; a result without a call is an entry of its own."""
        return exchanges_in(self.messages)

    def state_of(self, call_id: str | None, result: ToolMessage | None) -> CallState:
        """Return the state of a call.

        Args:
            call_id: id of the call.
            result: its result; `None` for none.
        """
        if result is not None:
            return "failed" if result.status == "error" else "done"
        if call_id in self.waiting:
            return "waits"
        return "failed" if call_id in self.errors else "open"


class _AnyThread(SavedThread):
    """Saved thread that reads the conversation's channels only."""

    def take(self, entry: Entry, *, live: bool = False) -> None:
        if isinstance(entry, Amended):
            known = [(name, value) for name, value in entry.writes if name in self.schema.specs]
            entry = replace(entry, writes=known)
        super().take(entry, live=live)


async def read_thread(
    saver: "BaseCheckpointSaver[Any]", thread_id: str, checkpoint_id: str | None = None
) -> StoredThread | None:
    """Return a thread as it is now, or as it was at a checkpoint; `None` if it does not exist.

    Raises:
        ValueError: if the thread has no such checkpoint.
    """
    thread = _thread(saver, thread_id)
    found = await thread.saver.get(checkpoint_id)
    if found is None and await thread.saver.get() is None:
        return None
    await thread.open(checkpoint_id)
    snapshot = snapshot_of(thread, by_call=True, past=checkpoint_id is not None)
    return _conversation(thread, snapshot, found)


async def read_history(saver: "BaseCheckpointSaver[Any]", thread_id: str) -> list[StateSnapshot]:
    """Return all states in the history of a thread, the latest first."""
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
    """Return questions that LangGraph stored as writes of a checkpoint, including questions without a call."""
    if base_of(found).is_ours or entries_of(found):
        return []  # callboard's questions are in the journal; other writes here are outdated
    return [
        question
        for _, channel, value in found.pending_writes or ()
        if channel == INTERRUPT
        for question in (value if isinstance(value, list | tuple) else [value])
    ]
