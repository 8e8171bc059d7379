"""Stream of a run: chunks in LangGraph's stream modes, and the queue between the run and the reader of its stream."""

import threading
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple

from anyio.lowlevel import checkpoint
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from callboard._langgraph._node_scope import (
    NodePlace,
    StreamMessagesHandler,
    StreamMessagesHandlerV2,
    StreamToolCallHandler,
)
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope
from callboard.conversations._channels import Schema, State, Write

Chunk = tuple[tuple[str, ...], str, Any]
"""Chunk of a stream: namespace of the graph, stream mode, and payload in the form of that mode."""

MODES = frozenset(("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "tools"))


class Reader(NamedTuple):
    """Stream modes and namespace of a reader, and the function `put`, which any thread calls to pass it a chunk."""

    modes: Collection[str]
    namespace: tuple[str, ...]
    put: Callable[[Chunk], None]


def printing(put: Callable[[Chunk], None] | None, modes: Collection[str]) -> Callable[[Chunk], None]:
    """Return a function that prints chunks of the given modes in LangGraph's form, and passes all chunks to `put`."""

    def tell(chunk: Chunk) -> None:
        namespace, mode, payload = chunk
        if mode in modes:
            graph = f"\033[33;1m\033[1;3m[graph={namespace}]\033[0m " if namespace else ""
            print(f"\033[1m[{mode}]\033[0m {graph}{payload!r}")  # noqa: T201 (that is what was asked for)
        if put is not None:
            put(chunk)

    return tell


class Outbox:
    """Queue of chunks between a run and the reader of its stream; filled from any thread, read by one task."""

    def __init__(self) -> None:
        self._loop = current_loop()
        self._chunks: deque[Chunk] = deque()
        self._wakeup = self._loop.wakeup()
        # Guards all fields: callback handlers put chunks from worker threads.
        self._lock = threading.Lock()
        self._closed = False
        self._reader_waits = False  # true while the reader waits for a chunk
        self._wakeup_of_run = self._loop.wakeup()

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append(chunk)
            self._wakeup.set()

    def close(self) -> None:
        """Close the queue: `get` still returns the chunks in the queue, and then `None`."""
        with self._lock:
            self._closed = True
            self._wakeup.set()

    async def get(self) -> Chunk | None:
        while True:
            with self._lock:
                self._reader_waits = False
                if self._chunks:
                    return self._chunks.popleft()
                if self._closed:
                    return None
                # A new wakeup under the lock: a `put` after this line sets it, so no chunk is missed.
                self._wakeup = self._loop.wakeup()
                self._reader_waits = True
                self._wakeup_of_run.set()
            await self._wakeup.wait()

    async def wait_for_reader(self) -> None:
        """Wait until the reader has taken all chunks and asks for the next one."""
        while True:
            with self._lock:
                if self._reader_waits and not self._chunks:
                    return
                self._wakeup_of_run = self._loop.wakeup()
            await self._wakeup_of_run.wait()


async def chunks_of(run: Callable[[Outbox], Awaitable[object]]) -> AsyncGenerator[Chunk]:
    """Start a run in a task of its own and yield the chunks of its stream; at the end, raise the error of the run."""
    outbox = Outbox()
    loop = current_loop()
    errors: list[BaseException] = []

    async def child(scope: Scope) -> None:
        try:
            with scope:
                await run(outbox)
        except BaseException as error:
            errors.append(error)
        finally:
            outbox.close()

    # A task beside the generator: a generator must not hold a cancel scope over a `yield`.
    task = loop.spawn(child, DEFAULT_GRACE)
    try:
        while (chunk := await outbox.get()) is not None:
            yield chunk
    except BaseException:
        task.cancel()
        # Without limit: the run bounds its clean-up by its own grace, and nothing may outlive the generator.
        with loop.shield(float("inf")):
            await task.wait()
        raise
    await task.wait()
    try:
        if errors:
            raise errors[0]
    finally:
        # The traceback refers to this frame: break the cycle.
        errors.clear()


def handlers_for(
    modes: Collection[str], put: Callable[[Chunk], None], namespace: tuple[str, ...], *, subgraphs: bool, events: bool
) -> list[Any]:
    """Return LangGraph's callback handlers that produce the chunks of the stream modes "messages" and "tools"."""
    handlers: list[Any] = []
    if "messages" in modes:
        # With `events`, the chunks are the events of each message's parts.
        kind = StreamMessagesHandlerV2 if events else StreamMessagesHandler
        handlers.append(kind(put, subgraphs, parent_ns=namespace))
    if "tools" in modes:
        handlers.append(StreamToolCallHandler(put, subgraphs, parent_ns=namespace))
    return handlers


def shaped(chunk: Chunk, modes: str | Sequence[str], *, subgraphs: bool) -> Any:
    """Return a chunk in LangGraph's form "v1": the payload alone, or a tuple."""
    namespace, mode, payload = chunk
    if not isinstance(modes, str):
        return (namespace, mode, payload) if subgraphs else (mode, payload)
    return (namespace, payload) if subgraphs else payload


def as_part(chunk: Chunk, shape: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a chunk in LangGraph's form "v2": a dict with `type`, `ns` and `data`."""
    namespace, mode, payload = chunk
    part = {"type": mode, "ns": namespace, "data": payload}
    if mode != "values":
        return part
    if not isinstance(payload, dict):
        return {**part, "interrupts": ()}
    values = {key: value for key, value in payload.items() if key != "__interrupt__"}
    return {**part, "data": shape(values), "interrupts": payload.get("__interrupt__", ())}


INTERRUPT = "__interrupt__"

Keys = str | Sequence[str]


class Teller:
    """Object that sends the events of a run's tasks to the readers of its streams.

    If `keys` is a single string, chunks of the modes `values` and `updates` contain the value of that key in place of a
    dict. Task events contain the user's metadata and tags from `config`. `step` returns the number of the current step.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        schema: Schema,
        keys: Keys | None,
        config: RunnableConfig,
        step: Callable[[], int],
    ) -> None:
        self.outbox: Outbox | None = None
        """Queue of the run's own stream, set before the run starts; `None` if only outer graphs have streams."""
        self._readers = readers
        self._schema = schema
        self._keys: Keys = tuple(schema.specs) if keys is None else keys
        self._step = step
        self.is_heard = bool(readers)
        """`True` if there is a reader; without a reader, no chunk is computed."""
        self._of_user = _given_by_user(config) if readers else {}

    async def wait_for_reader(self) -> None:
        """Wait until the reader of the run's own stream has taken all chunks and asks for more."""
        # A reader that stops at a chunk thereby keeps all later steps from beginning, as in LangGraph.
        await (checkpoint() if self.outbox is None else self.outbox.wait_for_reader())

    def _emit(self, mode: str, payload: Callable[[], object]) -> None:
        """Send an event to the readers of a stream mode; `payload` computes the content, only if there is a reader."""
        for modes, namespace, put in self._readers:
            as_debug = "debug" in modes and mode in ("tasks", "checkpoints")
            if mode not in modes and not as_debug:
                continue
            value = payload()
            if mode in modes:
                put((namespace, mode, value))
            if as_debug:
                put((namespace, "debug", self._debug(mode, value)))

    def _debug(self, mode: str, value: Any) -> dict[str, Any]:
        kind = "checkpoint" if mode == "checkpoints" else "task_result" if "result" in value else "task"
        return {
            "step": value["metadata"]["step"] if kind == "checkpoint" else self._step(),
            "timestamp": datetime.now(UTC).isoformat(),
            "type": kind,
            "payload": value,
        }

    def values(self, state: State, written: Sequence[Write] | None = None) -> None:
        """Send the state as a `values` chunk, if one of the writes `written` changes an output key of the stream."""
        if not self.is_heard:
            return
        wanted = [self._keys] if isinstance(self._keys, str) else self._keys
        # Without `written`, an output key counts if it has a value.
        names = state.read(wanted) if written is None else {name for name, _ in written}
        if any(name in wanted for name in names):
            self._emit("values", lambda: self._read(state))

    def started(self, place: NodePlace, given: object) -> None:
        if not self.is_heard:
            return
        self._emit(
            "tasks",
            lambda: {
                "id": place.task_id,
                "name": place.node,
                "input": given,
                "triggers": place.triggers,
                **({"metadata": self._of_user} if self._of_user else {}),
            },
        )

    def ended(self, place: NodePlace, outputs: Sequence[object]) -> None:
        if not self.is_heard:
            return
        writes = self._writes(outputs)
        self._emit("updates", lambda: {place.node: _update(writes, self._keys)})
        self._emit("tasks", lambda: _result(place, result=_gathered(writes)))

    def cached(self, place: NodePlace, outputs: Sequence[object]) -> None:
        """Send an `updates` chunk, marked as cached, for a task that an earlier run of this step has finished."""
        writes = self._writes(outputs)
        self._emit("updates", lambda: {place.node: _update(writes, self._keys), "__metadata__": {"cached": True}})

    def failed(self, place: NodePlace, error: BaseException) -> None:
        self._emit("tasks", lambda: _result(place, error=error))

    def asked(self, place: NodePlace, questions: Sequence[Interrupt], state: State) -> None:
        mark = {INTERRUPT: tuple(questions)}
        self._emit("updates", lambda: mark)
        self._emit("values", lambda: mark if isinstance(self._keys, str) else {**self._read(state), **mark})
        self._emit("tasks", lambda: _result(place, interrupts=[asdict(question) for question in questions]))

    def stopped(self) -> None:
        self._emit("updates", lambda: {INTERRUPT: ()})

    def checkpoint(self, snapshot: Callable[[], StateSnapshot], state: State, config: RunnableConfig) -> None:
        self._emit("checkpoints", lambda: _checkpoint(snapshot(), state.read(self._schema.specs), config))

    def _read(self, state: State) -> Any:
        return state.get(self._keys) if isinstance(self._keys, str) else state.read(self._keys)

    def _writes(self, outputs: Sequence[object]) -> list[Write]:
        return [write for output in outputs for write in self._schema.writes_of(output)]


def _update(writes: Sequence[Write], keys: Keys) -> Any:
    """Return the writes of a task to the given keys as the payload of an `updates` chunk; `None` without writes."""
    if isinstance(keys, str):
        shown: list[Any] = [value for name, value in writes if name == keys]
    else:
        counts = Counter(name for name, _ in writes)
        kept = [(name, value) for name, value in writes if name in keys]
        repeated = any(counts[name] > 1 for name, _ in kept)
        shown = [{name: value} for name, value in kept] if repeated else [dict(kept)] if kept else []
    return None if not shown else shown[0] if len(shown) == 1 else shown


def _gathered(writes: Sequence[Write]) -> dict[str, Any]:
    """Return the writes of a task by key, in the form in which a `tasks` chunk shows the result of the task."""
    found: dict[str, list[Any]] = {}
    for name, value in writes:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else {"$writes": values} for name, values in found.items()}


def _result(
    place: NodePlace,
    *,
    error: BaseException | None = None,
    result: Mapping[str, Any] | None = None,
    interrupts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "id": place.task_id,
        "name": place.node,
        "error": error,
        "result": dict(result or {}),
        "interrupts": list(interrupts),
    }


def _checkpoint(snapshot: StateSnapshot, values: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
    return {
        "config": _located(snapshot.config, config),
        "parent_config": None if snapshot.parent_config is None else _located(snapshot.parent_config, config),
        "values": dict(values),
        "metadata": snapshot.metadata,
        "next": [task.name for task in snapshot.tasks],
        "tasks": [_pending(task) for task in snapshot.tasks],
    }


def _located(place: RunnableConfig, config: RunnableConfig) -> RunnableConfig:
    own = {key: value for key, value in config.get("configurable", {}).items() if not key.startswith("__pregel_")}
    return {"configurable": {**own, **place["configurable"]}}


def _pending(task: PregelTask) -> dict[str, Any]:
    known: dict[str, Any] = {"id": task.id, "name": task.name}
    if task.error:
        return {**known, "error": task.error, "state": task.state}
    if task.result:
        known["result"] = task.result
    return {**known, "interrupts": tuple(asdict(question) for question in task.interrupts), "state": task.state}


def _given_by_user(config: RunnableConfig) -> dict[str, Any]:
    metadata = {k: v for k, v in (config.get("metadata") or {}).items() if k not in EXCLUDED_METADATA_KEYS}
    tags = [tag for tag in config.get("tags") or () if not tag.startswith("seq:step")]
    return {**metadata, "tags": tags} if tags else metadata
