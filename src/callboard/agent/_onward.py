"""Successors of a step: the targets of its nodes' edges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.types import Send

from callboard.conversations._channels import State
from callboard.conversations._checkpoint import MESSAGES
from callboard.conversations._flow import END, TOOLS
from callboard.conversations._sends import Sent, Target
from callboard.conversations._thread import Thread
from callboard.tools._unanswered import last_reply


@dataclass(frozen=True, slots=True)
class Ran:
    """Node that ran in a step, and the names of its tasks."""

    what: str | Sent
    tasks: Sequence[str]

    @property
    def node(self) -> str:
        return self.what.node if isinstance(self.what, Sent) else self.what


def in_order(ran: Iterable[Ran], *, by_call: bool) -> list[Ran]:
    """Return the nodes of a step in the order in which their outputs count: nodes that ran with the state come first.

    With `by_call`, the reply's calls are tasks of their own. LangGraph sends those, so they come last.
    """
    return sorted(ran, key=lambda one: 1 if isinstance(one.what, Sent) else 2 * (by_call and one.what == TOOLS))


def onward(thread: Thread, ran: Sequence[Ran], before: State | None, *, by_call: bool) -> list[Target]:
    """Return the targets of the edges of a step's nodes.

    Args:
        thread: thread with the writes of the step applied.
        ran: nodes of the step, in order.
        before: the state before the step, if the step had sends. Each node's edge is then decided from its own writes.
        by_call: also run the calls of replies that are not the last one.
    """
    flow, messages = thread.schema.flow, _messages(thread.state)
    if before is None:
        return [flow.following(one.node, messages) for one in ran]
    targets: list[Target] = []
    for one in ran:
        seen = _messages(before.with_writes(thread.written(one.tasks)))
        edge = flow.following(one.node, seen)
        if edge == TOOLS and by_call and _reply_id(seen) != _reply_id(messages):
            targets += [Send(TOOLS, [call]) for call in flow.open_calls(seen)]
        else:
            targets.append(edge)
    return targets


def distinct(targets: Iterable[Target], known: Sequence[str]) -> tuple[Target, ...]:
    """Return the targets without unknown nodes and repetitions; every send is kept."""
    nodes = dict.fromkeys(
        target for target in targets if not isinstance(target, Send) and target != END and target in known
    )
    return (*nodes, *(target for target in targets if isinstance(target, Send)))


def _messages(state: State) -> list[BaseMessage]:
    return state.get(MESSAGES) or []


def _reply_id(messages: Sequence[BaseMessage]) -> str | None:
    place = last_reply(messages)
    reply = None if place is None else messages[place]
    return reply.id if isinstance(reply, AIMessage) else None
