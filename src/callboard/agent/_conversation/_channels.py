"""The state of an agent: LangGraph's own channels, written and read without its engine."""

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from operator import attrgetter
from typing import Any, cast

from langchain_core.messages import BaseMessage, BaseMessageChunk, RemoveMessage
from langgraph.channels import BinaryOperatorAggregate, UntrackedValue
from langgraph.channels.base import BaseChannel
from langgraph.errors import EmptyChannelError, ErrorCode, InvalidUpdateError, create_error_message
from langgraph.graph import StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Overwrite
from pydantic import BaseModel

from callboard._langgraph._node_scope import MISSING, command_writes
from callboard.agent._flow import Flow

Write = tuple[str, Any]
"""A channel and what is written to it."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Where a run stands, as LangGraph's managed values want to know it."""

    step: int
    stop: int
    """The step at which the run is out of steps."""


class Schema:
    """What a state consists of, and in which shape each node gets it; read from LangGraph's own builder.

    Args:
        builder: of the agent's drawing.
        flow: the agent's nodes.
    """

    def __init__(self, builder: "StateGraph[Any, Any, Any, Any]", flow: Flow) -> None:
        self._builder = builder
        self.flow = flow
        self._keys = {schema: tuple(parts) for schema, parts in builder.schemas.items()}
        self.specs = cast("Mapping[str, BaseChannel[Any, Any, Any]]", builder.channels)
        self.conversations = frozenset(name for name in self.specs if self.adds_messages(name))
        self.untracked = frozenset(name for name, spec in self.specs.items() if isinstance(spec, UntrackedValue))
        """The keys that are never stored."""
        self.output: tuple[str, ...] = tuple(key for key in self._keys[builder.state_schema] if key in self.specs)

    @property
    def entry(self) -> str:
        """The node with which a turn begins."""
        return self.flow.entry

    @property
    def nodes(self) -> Collection[str]:
        """The nodes of the agent."""
        return self._builder.nodes.keys()

    def adds_messages(self, name: str) -> bool:
        """Whether a channel is a conversation whose messages have ids."""
        spec = self.specs.get(name)
        return isinstance(spec, BinaryOperatorAggregate) and spec.operator is add_messages

    def given_to(self, node: str, state: "State", clock: Clock) -> Any:
        """The state as `node` asks for it: a dict, or an instance of its schema."""
        spec = self._builder.nodes.get(node)
        schema: Any = self._builder.state_schema if spec is None else spec.input_schema
        values = state.read(self._keys[schema])
        for key in self._keys[schema]:
            if key in self._builder.managed:
                values[key] = cast("Any", self._builder.managed[key]).get(clock)
        if isinstance(schema, type) and (issubclass(schema, BaseModel) or is_dataclass(schema)):
            return schema(**values)
        return values

    def shaped(self, values: dict[str, Any]) -> Any:
        """The state as its schema says: a dict, or an instance."""
        schema: Any = self._builder.state_schema
        is_dict = not (isinstance(schema, type) and (issubclass(schema, BaseModel) or is_dataclass(schema)))
        return values if is_dict else schema(**{key: values[key] for key in self.output if key in values})

    def writes_of(self, output: object) -> list[Write]:
        """What a node's output writes; keys that the state does not have are passed over.

        Raises:
            InvalidUpdateError: if the output is nothing that can update a state.
        """
        if output is None:
            return []
        if isinstance(output, (list, tuple)) and any(isinstance(item, Command) for item in output):
            return [write for item in output for write in self.writes_of(item)]
        if isinstance(output, Command):
            return [] if output.graph == Command.PARENT else self._known(command_writes(output))
        if isinstance(output, dict):
            return self._known(output.items())
        if isinstance(output, BaseModel) or is_dataclass(output):
            return self._known(command_writes(Command(update=output)))
        raise InvalidUpdateError(
            create_error_message(
                message=f"Expected dict, got {output}", error_code=ErrorCode.INVALID_GRAPH_NODE_RETURN_VALUE
            )
        )

    def _known(self, writes: Iterable[Write]) -> list[Write]:
        return [(key, value) for key, value in writes if key in self.specs]


