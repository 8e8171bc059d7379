"""What runs within a call of ours: the keys by which it interrupts, resumes and runs graphs of its own."""

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
"""The id of an interrupt that nobody has given one."""


def call_namespace(conf: Mapping[str, Any], key: str) -> str:
    """The checkpoint namespace of one call; its interrupts are named after it."""
    around = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    return f"{around}{NS_SEP}call:{key}" if around else f"call:{key}"


_RUN_NAME: Final = "callboard_run"
"""Name of a batch in `configurable`, of a caller that makes the same calls again in another thread: `mcp_service`."""


def name_of_run(conf: Mapping[str, Any], *, is_named: bool) -> str:
    """Return a name for what runs a batch, which makes the namespaces of its calls unique among all runs.

    Args:
        conf: what is around the calls. A namespace in it says which task of which checkpoint they belong to, except
            within a call that has none such around it.
        is_named: whether the namespaces of the calls have been given, and so name them already.
    """
    around = conf.get(CONFIG_KEY_SCRATCHPAD)
    if isinstance(around, CallScratchpad):
        return around.run
    thread = conf.get("thread_id")
    if is_named or conf.get(CONFIG_KEY_CHECKPOINT_NS):
        return "" if thread is None else str(thread)
    given = conf.get(_RUN_NAME)
    return given if isinstance(given, str) else uuid4().hex


def question_id(namespace: str, answered: int) -> str:
    """The id that `interrupt()` gives to the next question in a namespace."""
    return _interrupt_id(namespace, answered)


def is_interrupt_id(key: str) -> bool:
    """Whether a key looks like the id of an interrupt: an xxh3 digest of 128 bits, in lower case."""
    return len(key) == 32 and set(key) <= set("0123456789abcdef")


class GraphNames:
    """The graphs that the calls of one task run, and what LangGraph would call them.

    LangGraph knows no calls, only the task: the first graph that it runs has the task's namespace, and the others
    have numbers. Ours have namespaces below those of their calls, by which they are stored.

    Args:
        task: the namespace of the task.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self._started = count()
        self._names: dict[str, str] = {}

    def started(self, call: str, number: int) -> None:
        """A call runs a graph.

        Args:
            call: the namespace of the call.
            number: how many graphs it has run before.
        """
        if (graph := _numbered(call, number)) not in self._names:
            self._names[graph] = name = _numbered(self._task, next(self._started))
            # One with a conversation for all visits has no ids in its namespace, so calls share it.
            lasting = _numbered(without_ids(call), number)
            self._names.setdefault(lasting, without_ids(self._task) + name.removeprefix(self._task))

    def of(self, namespace: str) -> str:
        """What LangGraph would call a graph that a call runs, or anything in one."""
        graph = namespace
        while graph:
            if graph in self._names:
                return self._names[graph] + namespace.removeprefix(graph)
            graph = graph.rpartition(NS_SEP)[0]
        return namespace


def _numbered(namespace: str, number: int) -> str:
    return f"{namespace}{NS_SEP}{number}" if number else namespace


def without_ids(namespace: str) -> str:
    """The namespace of a graph that goes on with one conversation, whichever task runs it."""
    return NS_SEP.join(part.partition(NS_END)[0] for part in namespace.split(NS_SEP))


class AnswerKeeper(Protocol):
    """Keeps the answers that calls have accepted, so that they get them again when they start anew."""

    def accepted(self, key: str, answers: list[Any]) -> None: ...


class CallScratchpad(PregelScratchpad):
    """What `interrupt()` and graphs below a call count and look up; made for every call, so made cheaply.

    A real `PregelScratchpad`, because Pregel asks; but its counters are methods, and begin at 0 here.

    Args:
        around: the one of the task around the call.
        resume: answers to the call's own questions, in order.
        keeper: told all of them, for `key`, each time one has been accepted.
        key: the call's name in its batch.
        forward: takes the other writes.
        digests: what the answers are good for, where their questions said so.
        question: what the last of the answers is for, where that is known.
        namespace: the call's own.
        graphs: told of those that the call runs.
        run: a name of what runs the call's batch.
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

    __setattr__ = object.__setattr__  # the parent is frozen; the counters below are not

    @property
    def name(self) -> object:
        """A name that no other call has, in any run, and that this one has again when it is begun anew."""
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
        # Plain answers are turned into answers by id before a call sees them.
        return None

    def last_answer_is_for(self, digest: str) -> bool:
        """Whether the answer that `interrupt()` returned last was given to a question with this digest."""
        position = self._asked - 1
        return position < len(self._digests) and self._digests[position] == digest

    def next_answer_is_bound(self) -> bool:
        """Whether the next `interrupt()` would return an answer that is good for one digest only."""
        return self._asked < min(len(self._digests), len(self.resume)) and self._digests[self._asked] is not None

    def next_is_asked(self) -> bool:
        """Whether the next `interrupt()` has no answer yet."""
        return self._asked >= len(self.resume)

    def answers_left(self) -> int:
        """How many answers the call has not taken yet."""
        return max(0, len(self.resume) - self._asked)

    def answered_question(self) -> object:
        """What the last answer is for, as long as the call has not taken it; `None` if nobody knows."""
        return self._question if self.answers_left() else None

    def __call__(self, writes: Writes) -> None:
        """Take what the call writes: accepted answers for the keeper, all else for the task around it."""
        for channel, value in writes:
            if channel == RESUME:
                self._keeper.accepted(self._key, list(value))
            elif self._forward is not None:
                self._forward([(channel, value)])


