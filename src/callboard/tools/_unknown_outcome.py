"""Calls that were begun and never ended: what a model is told of one, what a person is asked, and may say."""

from typing import Any
from uuid import uuid4

from langchain_core.messages import ToolCall, ToolMessage
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from callboard._types import CallPolicy
from callboard.exceptions import ActorDiedError, EngineError
from callboard.tools._errors import error_message

UNKNOWN = (
    "Error: this call was begun, and did not come to its end; whether it had any effect is unknown. Find out before "
    "calling the tool again."
)


REPEATS = "__callboard_repeats__"
"""The name of an attribute of functions that run again themselves what was lost."""


class OutcomeUnknown(GraphInterrupt):
    """What a call ends with that was begun, and of which a person is to say what becomes of it.

    Args:
        name: of the tool.
        args: what the model wrote.
        why: what ended while the call ran.
    """

    def __init__(self, name: str, args: dict[str, Any], why: str) -> None:
        super().__init__((question_about(name, args, why),))


def question_instead(policy: CallPolicy, name: str, args: dict[str, Any], error: Exception) -> OutcomeUnknown | None:
    """What a call ends with in place of an error that leaves open whether it had its effect, if a person is to say.

    Args:
        policy: of the call.
        name: of the tool.
        args: what the model wrote.
        error: what the tool raised.
    """
    if policy.on_unknown != "ask" or policy.idempotent:
        return None
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return None
    return OutcomeUnknown(name, args, error.reason)


def runs_again(policy: CallPolicy) -> bool:
    """Whether a call runs again of which nobody knows whether it had its effect."""
    return policy.idempotent or policy.on_unknown == "rerun"


def is_lost(error: BaseException) -> bool:
    """Return whether a body was lost with its actor or its worker, and did not bring that about itself."""
    if not isinstance(error, (ActorDiedError, EngineError)) or error.ended != "unknown":
        return False
    of_engine = error if isinstance(error, EngineError) else error.__cause__
    return not (isinstance(of_engine, EngineError) and of_engine.recurs)


def question_about(name: str, args: dict[str, Any], why: str) -> Interrupt:
    """What a person is asked about a call, in the form of LangGraph's agent inbox.

    Each question has an id of its own: an answer to one that comes in once more answers no later one.

    Args:
        name: of the tool.
        args: what the model wrote.
        why: what ended while the call ran.
    """
    allowed = {"allow_accept": True, "allow_respond": True, "allow_ignore": True, "allow_edit": False}
    request = {
        "action_request": {"action": name, "args": args},
        "config": allowed,
        "description": f"This call was begun, and then {why}; whether it had any effect is unknown. "
        "Accept to run it again, respond with its result, or ignore it.",
    }
    return Interrupt([request], id=uuid4().hex)


def said_of(key: str, call: ToolCall, answer: Any) -> ToolMessage | None:
    """What a person says of a call whose outcome is unknown; `None` to run it again.

    Raises:
        ValueError: if it is nothing that can be said.
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