class State:
    """The values of the state of one thread, each on a channel of LangGraph's.

    Args:
        schema: what they are.
        stored: by channel, as `snapshot` gave them.
    """

    def __init__(self, schema: Schema, stored: Mapping[str, Any]) -> None:
        self._channels: dict[str, BaseChannel[Any, Any, Any]] = {
            name: spec.from_checkpoint(stored.get(name, MISSING)) for name, spec in schema.specs.items()
        }
        for name, channel in self._channels.items():
            channel.key = name
        self._conversations = schema.conversations

    @property
    def channels(self) -> Mapping[str, BaseChannel[Any, Any, Any]]:
        return self._channels

    def replacing(self, name: str, value: object) -> Write:
        """What to write to have `value` in a channel, whatever its reducer does."""
        reduced = isinstance(self._channels[name], BinaryOperatorAggregate)
        return name, Overwrite(value) if reduced else value

    def apply(self, writes: Sequence[Write]) -> None:
        """Take in what the nodes of one step wrote.

        Raises:
            InvalidUpdateError: if a channel without a reducer was written twice.
        """
        by_channel: dict[str, list[Any]] = {name: [] for name in self._channels}
        for name, value in writes:
            by_channel[name].append(value)
        for name, values in by_channel.items():
            channel = self._channels[name]
            channel.update(_longer(channel, _joined(values)) if name in self._conversations else values)

    def get(self, name: str) -> Any:
        """The value of a channel, `None` while it has none."""
        channel = self._channels.get(name)
        return channel.get() if channel is not None and channel.is_available() else None

    def read(self, names: Iterable[str]) -> dict[str, Any]:
        """The values of channels that have one."""
        found: dict[str, Any] = {}
        for name in names:
            channel = self._channels.get(name)
            if channel is not None and channel.is_available():
                found[name] = channel.get()
        return found

    def with_writes(self, writes: Sequence[Write]) -> "State":
        """The state as it would be; this one stays as it is."""
        other = self.copy()
        other.apply(writes)
        return other

    def copy(self) -> "State":
        """The state as it is now."""
        other = copy.copy(self)
        other._channels = {name: channel.copy() for name, channel in self._channels.items()}
        return other

    def snapshot(self) -> dict[str, Any]:
        """What has to be stored to have this state again."""
        values: dict[str, Any] = {}
        for name, channel in self._channels.items():
            try:
                value = channel.checkpoint()
            except EmptyChannelError:
                continue
            if value is not MISSING:
                values[name] = value
        return values


def _joined(values: list[Any]) -> list[Any]:
    """The messages of many calls at once: one by one, each would cost a walk through the whole conversation."""
    if len(values) < 2 or not all(isinstance(value, list) for value in values):
        return values
    return [[message for value in values for message in value]]


def _longer(conversation: BaseChannel[Any, Any, Any], values: list[Any]) -> list[Any]:
    """What is written to a conversation; where that only adds to its end, the whole of it, put together here.

    `add_messages` walks through it in Python each time, to find the messages that are replaced. Whether there are any
    is asked here of all at once.
    """
    if len(values) != 1 or not conversation.is_available():
        return values
    before, new = conversation.get(), values[0]
    return [Overwrite([*before, *new])] if _only_adds(before, new) else values


def _only_adds(before: Any, new: Any) -> bool:
    """Whether `add_messages` would put these messages behind the others, and do nothing else."""
    if type(before) is not list or type(new) is not list:
        return False
    kinds = {*map(type, before), *(given := {*map(type, new)})}
    if not all(issubclass(kind, BaseMessage) and not issubclass(kind, BaseMessageChunk) for kind in kinds):
        return False
    if any(issubclass(kind, RemoveMessage) for kind in given):
        return False
    added = {*map(_id_of, new)}
    return None not in added and len(added) == len(new) and (added | {None}).isdisjoint(map(_id_of, before))


_id_of = attrgetter("id")


def goto_of(output: object) -> list[Any]:
    """Where commands in a node's output want to go, besides where its edge leads."""
    targets: list[Any] = []
    for item in output if isinstance(output, (list, tuple)) else [output]:
        if isinstance(item, Command) and item.graph is None:
            goto: Any = item.goto
            targets.extend(goto if isinstance(goto, (list, tuple)) else [goto])
    return [target for target in targets if target]
