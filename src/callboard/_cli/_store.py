"""The database that `--db` names."""

from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from anyio import to_thread
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple

from callboard._cli._shown_text import CommandError, printable
from callboard._langgraph._serializers import StrictSerializer
from callboard.agent._conversation._connect import masked, saver_of
from callboard.agent._conversation._database import LazySaver
from callboard.agent._conversation._stored_types import named_types
from callboard.exceptions import StorageError
from callboard.threads._unknown_types import foreign

_THREADS = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = ''"
"""The table of LangGraph's savers, the same in SQLite and PostgreSQL."""


class ThreadedSaver(LazySaver):
    """A database for LangGraph's graphs too, which await it on their loop."""

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await to_thread.run_sync(self.get_tuple, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        def listed() -> list[CheckpointTuple]:
            return list(self.list(config, filter=filter, before=before, limit=limit))

        for found in await to_thread.run_sync(listed):
            yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return await to_thread.run_sync(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await to_thread.run_sync(self.put_writes, config, writes, task_id, task_path)

    def allow(self, types: Iterable[type]) -> None:
        """Read and write values of these types too, instead of showing what they consist of."""
        self.serde = StrictSerializer(str(self._place), types)

    def thread_ids(self) -> list[str]:
        """The names of all conversations. Blocks.

        Raises:
            StorageError: if the database cannot be used.
        """
        return self._call(_thread_ids)


def _thread_ids(saver: Any) -> list[str]:
    # Not `saver.list(None)`, which would read every checkpoint of every conversation.
    cursor = saver.cursor(transaction=False) if hasattr(saver, "cursor") else saver._cursor()
    with cursor as rows:
        rows.execute(_THREADS)
        found: list[Any] = rows.fetchall()
    return [str(row["thread_id"] if isinstance(row, Mapping) else row[0]) for row in found]


def stored_types_of(agent: Any) -> set[type]:
    """The types that the conversations of an agent may contain, or of a graph of LangGraph's and those in it."""
    graphs = [agent, *(graph for _, graph in agent.get_subgraphs(recurse=True))]
    builders = [graph.builder for graph in graphs if hasattr(graph, "builder")]
    schemas = [schema for builder in builders for schema in (*builder.schemas, builder.context_schema)]
    return {*getattr(agent, "stored_types", ()), *named_types(*schemas)}


@contextmanager
def open_database(where: str, *, must_exist: bool) -> Generator[ThreadedSaver]:
    """A database for the length of the block.

    Args:
        where: a path, or a URL.
        must_exist: whether a file that is not there is an error, and not to be made.

    Raises:
        CommandError: if there is no such database, or it cannot be used, also within the block.
    """
    try:
        saver = _saver(where)
        if must_exist:
            _check_exists(where)
        try:
            yield saver
        finally:
            saver.close()
    except StorageError as error:
        raise CommandError(" ".join(printable(str(error)).split())) from error


def _saver(where: str) -> ThreadedSaver:
    try:
        found = saver_of(where if "://" in where else f"sqlite:///{where}")
    except (ImportError, ValueError) as error:
        raise CommandError(f"--db {masked(where)}: {error}") from error
    if not isinstance(found, LazySaver):
        raise CommandError(f"--db {masked(where)} keeps nothing; leave --db out, or name a file")
    lazy = cast("Any", found)
    opened = ThreadedSaver(lazy._place, lazy._next_version)
    opened.serde = StrictSerializer(str(lazy._place), unknown=foreign)  # to look at it is to run nothing
    return opened


def _check_exists(where: str) -> None:
    scheme, separator, path = where.partition(":///")
    is_file = separator and scheme.lower() == "sqlite"
    if ("://" in where and not is_file) or Path(path if is_file else where).exists():
        return
    file = masked(path if is_file else where)
    raise CommandError(f"there is no database {file!r}; callboard run ... --db {file} makes one")
