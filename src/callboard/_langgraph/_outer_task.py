"""The LangGraph graph that runs us: its runtime, its state, its task."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._config import ensure_config as _graph_config
from langgraph._internal._config import merge_configs as _merge_graph_configs
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
    RESUME,
)
from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.runtime import Runtime

from callboard._langgraph._savers import AwaitedSaver

Writes = Sequence[tuple[str, Any]]
Send = Callable[[Writes], None]

NO_RUNTIME: Runtime[Any] = Runtime()
"""What `runtime_of` finds where no graph runs us."""
_READ = ("context", "store", "stream_writer", "execution_info", "server_info")
"""What LangGraph's own node reads of a runtime."""


def run_config(*configs: RunnableConfig | None) -> RunnableConfig:
    """A complete config for a run, the later ones first, with the defaults that a graph's run has."""
    return _graph_config(*configs)


def merged_configs(*configs: RunnableConfig | None) -> RunnableConfig:
    """Several configs in one; LangChain's own function would take a limit of 25 for none."""
    return _merge_graph_configs(*configs)


def runtime_of(config: RunnableConfig) -> Runtime[Any]:
    """The runtime of the graph that runs us, or one with nothing in it."""
    return runtime_in(config.get(CONF, {})) or NO_RUNTIME


def runtime_in(conf: Mapping[str, Any]) -> Runtime[Any] | None:
    """The runtime in a config; one of another class, as tests have it, is read by its attributes.

    Raises:
        TypeError: if it has none of them.
    """
    runtime = conf.get(CONFIG_KEY_RUNTIME)
    if runtime is None or isinstance(runtime, Runtime):
        return runtime
    found = {name: getattr(runtime, name) for name in _READ if hasattr(runtime, name)}
    if not found:
        raise TypeError(f"config['configurable'][{CONFIG_KEY_RUNTIME!r}] has none of {', '.join(_READ)}: {runtime!r}")
    return Runtime(**found)


def with_runtime(config: RunnableConfig, runtime: object) -> RunnableConfig:
    """A config with a runtime, as a graph would give it to its nodes; that of a tool has the same attributes."""
    return cast("RunnableConfig", {**config, CONF: {**config.get(CONF, {}), CONFIG_KEY_RUNTIME: runtime}})


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
        writes = [(RESUME, resume)]
        await AwaitedSaver(saver).store(
            "put_writes",
            lambda known: known.put_writes(where, writes, task_id),
            lambda known: known.aput_writes(where, writes, task_id),
        )


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
