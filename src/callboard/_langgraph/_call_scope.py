"""LangGraph config for code that runs inside a call: interrupts, resuming, nested graphs, streams of the outer graph.

LangGraph's namespaces name the task only, callboard's also the call. So chunks of calls get LangGraph's namespaces on
their way to the streams and callbacks of the outer graph.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CALL,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_STREAM,
    NS_END,
    NS_SEP,
)
from langgraph._internal._constants import RESUME as RESUME
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph.pregel._tools import StreamToolCallHandler
from langgraph.pregel.protocol import StreamProtocol
from langgraph.types import Command, Interrupt, StreamWriter, _interrupt_id

from callboard._langgraph._outer_task import NO_RUNTIME, Send, Writes, graph_task, runtime_in, with_key, with_runtime
from callboard._langgraph._task_functions import TaskResult, task_result

PLACEHOLDER_ID = Interrupt(value=None).id
"""Id of an `Interrupt` that was created without an id."""


CALL_PREFIX: Final = "call:"
"""Beginning of the last segment in the checkpoint namespace of a tool call; outside of a graph it is the only one."""


def namespace_of_calls(conf: Mapping[str, Any]) -> str:
    """Return LangGraph's checkpoint namespace for a batch's calls, without the name of the call at its end."""
    # LangGraph derives the ids of the call's interrupts from this namespace.
    outer_namespace = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    return f"{outer_namespace}{NS_SEP}{CALL_PREFIX}" if outer_namespace else CALL_PREFIX


_RUN_NAME: Final = "callboard_run"
"""Key in `configurable` for the name of a run that a caller, such as `mcp_service`, may repeat in another thread."""


def name_of_run(conf: Mapping[str, Any], *, is_named: bool) -> str:
    """Return the name of a run, which makes the namespaces of the run's calls unique among all runs."""
    outer_scratchpad = conf.get(CONFIG_KEY_SCRATCHPAD)
    if isinstance(outer_scratchpad, CallScratchpad):
        return outer_scratchpad.run
    thread = conf.get("thread_id")
    # A namespace identifies the task and the checkpoint, so together with the thread it is unique.
    if is_named or conf.get(CONFIG_KEY_CHECKPOINT_NS):
        return "" if thread is None else str(thread)
    run_name = conf.get(_RUN_NAME)
    return run_name if isinstance(run_name, str) else uuid4().hex


def question_id(namespace: str, answered: int) -> str:
    """Return the id that `interrupt()` gives to the question with the index `answered` in a namespace."""
    return _interrupt_id(namespace, answered)


def is_interrupt_id(key: str) -> bool:
    """Return whether a key looks like an interrupt id: 128 bits of xxh3 in lower-case hex."""
    return len(key) == 32 and set(key) <= set("0123456789abcdef")


class GraphNames:
    """Mapping of namespaces, for graphs that run inside calls: from callboard's namespace to LangGraph's.

    LangGraph knows only the task, not its calls: the first graph in a task has the task's namespace, further graphs
    have numbers. callboard stores graphs in namespaces below those of their calls. `task` is the task's namespace.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._numbers = count()
        self._names: dict[str, str] = {}

    def register_graph(self, call: str, number: int) -> None:
        """Register a graph that a call has started; `number` is the number of earlier graphs of the call."""
        if (graph := _with_number(call, number)) not in self._names:
            self._names[graph] = name = _with_number(self._task, next(self._numbers))
            # A graph that continues one conversation has no task ids in its namespace, so several calls share the name.
            lasting = _with_number(without_ids(call), number)
            self._names.setdefault(lasting, without_ids(self._task) + name.removeprefix(self._task))

    def of(self, namespace: str) -> str:
        """Convert the namespace of a graph inside a call to LangGraph's namespace; return another one unchanged."""
        graph = namespace
        while graph:
            if graph in self._names:
                return self._names[graph] + namespace.removeprefix(graph)
            graph = graph.rpartition(NS_SEP)[0]
        return namespace


def _with_number(namespace: str, number: int) -> str:
    return f"{namespace}{NS_SEP}{number}" if number else namespace


def without_ids(namespace: str) -> str:
    """Return a namespace without its task ids, for a graph that continues one conversation in all tasks."""
    return NS_SEP.join(part.partition(NS_END)[0] for part in namespace.split(NS_SEP))


Write = tuple[str, Any]
"""Name of a channel, and the value that is written to it."""


def with_writes(output: Any, writes: Sequence[Write]) -> Any:
    """Return the output of a task, preceded by the state changes that the task has sent while it ran."""
    if not writes:
        return output
    outputs = output if isinstance(output, (list, tuple)) else [output]
    return [*(Command(update={name: value}) for name, value in writes), *outputs]


