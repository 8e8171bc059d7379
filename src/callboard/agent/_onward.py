"""What comes after a step: where its nodes lead, each from what it has seen itself."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.types import Send

from callboard.agent._conversation._channels import State
from callboard.agent._conversation._checkpoint import MESSAGES
from callboard.agent._conversation._thread import Thread
from callboard.agent._flow import END, TOOLS
from callboard.agent._sends import Sent, Target
from callboard.tools._unanswered import last_reply


@dataclass(frozen=True, slots=True)
class Ran:
    """A node of a step, and the names of its tasks."""

    what: str | Sent
    tasks: Sequence[str]

    @property
    def node(self) -> str:
        return self.what.node if isinstance(self.what, Sent) else self.what


def in_order(ran: Iterable[Ran], *, by_call: bool) -> list[Ran]:
    """The nodes of a step in the order in which their outputs count: first those that run with the state.

    Args:
        ran: all.
        by_call: whether the conversation's calls are tasks of their own, which are sent, too.
    """
    return sorted(ran, key=lambda one: 1 if isinstance(one.what, Sent) else 2 * (by_call and one.what == TOOLS))


def onward(thread: Thread, ran: Sequence[Ran], before: State | None, *, by_call: bool) -> list[Target]:
    """Where the edges of a step's nodes lead.

    Args:
        thread: with what the step has written.
        ran: the nodes of the step, in order.
        before: the state before the step, if nodes were sent something: then each is followed by what it has
            written itself, as if it were the only one.
        by_call: whether the calls of a reply that is not the last one are run, too.
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
    """Leave out nodes that are named twice, and those that do not exist; keep every send."""
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
