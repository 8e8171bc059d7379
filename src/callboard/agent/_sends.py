"""Sends: nodes of the agent that run with what somebody hands to them, beside the others of their step."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.errors import InvalidUpdateError
from langgraph.types import Send

from callboard._suggestions import did_you_mean
from callboard.agent._flow import TOOLS
from callboard.agent._history import repaired
from callboard.tools._input import Requested, parse_input
from callboard.tools._keys import keys_of
from callboard.tools._unanswered import each_without_answer

_SENT = "%send:"

Target = str | Send
"""What comes next: a node with the state, or one with what it is sent."""


def id_key_in(task: str) -> str:
    """The key of a call's id, which is in the name of its task; calls with one id have the same."""
    key = task.partition("|")[2] if task.startswith(_SENT) else task
    return key.partition("#")[0]


@dataclass(frozen=True, slots=True)
class Sent:
    """One send, which a node of a step runs with in place of the state."""

    number: int
    """Its place among the sends of the step."""
    send: Send

    @property
    def node(self) -> str:
        return self.send.node

    @property
    def payload(self) -> Any:
        return self.send.arg

    @property
    def task(self) -> str:
        """Its name among the tasks of the step; no node and no call has one like it."""
        return f"{_SENT}{self.number}"

    def task_of(self, key: str) -> str:
        """The name of one of its calls among the tasks of the step."""
        return f"{self.task}|{key}"

    def requested(self, messages: Sequence[BaseMessage], messages_key: str) -> Requested:
        """The calls that the tools node is sent, but for those that the conversation has answers to.

        Raises:
            InvalidUpdateError: if their results could not go into the state.
            ValueError: if it is nothing that has calls.
        """
        requested = parse_input(self.payload, messages_key)
        if requested.kind == "list":
            raise InvalidUpdateError(
                f"Expected dict, got a list of messages; send {TOOLS!r} a state, {{{messages_key!r}: [...]}}, or a "
                f"list of calls, in place of {self.payload!r}"
            )
        if requested.state is not None:
            return requested
        return replace(requested, calls=each_without_answer(requested.calls, messages))

    def tasks(self, messages: Sequence[BaseMessage], messages_key: str) -> list[str]:
        """The names of its tasks: its own, or those of its calls."""
        if self.node != TOOLS:
            return [self.task]
        try:
            requested = self.requested(messages, messages_key)
        except (InvalidUpdateError, ValueError):  # another agent has kept it, and it will be an error when it is run
            return [self.task]
        return [self.task_of(key) for key in keys_of(requested.calls)]


def numbered(sends: Iterable[Send]) -> tuple[Sent, ...]:
    """The sends of a step, in order."""
    return tuple(Sent(number, send) for number, send in enumerate(sends))


def nodes_in(targets: Iterable[Target]) -> list[str]:
    """The targets that are nodes, which run with the state."""
    return [target for target in targets if not isinstance(target, Send)]


def sends_in(targets: Iterable[Target]) -> list[Send]:
    """The targets that are sends, which run with what they were sent."""
    return [target for target in targets if isinstance(target, Send)]


def check_sends(targets: Iterable[Target], nodes: Sequence[str], messages_key: str) -> None:
    """Refuse sends to nodes that there are not, before anything runs.

    Raises:
        InvalidUpdateError: if there is no such node, or the send asks for what an agent does not do.
        ValueError: if the tools node is sent nothing that has calls.
    """
    for send in sends_in(targets):
        if send.node not in nodes:
            meant = did_you_mean(send.node, nodes)
            raise InvalidUpdateError(f"Node {send.node} does not exist; there are {', '.join(nodes)}{meant}")
        if send.timeout is not None:
            raise InvalidUpdateError(
                f"The send to {send.node!r} has a timeout, which an agent does not keep; give its tools a timeout, or "
                "the run a budget"
            )
        if send.node == TOOLS:
            Sent(0, send).requested((), messages_key)


def for_model(payload: Any, *, before: bool) -> Any:
    """What the model is asked about, where its node is sent something.

    Args:
        payload: what it is sent.
        before: whether a hook runs before the model, which may have chosen other messages.

    Raises:
        ValueError: if it has no messages.
    """
    keys = ("llm_input_messages", "messages") if before else ("messages",)
    messages: Any = next((found for key in keys if (found := value_in(payload, key))), value_in(payload, "messages"))
    if messages is None:
        expected = " or ".join(map(repr, keys))
        raise ValueError(f"Expected input to call_model to have {expected} key, but got {payload}")
    whole = repaired(convert_to_messages(messages))
    if isinstance(payload, Mapping):
        return {**payload, "messages": whole}
    payload.messages = whole
    return payload


def value_in(payload: Any, key: str) -> Any:
    """A key of a state that somebody sends; `None` if it has none."""
    return payload.get(key) if isinstance(payload, Mapping) else getattr(payload, key, None)
