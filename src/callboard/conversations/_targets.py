"""Targets of a step of an agent: the nodes that run next, and the sends.

A send is a node that runs with an input of its own beside the other nodes of a step (LangGraph's `Send`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.errors import InvalidUpdateError
from langgraph.types import Send

from callboard._util._suggestions import did_you_mean
from callboard.conversations._channels import MESSAGES, Flow, State
from callboard.tools._call_record import keys_of
from callboard.tools._results import NodeRequest, parse_input
from callboard.tools._unanswered import each_without_answer

AGENT = "agent"
TOOLS = "tools"
BEFORE = "pre_model_hook"
AFTER = "post_model_hook"
RESPONSE = "generate_structured_response"
MODEL = "model"
"""Name of the model's node in `langchain.agents`."""
END = "__end__"


_SEND_PREFIX = "%send:"

Target = str | Send
"""Node to run next: a name, if the node gets the state as input, or a LangGraph `Send` with another input."""


def call_id_in(task: str) -> str:
    """Return the part of a task's name that is equal for all tasks whose calls have the same id."""
    key = task.partition("|")[2] if task.startswith(_SEND_PREFIX) else task
    return key.partition("#")[0]


@dataclass(frozen=True, slots=True)
class NumberedSend:
    """LangGraph `Send` of a step, with its index among all sends of the step."""

    number: int
    """Index of the send among all sends of the step."""
    send: Send

    @property
    def node(self) -> str:
        return self.send.node

    @property
    def payload(self) -> Any:
        return self.send.arg

    @property
    def task(self) -> str:
        """Name of the task that runs this `Send`; it differs from the names of all nodes and the keys of all calls."""
        return f"{_SEND_PREFIX}{self.number}"

    def task_of(self, key: str) -> str:
        return f"{self.task}|{key}"

    def request(self, messages: Sequence[BaseMessage], messages_key: str) -> NodeRequest:
        """Return the calls in the input of this `Send` that the conversation has not answered."""
        request = parse_input(self.payload, messages_key)
        if request.kind == "list":
            raise InvalidUpdateError(
                f"Expected dict, got a list of messages; send {TOOLS!r} a state, {{{messages_key!r}: [...]}}, or a "
                f"list of calls, in place of {self.payload!r}"
            )
        if request.state is not None:
            return request
        return request._replace(calls=each_without_answer(request.calls, messages))

    def tasks(self, messages: Sequence[BaseMessage], messages_key: str) -> list[str]:
        """Return the names of the tasks of this `Send`: one for each of its calls, or one name if it has no calls."""
        if self.node != TOOLS:
            return [self.task]
        try:
            request = self.request(messages, messages_key)
        except (InvalidUpdateError, ValueError):  # stored by another agent; running it raises the error
            return [self.task]
        return [self.task_of(key) for key in keys_of(request.calls)]


def number_sends(sends: Iterable[Send]) -> tuple[NumberedSend, ...]:
    return tuple(map(NumberedSend, count(), sends))


def split_targets(targets: Iterable[Target]) -> tuple[list[str], list[Send]]:
    """Split targets into two lists: the names of nodes that get the state as input, and the LangGraph sends."""
    nodes: list[str] = []
    sends: list[Send] = []
    for target in targets:
        if isinstance(target, Send):
            sends.append(target)
        else:
            nodes.append(target)
    return nodes, sends


def check_sends(targets: Iterable[Target], nodes: Sequence[str], messages_key: str) -> None:
    """Check that each LangGraph `Send` among the targets can run, before any of them runs."""
    for send in split_targets(targets)[1]:
        if send.node not in nodes:
            suggestion = did_you_mean(send.node, nodes)
            raise InvalidUpdateError(f"Node {send.node} does not exist; there are {', '.join(nodes)}{suggestion}")
        if send.timeout is not None:
            raise InvalidUpdateError(
                f"The send to {send.node!r} has a timeout, which an agent does not keep; give its tools a timeout, or "
                "the run a budget"
            )
        if send.node == TOOLS:
            NumberedSend(0, send).request((), messages_key)


def admit_targets(flow: Flow, source: str | None, targets: Iterable[Target], state: State) -> list[Target]:
    """Return the targets of a command or update; if a node would skip an approval, the approval takes its place."""
    calls = flow.open_calls(state.get(MESSAGES) or [])
    admitted: list[Target] = []
    for target in targets:
        if isinstance(target, str):
            admitted.append(flow.approval_node(source, target, calls, state) or target)
            continue
        sent_calls = NumberedSend(0, target).request((), MESSAGES).calls if target.node == TOOLS else calls
        # The approval is for the open calls of the reply: a call that is not one of them was not shown to anybody.
        is_open = all(call in calls for call in sent_calls)
        if approval := flow.approval_node(source if is_open else None, target.node, sent_calls, state):
            raise InvalidUpdateError(
                f"A send to {target.node!r} leaves out {approval!r}, which asks a person about all calls of a reply; "
                f"go to {TOOLS!r} by name, or ask about each call: "
                'HumanInTheLoopMiddleware(..., interrupt_mode="per_call")'
            )
        admitted.append(target)
    return admitted
