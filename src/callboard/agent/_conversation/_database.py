"""Savers and stores of LangGraph's on a connection that is opened when it is first needed. Knows no database."""

import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from json import JSONDecodeError
from typing import Any, Generic, Protocol, TypeVar

from anyio import to_thread
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.store.base import BaseStore, GetOp, ListNamespacesOp, Op, Result, SearchOp

from callboard._langgraph._postgres import clock, keeps_values
from callboard._langgraph._serializers import MEND, StrictSerializer, described
from callboard.exceptions import StorageError

T = TypeVar("T")
R = TypeVar("R")


class Connections(Protocol[T]):
    """A database, and how what LangGraph has for it is opened and closed."""

    def open(self) -> T:
        """A saver or a store on a new connection, with its tables made."""
        ...

    def close(self, opened: T) -> None:
        """Close the connection of a saver or a store that `open` has made."""
        ...

    def is_lost(self, error: Exception) -> bool:
        """Whether the connection is to blame, so that a new one may do better."""
        ...

    def explained(self) -> AbstractContextManager[None]:
        """Raises `StorageError` where the driver says little."""
        ...


class _Lazily(Generic[T]):
    """A saver or store that is opened when it is first needed, and closed at the latest when it is collected."""

    def __init__(self, place: Connections[T]) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._opened: T | None = None
        self._closing: Callable[[], object] = _nothing_to_close

    def call(self, work: Callable[[T], R]) -> R:
        """Do something with the saver or store; blocks.

        Args:
            work: is done again if the connection was lost, so it has to come to the same when it is done twice.
        """
        with self._place.explained():
            opened = self._get()
            try:
                return work(opened)
            except Exception as error:
                if not self._place.is_lost(error):
                    raise
            self._close(opened)
            return work(self._get())

    def _get(self) -> T:
        with self._lock:
            if self._opened is None:
                self._opened = self._place.open()
                self._closing = weakref.finalize(self, self._place.close, self._opened)
            return self._opened

    def close(self) -> None:
        """Close the connection; used again, it is opened again."""
        self._close(self._opened)

    def _close(self, opened: T | None) -> None:
        with self._lock:
            if opened is not self._opened:
                return  # somebody else has noticed, too, and was faster
            closing, self._opened, self._closing = self._closing, None, _nothing_to_close
        closing()


def _nothing_to_close() -> None:
    pass


class LazySaver(BaseCheckpointSaver[str]):
    """A saver of LangGraph's that any number of threads may use at once; it has sync methods only.

    All that it does comes to the same when it is done twice, as LangGraph asks of savers.

    Args:
        place: where it keeps things.
        next_version: of a channel, after the one given.
        types: what may be kept beside the types of LangGraph and of LangChain's messages.
    """

    def __init__(
        self, place: Connections[Any], next_version: Callable[[str | None, None], str], types: Iterable[type] = ()
    ) -> None:
        super().__init__(serde=StrictSerializer(str(place), types))
        self.place = place
        self._next_version = next_version
        self._lazily = _Lazily(place)

    def __repr__(self) -> str:
        return f"LazySaver({self.place})"

    @property
    def where(self) -> str:
        """Names the database in errors and logs, without its password."""
        return str(self.place)

    def close(self) -> None:
        """Close the connection; used again, it is opened again. Blocks."""
        self._lazily.close()

    def _call(self, work: Callable[[BaseCheckpointSaver[str]], R]) -> R:
        return self._lazily.call(lambda saver: work(self._like_this(saver)))

    def _read(self, work: Callable[[BaseCheckpointSaver[str]], R]) -> R:
        """Read something; whatever is wrong with it, the database is to blame."""
        try:
            return self._call(work)
        except StorageError:
            raise
        except Exception as error:
            reason = f"holds what is no conversation: {described(error)}. {MEND}"
            raise StorageError(str(self.place), reason) from error

    def _like_this(self, saver: BaseCheckpointSaver[str]) -> BaseCheckpointSaver[str]:
        """The saver with our serializer: `with_allowlist` makes copies that have another one."""
        if saver.serde is not self.serde:
            saver = copy.copy(saver)
            saver.serde = self.serde
        return saver

    def now(self) -> float | None:
        """Read the clock of the database, in seconds since 1970; `None` for a file, which has none. Blocks."""
        return self._read(lambda saver: clock(saver) if keeps_values(saver) else None)

    def get_next_version(self, current: str | None, channel: None) -> str:
        return self._next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        _ = config["configurable"]["thread_id"]  # without it, not the database is to blame
        return self._read(lambda saver: saver.get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        call = self._call if filter else self._read  # a filter may be wrong, too
        return iter(call(lambda saver: [*saver.list(config, filter=filter, before=before, limit=limit)]))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        return self._call(lambda saver: saver.put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._call(lambda saver: saver.put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._call(lambda saver: saver.delete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._call(lambda saver: saver.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._call(lambda saver: saver.copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        self._call(lambda saver: saver.prune(thread_ids, strategy=strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return self._call(lambda saver: saver.get_delta_channel_history(config=config, channels=channels))


class LazyStore(BaseStore):
    """A store of LangGraph's; its async methods work in threads, on asyncio and on trio.

    Args:
        place: where it keeps things.
    """

    supports_ttl = True

    def __init__(self, place: Connections[Any]) -> None:
        self._place = place
        self._lazily = _Lazily(place)

    def __repr__(self) -> str:
        return f"LazyStore({self._place})"

    def close(self) -> None:
        """Close the connection; used again, it is opened again. Blocks."""
        self._lazily.close()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        several = list(ops)
        try:
            return self._lazily.call(lambda store: store.batch(several))
        except StorageError:
            raise
        except Exception as error:
            if not isinstance(error, JSONDecodeError) and not all(map(_only_reads, several)):
                raise  # what was given may be to blame
            reason = f"holds what no store has written: {described(error)}. {MEND}"
            raise StorageError(str(self._place), reason) from error

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await to_thread.run_sync(self.batch, list(ops))


def _only_reads(op: Op) -> bool:
    """Whether an operation only reads, with nothing of the user's in it that could be wrong."""
    return isinstance(op, (GetOp, ListNamespacesOp)) or (isinstance(op, SearchOp) and not op.filter and not op.query)


async def close(*things: object) -> None:
    """Close what was opened for a URL, off the event loop; other things belong to whoever made them."""
    for thing in things:
        if isinstance(thing, (LazySaver, LazyStore)):
            await to_thread.run_sync(thing.close)
