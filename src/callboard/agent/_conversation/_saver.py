"""A LangGraph checkpointer, awaited on asyncio and on trio."""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple

from callboard._langgraph._conversations import StoredConversations
from callboard._langgraph._postgres import aclock, aforget, clock, forget, gone_values, keeps_values
from callboard._langgraph._remembered import MessageMemory
from callboard._langgraph._savers import AwaitedSaver
from callboard._langgraph._serializers import OutlineSerializer, can_be_outlined, remembering
from callboard.agent._conversation._database import LazySaver
from callboard.agent._conversation._sound import check_checkpoint, sound

_PLACE = frozenset(("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"))
"""What says where a checkpoint is."""

Place = tuple[str, str]
"""A thread, and a graph within it."""


class Saver:
    """One thread's part of a checkpointer.

    Args:
        saver: any.
        thread_id: of the conversation.
        namespace: of the graph within it.
        about: the config of the run; its metadata are kept with checkpoints, as LangGraph keeps them.
    """

    def __init__(
        self, saver: "BaseCheckpointSaver[Any]", thread_id: str, namespace: str, about: RunnableConfig | None = None
    ) -> None:
        self._saver = saver
        self._awaited = AwaitedSaver(saver)
        self.thread_id = thread_id
        self.namespace = namespace
        self._about = {} if about is None else about

    @property
    def _place(self) -> Place:
        return self.thread_id, self.namespace

    def config(self, checkpoint_id: str | None = None) -> RunnableConfig:
        """Leads to a checkpoint of the thread; without an id, to its latest."""
        where = {"thread_id": self.thread_id, "checkpoint_ns": self.namespace}
        return {"configurable": where if checkpoint_id is None else {**where, "checkpoint_id": checkpoint_id}}

    def next_version(self, current: Any) -> Any:
        return self._saver.get_next_version(current, None)

    async def get(self, checkpoint_id: str | None = None) -> CheckpointTuple | None:
        """A checkpoint with what was written on it; the latest by default.

        Raises:
            StorageError: if it can be none.
        """
        args = self.config(checkpoint_id), self._place
        return self._checked(await self._awaited.call("get_tuple", partial(_get, *args), partial(_aget, *args)))

    async def outline(self) -> CheckpointTuple | None:
        """The latest checkpoint, where every object may be `None`: what is plain is there.

        To make the messages of a long thread takes most of the time that it takes to read it.
        """
        config, place = self.config(), self._place
        found = await self._awaited.call(
            "get_tuple",
            lambda saver: _outlined(saver, place).get_tuple(config),
            lambda saver: _outlined(saver, place).aget_tuple(config),
        )
        return self._checked(found, outlined=True)

    async def before(self, checkpoint_id: str | None, limit: int | None) -> list[CheckpointTuple]:
        """List the thread's checkpoints, the latest first.

        Args:
            checkpoint_id: only older ones than this.
            limit: how many at most.
        """
        bound = None if checkpoint_id is None else self.config(checkpoint_id)
        config = self.config()
        listed = await self._awaited.call(
            "list", partial(_list, config, bound, limit), partial(_alist, config, bound, limit)
        )
        return [found for found in map(self._checked, listed) if found is not None]

    def told(self, found: CheckpointTuple) -> str:
        """A checkpoint in words, for errors."""
        return self.told_at(_id_of(found))

    def told_at(self, checkpoint_id: str) -> str:
        """A place for a checkpoint in words, for errors."""
        saver = self._saver
        keeper = saver.where if isinstance(saver, LazySaver) else f"The checkpointer, of type {type(saver).__name__},"
        return f"{keeper} has thread {self.thread_id!r}, whose checkpoint {checkpoint_id!r}"

    def _checked(self, found: CheckpointTuple | None, *, outlined: bool = False) -> CheckpointTuple | None:
        if found is not None:
            with sound(self.told(found)):
                check_checkpoint(found, outlined=outlined)
                self.next_version(max(found.checkpoint["channel_versions"].values(), default=None))
        return found

    async def put(
        self, checkpoint: Checkpoint, metadata: CheckpointMetadata, parent: str | None, versions: Mapping[str, Any]
    ) -> None:
        """Store a checkpoint, or replace the one that has its id."""
        where = self.config(parent)
        given = {name: value for name, value in self._about.get("configurable", {}).items() if name not in _PLACE}
        about = {**where, "configurable": {**given, **where["configurable"]}, "metadata": self._about.get("metadata")}
        args = (about, checkpoint, metadata, dict(versions))
        await self._write("put", args, partial(_remembering, place=self._place))
        gone = gone_values(self.thread_id, self.namespace, checkpoint, dict(versions))
        if gone and keeps_values(self._saver):
            await self._awaited.store("put", lambda saver: forget(saver, gone), lambda saver: aforget(saver, gone))

    async def write(self, checkpoint_id: str, writes: Sequence[tuple[str, Any]], task_id: str, path: str) -> None:
        """Store what belongs to a checkpoint; what was stored under the same task stays."""
        await self._write("put_writes", (self.config(checkpoint_id), list(writes), task_id, path))

    async def now(self) -> float | None:
        """Read the clock of the database, in seconds since 1970; `None` where all runs have to trust their own."""
        saver = self._saver
        if isinstance(saver, LazySaver):
            return await self._awaited.call("get_tuple", LazySaver.now, _no_clock)
        return await self._awaited.call("get_tuple", clock, aclock) if keeps_values(saver) else None

    @property
    def identity(self) -> Hashable:
        """Which thread of which checkpointer, as long as that is there."""
        return id(self._saver), *self._place

    def packed(self, value: object) -> tuple[str, bytes]:
        """A value as the checkpointer's serializer stores it: its kind, and bytes.

        Raises:
            Exception: if it does not take the value.
        """
        kind, data = self._saver.serde.dumps_typed(value)
        return kind, bytes(data)

    def unpacked(self, kind: str, data: bytes) -> object:
        """A value that was `packed`."""
        return self._saver.serde.loads_typed((kind, data))

    def can_store(self, value: object) -> bool:
        """Whether the checkpointer's serializer takes a value."""
        try:
            self._saver.serde.dumps_typed(value)
        except Exception:  # serializers raise what they like; that of the write is the one that is told
            return False
        return True

    async def _write(self, name: str, args: tuple[Any, ...], seen: Callable[[Any], Any] = lambda saver: saver) -> None:
        async def acall(saver: Any) -> None:
            await getattr(seen(saver), f"a{name}")(*args)

        await self._awaited.store(name, lambda saver: getattr(seen(saver), name)(*args), acall)


