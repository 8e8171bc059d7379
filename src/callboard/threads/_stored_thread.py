"""Reader of the conversations in a database, and a checkpointer for agents on the same database.

Values of unknown types are shown as data; their types are never imported.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self
from weakref import WeakSet

from anyio import to_thread
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import Interrupt, StateSnapshot

from callboard._langgraph._node_scope import INTERRUPT
from callboard._langgraph._serializers import StrictSerializer
from callboard.agent._flow import AgentState, ReactFlow, drawing
from callboard.conversations._channels import Schema
from callboard.conversations._database import LazySaver, masked, saver_of
from callboard.conversations._langgraph_threads import open_calls
from callboard.conversations._saved_thread import SavedThread
from callboard.conversations._saver import Saver
from callboard.conversations._snapshots import history_of, snapshot_of
from callboard.conversations._storage import Amended, Entry, base_of, entries_of
from callboard.conversations._stored_types import collect_types
from callboard.tools._bounds import find_broken_text
from callboard.tools._unanswered import Exchange, exchanges_in

CallState = Literal["done", "failed", "waits", "open"]
"""State of a call in a stored conversation: `StoredThread.state_of` describes the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredThread:
    """Stored conversation as it was at one moment; made by `Threads.read`.

    `messages` has the oldest message first. `next` has the names of the nodes that run next; it is empty if the last
    turn is complete. `questions` are the open questions to a person, each once.
    """

    thread_id: str
    messages: Sequence[BaseMessage]
    when: str
    """Time at which this state was reached, in ISO format with a time zone; empty if it is unknown."""
    next: Sequence[str]
    questions: Sequence[Interrupt]
    waiting: AbstractSet[str | None]
    """Ids of the calls that have asked a question and wait for its answer."""
    errors: Mapping[str | None, str]
    """Texts of errors: of calls by the id of the call, of other nodes by the name of the node."""
    other_keys: Sequence[str]
    """Names of the state's keys other than `messages`."""

    @property
    def turns(self) -> int:
        """Number of the user's messages in the conversation."""
        return sum(isinstance(message, HumanMessage) for message in self.messages)

    def exchanges(self) -> list[Exchange]:
        """Return the messages of the conversation, each with the results of the calls that it contains.

        A result without a call is an entry of its own.
        """
        return exchanges_in(self.messages)

    def state_of(self, call_id: str | None, result: ToolMessage | None) -> CallState:
        """Return the state of a call: "done", "failed", "waits" (for a person) or "open" (no result yet).

        Args:
            call_id: id of the call.
            result: message with the result of the call; `None` if the conversation has none.
        """
        if result is not None:
            return "failed" if result.status == "error" else "done"
        if call_id in self.waiting:
            return "waits"
        return "failed" if call_id in self.errors else "open"


class _AnyThread(SavedThread):
    """Thread of an unknown agent, used to read the conversation only; other keys of the state are ignored."""

    def apply_entry(self, entry: Entry, *, is_applied: bool = False) -> None:
        if isinstance(entry, Amended):
            known_writes = [(name, value) for name, value in entry.writes if name in self.schema.specs]
            entry = replace(entry, writes=known_writes)
        super().apply_entry(entry, is_applied=is_applied)


def _thread(saver: "BaseCheckpointSaver[Any]", thread_id: str) -> _AnyThread:
    flow = ReactFlow(tools=True, before=False, after=False, response=False, direct=frozenset())
    return _AnyThread(Schema(drawing(flow, AgentState, None), flow), Saver(saver, thread_id, ""), "exit")


def _conversation(
    thread: _AnyThread, snapshot: StateSnapshot, checkpoint_tuple: CheckpointTuple | None
) -> StoredThread:
    values: Any = snapshot.values
    records = {call["id"]: thread.record_of(key) for key, call in open_calls(thread)}
    records |= {name: thread.record_of(name) for name in thread.next}
    questions = [
        *snapshot.interrupts,
        *(_questions_on_checkpoint(checkpoint_tuple) if checkpoint_tuple is not None else ()),
    ]
    channels = checkpoint_tuple.checkpoint["channel_values"] if checkpoint_tuple is not None else {}
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


def _questions_on_checkpoint(checkpoint_tuple: CheckpointTuple) -> list[Interrupt]:
    """Return the questions that LangGraph stored as writes on a checkpoint, including questions that no call asked."""
    if base_of(checkpoint_tuple).is_ours or entries_of(checkpoint_tuple):
        return []  # callboard's questions are in the journal; other writes here are outdated
    return [
        question
        for _, channel, value in checkpoint_tuple.pending_writes or ()
        if channel == INTERRUPT
        for question in (value if isinstance(value, list | tuple) else [value])
    ]


_MESSAGES: Mapping[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}


@dataclass(frozen=True, eq=False)
class Foreign:
    """Replacement for a stored value of a type that is not imported."""

    type: str
    content: Any
    """Fields of the value, as plain data."""


