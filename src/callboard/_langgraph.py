"""Everything callboard knows of LangGraph's private keys, in one place.

Names and meanings were read from langgraph 1.2; `tests/test_langgraph_keys.py` notices when they move.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from anyio import to_thread
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph._internal._config import ensure_config as _graph_config
from langgraph._internal._constants import (
    CONF,
    CONFIG_KEY_CHECKPOINT_MAP,
    CONFIG_KEY_CHECKPOINT_NS,
    CONFIG_KEY_CHECKPOINTER,
    CONFIG_KEY_DURABILITY,
    CONFIG_KEY_READ,
    CONFIG_KEY_RESUME_MAP,
    CONFIG_KEY_RUNTIME,
    CONFIG_KEY_SCRATCHPAD,
    CONFIG_KEY_SEND,
    CONFIG_KEY_TASK_ID,
    CONFIG_KEY_THREAD_ID,
    NS_SEP,
)
from langgraph._internal._constants import RESUME as RESUME
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.runtime import Runtime
from langgraph.types import Interrupt, StreamWriter, _interrupt_id

Writes = Sequence[tuple[str, Any]]
Send = Callable[[Writes], None]

PLACEHOLDER_ID = Interrupt(value=None).id
"""The id of an interrupt that nobody has given one."""

_no_runtime: Runtime[Any] = Runtime()


def run_config(config: RunnableConfig | None) -> RunnableConfig:
    """A complete config for a run, with the defaults that a graph's run has."""
    return _graph_config(config)


def runtime_of(config: RunnableConfig) -> Runtime[Any]:
    """The runtime of the graph that runs us, or one with nothing in it."""
    runtime = config.get(CONF, {}).get(CONFIG_KEY_RUNTIME)
    return _no_runtime if runtime is None else cast("Runtime[Any]", runtime)


def writer_of(config: RunnableConfig, runtime: Runtime[Any]) -> StreamWriter:
    """The graph's stream writer, bound to the node: calls have namespaces of their own, their events not."""
    write = runtime.stream_writer
    if CONFIG_KEY_RUNTIME not in config.get(CONF, {}):
        return write

    def write_as_node(chunk: Any) -> None:
        token = var_child_runnable_config.set(config)
        try:
            write(chunk)
        finally:
            var_child_runnable_config.reset(token)

    return write_as_node


def read_state(config: RunnableConfig) -> dict[str, Any]:
    """The channels of the graph that runs us; empty where none does."""
    read = config.get(CONF, {}).get(CONFIG_KEY_READ)
    if read is None:
        return {}
    # Pregel installs partial(local_read, scratchpad, channels, managed, task): channels only, because
    # managed values have doors of their own.
    return cast("dict[str, Any]", read(list(read.args[1]), True))


@dataclass(frozen=True, slots=True)
class GraphTask:
    """The LangGraph task (or the call of an outer node) that runs us, as far as interrupts are concerned."""

    conf: Mapping[str, Any]

    @property
    def scratchpad(self) -> PregelScratchpad:
        return cast("PregelScratchpad", self.conf[CONFIG_KEY_SCRATCHPAD])

    @property
    def send(self) -> Send:
        return cast("Send", self.conf[CONFIG_KEY_SEND])

    @property
    def resume_map(self) -> Mapping[str, Any] | None:
        """Answers by interrupt id that this run was resumed with."""
        return cast("Mapping[str, Any] | None", self.conf.get(CONFIG_KEY_RESUME_MAP))

    @property
    def attempt(self) -> int:
        """Which attempt of its retry policy the task is in, from 1."""
        info = getattr(self.conf.get(CONFIG_KEY_RUNTIME), "execution_info", None)
        return 1 if info is None else int(info.node_attempt)

    def take_plain_answer(self) -> Any:
        """The answer given without an id, once; `None` if there is none."""
        if self.resume_map is not None:
            # What is stored then is left over from an earlier resume.
            return None
        return self.scratchpad.get_null_resume(True)

    @property
    def _namespace(self) -> str:
        """The namespace of the graph; the task's own is one segment longer."""
        return str(self.conf.get(CONFIG_KEY_CHECKPOINT_NS, "")).rpartition(NS_SEP)[0]

    @property
    def durable(self) -> bool:
        """Whether `save` has somewhere to write to, and is wanted."""
        conf = self.conf
        return (
            hasattr(conf.get(CONFIG_KEY_CHECKPOINTER), "put_writes")
            and conf.get(CONFIG_KEY_TASK_ID) is not None
            and conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(self._namespace) is not None
            and conf.get(CONFIG_KEY_DURABILITY) != "exit"
        )

    async def save(self, resume: list[Any]) -> None:
        """Write the task's resume slot at once, so that it outlives a killed process.

        LangGraph writes a task when it ends. The slot has a fixed place, so this replaces what was there.
        Does nothing unless `durable`.
        """
        if not self.durable:
            return
        saver, task_id = self.conf[CONFIG_KEY_CHECKPOINTER], self.conf[CONFIG_KEY_TASK_ID]
        namespace = self._namespace
        checkpoint_id = self.conf[CONFIG_KEY_CHECKPOINT_MAP][namespace]
        where: dict[str, Any] = {
            CONF: {
                CONFIG_KEY_THREAD_ID: self.conf[CONFIG_KEY_THREAD_ID],
                CONFIG_KEY_CHECKPOINT_NS: namespace,
                "checkpoint_id": checkpoint_id,
            }
        }
        await _put_writes(saver, where, [(RESUME, resume)], task_id)


