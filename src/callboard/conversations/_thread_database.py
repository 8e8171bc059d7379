"""Database of conversations: reads them, and provides a checkpointer for agents.

Values of unknown types are shown as data; their types are never imported.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self
from weakref import WeakSet

from anyio import to_thread
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.types import StateSnapshot

from callboard._langgraph._serializers import StrictSerializer
from callboard.conversations._connect import masked, saver_of
from callboard.conversations._database import LazySaver
from callboard.conversations._stored_thread import StoredThread, read_history, read_thread
from callboard.conversations._stored_types import named_types

_MESSAGES: Mapping[str, type[BaseMessage]] = {
    "human": HumanMessage,
    "ai": AIMessage,
    "system": SystemMessage,
    "tool": ToolMessage,
}


@dataclass(frozen=True, eq=False)
class Foreign:
    """Value of a type that is not imported."""

    type: str
    content: Any
    """Plain values of which it consists."""


def foreign(name: tuple[str, ...], content: Any) -> Any:
    """Return a value of an unknown type as data; return a message as one of LangChain's, so that it can be read."""
    base = _MESSAGES.get(str(content.get("type"))) if isinstance(content, Mapping) else None
    if base is not None and "content" in content:
        return base(**{key: value for key, value in content.items() if key in base.model_fields})
    return Foreign(".".join(name), content)


_NAMES = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = ''"
"""Query on the table of LangGraph's savers, which is the same in SQLite and PostgreSQL."""


class Threads:
    """Conversations in a database, written by callboard's or LangGraph's agents.

    Reading changes nothing and runs no stored code: a value of a type that is not LangGraph's or LangChain's is shown
    as plain data. The database is opened at first use, and closed at the end of a `with` block.

    Args:
        url: of the database, in the form of `create_react_agent(checkpointer=...)`.

    Raises:
        ImportError: if the package that the URL needs is not installed.
        ValueError: for a URL of an unknown form, or of a database that stores nothing.
    """

    def __init__(self, url: str) -> None:
        found = saver_of(url)
        if not isinstance(found, LazySaver):
            raise ValueError(f"{masked(url)!r} keeps nothing; name a file, such as 'sqlite:///agent.db'")
        self._database = found
        self._reader = _Saver(found, StrictSerializer(found.where, unknown=foreign))
        self._opened: WeakSet[LazySaver] = WeakSet((self._reader,))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database. Blocks. The next use opens it again."""
        for saver in list(self._opened):
            saver.close()

    async def names(self) -> list[str]:
        """Return the names of all conversations, in no particular order.

        Raises:
            StorageError: if the database cannot be used.
        """
        return [*await to_thread.run_sync(self._reader.thread_ids)]

    async def read(self, name: str, checkpoint_id: str | None = None) -> StoredThread | None:
        """Return a conversation as it is now, or as it was at a checkpoint; `None` if it does not exist.

        Args:
            name: name of the conversation: its thread id.
            checkpoint_id: id of the checkpoint; `None` for the latest state.

        Raises:
            StorageError: if the database cannot be used, or its contents are damaged.
            ValueError: if the conversation has no such checkpoint.
        """
        return await read_thread(self._reader, name, checkpoint_id)

    async def history(self, name: str) -> list[StateSnapshot]:
        """Return all states in the history of a conversation, the latest first; an empty list if it does not exist.

        Args:
            name: name of the conversation: its thread id.

        Raises:
            StorageError: if the database cannot be used, or its contents are damaged.
        """
        return await read_history(self._reader, name)

    def saver_for(self, agent: Any) -> "BaseCheckpointSaver[str]":
        """Return a checkpointer on this database for an agent or a LangGraph graph, on any event loop.

        It also reads and writes values of the types that the agent's schemas name.

        Args:
            agent: an agent of callboard's, or a compiled graph of LangGraph's.
        """
        saver = _Saver(self._database, StrictSerializer(self._database.where, _stored_types_of(agent)))
        self._opened.add(saver)
        return saver


class _Saver(LazySaver):
    """Saver that LangGraph's graphs can await on their own loop, too."""

    def __init__(self, like: LazySaver, serializer: StrictSerializer) -> None:
        super().__init__(like.place, like.get_next_version)
        self.serde = serializer

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await to_thread.run_sync(self.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await to_thread.run_sync(lambda: [*self.list(config, **options)]):
            yield found

    async def aput(self, *args: Any, **options: Any) -> RunnableConfig:
        return await to_thread.run_sync(partial(self.put, *args, **options))

    async def aput_writes(self, *args: Any, **options: Any) -> None:
        await to_thread.run_sync(partial(self.put_writes, *args, **options))

    def thread_ids(self) -> "Sequence[str]":
        """Return the names of all conversations. Blocks."""
        return self._call(_thread_ids)


def _thread_ids(saver: Any) -> list[str]:
    # `saver.list(None)` would read every checkpoint of every conversation.
    cursor = saver.cursor(transaction=False) if hasattr(saver, "cursor") else saver._cursor()
    with cursor as rows:
        rows.execute(_NAMES)
        found: list[Any] = rows.fetchall()
    return [str(row["thread_id"] if isinstance(row, Mapping) else row[0]) for row in found]


def _stored_types_of(agent: Any) -> set[type]:
    """Return the types that conversations of an agent and its subgraphs may contain."""
    graphs = [agent, *(graph for _, graph in agent.get_subgraphs(recurse=True))]
    builders = [graph.builder for graph in graphs if hasattr(graph, "builder")]
    schemas = [schema for builder in builders for schema in (*builder.schemas, builder.context_schema)]
    return {*getattr(agent, "stored_types", ()), *named_types(*schemas)}