async def _no_clock(saver: Any) -> float | None:
    raise NotImplementedError


def _id_of(found: CheckpointTuple) -> Any:
    return found.config.get("configurable", {}).get("checkpoint_id")


def _get(config: RunnableConfig, place: Place, saver: Any) -> CheckpointTuple | None:
    found: CheckpointTuple | None = _remembering(saver, place).get_tuple(config)
    return found


async def _aget(config: RunnableConfig, place: Place, saver: Any) -> CheckpointTuple | None:
    found: CheckpointTuple | None = await _remembering(saver, place).aget_tuple(config)
    return found


_KEPT: WeakKeyDictionary[Any, StoredConversations] = WeakKeyDictionary()
"""By saver: what agents have read and written with it."""


def _kept(saver: Any) -> StoredConversations:
    return _KEPT.setdefault(saver, StoredConversations(MessageMemory()))


def _remembering(saver: Any, place: Place | None = None) -> Any:
    """The saver with a serializer that does not do again what it has done before.

    Args:
        saver: any.
        place: which is read or written, if it is the last checkpoint of one.
    """
    if not _is_known(saver):
        return saver
    kept = _kept(saver)
    serde = remembering(saver.serde, kept.memory, None if place is None else kept.at(place))
    return saver if serde is saver.serde else _with_serde(saver, serde)


def _outlined(saver: Any, place: Place) -> Any:
    """The saver with a serializer that makes no objects."""
    if not _is_known(saver) or not can_be_outlined(saver.serde):
        return saver
    return _with_serde(saver, OutlineSerializer(_kept(saver).at(place)))


def _is_known(saver: Any) -> bool:
    """Whether a saver may be copied, as those of LangGraph and ours may; a user's own may count on being one object."""
    return type(saver).__module__.partition(".")[0] in ("langgraph", "callboard")


def _with_serde(saver: Any, serde: Any) -> Any:
    """A copy of a saver with another serializer, as LangGraph copies its savers, too."""
    copied = copy.copy(saver)
    copied.serde = serde
    return copied


def _list(
    config: RunnableConfig, before: RunnableConfig | None, limit: int | None, saver: Any
) -> list[CheckpointTuple]:
    return list(_remembering(saver).list(config, before=before, limit=limit))


async def _alist(
    config: RunnableConfig, before: RunnableConfig | None, limit: int | None, saver: Any
) -> list[CheckpointTuple]:
    return [found async for found in _remembering(saver).alist(config, before=before, limit=limit)]
