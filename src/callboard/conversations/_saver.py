"""Access to one thread of conversation in a LangGraph checkpointer, awaited on asyncio and on trio."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from anyio import to_thread
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.memory import InMemorySaver

from callboard._langgraph._savers import (
    AwaitedSaver,
    Value,
    aclock,
    acreate_tables,
    aforget,
    clock,
    create_tables,
    forget,
    is_known,
    keeps_values,
    keys_of_removed_values,
    with_serde,
)
from callboard._langgraph._serializers import OutlineSerializer, can_be_outlined
from callboard.conversations._database import LazySaver
from callboard.conversations._storage import Base, check_checkpoint, reading_stored_data
from callboard.conversations._unstorable import describe_unstorable

_LOCATION_KEYS = frozenset(("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"))
"""Keys of a config that name a thread and a checkpoint in it."""

Change = tuple[str, tuple[Any, ...]]
"""Name of a checkpointer's method that stores something, and its arguments."""


class Saver:
    """Access to one thread of conversation in a LangGraph checkpointer.

    Metadata in `run_config`, the config of the run, are stored with each checkpoint.
    """

    def __init__(
        self,
        saver: "BaseCheckpointSaver[Any]",
        thread_id: str,
        namespace: str,
        run_config: RunnableConfig | None = None,
    ) -> None:
        self._saver = saver
        self._awaited = AwaitedSaver(saver)
        self.thread_id = thread_id
        self.namespace = namespace
        self._run_config = {} if run_config is None else run_config
        checkpoints: Mapping[str, str] = self._run_config.get("configurable", {}).get("checkpoint_map", {})
        self.parents = {name: checkpoint_id for name, checkpoint_id in checkpoints.items() if name != namespace}
        """Ids of the checkpoints at which the outer graphs stand, by namespace; empty without outer graphs."""

    @property
    def is_waited_for(self) -> bool:
        """`True` unless the checkpointer stores in memory, where a write takes no time."""
        return type(self._saver) is not InMemorySaver

    def config(self, checkpoint_id: str | None = None) -> RunnableConfig:
        """Return a config that names the checkpoint `checkpoint_id`; by default, the latest one of the thread."""
        location = {"thread_id": self.thread_id, "checkpoint_ns": self.namespace}
        return {"configurable": location if checkpoint_id is None else {**location, "checkpoint_id": checkpoint_id}}

    def next_version(self, current: Any) -> Any:
        return self._saver.get_next_version(current, None)

    async def get(self, checkpoint_id: str | None = None) -> CheckpointTuple | None:
        """Return a checkpoint with its pending writes, or `None` if it does not exist; by default the latest."""
        return await self._get(self._awaited.call, self.config(checkpoint_id))

    async def outline(self) -> CheckpointTuple | None:
        """Return the latest checkpoint with `None` in place of each object; return `None` if there is no checkpoint."""
        # Most of the time of a read is spent on making messages, which the caller does not need. Like a change, this
        # read goes on within the grace if the caller is cancelled: a run must learn at its end whether it still holds
        # its thread.
        return await self._get(self._awaited.store, self.config(), is_outline=True)

    async def _get(
        self, call: Callable[..., Awaitable[Any]], config: RunnableConfig, *, is_outline: bool = False
    ) -> CheckpointTuple | None:
        def reader_of(saver: Any) -> Any:
            # A saver that cannot be copied, or read in part, reads the whole checkpoint.
            has_outlines = is_outline and is_known(saver) and can_be_outlined(saver.serde)
            return with_serde(saver, OutlineSerializer()) if has_outlines else saver

        def get(saver: Any) -> Any:
            create_tables(saver)
            return reader_of(saver).get_tuple(config)

        async def aget(saver: Any) -> Any:
            await acreate_tables(saver)
            return await reader_of(saver).aget_tuple(config)

        checkpoint_tuple: CheckpointTuple | None = await call("get_tuple", get, aget)
        return None if checkpoint_tuple is None else self._validate(checkpoint_tuple, is_outline=is_outline)

    async def before(self, checkpoint_id: str | None, limit: int | None) -> list[CheckpointTuple]:
        """Return at most `limit` checkpoints of the thread that are older than `checkpoint_id`, the latest first."""
        bound = None if checkpoint_id is None else self.config(checkpoint_id)
        config = self.config()

        def get(saver: Any) -> list[CheckpointTuple]:
            return list(saver.list(config, before=bound, limit=limit))

        async def aget(saver: Any) -> list[CheckpointTuple]:
            return [checkpoint_tuple async for checkpoint_tuple in saver.alist(config, before=bound, limit=limit)]

        return [self._validate(checkpoint_tuple) for checkpoint_tuple in await self._awaited.call("list", get, aget)]

    async def delta_histories(self, checkpoint_id: str, names: Sequence[str]) -> Mapping[str, DeltaChannelHistory]:
        """Return LangGraph's writes that lead to the values of channels at a checkpoint, by name of the channel."""
        arguments = {"config": self.config(checkpoint_id), "channels": names}
        return await self._awaited.call(
            "get_delta_channel_history",
            lambda saver: saver.get_delta_channel_history(**arguments),
            lambda saver: saver.aget_delta_channel_history(**arguments),
        )

    def describe(self, checkpoint_tuple: CheckpointTuple) -> str:
        return self.describe_position(cast("Any", checkpoint_tuple.config).get("configurable", {}).get("checkpoint_id"))

    @property
    def where(self) -> str:
        """Description of the checkpointer for errors, without a password."""
        saver = self._saver
        return saver.where if isinstance(saver, LazySaver) else f"The checkpointer, of type {type(saver).__name__},"

    def describe_position(self, checkpoint_id: str) -> str:
        return f"{self.where} has thread {self.thread_id!r}, whose checkpoint {checkpoint_id!r}"

    def _validate(self, checkpoint_tuple: CheckpointTuple, *, is_outline: bool = False) -> CheckpointTuple:
        with reading_stored_data(self.describe(checkpoint_tuple)):
            check_checkpoint(checkpoint_tuple, is_outline=is_outline)
            # Fails now for a version that the saver cannot continue, and not when the run has results to store.
            self.next_version(max(checkpoint_tuple.checkpoint["channel_versions"].values(), default=None))
        return checkpoint_tuple

    def checkpoint(self, base: Base, versions: Mapping[str, Any]) -> Change:
        """Return the `Change` (a checkpointer method and its arguments) that stores a checkpoint."""
        parent_config = self.config(base.parent_id)
        # Without the location keys of the run's config: savers store a `checkpoint_id` as the id of the parent.
        options = {
            name: value
            for name, value in self._run_config.get("configurable", {}).items()
            if name not in _LOCATION_KEYS
        }
        put_config = {
            **parent_config,
            "configurable": {**options, **parent_config["configurable"]},
            "metadata": self._run_config.get("metadata"),
        }
        # A stored checkpoint with the same id is overwritten.
        return "put", (put_config, base.checkpoint, base.metadata, dict(versions))

    def writes(self, checkpoint_id: str, writes: Sequence[tuple[str, Any]], task_id: str, path: str) -> Change:
        """Return the `Change` that stores a task's pending writes at a checkpoint, if the task has none there yet."""
        return "put_writes", (self.config(checkpoint_id), list(writes), task_id, path)

    async def store(self, *changes: Change) -> None:
        """Write changes to the database in the given order, in one transaction if the database can do that."""
        # Unlike reads, changes go on within the grace if the caller is cancelled.
        # Of a user's class, each method may have its own preferred version, sync or async.
        groups = [changes] if changes and is_known(self._saver) else [(change,) for change in changes]
        for group in groups:
            await self._awaited.store(group[0][0], partial(self._store_sync, group), partial(self._store_async, group))

    def _store_sync(self, changes: Sequence[Change], saver: Any) -> None:
        create_tables(saver)

        def make() -> None:
            for name, args in changes:
                getattr(saver, name)(*args)
                if removed_values := self._find_removed_values(name, args):
                    forget(saver, removed_values)

        saver.write_in_transaction(make) if isinstance(saver, LazySaver) else make()

    async def _store_async(self, changes: Sequence[Change], saver: Any) -> None:
        await acreate_tables(saver)
        for name, args in changes:
            await getattr(saver, f"a{name}")(*args)
            if removed_values := self._find_removed_values(name, args):
                await aforget(saver, removed_values)

    def _find_removed_values(self, name: str, args: tuple[Any, ...]) -> Sequence[Value]:
        if name != "put" or not keeps_values(self._saver):
            return ()
        # Deleted after the checkpoint: if the process dies in between, the database only keeps values without use.
        return keys_of_removed_values(self.thread_id, self.namespace, args[1], args[3])

    async def now(self) -> float | None:
        """Return the time of the database server in seconds since 1970, or `None` if the checkpointer has no clock."""
        saver = self._saver
        if isinstance(saver, LazySaver):
            return await to_thread.run_sync(saver.now)
        return await self._awaited.call("get_tuple", clock, aclock) if keeps_values(saver) else None

    @property
    def identity(self) -> Hashable:
        """Key that identifies this thread of this checkpointer, valid while the checkpointer exists."""
        return id(self._saver), self.thread_id, self.namespace

    def serialize(self, value: object) -> tuple[str, bytes]:
        """Serialize a value; return its kind and its bytes. Raises the serializer's error if it refuses the value."""
        kind, data = self._saver.serde.dumps_typed(value)
        return kind, bytes(data)

    def deserialize(self, kind: str, data: bytes) -> object:
        return self._saver.serde.loads_typed((kind, data))

    def can_store(self, value: object) -> bool:
        try:
            self._saver.serde.dumps_typed(value)
        except Exception:  # of any type; the caller reports the write's error instead
            return False
        return True

    def unstorable(self, output: object) -> str | None:
        """Return a text about the part of an output that cannot be stored; `None` if it can be stored as it is."""
        if type(output) is ToolMessage or type(output) is HumanMessage:
            has_more = output.additional_kwargs or output.response_metadata or output.model_extra
            has_artifact = type(output) is ToolMessage and output.artifact is not None
            if isinstance(output.content, str) and not has_more and not has_artifact:
                return None  # nearly all results, and words of a person; a text is stored in any case
        return None if self.can_store(output) else describe_unstorable(output, self.can_store)
