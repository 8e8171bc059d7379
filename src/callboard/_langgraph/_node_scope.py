"""Config, task ids and stream namespaces for the nodes of callboard's agent, as LangGraph would make them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from operator import attrgetter
from time import time
from typing import Any, NamedTuple, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINT_ID,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_READ,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_RESUMING,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_STREAM,
    CONFIG_KEY_STREAM_MESSAGES_V2,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
)
from langgraph._internal._constants import INTERRUPT as INTERRUPT
from langgraph._internal._constants import NS_SEP as NS_SEP
from langgraph._internal._constants import PULL as PULL
from langgraph._internal._constants import PUSH as PUSH
from langgraph._internal._constants import RESUME as RESUME
from langgraph._internal._constants import TASKS as TASKS
from langgraph._internal._runnable import _trace_payload, coerce_to_runnable
from langgraph._internal._typing import MISSING as MISSING
from langgraph.errors import ParentCommand
from langgraph.pregel._algo import _xxhash_str
from langgraph.pregel._messages import StreamMessagesHandler as StreamMessagesHandler
from langgraph.pregel._messages import StreamMessagesHandlerV2 as StreamMessagesHandlerV2
from langgraph.pregel._tools import StreamToolCallHandler as StreamToolCallHandler
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import ExecutionInfo, Runtime
from langgraph.types import Command, StreamWriter

from callboard._langgraph._call_scope import Write, scope_of, without_ids
from callboard._langgraph._outer_task import CONFIG_KEY_READ_STATE, with_key


def graph_runnable(fn: Any, name: str, *, traced: bool = False) -> Runnable[Any, Any]:
    """Return a LangGraph node that calls `fn` with injected arguments; `traced` records each execution as a run."""
    return coerce_to_runnable(fn, name=name, trace=traced)


class NodePlace(NamedTuple):
    """Names and ids that LangGraph would give to a node in one step of an agent's run."""

    node: str
    step: int
    task_id: str
    graph_ns: str
    """Namespace of the agent; empty at the root."""
    namespace: str
    """Namespace of the node's task."""
    checkpoint_id: str
    path: tuple[object, ...]
    triggers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outer:
    """Outer task that runs the agent: a task of a LangGraph graph, or a call of a callboard node."""

    conf: Mapping[str, Any]
    namespace: str
    """Namespace of the agent within the outer graph."""

    @property
    def checkpointer(self) -> Any:
        return self.conf.get(CONFIG_KEY_CHECKPOINTER)

    @property
    def is_resuming(self) -> bool:
        return bool(self.conf.get(CONFIG_KEY_RESUMING))

    @property
    def stream(self) -> Any:
        """Function that receives the stream chunks of inner graphs, or `None`; its `modes` are the requested modes."""
        return self.conf.get(CONFIG_KEY_STREAM)

    @property
    def task_ns(self) -> str:
        """Namespace of the outer task. Commands for the outer graph are addressed to it."""
        return str(self.conf.get(CONFIG_KEY_CHECKPOINT_NS, ""))

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.namespace.split(NS_SEP))

    @property
    def durability(self) -> Any:
        return self.conf.get(CONFIG_KEY_DURABILITY)

    @property
    def for_all_visits(self) -> "Outer":
        """Copy of this outer task for an agent that continues one conversation in every task of the outer graph."""
        # Without task ids, the namespace is equal in all these tasks.
        return replace(self, namespace=without_ids(self.namespace))

    def answers(self, pending: Sequence[str]) -> dict[str, Any]:
        """Return the answers to the agent's open questions, by question id; `pending` has the ids of the questions."""
        answers_by_id: Mapping[str, Any] = self.conf.get(CONFIG_KEY_RESUME_MAP) or {}
        matching_answers = {name: answers_by_id[name] for name in pending if name in answers_by_id}
        # An answer without an id is unambiguous only if exactly one question is pending.
        if matching_answers or answers_by_id or len(pending) != 1:
            return matching_answers
        plain = self.conf[CONFIG_KEY_SCRATCHPAD].get_null_resume(True) if CONFIG_KEY_SCRATCHPAD in self.conf else None
        return {} if plain is None else {pending[0]: plain}


