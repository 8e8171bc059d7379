"""Payloads of LangGraph's stream modes for the events of a run."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import EXCLUDED_METADATA_KEYS
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from callboard._langgraph._node_scope import NodePlace
from callboard.agent._stream import Emit, emit_nothing
from callboard.conversations._channels import Schema, State, Write

INTERRUPT = "__interrupt__"

Keys = str | Sequence[str]


class Teller:
    """Sends the events of a run's tasks to streams.

    If `keys` is a single string, `values` and `updates` have the bare value. Task events contain the user's metadata
    and tags from `config`.
    """

    def __init__(self, emit: Emit, schema: Schema, keys: Keys | None, config: RunnableConfig) -> None:
        self._emit = emit
        self._schema = schema
        self._keys: Keys = tuple(schema.specs) if keys is None else keys
        self._of_user = _given_by_user(config)

    @property
    def is_heard(self) -> bool:
        return self._emit is not emit_nothing

    def values(self, state: State, written: Sequence[Write] | None = None) -> None:
        """Send the state, if one of the reader's keys was written or has a value."""
        if not self.is_heard:
            return
        wanted = [self._keys] if isinstance(self._keys, str) else self._keys
        names = state.read(wanted) if written is None else {name for name, _ in written}
        if any(name in wanted for name in names):
            self._emit("values", lambda: self._read(state))

    def started(self, place: NodePlace, given: object) -> None:
        """Report the start of a task."""
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
        """Report the writes of a task that has ended."""
        writes = self._writes(outputs)
        self._emit("updates", lambda: {place.node: _update(writes, self._keys)})
        self._emit("tasks", lambda: _result(place, result=_gathered(writes)))

    def cached(self, place: NodePlace, outputs: Sequence[object]) -> None:
        """Report the writes of a task that an earlier run of this step has finished."""
        writes = self._writes(outputs)
        self._emit("updates", lambda: {place.node: _update(writes, self._keys), "__metadata__": {"cached": True}})

    def failed(self, place: NodePlace, error: BaseException) -> None:
        """Report the error of a task."""
        self._emit("tasks", lambda: _result(place, error=error))

    def asked(self, place: NodePlace, questions: Sequence[Interrupt], state: State) -> None:
        """Report the questions of a task that waits for a person."""
        mark = {INTERRUPT: tuple(questions)}
        self._emit("updates", lambda: mark)
        self._emit("values", lambda: mark if isinstance(self._keys, str) else {**self._read(state), **mark})
        self._emit("tasks", lambda: _result(place, interrupts=[asdict(question) for question in questions]))

    def stopped(self) -> None:
        """Report a stop before or after a node."""
        self._emit("updates", lambda: {INTERRUPT: ()})

    def checkpoint(self, snapshot: Callable[[], StateSnapshot], state: State, config: RunnableConfig) -> None:
        """Report a position of the thread that a run can start from."""
        self._emit("checkpoints", lambda: _checkpoint(snapshot(), state.read(self._schema.specs), config))

    def _read(self, state: State) -> Any:
        return state.get(self._keys) if isinstance(self._keys, str) else state.read(self._keys)

    def _writes(self, outputs: Sequence[object]) -> list[Write]:
        return [write for output in outputs for write in self._schema.writes_of(output)]


def _update(writes: Sequence[Write], keys: Keys) -> Any:
    """Return the writes of a task in the form of the `updates` stream."""
    if isinstance(keys, str):
        shown: list[Any] = [value for name, value in writes if name == keys]
    else:
        counts = Counter(name for name, _ in writes)
        kept = [(name, value) for name, value in writes if name in keys]
        repeated = any(counts[name] > 1 for name, _ in kept)
        shown = [{name: value} for name, value in kept] if repeated else [dict(kept)] if kept else []
    return None if not shown else shown[0] if len(shown) == 1 else shown


def _gathered(writes: Sequence[Write]) -> dict[str, Any]:
    """Return the writes of a task in the form of the `tasks` stream; several writes to one key are marked."""
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
    """Return the config of a checkpoint, with the user's own keys."""
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
