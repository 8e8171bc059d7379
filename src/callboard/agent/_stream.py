"""Stream of a run: chunks in LangGraph's stream modes, and their readers."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from anyio.lowlevel import checkpoint
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS
from langgraph.types import Interrupt, StateSnapshot

from callboard._langgraph._node_scope import (
    NodePlace,
    StreamMessagesHandler,
    StreamMessagesHandlerV2,
    StreamToolCallHandler,
)
from callboard.conversations._channels import Schema, State, Write
from callboard.conversations._thread import START

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

    def print_and_put(chunk: Chunk) -> None:
        namespace, mode, payload = chunk
        if mode in modes:
            graph = f"\033[33;1m\033[1;3m[graph={namespace}]\033[0m " if namespace else ""
            print(f"\033[1m[{mode}]\033[0m {graph}{payload!r}")  # noqa: T201 (that is what was asked for)
        if put is not None:
            put(chunk)

    return print_and_put


class ChunkQueue(Protocol):
    """Protocol of what a run puts the chunks of its stream into."""

    def put(self, chunk: Chunk, /) -> None:
        """Add a chunk; any thread may call this."""
        ...

    async def wait_for_reader(self) -> None:
        """Wait until a reader that reads along has taken all chunks and asks for the next one."""
        ...


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


def as_v1(chunk: Chunk, modes: str | Sequence[str], *, subgraphs: bool) -> Any:
    """Return a chunk in LangGraph's form "v1": the payload alone, or a tuple."""
    namespace, mode, payload = chunk
    if not isinstance(modes, str):
        return (namespace, mode, payload) if subgraphs else (mode, payload)
    return (namespace, payload) if subgraphs else payload