traced_payload = _trace_payload
"""Function that returns what callback handlers see of a node's input or output, by the node's trace policy."""


def with_stream(config: RunnableConfig, put: Callable[[Any], None], modes: frozenset[str]) -> RunnableConfig:
    return with_key(config, CONFIG_KEY_STREAM, StreamProtocol(put, cast("Any", set(modes))))


def wants_message_events(config: RunnableConfig) -> bool:
    """Return whether the stream mode "messages" must yield events of messages in place of chunks, as a config says."""
    return bool(config.get(CONF, {}).get(CONFIG_KEY_STREAM_MESSAGES_V2))


def checkpointer_in(config: RunnableConfig) -> Any:
    """Return the checkpointer that an outer graph passes in the config when it asks for the agent's state."""
    return config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINTER)


def for_all_visits(config: RunnableConfig) -> RunnableConfig:
    """Return a copy of a config without task ids in its namespace, so that all tasks continue one conversation."""
    namespace = str(config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINT_NS, ""))
    return with_key(config, CONFIG_KEY_CHECKPOINT_NS, without_ids(namespace))


def is_nested(config: RunnableConfig) -> bool:
    """Return whether an outer graph runs the agent; unlike `outer_of`, this function has no side effect."""
    return CONFIG_KEY_TASK_ID in config.get(CONF, {})


def outer_of(config: RunnableConfig) -> Outer | None:
    """Return the task of another graph in which the agent runs; `None` without one. Call this once for each run."""
    conf = config.get(CONF, {})
    if not is_nested(config):
        return None
    namespace = str(conf.get(CONFIG_KEY_CHECKPOINT_NS, ""))
    scratchpad = conf.get(CONFIG_KEY_SCRATCHPAD)
    # The second graph that one task runs gets a numbered namespace, as in LangGraph.
    # Once for each run only: the counter counts the inner graphs of the task.
    number = 0 if scratchpad is None else scratchpad.subgraph_counter()
    return Outer(conf, f"{namespace}{NS_SEP}{number}" if number else namespace)


class NodeConfigs:
    """Configs of an agent's nodes in one run; the parts that all nodes share are computed once.

    `config` and `runtime` are those of the run. `checkpointer` is for graphs inside of the nodes.
    """

    def __init__(self, config: RunnableConfig, *, runtime: Runtime[Any], channels: Any, checkpointer: Any) -> None:
        conf = config.get(CONF, {})
        self.conf: dict[str, Any] = {
            **conf,
            CONFIG_KEY_READ: partial(_read_channels, None, channels),
            CONFIG_KEY_CHECKPOINT_ID: None,
            CONFIG_KEY_CHECKPOINTER: checkpointer,
        }
        """Entries of `configurable` that all nodes share."""
        for key in _KEYS_OF_OUTER_TASK:
            self.conf.pop(key, None)
        self._config: RunnableConfig = {**config}
        if self._config.get("callbacks") is None:
            self._config["callbacks"] = []  # LangGraph's `push_message` fails without a list
        self._config.pop("run_id", None)  # this and the name are those of the agent's own run
        self._config.pop("run_name", None)
        self._metadata = config.get("metadata") or {}
        self._checkpoints = conf.get(CONFIG_KEY_CHECKPOINT_MAP, {})
        self._thread_id = conf.get(CONFIG_KEY_THREAD_ID)
        self._run_id = str(run_id) if (run_id := config.get("run_id")) else None
        # `Runtime.override` would look up all fields for each node.
        shared = dict(zip(_SHARED, attrgetter(*_SHARED)(runtime), strict=True))
        self._runtime: Callable[..., Runtime[Any]] = partial(Runtime, **shared)

    def at(self, node_place: NodePlace, *, resuming: bool) -> RunnableConfig:
        """Return the config that LangGraph would give to the node at `node_place`."""
        info = ExecutionInfo(
            checkpoint_id=node_place.checkpoint_id,
            checkpoint_ns=node_place.namespace,
            task_id=node_place.task_id,
            thread_id=self._thread_id,
            run_id=self._run_id,
            node_first_attempt_time=time(),
        )
        inner = {
            **self.conf,
            CONFIG_KEY_TASK_ID: node_place.task_id,
            CONFIG_KEY_CHECKPOINT_MAP: {**self._checkpoints, node_place.graph_ns: node_place.checkpoint_id},
            CONFIG_KEY_CHECKPOINT_NS: node_place.namespace,
            CONFIG_KEY_RESUMING: resuming,
            CONFIG_KEY_RUNTIME: self._runtime(execution_info=info),
        }
        metadata = {
            **self._metadata,
            "langgraph_step": node_place.step,
            "langgraph_node": node_place.node,
            "langgraph_triggers": node_place.triggers,
            "langgraph_path": node_place.path,
            "langgraph_checkpoint_ns": node_place.namespace,
        }
        return {**self._config, "metadata": metadata, CONF: inner}