class CallOwner(Protocol):
    """Interface of a batch of calls that the calls' LangGraph scratchpads need: the outer task, and its writes."""

    outer_scratchpad: PregelScratchpad | None
    """Scratchpad of the outer task; `None` outside of a graph."""
    forward: Send | None
    """Function that passes writes of calls to the outer task, except accepted answers; `None` without a task."""
    graphs: GraphNames | None
    writes: dict[str, list[Write]]
    """State changes that the calls have sent while they ran, by key; empty if `forward` passes them on."""
    task_results: dict[str, dict[int, Any]]
    """Results of LangGraph's `@task` functions in the calls, by key and number of the function in its call."""

    @property
    def run(self) -> str:
        """Unique name of the run of the batch."""
        ...

    @property
    def thread_id(self) -> object:
        """Conversation of the batch; `None` without one."""
        ...

    def record_answers(self, key: str, answers: list[Any]) -> None:
        """Receive all answers that a call has accepted so far; called after each accepted answer."""


class CallScratchpad(PregelScratchpad):
    """LangGraph scratchpad of one tool call: counters and answers for `interrupt()` and for nested graphs.

    A subclass of `PregelScratchpad`, because Pregel checks the type. Its counters are methods and start at 0 for each
    call. One is created for every call, so creation must be cheap.

    `digests` has for each answer the digest of the only question that it may answer, or `None`. `question` is the
    question that the last answer belongs to.
    """

    __slots__ = (
        "_digests",
        "_key",
        "_namespace",
        "_owner",
        "_question",
        "_question_count",
        "_resume",
        "_subgraph_count",
        "_task_count",
    )

    def __init__(
        self,
        owner: CallOwner,
        key: str,
        namespace: str,
        resume: list[Any] | None = None,
        *,
        digests: Sequence[str | None] = (),
        question: object = None,
    ) -> None:
        self._owner = owner
        self._key = key
        self._namespace = namespace
        self._resume = resume
        self._digests = digests
        self._question = question
        self._question_count = self._subgraph_count = self._task_count = 0

    __setattr__ = object.__setattr__  # the parent is a frozen dataclass, but the counters below change

    @property
    def run(self) -> str:
        return self._owner.run

    @property
    def graphs(self) -> GraphNames | None:
        return self._owner.graphs

    @property
    def name(self) -> object:
        """Name of the call that is unique among all calls of all runs, and the same when the call is started again."""
        return [self.run, self._namespace]

    @property
    def thread_id(self) -> object:
        return self._owner.thread_id

    # LangGraph declares these three as fields of a frozen dataclass, and only reads them. Here they are computed when
    # they are read, because few calls need them: hence the suppressed checks.
    @property
    def step(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0 if (outer_scratchpad := self._owner.outer_scratchpad) is None else outer_scratchpad.step

    @property
    def stop(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0 if (outer_scratchpad := self._owner.outer_scratchpad) is None else outer_scratchpad.stop

    @property
    def resume(self) -> list[Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._resume is None:
            self._resume = []
        return self._resume

    def call_counter(self) -> int:
        return 0 if (outer_scratchpad := self._owner.outer_scratchpad) is None else outer_scratchpad.call_counter()

    def interrupt_counter(self) -> int:
        self._question_count += 1
        return self._question_count - 1

    def start_task(self, function: Any, arguments: Any, **options: Any) -> TaskResult:
        """Return the result of LangGraph's `@task` function, which the call has called."""
        number = self._task_count
        self._task_count += 1
        return task_result(self._owner.task_results.setdefault(self._key, {}), number, function, arguments, **options)

    def subgraph_counter(self) -> int:
        number = self._subgraph_count
        self._subgraph_count += 1
        if (graphs := self._owner.graphs) is not None:
            graphs.register_graph(self._namespace, number)
        return number

    def get_null_resume(self, consume: bool = False) -> None:
        # Answers without an id were assigned to interrupt ids before the call started.
        return None

    def count_unused_answers(self) -> int:
        return max(0, len(self.resume) - self._question_count)

    def earlier_question(self) -> object:
        """Return the question of the last answer; `None` if the question is unknown or the answer was taken."""
        return self._question if self.count_unused_answers() else None

    def __call__(self, writes: Writes) -> None:
        """Store the call's accepted answers; pass all other writes on to the outer task, or collect them."""
        for channel, value in writes:
            if channel == RESUME:
                self._owner.record_answers(self._key, list(value))
            elif (forward := self._owner.forward) is not None:
                forward([(channel, value)])
            else:
                self._owner.writes.setdefault(self._key, []).append((channel, value))

    @property
    def writes(self) -> Sequence[Write]:
        """State changes that this call (or the outer call around its agent) has sent while it ran."""
        forward = self._owner.forward
        return forward.writes if isinstance(forward, CallScratchpad) else self._owner.writes.get(self._key, ())

    def take_writes(self) -> Sequence[Write]:
        """Return and remove the state changes of this call, so that a later step does not apply them again."""
        return self._owner.writes.pop(self._key, ())


def scope_of(config: RunnableConfig) -> CallScratchpad | None:
    """Return the scratchpad of the call that a config belongs to; `None` without a call of callboard's `ToolNode`."""
    scratchpad = config.get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return scratchpad if isinstance(scratchpad, CallScratchpad) else None


def with_sent_writes(output: Any, config: RunnableConfig) -> Any:
    """Return the output of a node, together with the state changes that the node has sent while it ran."""
    scope = config[CONF].get(CONFIG_KEY_SCRATCHPAD)
    # Tested here, without another call: most nodes send no writes.
    return with_writes(output, scope.take_writes()) if scope is not None and scope._owner.writes else output


class TaskScope(NamedTuple):
    """Identity of a tool call that LangGraph's own node runs."""

    name: object
    """Name that is unique among all calls of all runs, and the same when the task is started again."""
    thread_id: object
    """Conversation of the call; `None` without one."""


def scope_in_task(config: RunnableConfig, call_id: str | None) -> TaskScope | None:
    """Return the identity of a tool call from the config of its LangGraph task; `None` outside of a graph."""
    conf = config.get(CONF, {})
    namespace = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    thread_id = conf.get("thread_id")
    return TaskScope([thread_id, namespace, call_id], thread_id) if namespace else None


def is_answer_for(digest: str, config: RunnableConfig) -> bool:
    """Return whether the latest answer of `interrupt()` was given to the question about a call with this digest."""
    # Only callboard's `ToolNode` records questions. In another node, LangGraph's assignment of answers is trusted.
    if (scope := scope_of(config)) is None:
        return True
    index = scope._question_count - 1
    return index < len(scope._digests) and scope._digests[index] == digest


def is_next_answer_bound_to_call(config: RunnableConfig) -> bool:
    """Return whether the next `interrupt()` has an answer that is valid for one particular question only."""
    if (scope := scope_of(config)) is None:
        return False
    index = scope._question_count
    return index < min(len(scope._digests), len(scope.resume)) and scope._digests[index] is not None


def asks_next(config: RunnableConfig) -> bool:
    """Return whether the next `interrupt()` has no answer yet, so that it asks a person."""
    scope = scope_of(config)
    return scope is not None and scope._question_count >= len(scope.resume)


def with_answers(conf: Mapping[str, Any], answers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a copy of a `configurable` with people's answers by interrupt id; graphs inside of calls read them."""
    return {**conf, CONFIG_KEY_RESUME_MAP: answers}


def call_config(
    config: RunnableConfig, conf: Mapping[str, Any], scratchpad: CallScratchpad, *, is_node: bool = False
) -> RunnableConfig:
    """Return the LangGraph config for one call of a batch; `conf` is the batch's `configurable`."""
    keys = {
        **conf,
        CONFIG_KEY_SCRATCHPAD: scratchpad,
        CONFIG_KEY_SEND: scratchpad,
        CONFIG_KEY_CHECKPOINT_NS: scratchpad._namespace,
    }
    if CONFIG_KEY_CALL not in conf:  # a task of LangGraph runs these functions as its own tasks
        keys[CONFIG_KEY_CALL] = scratchpad.start_task
    called: RunnableConfig = {**config, CONF: keys}
    metadata = config.get("metadata") or {}
    if not is_node and CONFIG_KEY_CHECKPOINT_NS in conf and CONFIG_KEY_CHECKPOINT_NS not in metadata:
        # LangChain puts it there for the tools of LangGraph's node, and not for nodes.
        namespace = scratchpad._namespace.partition(NS_SEP + CALL_PREFIX)[0]
        called["metadata"] = {**metadata, CONFIG_KEY_CHECKPOINT_NS: namespace}
    return called


# Streams and callbacks of the outer graph


Put = Callable[[Any], None]
"""Function that receives one chunk of a stream; a chunk has a namespace, a stream mode and a payload."""


def config_for_calls(config: RunnableConfig) -> tuple[RunnableConfig, GraphNames | None]:
    """Return the config for a batch's calls, and the `GraphNames` of its graphs (`None` outside of a graph)."""
    conf = config.get(CONF, {})
    if CONFIG_KEY_CHECKPOINT_NS not in conf and CONFIG_KEY_SCRATCHPAD not in conf:
        return config, None  # outside of a graph
    outer_scratchpad, namespace = conf.get(CONFIG_KEY_SCRATCHPAD), conf.get(CONFIG_KEY_CHECKPOINT_NS)
    if isinstance(outer_scratchpad, CallScratchpad) and outer_scratchpad.graphs is not None:
        return _with_writer(config, None), outer_scratchpad.graphs  # calls within a call: named there already
    # A node of callboard's agent has a namespace, but no scratchpad around its calls.
    if not namespace or graph_task(config) is None:
        return _with_writer(config, None), None
    graphs = GraphNames(namespace)
    config = _with_handlers(config, graphs)
    if (stream := conf.get(CONFIG_KEY_STREAM)) is not None:
        config = with_key(config, CONFIG_KEY_STREAM, StreamProtocol(_rename_chunks(stream, graphs), stream.modes))
    return _with_writer(config, graphs), graphs


def _with_handlers(config: RunnableConfig, graphs: GraphNames) -> RunnableConfig:
    callbacks = config.get("callbacks")
    if isinstance(callbacks, BaseCallbackManager):
        if not any(map(_is_stream_handler, callbacks.handlers)):
            return config
        renamed: Any = callbacks.copy()
        handlers_by_id = {id(handler): _rename_handler(handler, graphs) for handler in callbacks.handlers}
        renamed.handlers = [handlers_by_id[id(handler)] for handler in callbacks.handlers]
        renamed.inheritable_handlers = [
            handlers_by_id.get(id(handler)) or _rename_handler(handler, graphs)
            for handler in callbacks.inheritable_handlers
        ]
    elif callbacks:
        renamed = [_rename_handler(handler, graphs) for handler in callbacks]
    else:
        return config
    return {**config, "callbacks": renamed}


def _is_stream_handler(handler: object) -> bool:
    return isinstance(handler, StreamMessagesHandler | StreamToolCallHandler)


def _rename_handler(handler: Any, graphs: GraphNames) -> Any:
    """Return a copy of a stream handler that uses LangGraph's namespaces; return another handler unchanged."""
    if not _is_stream_handler(handler):
        return handler
    # A shallow copy: both share the records of runs and messages, so that no message is streamed twice.
    renamed = copy.copy(handler)
    renamed.stream = _rename_chunks(handler.stream, graphs)
    return renamed


def _rename_chunks(put: Put, graphs: GraphNames) -> Put:
    """Return a function that passes chunks to `put`, with the namespaces that LangGraph would use."""

    def put_renamed(chunk: tuple[tuple[str, ...], str, Any]) -> None:
        path, mode, payload = chunk
        name = graphs.of(namespace := NS_SEP.join(path))
        if name != namespace:
            path = tuple(name.split(NS_SEP))
            if mode == "messages":
                message, metadata = payload
                names = {key: graphs.of(metadata[key]) for key in _NAMESPACES if isinstance(metadata.get(key), str)}
                payload = message, {**metadata, **names}
        put((path, mode, payload))

    return put_renamed


_NAMESPACES = ("langgraph_checkpoint_ns", CONFIG_KEY_CHECKPOINT_NS)


def _with_writer(config: RunnableConfig, graphs: GraphNames | None) -> RunnableConfig:
    """Return a config whose stream writer uses LangGraph's namespaces for the chunks that calls write."""
    # LangGraph's writer drops the last segment of the namespace to get the graph. Within a call there is one segment
    # more, so the writer would name the task as the graph.
    runtime = runtime_in(config.get(CONF, {}))
    if runtime is None or runtime.stream_writer is NO_RUNTIME.stream_writer:
        return config  # nobody reads the chunks
    write, namespace = runtime.stream_writer, config[CONF].get(CONFIG_KEY_CHECKPOINT_NS, "")

    def write_renamed(chunk: Any) -> None:
        current = var_child_runnable_config.get() or {}
        name = current.get(CONF, {}).get(CONFIG_KEY_CHECKPOINT_NS, "")
        if not name or name.rpartition(NS_SEP)[0] == namespace:
            _write_within(config, write, chunk)
        elif graphs is None or (graph_name := graphs.of(name)) == name:
            write(chunk)
        else:
            _write_within(with_key(current, CONFIG_KEY_CHECKPOINT_NS, graph_name), write, chunk)

    return with_runtime(config, runtime.override(stream_writer=write_renamed))


def _write_within(config: RunnableConfig, write: StreamWriter, chunk: Any) -> None:
    token = var_child_runnable_config.set(config)
    try:
        write(chunk)
    finally:
        var_child_runnable_config.reset(token)
