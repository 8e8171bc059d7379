"""Calls that started and never ended: their outcome is unknown.

The policy of such a call decides whether it runs again, becomes a message, or becomes a question to a person.
"""

from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from callboard._langchain._errors import error_message
from callboard._records._policies import CallPolicy
from callboard.exceptions import ActorDiedError, EngineError

UNKNOWN = (
    "Error: this call was begun, and did not come to its end; whether it had any effect is unknown. Find out before "
    "calling the tool again."
)


REPEATS = "__callboard_repeats__"
"""Name of an attribute that marks functions which themselves repeat a call after the death of its actor."""


class OutcomeUnknown(GraphInterrupt):
    """Interrupt that asks a person what to do with a call that started and never ended."""

    def __init__(self, name: str, args: dict[str, Any], reason: str) -> None:
        super().__init__((question_about(name, args, reason),))


def question_instead(policy: CallPolicy, name: str, args: dict[str, Any], error: Exception) -> OutcomeUnknown | None:
    """Return an interrupt that asks a person about a failed call; `None` if no question is allowed or needed."""
    # An idempotent call of an actor is not asked about: it has run again as often as it may.
    if policy.on_unknown != "ask" or (policy.idempotent and isinstance(error, ActorDiedError)):
        return None
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return None
    return OutcomeUnknown(name, args, error.reason)


def runs_again(policy: CallPolicy) -> bool:
    """Return whether a policy lets a call run again if it is unknown whether the call had its effect."""
    return policy.idempotent or policy.on_unknown == "rerun"


def is_lost(error: BaseException) -> bool:
    """Return whether a call's outcome is unknown because its actor or worker died for a reason other than the call."""
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return False
    of_engine = error if isinstance(error, EngineError) else error.__cause__
    return not (isinstance(of_engine, EngineError) and of_engine.recurs)


def question_about(name: str, args: dict[str, Any], reason: str) -> Interrupt:
    """Return the question to a person about a call with unknown outcome, in the format of LangGraph's agent inbox."""
    allowed = {"allow_accept": True, "allow_respond": True, "allow_ignore": True, "allow_edit": False}
    request = {
        "action_request": {"action": name, "args": args},
        "config": allowed,
        "description": f"This call was begun, and then {reason}; whether it had any effect is unknown. "
        "Accept to run it again, respond with its result, or ignore it.",
    }
    # With an id of its own, so that an answer that arrives twice cannot answer a later question.
    return Interrupt([request], id=uuid4().hex)


def unknown_text(key: str, call: ToolCall, answer: Any) -> ToolMessage | None:
    """Return the tool message that a person chose for a call with an unknown outcome; `None` to run the call again."""
    decision: Any = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    kind = decision.get("type") if isinstance(decision, dict) else None
    if kind == "accept":
        return None
    if kind == "response" and decision.get("args") is not None:
        return ToolMessage(str(decision["args"]), name=call["name"], tool_call_id=call["id"])
    if kind == "ignore":
        return error_message(UNKNOWN, call)
    raise ValueError(
        f"The answer about call {key!r} is {{'type': 'accept'}}, {{'type': 'response', 'args': ...}} or "
        f"{{'type': 'ignore'}}; got {answer!r}"
    )