def scope_of(config: RunnableConfig) -> CallScratchpad | None:
    """What a call of ours runs in, by its config; `None` where somebody has taken it out."""
    found = config.get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return found if isinstance(found, CallScratchpad) else None


class TaskScope(NamedTuple):
    """What a call runs in that somebody else runs, in a task of LangGraph's."""

    name: object
    """That of no other call, in any run; the same when the task is begun anew."""


def scope_in_task(config: RunnableConfig, call_id: str | None) -> TaskScope | None:
    """What a call runs in, by the config of its task; `None` outside of a graph."""
    conf = config.get(CONF, {})
    namespace = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    return TaskScope([conf.get("thread_id"), namespace, call_id]) if namespace else None


def answer_is_for(digest: str, config: RunnableConfig) -> bool:
    """Whether the answer that `interrupt()` returned last was given to a question with this digest.

    Only a `ToolNode` of ours knows what had been asked; elsewhere the engine's word has to do.
    """
    scope = scope_of(config)
    return scope is None or scope.last_answer_is_for(digest)


def bound_answer_waits(config: RunnableConfig) -> bool:
    """Whether the call has an answer, not looked at yet, that is good for one digest only."""
    scope = scope_of(config)
    return scope is not None and scope.next_answer_is_bound()


def next_is_asked(config: RunnableConfig) -> bool:
    """Whether the next `interrupt()` is known to ask; outside of a `ToolNode` of ours nobody knows."""
    scope = scope_of(config)
    return scope is not None and scope.next_is_asked()


def call_configurable(
    conf: Mapping[str, Any], namespace: str, scratchpad: CallScratchpad, resume_map: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The `configurable` of one call.

    Args:
        conf: the one around the call.
        namespace: the call's own.
        scratchpad: the call's own.
        resume_map: all answers by id, for graphs that the tool runs.
    """
    keys: dict[str, Any] = {
        **conf,
        CONFIG_KEY_SCRATCHPAD: scratchpad,
        CONFIG_KEY_SEND: scratchpad,
        CONFIG_KEY_CHECKPOINT_NS: namespace,
    }
    if resume_map:
        keys[CONFIG_KEY_RESUME_MAP] = resume_map
    return keys
