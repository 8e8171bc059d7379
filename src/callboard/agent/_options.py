"""Keyword options of the functions that make an agent, and of the methods that start a run, and their types."""

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, Required, TypedDict, cast, get_args

from langgraph.runtime import RunControl
from langgraph.store.base import BaseStore

from callboard._records._policies import OnUnknown
from callboard._util._suggestions import no_such
from callboard.agent._stream import MODES, Keys
from callboard.conversations._saved_thread import Durability
from callboard.middleware._loop_guard import LoopGuard

StreamModes = str | Sequence[str]
NodeNames = Sequence[str] | Literal["*"] | None
Version = Literal["v1", "v2"]


class AgentOptions(TypedDict, total=False):
    """Keyword options of both `create_agent` and `create_react_agent`; used only to type overloads."""

    middleware: Sequence[object]
    context_schema: type[Any] | None
    checkpointer: Any
    store: BaseStore | str | None
    interrupt_before: list[str] | None
    interrupt_after: list[str] | None
    debug: bool
    name: str | None
    budget: float | None
    max_calls: int | None
    on_unknown: OnUnknown | None
    stored_types: Sequence[type[Any]]
    loop_guard: LoopGuard | bool


class RunOptions(TypedDict, total=False):
    """Keyword options of `invoke`, `stream` and the other methods that start a run of an agent."""

    context: Any
    """Value that tools, hooks and prompts read as `runtime.context`."""
    print_mode: StreamModes
    """Stream modes whose chunks are also printed to stdout."""
    interrupt_before: NodeNames
    """Names of nodes before which the run stops; by default the `interrupt_before` of the agent."""
    interrupt_after: NodeNames
    """Names of nodes after which the run stops; by default the `interrupt_after` of the agent."""
    durability: Durability | None
    """Time at which changes of the thread are stored in the checkpointer.

    "sync": before the run continues. "async": while the run continues, in fewer writes. "exit": at the end of the run.
    """
    control: RunControl | None
    """LangGraph's control object; it can request a stop before the next step."""
    budget: float | None
    """Limit of the run's duration in seconds, instead of the agent's own `budget`."""
    debug: bool | None
    """`True` to print each step to stdout."""
    subgraphs: bool
    """`True` to stream also the chunks of graphs and agents that tools run.

    Every chunk then has the namespace of its graph.
    """


class StreamOptions(RunOptions, total=False):
    """Keyword options in `RunOptions`, and further keyword options that decide the form of a run's result."""

    stream_mode: StreamModes | None
    """Stream mode of LangGraph, or several in a list.

    The default of `ainvoke` is "values". The default of `astream` is "updates".
    """
    output_keys: Keys | None
    """State keys that the result and the stream modes `values` and `updates` contain; by default all.

    A single string, which is not in a list, gives the value of the key in place of a dict.
    """
    version: Literal["v1", "v2"]
    """Form of the results: "v1" is LangGraph's older form, "v2" its newer one.

    "v2" returns a `GraphOutput`, and each chunk of a stream is a dict `{"type": ..., "ns": ..., "data": ...}`.
    """


class SayOptions(StreamOptions, total=False):
    """Keyword options of `say` that do not decide the type of its result; used only to type overloads."""

    give_up: bool
    buffer: int


class PartOptions(RunOptions, total=False):
    """Keyword options of `stream` with `version="v2"`, which yields dicts; used only to type an overload."""

    stream_mode: StreamModes | None
    output_keys: Keys | None
    version: Required[Literal["v2"]]


class OutputOptions(RunOptions, total=False):
    """Keyword options of `invoke` with `version="v2"`, which returns a `GraphOutput`; used only to type an overload."""

    stream_mode: Literal["values"]
    version: Required[Literal["v2"]]


class OutputKeyOptions(OutputOptions, total=False):
    """Keyword options of `invoke` with `version="v2"` and `output_keys`; used only to type an overload."""

    output_keys: Required[Keys | None]


class StateOptions(RunOptions, total=False):
    """Keyword options of `invoke` with `version="v1"`, which returns the state; used only to type an overload."""

    stream_mode: Literal["values"]
    version: Literal["v1"]


class KeyOptions(StateOptions, total=False):
    """Keyword options of `invoke` with `output_keys` in a list, which returns a dict; used only to type an overload."""

    output_keys: Required[list[str] | tuple[str, ...] | None]


def parse_modes(option: str, modes: StreamModes) -> frozenset[str]:
    """Return the stream modes of an option as a set.

    Raises ValueError if LangGraph does not have one of them, and TypeError for what is no list of texts.
    """
    names = parse_names(option, modes, "stream modes, such as ['updates', 'messages']")
    if unknown := names - MODES:
        raise ValueError(f"There is no stream mode {', '.join(map(repr, sorted(unknown)))}, only {sorted(MODES)}")
    return names


def parse_names(option: str, names: object, expected: str) -> frozenset[str]:
    """Return one or several names as a set; raise TypeError for what is neither a text nor a list of texts."""
    items = [names] if isinstance(names, str) or not isinstance(names, Iterable) else [*names]
    if not all(isinstance(item, str) for item in items):
        raise TypeError(f"{option} takes {expected}, or a single one; got {names!r}")
    return frozenset(cast("list[str]", items))


def check_stops(option: str, nodes: object, known_nodes: Collection[str] | None = None) -> None:
    """Raise an error unless an option has `None`, `"*"`, or a list of nodes.

    Raises TypeError for another value, and ValueError for a node that is not one of `known_nodes`.
    """
    if nodes is None or nodes == "*":
        return
    if isinstance(nodes, str) or not isinstance(nodes, Collection):
        example = [nodes] if isinstance(nodes, str) else ["tools"]
        raise TypeError(f"{option} is a list of nodes, such as {example!r}, or '*'; got {nodes!r}")
    if known_nodes is not None and (unknown := next((name for name in nodes if name not in known_nodes), None)):
        raise ValueError(f"{option}={nodes!r}: {no_such('node', unknown, known_nodes)}")


def check_run_options(version: object, durability: object, control: object) -> None:
    """Raise ValueError or TypeError for a version, a durability or a control object that does not exist."""
    if version not in get_args(Version):
        raise ValueError(f"version is 'v1' or 'v2', got {version!r}")
    if durability is not None and durability not in get_args(Durability):
        raise ValueError(f"durability is 'sync', 'async' or 'exit', got {durability!r}")
    if control is not None and not isinstance(control, RunControl):
        raise TypeError(f"control is a RunControl of langgraph.runtime, got {control!r}")


def check_buffer(method: str, buffer: object) -> None:
    """Raise ValueError unless the buffer of a started run is a number of chunks."""
    if type(buffer) is not int or not 1 <= buffer <= sys.maxsize:
        raise ValueError(f"{method}(buffer=...) takes a number of chunks, from 1 to {sys.maxsize}, got {buffer!r}")
