"""Access to the outer LangGraph graph that runs callboard (runtime, state, task), to configs, and to a `ToolNode`."""

import builtins
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, cast, get_type_hints

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
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
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import _default_handle_tool_errors, _get_all_injected_args
from langgraph.runtime import Runtime

from callboard._langgraph._savers import AwaitedSaver, store_shielded

Writes = Sequence[tuple[str, Any]]
Send = Callable[[Writes], None]

CONFIG_KEY_READ_STATE = "__pregel_read_state"
"""Name that `langgraph._internal._constants` has from LangGraph 1.2.24 on."""

NO_RUNTIME: Runtime[Any] = Runtime()
"""Empty runtime, used outside of a graph."""
_RUNTIME_FIELDS = ("context", "store", "stream_writer", "execution_info", "server_info")
"""Attributes that LangGraph's own tools node reads from a runtime."""


def run_config(*configs: RunnableConfig | None) -> RunnableConfig:
    """Merge the configs of a run, complete them with LangGraph's defaults, and return them; later ones win.

    Raises TypeError as `check_config` does.
    """
    for config in configs:
        if config is not None:
            check_config(config)
    return _graph_config(*configs)


_CONFIG_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    CONF: ((dict, Mapping), "a mapping, such as {'thread_id': '1'}"),
    "metadata": ((dict, Mapping), "a mapping"),
    "tags": ((list, tuple), "a list of texts"),
    "callbacks": ((list, tuple, BaseCallbackManager), "a list of callback handlers, or their manager"),
    "recursion_limit": ((int,), "a whole number"),
}
"""Types of the values of a config that LangChain reads without a check, and their names in errors."""


def check_config(config: object) -> None:
    """Raise TypeError for a config that is no mapping, such as the id of a thread, or has a value of a wrong type."""
    if not isinstance(config, (dict, Mapping)):  # `dict` first: `Mapping` alone takes ten times as long
        raise TypeError(f"config is a mapping, such as {{'configurable': {{'thread_id': '1'}}}}; got {config!r}")
    for key, (types, expected) in _CONFIG_TYPES.items():
        value = config.get(key)
        if value is not None and not isinstance(value, types):
            raise TypeError(f"config[{key!r}] is {expected}; got {value!r}")


# LangChain's own function would ignore a recursion limit of 25, which is its default value.
merged_configs = _merge_graph_configs


def runtime_of(config: RunnableConfig) -> Runtime[Any]:
    """Return LangGraph's runtime of the outer graph; outside of a graph, an empty runtime."""
    runtime = config.get(CONF, {}).get(CONFIG_KEY_RUNTIME)
    if runtime is None:
        return NO_RUNTIME
    return runtime if runtime.__class__ is Runtime else runtime_in(config[CONF]) or NO_RUNTIME


def runtime_in(conf: Mapping[str, Any]) -> Runtime[Any] | None:
    """Return LangGraph's runtime in a config's `configurable`, or `None`; a test's replacement is converted."""
    runtime = conf.get(CONFIG_KEY_RUNTIME)
    if runtime is None or isinstance(runtime, Runtime):
        return runtime
    fields = {name: getattr(runtime, name) for name in _RUNTIME_FIELDS if hasattr(runtime, name)}
    if not fields:
        raise TypeError(
            f"config['configurable'][{CONFIG_KEY_RUNTIME!r}] has none of {', '.join(_RUNTIME_FIELDS)}: {runtime!r}"
        )
    return Runtime(**fields)


def with_key(config: RunnableConfig, key: str, value: object) -> RunnableConfig:
    """Return a copy of a config in which one key of its `configurable` has another value."""
    return {**config, CONF: {**config.get(CONF, {}), key: value}}


def with_runtime(config: RunnableConfig, runtime: object) -> RunnableConfig:
    """Return a copy of a config with a runtime, stored where a graph stores the runtime for its nodes."""
    return with_key(config, CONFIG_KEY_RUNTIME, runtime)


def read_state(config: RunnableConfig) -> Any:
    """Return the state that an edge of the outer graph would pass to the running node; empty outside of a graph."""
    conf = config.get(CONF, {})
    if (read_input := conf.get(CONFIG_KEY_READ_STATE)) is not None:
        return read_input()
    if (read := conf.get(CONFIG_KEY_READ)) is None:
        return {}
    # LangGraph before 1.2.24: the values of the channels as a dict, whatever the state is.
    # Pregel installs partial(local_read, scratchpad, channels, managed, task). Only channels are read, because tools
    # get managed values in other ways.
    return read(list(read.args[1]), True)