async def _put_writes(saver: Any, where: dict[str, Any], writes: Writes, task_id: str) -> None:
    import asyncio

    home = getattr(saver, "loop", None)
    if home is None or home is asyncio.get_running_loop():
        try:
            await saver.aput_writes(where, writes, task_id)
        except NotImplementedError:
            pass  # a sync saver
        else:
            return
    await to_thread.run_sync(saver.put_writes, where, writes, task_id)


def graph_task(config: RunnableConfig) -> GraphTask | None:
    """The task that runs us, or `None` outside a graph."""
    conf = config.get(CONF, {})
    if CONFIG_KEY_SCRATCHPAD in conf and CONFIG_KEY_SEND in conf:
        return GraphTask(conf)
    return None


def is_graph_node(config: RunnableConfig, name: str) -> bool:
    """Whether a graph runs the node of this name itself, and not a function that uses it.

    LangGraph does not say; what it says is the name under which the graph knows what runs. A node that was
    added under another name than its own is taken for a function, which costs some bytes and no promise.
    """
    return (config.get("metadata") or {}).get("langgraph_node") == name


def call_namespace(conf: Mapping[str, Any], key: str) -> str:
    """The checkpoint namespace of one call; its interrupts are named after it."""
    around = conf.get(CONFIG_KEY_CHECKPOINT_NS)
    return f"{around}{NS_SEP}call:{key}" if around else f"call:{key}"


def question_id(namespace: str, answered: int) -> str:
    """The id that `interrupt()` gives to the next question in a namespace."""
    return _interrupt_id(namespace, answered)


class AnswerKeeper(Protocol):
    """Where accepted answers go."""

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
    """

    __slots__ = ("_asked", "_digests", "_forward", "_keeper", "_key", "_resume", "_subgraphs", "around")

    def __init__(
        self,
        around: PregelScratchpad | None,
        resume: list[Any] | None,
        keeper: AnswerKeeper,
        key: str,
        forward: Send | None,
        *,
        digests: Sequence[str | None] = (),
    ) -> None:
        self._digests = digests
        self.around = around
        self._resume = resume
        self._keeper = keeper
        self._key = key
        self._forward = forward
        self._asked = self._subgraphs = 0

    __setattr__ = object.__setattr__  # the parent is frozen; the counters below are not

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
        self._subgraphs += 1
        return self._subgraphs - 1

    def get_null_resume(self, consume: bool = False) -> None:
        # Plain answers are turned into answers by id before a call sees them.
        return None

    def last_answer_is_for(self, digest: str) -> bool:
        """Whether the answer that `interrupt()` returned last was given to a question with this digest."""
        position = self._asked - 1
        return position < len(self._digests) and self._digests[position] == digest

    def __call__(self, writes: Writes) -> None:
        """The call's `send`."""
        for channel, value in writes:
            if channel == RESUME:
                self._keeper.accepted(self._key, list(value))
            elif self._forward is not None:
                self._forward([(channel, value)])


def answer_is_for(digest: str, config: RunnableConfig) -> bool:
    """Whether the answer that `interrupt()` returned last was given to a question with this digest.

    Only a `ToolNode` of ours knows what had been asked; elsewhere the engine's word has to do.
    """
    scratchpad = config.get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
    return not isinstance(scratchpad, CallScratchpad) or scratchpad.last_answer_is_for(digest)


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