def as_v2(chunk: Chunk, to_instance: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a chunk in LangGraph's form "v2": a dict with `type`, `ns` and `data`."""
    namespace, mode, payload = chunk
    part = {"type": mode, "ns": namespace, "data": payload}
    if mode != "values":
        return part
    if not isinstance(payload, dict):
        return {**part, "interrupts": ()}
    values = {key: value for key, value in payload.items() if key != "__interrupt__"}
    return {**part, "data": to_instance(values), "interrupts": payload.get("__interrupt__", ())}


INTERRUPT = "__interrupt__"

Keys = str | Sequence[str]


class RunStream:
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
        self.outbox: ChunkQueue | None = None
        """Queue of the run's own stream, set before the run starts; `None` if only outer graphs have streams."""
        self._readers = readers
        self._schema = schema
        self._keys: Keys = tuple(schema.specs) if keys is None else keys
        self._step = step
        self.has_readers = bool(readers)
        """`True` if there is a reader; without a reader, no chunk is computed."""
        self._user_metadata: dict[str, Any] = {}
        if readers:
            metadata = config.get("metadata") or {}
            self._user_metadata = {k: v for k, v in metadata.items() if k not in EXCLUDED_METADATA_KEYS}
            if tags := [tag for tag in config.get("tags") or () if not tag.startswith("seq:step")]:
                self._user_metadata["tags"] = tags

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
            value: Any = payload()
            if mode in modes:
                put((namespace, mode, value))
            if as_debug:
                kind = "checkpoint" if mode == "checkpoints" else "task_result" if "result" in value else "task"
                debug_payload = {
                    "step": value["metadata"]["step"] if kind == "checkpoint" else self._step(),
                    "timestamp": datetime.now(UTC).isoformat(),
                    "type": kind,
                    "payload": value,
                }
                put((namespace, "debug", debug_payload))

    def send_values(self, state: State, written: Sequence[Write] | None = None) -> None:
        """Send the state as a `values` chunk, if one of the writes `written` changes an output key of the stream."""
        if not self.has_readers:
            return
        output_keys = [self._keys] if isinstance(self._keys, str) else self._keys
        # Without `written`, an output key counts if it has a value.
        names = state.read(output_keys) if written is None else {name for name, _ in written}
        if any(name in output_keys for name in names):
            self._emit("values", lambda: self._read(state))

    def send_start(self, node_place: NodePlace, node_input: object) -> None:
        self._emit(
            "tasks",
            lambda: {
                "id": node_place.task_id,
                "name": node_place.node,
                "input": node_input,
                "triggers": node_place.triggers,
                **({"metadata": self._user_metadata} if self._user_metadata else {}),
            },
        )

    def send_end(self, node_place: NodePlace, outputs: Sequence[object]) -> None:
        if not self.has_readers:
            return
        writes = self._writes(outputs)
        self._emit("updates", lambda: {node_place.node: _update_payload(writes, self._keys)})
        self._emit("tasks", lambda: _task_payload(node_place, writes=writes))

    def send_cached(self, node_place: NodePlace, outputs: Sequence[object]) -> None:
        """Send an `updates` chunk, marked as cached, for a task that an earlier run of this step has finished."""
        writes = self._writes(outputs)
        self._emit(
            "updates", lambda: {node_place.node: _update_payload(writes, self._keys), "__metadata__": {"cached": True}}
        )

    def send_input(self, writes: Sequence[Write]) -> None:
        """Send messages that the run has received, as an `updates` chunk of the node that applies input."""
        self._emit("updates", lambda: {START: _update_payload(writes, self._keys)})

    def send_error(self, node_place: NodePlace, error: BaseException) -> None:
        self._emit("tasks", lambda: _task_payload(node_place, error=error))

    def send_questions(self, node_place: NodePlace, questions: Sequence[Interrupt], state: State) -> None:
        mark = {INTERRUPT: tuple(questions)}
        self._emit("updates", lambda: mark)
        self._emit("values", lambda: mark if isinstance(self._keys, str) else {**self._read(state), **mark})
        self._emit("tasks", lambda: _task_payload(node_place, interrupts=[asdict(question) for question in questions]))

    def send_stop(self) -> None:
        self._emit("updates", lambda: {INTERRUPT: ()})

    def send_checkpoint(self, snapshot: Callable[[], StateSnapshot], state: State, config: RunnableConfig) -> None:
        self._emit("checkpoints", lambda: _checkpoint_payload(snapshot(), state.read(self._schema.specs), config))

    def _read(self, state: State) -> Any:
        return state.get(self._keys) if isinstance(self._keys, str) else state.read(self._keys)

    def _writes(self, outputs: Sequence[object]) -> list[Write]:
        return [write for output in outputs for write in self._schema.writes_of(output)]


def _update_payload(writes: Sequence[Write], keys: Keys) -> Any:
    """Return the writes of a task to the given keys as the payload of an `updates` chunk; `None` without writes."""
    if isinstance(keys, str):
        payloads: list[Any] = [value for name, value in writes if name == keys]
    else:
        payloads = [{name: value} for name, value in writes if name in keys]
        together = {name: value for payload in payloads for name, value in payload.items()}
        if payloads and len(together) == len(payloads):  # no key is written twice
            payloads = [together]
    return None if not payloads else payloads[0] if len(payloads) == 1 else payloads


def _task_payload(
    node_place: NodePlace,
    *,
    error: BaseException | None = None,
    writes: Sequence[Write] = (),
    interrupts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    values_by_key: dict[str, list[Any]] = {}
    for name, value in writes:
        values_by_key.setdefault(name, []).append(value)
    return {
        "id": node_place.task_id,
        "name": node_place.node,
        "error": error,
        "result": {
            name: values[0] if len(values) == 1 else {"$writes": values} for name, values in values_by_key.items()
        },
        "interrupts": list(interrupts),
    }


def _checkpoint_payload(snapshot: StateSnapshot, values: Mapping[str, Any], config: RunnableConfig) -> dict[str, Any]:
    tasks: list[dict[str, Any]] = []
    for task in snapshot.tasks:
        payload: dict[str, Any] = {"id": task.id, "name": task.name}
        if task.error:
            payload["error"] = task.error
        else:
            if task.result:
                payload["result"] = task.result
            payload["interrupts"] = tuple(asdict(question) for question in task.interrupts)
        tasks.append({**payload, "state": task.state})
    return {
        "config": _with_user_keys(snapshot.config, config),
        "parent_config": None if snapshot.parent_config is None else _with_user_keys(snapshot.parent_config, config),
        "values": dict(values),
        "metadata": snapshot.metadata,
        "next": [task.name for task in snapshot.tasks],
        "tasks": tasks,
    }


def _with_user_keys(snapshot_config: RunnableConfig, config: RunnableConfig) -> RunnableConfig:
    user_keys = {key: value for key, value in config.get("configurable", {}).items() if not key.startswith("__pregel_")}
    return {"configurable": {**user_keys, **snapshot_config["configurable"]}}