@dataclass(frozen=True, slots=True)
class GraphTask:
    """Config entries, needed for interrupts, of what runs a node: a task of LangGraph, or a call of another node."""

    conf: Mapping[str, Any]

    @property
    def scratchpad(self) -> PregelScratchpad:
        return cast("PregelScratchpad", self.conf[CONFIG_KEY_SCRATCHPAD])

    @property
    def send(self) -> Send:
        return cast("Send", self.conf[CONFIG_KEY_SEND])

    @property
    def resume_map(self) -> Mapping[str, Any] | None:
        """Answers that this run was resumed with, by interrupt id."""
        return self.conf.get(CONFIG_KEY_RESUME_MAP)

    @property
    def attempt(self) -> int:
        """Number of the task's attempt under its retry policy, from 1."""
        info = getattr(self.conf.get(CONFIG_KEY_RUNTIME), "execution_info", None)
        return 1 if info is None else int(info.node_attempt)

    def take_plain_answer(self) -> Any:
        """Return the answer that was given without an interrupt id, and consume it; `None` if there is none."""
        if self.resume_map is not None:
            # A stored plain answer is then left over from an earlier resume.
            return None
        return self.scratchpad.get_null_resume(True)

    @property
    def _namespace(self) -> str:
        return str(self.conf.get(CONFIG_KEY_CHECKPOINT_NS, "")).rpartition(NS_SEP)[0]

    @property
    def durable(self) -> bool:
        """True if `save` can write to a checkpointer, and the durability mode allows writes during the run."""
        conf = self.conf
        return (
            hasattr(conf.get(CONFIG_KEY_CHECKPOINTER), "put_writes")
            and conf.get(CONFIG_KEY_TASK_ID) is not None
            and conf.get(CONFIG_KEY_CHECKPOINT_MAP, {}).get(self._namespace) is not None
            and conf.get(CONFIG_KEY_DURABILITY) != "exit"
        )

    async def save(self, resume: list[Any]) -> None:
        """Write the task's resume list to the checkpointer at once, so that the list survives a kill of the process."""
        # LangGraph itself writes the slot only when the task ends. The slot has a fixed index among the task's writes,
        # so this write replaces the previous one.
        if not self.durable:
            return
        target: dict[str, Any] = {
            CONFIG_KEY_THREAD_ID: self.conf[CONFIG_KEY_THREAD_ID],
            CONFIG_KEY_CHECKPOINT_NS: self._namespace,
            "checkpoint_id": self.conf[CONFIG_KEY_CHECKPOINT_MAP][self._namespace],
        }
        args = ({CONF: target}, [(RESUME, resume)], self.conf[CONFIG_KEY_TASK_ID])
        await AwaitedSaver(self.conf[CONFIG_KEY_CHECKPOINTER]).call(
            "put_writes", lambda saver: saver.put_writes(*args), lambda saver: saver.aput_writes(*args)
        )

    async def run_shielded(self, write: Callable[[], Awaitable[None]]) -> None:
        """Run a function that writes to the checkpointer, shielded from cancellation."""
        await store_shielded(self.conf.get(CONFIG_KEY_CHECKPOINTER), write)


def graph_task(config: RunnableConfig) -> GraphTask | None:
    """Return the outer task that a config belongs to, or `None` outside of a graph."""
    conf = config.get(CONF, {})
    if CONFIG_KEY_SCRATCHPAD in conf and CONFIG_KEY_SEND in conf:
        return GraphTask(conf)
    return None


def is_graph_node(config: RunnableConfig, name: str) -> bool:
    """Return whether the outer graph runs the node with this name directly, and not a function that calls the node."""
    # LangGraph tells only the name under which the running node was added. A node that was added under another name is
    # taken for a function. This costs a few bytes of storage, and changes no behaviour.
    return (config.get("metadata") or {}).get("langgraph_node") == name


# LangGraph's own `ToolNode`


def arguments_of(node: ToolNode, default_errors: object) -> dict[str, Any]:
    """Return the constructor arguments that recreate a LangGraph `ToolNode`; raise TypeError if it has overrides."""
    cls = type(node)
    names = set(dir(ToolNode))
    overrides = [
        name for name in names if not name.startswith("__") and getattr(cls, name) is not getattr(ToolNode, name)
    ]
    if overrides := sorted(name for name in overrides if not name.startswith("_abc")):
        raise TypeError(
            f"{cls.__qualname__} overrides {', '.join(overrides)} of LangGraph's ToolNode, which callboard would not "
            "call; derive it from callboard.ToolNode"
        )
    errors = node._handle_tool_errors
    return {
        "tools": list(node.tools_by_name.values()),
        "name": node.name,
        "tags": node.tags,
        "handle_tool_errors": default_errors if errors is _default_handle_tool_errors else errors,
        "messages_key": node._messages_key,
        "wrap_tool_call": node._wrap_tool_call,
        "awrap_tool_call": node._awrap_tool_call,
    }


def langgraph_injected_args(schema: Any, hints: Mapping[str, Any]) -> Any:
    """Return the injected arguments of a tool with this schema and these annotations, in LangGraph's form."""
    hinted = SimpleNamespace(__annotations__=hints)
    return _get_all_injected_args(cast("BaseTool", SimpleNamespace(get_input_schema=lambda: schema, func=hinted)))


class _LenientNames(dict[str, Any]):
    """Names in an annotation: `Any` for one that only type checkers import, unless it marks an injected value."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or any(marker in name for marker in _INJECTION_MARKERS):
            raise KeyError(name)  # without its marker, the model could write this argument
        return Any


_INJECTION_MARKERS = ("Injected", "ToolRuntime")


def hints_of(fn: Any) -> dict[str, Any]:
    """Return the annotations of a tool's function that can be resolved; raise NameError for one of an injected value.

    A name that only type checkers import, or a local class, stands for `Any` if there is no other way.
    """
    while isinstance(fn, partial):
        fn = fn.func
    if not inspect.isroutine(fn):
        return {}  # other callables have no annotations that could be read
    try:
        return get_type_hints(fn, include_extras=True)
    except NameError:
        hints: dict[str, Any] = {}
    names = _LenientNames(inspect.unwrap(fn).__globals__)
    for name, annotation in fn.__annotations__.items():
        alone: Any = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= get_type_hints(alone, localns=names, include_extras=True)
        except (NameError, AttributeError, TypeError) as error:
            if any(marker in str(annotation) for marker in _INJECTION_MARKERS):
                raise NameError(f"the annotation of {name!r}, {annotation}, cannot be resolved: {error}") from error
    return hints


def langgraph_args_by_tool(tools: Mapping[str, BaseTool]) -> dict[str, Any]:
    """Return the injected arguments of each tool in LangGraph's form, for code that reads them from a node."""
    return {name: _get_all_injected_args(tool) for name, tool in tools.items()}
