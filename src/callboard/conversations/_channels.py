"""State of an agent in LangGraph's channels, which are read and written without LangGraph's engine."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from operator import attrgetter
from typing import Any, Protocol

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langgraph.channels import BinaryOperatorAggregate, LastValue, UntrackedValue
from langgraph.channels.base import BaseChannel
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.errors import EmptyChannelError, ErrorCode, InvalidUpdateError, create_error_message
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from callboard._langgraph._call_scope import Write as Write
from callboard._langgraph._node_scope import MISSING, command_writes

MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Clock:
    """Numbers of the current step and of the step at the recursion limit, used to compute `remaining_steps`."""

    step: int
    stop: int
    """Number of the step at which the recursion limit of the run is reached."""


class Flow(Protocol):
    """Nodes of an agent, and the rules that decide which node runs next."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the agent's nodes."""
        ...

    @property
    def entry(self) -> str:
        """Name of the node that runs first when input arrives."""
        ...

    @property
    def turn_entry(self) -> str:
        """Name of the node that runs first in each turn of the model: after input, and after the results of calls."""
        ...

    @property
    def reply_node(self) -> str:
        """Name of the node after which a reply of the model is complete: the model, or the last hook after it."""
        ...

    @property
    def sends_state(self) -> bool:
        """`True` if the task of a call gets the state together with the call, as LangGraph's agent sends it."""
        ...

    def next_node(self, node: str, state: "State") -> str:
        """Return the name of the node that runs after `node`, for the given state; `__end__` if the run is over."""
        ...

    def open_calls(self, messages: Sequence[BaseMessage]) -> list[ToolCall]:
        """Return the calls of the last reply that have no result yet and have to run."""
        ...

    def approval_node(self, source: str | None, target: str, calls: Iterable[ToolCall], state: "State") -> str | None:
        """Return the node between `source` and `target` that asks a person about one of `calls`, or `None`.

        It is also a node that must forget a person's edit of an earlier call with the same id.
        """
        ...
        # `source` is the node that ran last, or `None` for a change from outside of a run.

    def aliases(self, node: str) -> Sequence[str]:
        """Return other names of a node, which LangGraph's agents use when they resume a thread at this node."""
        ...


