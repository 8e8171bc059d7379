"""What a run asks a person: which answers there are, and what they look like to whoever asked. Asks nobody."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from langgraph.types import Interrupt

from callboard._cli._shown_text import as_text, call_text

Word = Literal["accept", "edit", "respond", "ignore"]

WORDS: tuple[Word, ...] = ("accept", "edit", "respond", "ignore")

Answer = tuple[Word, Any]
"""What was chosen, and what goes with it: arguments for "edit", a text or `None` for the others."""


_LONG = 500
"""The characters that one action may have in a list of them."""

_NO_REASON = "Tool execution requires approval"
"""What stands in a request that nobody has described, ours or LangChain's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One action that a person may allow, change, answer in its place, or refuse."""

    action: str
    args: Mapping[str, Any]
    description: str | None
    allowed: Sequence[Word]


@dataclass(frozen=True, slots=True)
class Approval:
    """A question of a known form."""

    requests: Sequence[Request]
    encode: Callable[[Sequence[Answer]], Any]
    """From an answer for each request to what the run is resumed with."""


def approval_in(value: object) -> Approval | None:
    """The approval that an interrupt asks for; `None` if it asks for something else.

    Args:
        value: of the interrupt: a `HumanInterrupt`, a list of them, or what LangChain's
            `HumanInTheLoopMiddleware` asks.
    """
    if _is_batch(value):
        return _batch(cast("Mapping[str, Any]", value))
    asked: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if not asked or not all(_is_human_interrupt(one) for one in asked):
        return None
    requests = [_request(one) for one in asked]

    def encode(answers: Sequence[Answer]) -> Any:
        responses = [_response(request, answer) for request, answer in zip(requests, answers, strict=True)]
        return responses if asked is value else responses[0]

    return Approval(requests, encode)


_FIELDS: Mapping[Word, str] = {
    "accept": "allow_accept",
    "edit": "allow_edit",
    "respond": "allow_respond",
    "ignore": "allow_ignore",
}


def _is_human_interrupt(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    request, config = value.get("action_request"), value.get("config")
    return isinstance(config, Mapping) and isinstance(request, Mapping) and "action" in request


def _request(value: Mapping[str, Any]) -> Request:
    asked = value["action_request"]
    return Request(
        action=str(asked["action"]),
        args=asked.get("args") or {},
        description=value.get("description"),
        allowed=[word for word in WORDS if value["config"].get(_FIELDS[word])],
    )


def _response(request: Request, answer: Answer) -> dict[str, Any]:
    word, args = answer
    if word == "edit":
        return {"type": "edit", "args": {"action": request.action, "args": args}}
    return {"type": "response" if word == "respond" else word, "args": args}


_DECISIONS: Mapping[Word, str] = {"accept": "approve", "edit": "edit", "respond": "respond", "ignore": "reject"}


def _is_batch(value: object) -> bool:
    return isinstance(value, Mapping) and {"action_requests", "review_configs"} <= value.keys()


def _batch(value: Mapping[str, Any]) -> Approval:
    """LangChain's form: all actions of a reply in one question."""
    allowed = {config["action_name"]: config["allowed_decisions"] for config in value["review_configs"]}
    requests = [
        Request(
            action=asked["name"],
            args=asked["args"],
            description=asked.get("description"),
            allowed=[word for word in WORDS if _DECISIONS[word] in allowed.get(asked["name"], ())],
        )
        for asked in value["action_requests"]
    ]

    def encode(answers: Sequence[Answer]) -> Any:
        return {"decisions": [_decision(*pair) for pair in zip(requests, answers, strict=True)]}

    return Approval(requests, encode)


def _decision(request: Request, answer: Answer) -> dict[str, Any]:
    word, args = answer
    if word == "edit":
        return {"type": "edit", "edited_action": {"name": request.action, "args": args}}
    return {"type": _DECISIONS[word], **({} if args is None else {"message": args})}


def accepted(question: Interrupt) -> Any:
    """The answer that accepts everything in a question; `None` if that is none of its answers."""
    approval = approval_in(question.value)
    if approval is None or any("accept" not in request.allowed for request in approval.requests):
        return None
    yes: Answer = ("accept", None)
    return approval.encode([yes] * len(approval.requests))


def in_short(value: object) -> str:
    """What a question is about, on one line of a list."""
    approval = approval_in(value)
    if approval is None:
        return as_text(value)
    actions = ", ".join(call_text(one.action, one.args, _LONG) for one in approval.requests)
    reasons = dict.fromkeys(one.description.partition("\n")[0] for one in approval.requests if one.description)
    return " ".join([f"approve {actions}", *(f"({reason})" for reason in reasons if reason != _NO_REASON)])


def free_answer(text: str, question: Interrupt) -> Any:
    """What a person typed as the answer to a question of no known form: JSON if it is that, else text."""
    schema: object = getattr(question, "response_schema", None)
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