_SHARED = tuple(field.name for field in fields(Runtime) if field.name != "execution_info")
"""Names of the fields of a runtime that are equal for all nodes of a run."""

# Keys that belong to the outer task. Inherited by a node, its interrupts and `@task` functions would be those of the
# outer task, and it would read the state of that task.
_KEYS_OF_OUTER_TASK = (
    CONFIG_KEY_CALL,
    CONFIG_KEY_READ_STATE,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
)


def _read_channels(_: object, channels: Any, select: Any, fresh: bool = False) -> Any:
    """Return the value of one channel, or a dict for several; `fresh` includes the running task's own writes."""
    config = var_child_runnable_config.get() if fresh else None
    if config is not None:
        scope, read = scope_of(config), config.get(CONF, {}).get(CONFIG_KEY_READ)
        # The running task may be a call of another agent, around the one whose channels are read.
        if scope is not None and read is not None and read.args[1] is channels and (writes := scope.writes):
            channels = {name: _update(channel, name, writes) for name, channel in channels.items()}
    if isinstance(select, str):
        return channels[select].get() if channels[select].is_available() else None
    return {name: channels[name].get() for name in select if name in channels and channels[name].is_available()}


def _update(channel: Any, name: str, writes: Sequence[Write]) -> Any:
    if values := [value for channel_name, value in writes if channel_name == name]:
        channel = channel.copy()
        channel.update(values)
    return channel


def task_id_of(checkpoint_id: str, graph_ns: str, step: int, node: str, *path: str) -> str:
    """Return the task id that LangGraph computes for a node in a step; `path` says what has triggered the node."""
    namespace = f"{graph_ns}{NS_SEP}{node}" if graph_ns else node
    # LangGraph hashes the parts one after the other, so it may get them as one.
    return _xxhash_str(bytes.fromhex(checkpoint_id.replace("-", "")), f"{namespace}{step}{node}{''.join(path)}")


def to_parent(command: "Command[Any]", outer: Outer | None) -> ParentCommand:
    if outer is not None and command.graph == Command.PARENT:
        command = replace(command, graph=outer.task_ns)
    return ParentCommand(command)


def write_nothing(_: Any) -> None:
    """Discard a chunk. Used as the stream writer of inner runs whose chunks were not requested."""


def writer_of_run(put: Callable[[tuple[tuple[str, ...], str, Any]], None]) -> StreamWriter:
    """Return the stream writer of an agent's run; `put` gets each chunk with its graph's namespace."""

    def write(chunk: Any) -> None:
        config = var_child_runnable_config.get() or {}
        namespace = str(config.get(CONF, {}).get(CONFIG_KEY_CHECKPOINT_NS, ""))
        put((tuple(namespace.split(NS_SEP)[:-1]), "custom", chunk))

    return write


def command_writes(command: Command[Any]) -> Sequence[tuple[str, Any]]:
    return command._update_as_tuples()