class Schema:
    """Keys of an agent's state, and the keys that each node of the agent reads, taken from LangGraph's builder."""

    def __init__(self, builder: "StateGraph[Any, Any, Any, Any]", flow: Flow) -> None:
        self._builder = builder
        self.flow = flow
        self.specs = builder.channels
        self.conversations = frozenset(name for name in self.specs if self.adds_messages(name))
        self.replayable = [name for name, spec in self.specs.items() if isinstance(spec, _REDUCED)]
        """Keys of which LangGraph may have stored only the writes.

        A key with a `BinaryOperatorAggregate` may have had a `DeltaChannel` when LangGraph stored it.
        """
        self.has_message_ids = MESSAGES in self.conversations or isinstance(self.specs.get(MESSAGES), DeltaChannel)
        """`True` if each message gets an id before it is stored: LangGraph gives ids in both kinds of channels."""
        self.untracked = frozenset(name for name, spec in self.specs.items() if isinstance(spec, UntrackedValue))
        """Keys of the state that are never stored: their channel is LangGraph's `UntrackedValue`."""
        self.fading = [name for name, spec in self.specs.items() if type(spec) not in _LASTING]
        """Keys that may lose their value in a step without a write, as with LangGraph's `EphemeralValue`."""
        self.values = self._select_keys(builder.state_schema)
        """Keys of the state that snapshots and streams show: all keys that nodes can write."""
        self.output = self._select_keys(builder.output_schema)
        """Keys of the state that the result of a run has."""
        self._settable = frozenset(self._select_keys(builder.input_schema))
        self._input = _InputForm(builder, builder.state_schema)
        self._inputs = {name: _InputForm(builder, spec.input_schema) for name, spec in builder.nodes.items()}

    def _select_keys(self, schema: type[Any]) -> tuple[str, ...]:
        return tuple(key for key in self._builder.schemas[schema] if key in self.specs)

    @property
    def nodes(self) -> Collection[str]:
        return self._builder.nodes.keys()

    def adds_messages(self, name: str) -> bool:
        spec = self.specs.get(name)
        return isinstance(spec, BinaryOperatorAggregate) and spec.operator is add_messages

    def replay(self, name: str, history: DeltaChannelHistory) -> Any:
        """Return the value of a channel, computed from the writes to the channel that LangGraph has stored."""
        channel = self.specs[name].from_checkpoint(history.get("seed", MISSING))
        if isinstance(channel, DeltaChannel):
            channel.replay_writes(history["writes"])
        else:
            # One by one, as LangGraph does: a channel refuses two `Overwrite`s in one update.
            for _, _, value in history["writes"]:
                channel.update([value])
        return channel.get()

    def input_for(self, node: str, state: "State", clock: Clock) -> Any:
        """Return the state as the input of a node: a dict, or an instance of the node's schema."""
        input_form = self._inputs.get(node, self._input)
        values = state.read(input_form.keys)
        for key, managed in input_form.managed:
            values[key] = managed.get(clock)
        return values if input_form.input_class is None else input_form.input_class(**values)

    def to_instance(self, values: dict[str, Any]) -> Any:
        """Convert a dict of state values to an instance of the schema; for a TypedDict, return the dict unchanged."""
        input_class = self._input.input_class
        return (
            values if input_class is None else input_class(**{key: values[key] for key in self.values if key in values})
        )

    def writes_of_input(self, input: dict[str, Any]) -> list[Write]:
        """Convert the input of a run to writes; keys that no input may set are left out, as in LangGraph."""
        return [(key, value) for key, value in input.items() if key in self._settable]

    def writes_of(self, output: object) -> list[Write]:
        """Convert a node's output (a dict, a command, a list of commands) to writes; unknown keys are left out."""
        if isinstance(output, dict):
            return self._with_known_keys(output.items())
        if output is None:
            return []
        if isinstance(output, (list, tuple)) and any(isinstance(item, Command) for item in output):
            return [write for item in output for write in self.writes_of(item)]
        if isinstance(output, Command):
            return [] if output.graph == Command.PARENT else self._with_known_keys(command_writes(output))
        if isinstance(output, BaseModel) or is_dataclass(output):
            return self._with_known_keys(command_writes(Command(update=output)))
        raise InvalidUpdateError(
            create_error_message(
                message=f"Expected dict, got {output}", error_code=ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE
            )
        )

    def _with_known_keys(self, writes: Iterable[Write]) -> list[Write]:
        return [(key, value) for key, value in writes if key in self.specs]


class _InputForm:
    """Form of a node's input, taken from a schema: its keys, its computed keys, and its class."""

    def __init__(self, builder: "StateGraph[Any, Any, Any, Any]", schema: Any) -> None:
        self.keys = tuple(builder.schemas[schema])
        self.managed: list[tuple[str, Any]] = [
            (key, builder.managed[key]) for key in self.keys if key in builder.managed
        ]
        """Keys that LangGraph computes, each with its `ManagedValue`."""
        is_made = isinstance(schema, type) and (issubclass(schema, BaseModel) or is_dataclass(schema))
        self.input_class: Callable[..., Any] | None = schema if is_made else None
        """Class of the input; `None` if the input is a dict."""


