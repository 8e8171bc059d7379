"""A LangGraph checkpointer, awaited on asyncio and on trio."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from callboard._bridge import run_on_asyncio, stands_still
from callboard._current_loop import current_loop
from callboard._door import from_sync
from callboard._time import cleanup

T = TypeVar("T")


_PLACE = frozenset(("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"))
"""What says where a checkpoint is."""


class Saver:
    """One thread's part of a checkpointer.

    A saver in memory is called where we are. One that keeps an event loop is awaited on that. Of any other the
    sync methods work in threads, if it was entered from sync code or has no others, and the async ones are awaited
    on asyncio, here or over the bridge.

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
        self.thread_id = thread_id
        self.namespace = namespace
        self._halves = [self._awaited, self._in_thread]
        if from_sync() and getattr(saver, "loop", None) is None:
            self._halves.reverse()
        self._about = {} if about is None else about

    def config(self, checkpoint_id: str | None = None) -> RunnableConfig:
        """Where a checkpoint is."""
        where = {"thread_id": self.thread_id, "checkpoint_ns": self.namespace}
        return {"configurable": where if checkpoint_id is None else {**where, "checkpoint_id": checkpoint_id}}

    def next_version(self, current: Any) -> Any:
        return self._saver.get_next_version(current, None)

    async def get(self, checkpoint_id: str | None = None) -> CheckpointTuple | None:
        """A checkpoint with what was written on it; the latest by default."""
        config = self.config(checkpoint_id)
        return await self._call(partial(_get, config), partial(_aget, config))

    async def outline(self) -> CheckpointTuple | None:
        """The latest checkpoint, where every object may be `None`: what is plain is there.

        To make the messages of a long thread takes most of the time that it takes to read it.
        """
        config = self.config()
        return await self._call(
            lambda saver: _get(config, _outlined(saver)), lambda saver: _aget(config, _outlined(saver))
        )

    async def before(self, checkpoint_id: str | None, limit: int | None) -> list[CheckpointTuple]:
        """Checkpoints, the latest first.

        Args:
            checkpoint_id: only older ones than this.
            limit: how many at most.
        """
        bound = None if checkpoint_id is None else self.config(checkpoint_id)
        config = self.config()
        return await self._call(partial(_list, config, bound, limit), partial(_alist, config, bound, limit))

    async def put(
        self, checkpoint: Checkpoint, metadata: CheckpointMetadata, parent: str | None, versions: Mapping[str, Any]
    ) -> None:
        """Store a checkpoint, or replace the one that has its id."""
        where = self.config(parent)
        given = {name: value for name, value in self._about.get("configurable", {}).items() if name not in _PLACE}
        about = {**where, "configurable": {**given, **where["configurable"]}, "metadata": self._about.get("metadata")}
        args = (about, checkpoint, metadata, dict(versions))
        await self._write("put", args)

    async def write(self, checkpoint_id: str, writes: Sequence[tuple[str, Any]], task_id: str, path: str) -> None:
        """Store what belongs to a checkpoint; what was stored under the same task stays."""
        await self._write("put_writes", (self.config(checkpoint_id), list(writes), task_id, path))

    def can_store(self, value: object) -> bool:
        """Whether the checkpointer's serializer takes a value."""
        try:
            self._saver.serde.dumps_typed(value)
        except Exception:
            return False
        return True

    async def _write(self, name: str, args: tuple[Any, ...]) -> None:
        async def acall(saver: Any) -> None:
            await getattr(saver, f"a{name}")(*args)

        # What is true has to be stored, also while the run is being cancelled.
        with cleanup():
            await self._call(lambda saver: getattr(saver, name)(*args), acall)

    async def _call(self, call: Callable[[Any], T], acall: Callable[[Any], Awaitable[T]]) -> T:
        saver = self._saver
        if isinstance(saver, InMemorySaver):
            return call(saver)
        if len(self._halves) > 1:
            try:
                return await self._halves[0](call, acall)
            except NotImplementedError:
                del self._halves[0]  # it has the other methods only, and says so when it is asked
        return await self._halves[0](call, acall)

    async def _in_thread(self, call: Callable[[Any], T], _: object) -> T:
        return await to_thread.run_sync(call, self._saver)

    async def _awaited(self, _: object, acall: Callable[[Any], Awaitable[T]]) -> T:
        saver, home = self._saver, getattr(self._saver, "loop", None)
        if home is None or (current_loop().name == "asyncio" and home is asyncio.get_running_loop()):
            return await run_on_asyncio(partial(acall, saver))
        if stands_still(home):
            raise asyncio.InvalidStateError(
                f"{type(saver).__name__} belongs to the event loop that waits for this sync call, and cannot work "
                "meanwhile. Await the agent's async method instead, such as `await agent.ainvoke(...)` or "
                "`await agent.aget_state(...)`"
            )
        return await to_thread.run_sync(_on_loop, home, acall, saver)


def _on_loop(home: asyncio.AbstractEventLoop, acall: Callable[[Any], Awaitable[T]], saver: Any) -> T:
    """Have a saver do something on the event loop that it belongs to; in a worker thread."""
    return asyncio.run_coroutine_threadsafe(_coroutine(acall, saver), home).result()


async def _coroutine(acall: Callable[[Any], Awaitable[T]], saver: Any) -> T:
    return await acall(saver)


def _get(config: RunnableConfig, saver: Any) -> CheckpointTuple | None:
    return saver.get_tuple(config)  # type: ignore[no-any-return]


async def _aget(config: RunnableConfig, saver: Any) -> CheckpointTuple | None:
    return await saver.aget_tuple(config)  # type: ignore[no-any-return]


_PLAIN = JsonPlusSerializer(__unpack_ext_hook__=lambda _code, _data: None)


def _outlined(saver: Any) -> Any:
    """The saver with a serializer that makes no objects, if it and its own one are known to bear that.

    LangGraph copies its savers so, too. One of a user's own may count on being one object.
    """
    is_known = type(saver).__module__.partition(".")[0] in ("langgraph", "callboard")
    if not is_known or type(saver.serde).loads_typed is not JsonPlusSerializer.loads_typed:
        return saver
    if saver.serde.pickle_fallback:
        return saver  # a pickle cannot be read in part
    copied = copy.copy(saver)
    copied.serde = _PLAIN
    return copied


def _list(
    config: RunnableConfig, before: RunnableConfig | None, limit: int | None, saver: Any
) -> list[CheckpointTuple]:
    return list(saver.list(config, before=before, limit=limit))


async def _alist(
    config: RunnableConfig, before: RunnableConfig | None, limit: int | None, saver: Any
) -> list[CheckpointTuple]:
    return [found async for found in saver.alist(config, before=before, limit=limit)]