def value_of_unknown_type(qualified_name: tuple[str, ...], content: Any) -> Any:
    """Return a stored value of an unknown type as `Foreign`, without importing its type."""
    # A message of an unknown class becomes a message of LangChain, so that it can be read.
    message_class = _MESSAGES.get(str(content.get("type"))) if isinstance(content, Mapping) else None
    if message_class is not None and "content" in content:
        return message_class(**{key: value for key, value in content.items() if key in message_class.model_fields})
    return Foreign(".".join(qualified_name), content)


_NAMES = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = ''"
"""Query for the ids of all threads; the table of LangGraph's savers is the same in SQLite and PostgreSQL."""


class Threads:
    """Conversations in a database, written by callboard's or LangGraph's agents.

    Reading changes nothing and runs no stored code: a value of a type that is not LangGraph's or LangChain's is shown
    as plain data. The database is opened at first use, and closed at the end of a `with` block.

    Args:
        url: URL of the database, in the form of `create_react_agent(checkpointer=...)`.

    Raises:
        ImportError: if the package that the URL needs is not installed.
        ValueError: for a URL of an unknown form, or of a database that stores nothing.
    """

    def __init__(self, url: str) -> None:
        saver = saver_of(url)
        if not isinstance(saver, LazySaver):
            raise ValueError(f"{masked(url)!r} keeps nothing; name a file, such as 'sqlite:///agent.db'")
        self._database = saver
        self._reader = _Saver(saver, StrictSerializer(saver.where, unknown=value_of_unknown_type))
        self._opened: WeakSet[LazySaver] = WeakSet((self._reader,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Blocks the thread. The next use opens it again."""
        for saver in list(self._opened):
            saver.close()

    async def names(self) -> list[str]:
        """Return the thread ids of all conversations, in no particular order.

        Raises:
            StorageError: if the database cannot be used, or its contents are damaged.
        """
        return [*await to_thread.run_sync(self._reader.thread_ids)]

    async def read(self, name: str, checkpoint_id: str | None = None) -> StoredThread | None:
        """Return a conversation as it is now, or as it was at a checkpoint; `None` if it does not exist.

        Args:
            name: thread id of the conversation.
            checkpoint_id: id of a position in its history; by default the latest.

        Raises:
            StorageError: if the database cannot be used, or its contents are damaged.
            ValueError: if the conversation has no such checkpoint.
        """
        if find_broken_text(name) is not None:
            return None  # no run stores a conversation with such a name
        thread = _thread(self._reader, name)
        checkpoint_tuple = await thread.saver.get(checkpoint_id)
        if checkpoint_tuple is None and await thread.saver.get() is None:
            return None
        await thread.open(checkpoint_id)
        return _conversation(
            thread, snapshot_of(thread, by_call=True, past=checkpoint_id is not None), checkpoint_tuple
        )

    async def history(self, name: str) -> list[StateSnapshot]:
        """Return a snapshot of every state in the history of a conversation, the latest first.

        The list is empty if the conversation does not exist.

        Args:
            name: thread id of the conversation.

        Raises:
            StorageError: if the database cannot be used, or its contents are damaged.
        """
        if find_broken_text(name) is not None:
            return []
        thread = _thread(self._reader, name)
        return [snapshot async for snapshot in history_of(thread, filter=None, before=None, limit=None, by_call=True)]

    def saver_for(self, agent: Any) -> "BaseCheckpointSaver[str]":
        """Return a checkpointer on this database for an agent, to be used on any event loop.

        It also reads and writes values of the types that the schemas of the agent and of its subgraphs name.

        Args:
            agent: agent of callboard, or compiled graph of LangGraph.
        """
        graphs = [agent, *(graph for _, graph in agent.get_subgraphs(recurse=True))]
        builders = [graph.builder for graph in graphs if hasattr(graph, "builder")]
        schemas = [schema for builder in builders for schema in (*builder.schemas, builder.context_schema)]
        types = {*getattr(agent, "stored_types", ()), *collect_types(*schemas)}
        saver = _Saver(self._database, StrictSerializer(self._database.where, types))
        self._opened.add(saver)
        return saver


class _Saver(LazySaver):
    """LangGraph saver with async methods that run in worker threads; graphs can await them on any event loop."""

    def __init__(self, database_saver: LazySaver, serializer: StrictSerializer) -> None:
        super().__init__(database_saver.database, database_saver.get_next_version)
        self.serde = serializer

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await to_thread.run_sync(self.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for checkpoint_tuple in await to_thread.run_sync(lambda: [*self.list(config, **options)]):
            yield checkpoint_tuple

    async def aput(self, *args: Any, **options: Any) -> RunnableConfig:
        return await to_thread.run_sync(partial(self.put, *args, **options))

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        await to_thread.run_sync(partial(self.put_writes, *args, **options))

    def thread_ids(self) -> "Sequence[str]":
        """Return the thread ids of all conversations. Blocks the thread."""

        def read(saver: Any) -> list[str]:
            # `saver.list(None)` would read every checkpoint of every conversation.
            cursor = saver.cursor(transaction=False) if hasattr(saver, "cursor") else saver._cursor()
            with cursor as rows:
                rows.execute(_NAMES)
                fetched_rows: list[Any] = rows.fetchall()
            return [str(row["thread_id"] if isinstance(row, Mapping) else row[0]) for row in fetched_rows]

        return self._call(read)
