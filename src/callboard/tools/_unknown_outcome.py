"""Calls that started and never ended: the text for the model, and the question to a person."""

from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from callboard._records._policies import CallPolicy
from callboard.exceptions import ActorDiedError, EngineError
from callboard.tools._errors import error_message

UNKNOWN = (
    "Error: this call was begun, and did not come to its end; whether it had any effect is unknown. Find out before "
    "calling the tool again."
)


REPEATS = "__callboard_repeats__"
"""Attribute of functions that repeat lost work by themselves."""


class OutcomeUnknown(GraphInterrupt):
    """Interrupt of a call with an unknown outcome, so that a person decides about it.

    Args:
        name: name of the tool.
        args: arguments that the model wrote.
        why: clause about the event that ended the body.
    """

    def __init__(self, name: str, args: dict[str, Any], why: str) -> None:
        super().__init__((question_about(name, args, why),))


def question_instead(policy: CallPolicy, name: str, args: dict[str, Any], error: Exception) -> OutcomeUnknown | None:
    """Return the interrupt that replaces an error with unknown outcome; `None` if the policy does not ask a person."""
    if policy.on_unknown != "ask" or policy.idempotent:
        return None
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return None
    return OutcomeUnknown(name, args, error.reason)


def runs_again(policy: CallPolicy) -> bool:
    """Return whether a call with unknown outcome runs again under its policy."""
    return policy.idempotent or policy.on_unknown == "rerun"


def is_lost(error: BaseException) -> bool:
    """Return whether a body was lost with its actor or worker, and did not cause that itself."""
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return False
    of_engine = error if isinstance(error, EngineError) else error.__cause__
    return not (isinstance(of_engine, EngineError) and of_engine.recurs)


def question_about(name: str, args: dict[str, Any], why: str) -> Interrupt:
    """Return the question to a person about a call, in the format of LangGraph's agent inbox.

    Each question has an id of its own, so an answer that arrives twice cannot answer a later question. `why` is a
    clause about the event that ended the body.
    """
    allowed = {"allow_accept": True, "allow_respond": True, "allow_ignore": True, "allow_edit": False}
    request = {
        "action_request": {"action": name, "args": args},
        "config": allowed,
        "description": f"This call was begun, and then {why}; whether it had any effect is unknown. "
        "Accept to run it again, respond with its result, or ignore it.",
    }
    return Interrupt([request], id=uuid4().hex)


def unknown_text(key: str, call: ToolCall, answer: Any) -> ToolMessage | None:
    """Return the message that a person's answer stands for; `None` to run the call again.

    Raises ValueError for an answer of an unknown form.
    """
    given: Any = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "accept":
        return None
    if kind == "response" and given.get("args") is not None:
        return ToolMessage(str(given["args"]), name=call["name"], tool_call_id=call["id"])
    if kind == "ignore":
        return error_message(UNKNOWN, call)
    raise ValueError(
        f"The answer about call {key!r} is {{'type': 'accept'}}, {{'type': 'response', 'args': ...}} or "
        f"{{'type': 'ignore'}}; got {answer!r}"
    )