class State:
    """Values of an agent's state, each in a LangGraph channel; created from stored values, see `snapshot`."""

    def __init__(self, schema: Schema, stored: Mapping[str, Any]) -> None:
        self.channels: dict[str, BaseChannel[Any, Any, Any]] = {}
        for name, spec in schema.specs.items():
            channel = self.channels[name] = spec.from_checkpoint(stored.get(name, MISSING))
            channel.key = name
        self._conversations = schema.conversations
        self._fading = schema.fading

    def replacing(self, name: str, value: object) -> Write:
        """Return the write that sets a channel to `value` without its reducer, which would merge old and new value."""
        return name, Overwrite(value) if isinstance(self.channels[name], _REDUCED) else value

    def apply(self, writes: Sequence[Write]) -> None:
        """Apply the writes of one step; raise InvalidUpdateError if a channel without a reducer is written twice."""
        by_channel: dict[str, list[Any]] = {}
        for name, value in writes:
            if name not in self.channels:
                raise KeyError(name)
            by_channel.setdefault(name, []).append(value)
        for name, values in by_channel.items():
            if name in self._conversations:
                _write(self.channels[name], values)
            else:
                self.channels[name].update(values)
        for name in self._fading:
            if name not in by_channel:
                self.channels[name].update([])

    def get(self, name: str) -> Any:
        """Return the value of a channel, or `None` if it has no value or does not exist."""
        channel = self.channels.get(name)
        return channel.get() if channel is not None and channel.is_available() else None

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name in names:
            channel = self.channels.get(name)
            if channel is not None and channel.is_available():
                values[name] = channel.get()
        return values

    def with_writes(self, writes: Sequence[Write]) -> "State":
        state = self.copy()
        state.apply(writes)
        return state

    def copy(self) -> "State":
        """Return a copy of the state; writes to the copy do not change the original."""
        state = copy.copy(self)
        state.channels = {name: channel.copy() for name, channel in self.channels.items()}
        return state

    def snapshot(self) -> dict[str, Any]:
        """Return the values of all channels in their stored form, from which a new `State` can be made."""
        values: dict[str, Any] = {}
        for name, channel in self.channels.items():
            try:
                # LangGraph stores the writes to such a channel, not its value; a snapshot here is the whole state.
                value = channel.get() if isinstance(channel, DeltaChannel) else channel.checkpoint()
            except EmptyChannelError:
                continue
            if value is not MISSING:
                values[name] = value
        return values


_REDUCED = (DeltaChannel, BinaryOperatorAggregate)
"""Classes of channels with a reducer."""

_LASTING = (BinaryOperatorAggregate, LastValue)
"""Most frequent classes of channels; a step without a write does not change their value."""


def _write(conversation: Any, values: list[Any]) -> None:
    """Write values to a channel of messages, faster than the channel's own `update` if all messages are new."""
    # `add_messages` walks the whole conversation for each value, and looks for replaced messages in a slow Python loop.
    # If all messages are new, one set operation here does the same.
    if len(values) > 1 and all(isinstance(value, list) for value in values):
        values = [[message for value in values for message in value]]
    if len(values) == 1 and _only_adds(before := conversation.value, new := values[0]):
        conversation.value = [*before, *new]
    else:
        conversation.update(values)


def _only_adds(before: Any, new: Any) -> bool:
    if type(before) is not list or type(new) is not list:
        return False
    if not (_KINDS.issuperset(map(type, before)) and _KINDS.issuperset(map(type, new))):
        kinds = {*map(type, before), *(new_kinds := {*map(type, new)})}
        if not all(issubclass(kind, BaseMessage) and not issubclass(kind, BaseMessageChunk) for kind in kinds):
            return False
        if any(issubclass(kind, RemoveMessage) for kind in new_kinds):
            return False
    added = {*map(_id_of, new)}
    return None not in added and len(added) == len(new) and (added | {None}).isdisjoint(map(_id_of, before))


_id_of = attrgetter("id")
_KINDS = frozenset((AIMessage, HumanMessage, SystemMessage, ToolMessage))
"""Most frequent classes of messages; a look-up in this set is faster than `issubclass` for each message."""


def goto_of(output: object) -> list[Any]:
    """Return the `goto` targets of the commands in a node's output; commands for an outer graph are skipped."""
    targets: list[Any] = []
    for item in output if isinstance(output, (list, tuple)) else [output]:
        if isinstance(item, Command) and item.graph is None:
            goto: Any = item.goto
            targets.extend(filter(None, goto if isinstance(goto, (list, tuple)) else [goto]))
    return targets
