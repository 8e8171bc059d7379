"""LangGraph config of code inside a call, for interrupts, resuming and nested graphs."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    NS_END,
    NS_SEP,
)
from langgraph._internal._constants import RESUME as RESUME
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.types import Interrupt, _interrupt_id

from callboard._langgraph._outer_task import Send, Writes

PLACEHOLDER_ID = Interrupt(value=None).id
"""Id of an `Interrupt` that was created without an id."""


def call_namespace(conf: Mapping[str, Any], key: str) -> str:
    """Return the checkpoint namespace of a call; the ids of its interrupts are derived from it."""
    around = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    return f"{around}{NS_SEP}call:{key}" if around else f"call:{key}"


_RUN_NAME: Final = "callboard_run"
"""Key in `configurable` for a run name, for callers such as `mcp_service` that repeat a batch in another thread."""


def name_of_run(conf: Mapping[str, Any], *, is_named: bool) -> str:
    """Return a prefix that makes the namespaces of a batch's calls unique among all runs.

    Args:
        conf: the `configurable` around the calls.
        is_named: true if the namespaces of the calls are unique already.
    """
    around = conf.get(CONFIG_KEY_SCRATCHPAD)
    if isinstance(around, CallScratchpad):
        return around.run
    thread = conf.get("thread_id")
    # A namespace identifies the task and the checkpoint, so together with the thread it is unique.
    if is_named or conf.get(CONFIG_KEY_CHECKPOINT_NS):
        return "" if thread is None else str(thread)
    given = conf.get(_RUN_NAME)
    return given if isinstance(given, str) else uuid4().hex


def question_id(namespace: str, answered: int) -> str:
    """Return the id that `interrupt()` gives to the next question in a namespace."""
    return _interrupt_id(namespace, answered)


def is_interrupt_id(key: str) -> bool:
    """Return whether a key looks like an interrupt id: 128 bits of xxh3 in lower-case hex."""
    return len(key) == 32 and set(key) <= set("0123456789abcdef")


class GraphNames:
    """Mapping from the namespaces of graphs inside calls to the namespaces that LangGraph would use.

    LangGraph knows only the task, not its calls: the first graph in a task has the task's namespace, further graphs
    have numbers. callboard stores graphs in namespaces below those of their calls. `task` is the task's namespace.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._started = count()
        self._names: dict[str, str] = {}

    def started(self, call: str, number: int) -> None:
        """Register a graph that a call starts; `number` is the count of the call's earlier graphs."""
        if (graph := _numbered(call, number)) not in self._names:
            self._names[graph] = name = _numbered(self._task, next(self._started))
            # A graph that continues one conversation has no task ids in its namespace, so several calls share the name.
            lasting = _numbered(without_ids(call), number)
            self._names.setdefault(lasting, without_ids(self._task) + name.removeprefix(self._task))

    def of(self, namespace: str) -> str:
        """Return LangGraph's namespace for a graph inside a call, or for a part of one."""
        graph = namespace
        while graph:
            if graph in self._names:
                return self._names[graph] + namespace.removeprefix(graph)
            graph = graph.rpartition(NS_SEP)[0]
        return namespace


def _numbered(namespace: str, number: int) -> str:
    return f"{namespace}{NS_SEP}{number}" if number else namespace


def without_ids(namespace: str) -> str:
    """Return a namespace without task ids, as used by graphs that continue one conversation in every task."""
    return NS_SEP.join(part.partition(NS_END)[0] for part in namespace.split(NS_SEP))


class AnswerKeeper(Protocol):
    """Store of the answers that calls have accepted, so that restarted calls receive them again."""

    def accepted(self, key: str, answers: list[Any]) -> None: ...


