"""Sends: nodes that run with an input of their own beside the other nodes of a step (LangGraph's `Send`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import BaseMessage, convert_to_messages
from langgraph.errors import InvalidUpdateError
from langgraph.types import Send

from callboard._util._suggestions import did_you_mean
from callboard.conversations._flow import TOOLS
from callboard.conversations._history import repaired
from callboard.tools._call_record import keys_of
from callboard.tools._results import Requested, parse_input
from callboard.tools._unanswered import each_without_answer

_SENT = "%send:"

Target = str | Send
"""Next node: a name to run it with the state, or a send with an input of its own."""


def id_key_in(task: str) -> str:
    """Return the part of a task name that stands for the call's id; equal for calls with the same id."""
    key = task.partition("|")[2] if task.startswith(_SENT) else task
    return key.partition("#")[0]


@dataclass(frozen=True, slots=True)
class Sent:
    """Send of a step."""

    number: int
    """Index among the sends of the step."""
    send: Send

    @property
    def node(self) -> str:
        return self.send.node

    @property
    def payload(self) -> Any:
        return self.send.arg

    @property
    def task(self) -> str:
        """Task name of the send; different from every node name and call key."""
        return f"{_SENT}{self.number}"

    def task_of(self, key: str) -> str:
        """Return the task name of one of its calls."""
        return f"{self.task}|{key}"

    def requested(self, messages: Sequence[BaseMessage], messages_key: str) -> Requested:
        """Return the calls in the send, without those that the conversation has answered.

        Raises ValueError for an input without calls, and InvalidUpdateError for a list of messages: its results have no
        place in the state.
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
        """Return its task names: one for the send, or one for each of its calls."""
        if self.node != TOOLS:
            return [self.task]
        try:
            requested = self.requested(messages, messages_key)
        except (InvalidUpdateError, ValueError):  # stored by another agent; running it raises the error
            return [self.task]
        return [self.task_of(key) for key in keys_of(requested.calls)]


def numbered(sends: Iterable[Send]) -> tuple[Sent, ...]:
    """Return the sends of a step with their numbers."""
    return tuple(Sent(number, send) for number, send in enumerate(sends))


def nodes_in(targets: Iterable[Target]) -> list[str]:
    """Return the targets that run with the state."""
    return [target for target in targets if not isinstance(target, Send)]


def sends_in(targets: Iterable[Target]) -> list[Send]:
    """Return the targets that are sends."""
    return [target for target in targets if isinstance(target, Send)]


def check_sends(targets: Iterable[Target], nodes: Sequence[str], messages_key: str) -> None:
    """Check the sends of a step before anything runs; raise InvalidUpdateError or ValueError for an impossible one."""
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
    """Return the input of the model for a send, with its messages in an order that providers accept.

    If a hook runs before the model (`before`), `llm_input_messages` is preferred. Raises ValueError without messages.
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
    """Return a value of a sent state, or `None` if it is missing."""
    return payload.get(key) if isinstance(payload, Mapping) else getattr(payload, key, None)
