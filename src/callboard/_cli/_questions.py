"""What is said of a run's questions in lists, and the answer that accepts one. Asks nobody."""

from typing import Any

from langgraph.types import Interrupt

from callboard._cli._shown_text import as_text, call_text
from callboard.questions import Answer, approval_in

_LONG = 500
"""The characters that one action may have in a list of them."""

_NO_REASON = "Tool execution requires approval"
"""What stands in a request that nobody has described, ours or LangChain's."""


def accepted(question: Interrupt) -> Any:
    """The answer that accepts everything in a question; `None` if that is none of its answers."""
    approval = approval_in(question.value)
    if approval is None or any("accept" not in action.allowed for action in approval.actions):
        return None
    yes: Answer = ("accept", None)
    return approval.encode([yes] * len(approval.actions))


def in_short(value: object) -> str:
    """What a question is about, on one line of a list."""
    approval = approval_in(value)
    if approval is None:
        return as_text(value)
    actions = ", ".join(call_text(one.name, one.args, _LONG) for one in approval.actions)
    reasons = dict.fromkeys(one.description.partition("\n")[0] for one in approval.actions if one.description)
    return " ".join([f"approve {actions}", *(f"({reason})" for reason in reasons if reason != _NO_REASON)])