class CallScratchpad(PregelScratchpad):
    """Scratchpad of a call: counters and answers for `interrupt()` and for nested graphs.

    A subclass of `PregelScratchpad`, because Pregel checks the type. Its counters are methods and start at 0 for each
    call. One is created for every call, so creation must be cheap.

    Args:
        around: scratchpad of the task around the call.
        resume: answers to the call's own questions, in order.
        keeper: receives all accepted answers of the call, under `key`, after each further one.
        key: name of the call in its batch.
        forward: receives all other writes of the call.
        digests: per answer, the digest of the only question that it may answer, or `None`.
        question: question of the last answer, if known.
        namespace: namespace of the call.
        graphs: registry of the graphs that the call runs.
        run: unique name of the run of the call's batch.
    """

    __slots__ = (
        "_asked",
        "_digests",
        "_forward",
        "_keeper",
        "_key",
        "_namespace",
        "_question",
        "_resume",
        "_subgraphs",
        "around",
        "graphs",
        "run",
    )

    def __init__(
        self,
        around: PregelScratchpad | None,
        resume: list[Any] | None,
        keeper: AnswerKeeper,
        key: str,
        forward: Send | None,
        *,
        digests: Sequence[str | None] = (),
        question: object = None,
        namespace: str = "",
        graphs: GraphNames | None = None,
        run: str = "",
    ) -> None:
        self.run = run
        self._digests = digests
        self._question = question
        self._namespace = namespace
        self.graphs = graphs
        self.around = around
        self._resume = resume
        self._keeper = keeper
        self._key = key
        self._forward = forward
        self._asked = self._subgraphs = 0

    __setattr__ = object.__setattr__  # the parent is a frozen dataclass, but the counters below change

    @property
    def name(self) -> object:
        """Name that is unique over all calls of all runs, and the same when the call is started again."""
        return [self.run, self._namespace]

    @property
    def step(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0 if self.around is None else self.around.step

    @property
    def stop(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0 if self.around is None else self.around.stop

    @property
    def resume(self) -> list[Any]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        if self._resume is None:
            self._resume = []
        return self._resume

    def call_counter(self) -> int:
        return 0 if self.around is None else self.around.call_counter()

    def interrupt_counter(self) -> int:
        self._asked += 1
        return self._asked - 1

    def subgraph_counter(self) -> int:
        number = self._subgraphs
        self._subgraphs += 1
        if self.graphs is not None:
            self.graphs.started(self._namespace, number)
        return number

    def get_null_resume(self, consume: bool = False) -> None:
        # Answers without an id were assigned to interrupt ids before the call started.
        return None

    def last_answer_is_for(self, digest: str) -> bool:
        """Return whether the latest answer that `interrupt()` returned belongs to a question with this digest."""
        position = self._asked - 1
        return position < len(self._digests) and self._digests[position] == digest

    def next_answer_is_bound(self) -> bool:
        """Return whether the next `interrupt()` would return an answer that is bound to one digest."""
        return self._asked < min(len(self._digests), len(self.resume)) and self._digests[self._asked] is not None

    def next_is_asked(self) -> bool:
        """Return whether the next `interrupt()` has no answer yet, and so will ask."""
        return self._asked >= len(self.resume)

    def answers_left(self) -> int:
        """Return the number of answers that the call has not taken yet."""
        return max(0, len(self.resume) - self._asked)

    def answered_question(self) -> object:
        """Return the question of the last answer while the call has not taken it; `None` if unknown."""
        return self._question if self.answers_left() else None

    def __call__(self, writes: Writes) -> None:
        """Receive the call's writes: accepted answers go to the keeper, all others to the outer task."""
        for channel, value in writes:
            if channel == RESUME:
                self._keeper.accepted(self._key, list(value))
            elif self._forward is not None:
                self._forward([(channel, value)])


def scope_of(config: RunnableConfig) -> CallScratchpad | None:
    """Return the scratchpad of a call from its config; `None` if a tool has removed or replaced it."""
    found = config.get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return found if isinstance(found, CallScratchpad) else None


class TaskScope(NamedTuple):
    """Source of the unique name of a call that LangGraph's own node runs."""

    name: object
    """Name that is unique over all calls of all runs, and the same when the task is started again."""


def scope_in_task(config: RunnableConfig, call_id: str | None) -> TaskScope | None:
    """Return the scope of a call from the config of its LangGraph task; `None` outside of a graph."""
    conf = config.get(CONF, {})
    namespace = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    return TaskScope([conf.get("thread_id"), namespace, call_id]) if namespace else None


def answer_is_for(digest: str, config: RunnableConfig) -> bool:
    """Return whether the latest answer that `interrupt()` returned belongs to a question with this digest."""
    scope = scope_of(config)
    # Only callboard's `ToolNode` records questions. In another node, LangGraph's assignment of answers is trusted.
    return scope is None or scope.last_answer_is_for(digest)


def bound_answer_waits(config: RunnableConfig) -> bool:
    """Return whether the next answer of the call is bound to one digest."""
    scope = scope_of(config)
    return scope is not None and scope.next_answer_is_bound()


def next_is_asked(config: RunnableConfig) -> bool:
    """Return whether the next `interrupt()` will ask; always `False` outside of callboard's `ToolNode`."""
    scope = scope_of(config)
    return scope is not None and scope.next_is_asked()


def call_configurable(
    conf: Mapping[str, Any], namespace: str, scratchpad: CallScratchpad, resume_map: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the `configurable` of one call; `resume_map` has all answers by id, for graphs that the tool runs."""
    keys: dict[str, Any] = {
        **conf,
        CONFIG_KEY_SCRATCHPAD: scratchpad,
        CONFIG_KEY_SEND: scratchpad,
        CONFIG_KEY_CHECKPOINT_NS: namespace,
    }
    if resume_map:
        keys[CONFIG_KEY_RESUME_MAP] = resume_map
    return keys
