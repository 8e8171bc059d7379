"""Short texts about the questions of a run, and the accepting answer, without a dialogue."""

from typing import Any

from langgraph.types import Interrupt

from callboard._cli._shown_text import as_text, call_text
from callboard.questions import Answer, approval_in

_LONG = 500
"""Limit of one action in a list, in characters."""

_NO_REASON = "Tool execution requires approval"
"""Default description of an approval request, in callboard and in LangChain; not worth printing."""


def accepted(question: Interrupt) -> Any:
    """Return the answer that accepts all actions of a question; `None` if it does not allow that."""
    approval = approval_in(question.value)
    if approval is None or any("accept" not in action.allowed for action in approval.actions):
        return None
    yes: Answer = ("accept", None)
    return approval.encode([yes] * len(approval.actions))


def in_short(value: object) -> str:
    """Return the subject of a question as a text for a list."""
    approval = approval_in(value)
    if approval is None:
        return as_text(value)
    actions = ", ".join(call_text(one.name, one.args, _LONG) for one in approval.actions)
    reasons = dict.fromkeys(one.description.partition("\n")[0] for one in approval.actions if one.description)
    return " ".join([f"approve {actions}", *(f"({reason})" for reason in reasons if reason != _NO_REASON)])
