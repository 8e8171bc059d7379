"""For those who show questions to people: what a run asks, which answers there are, and what each is told as.

A question is the value of an interrupt. `approval_in` says whether it asks for approval; any other is answered by JSON
or by a text, as `free_answer` reads it. Asks nobody.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

__all__ = ["WORDS", "Action", "Answer", "Approval", "Word", "approval_in", "free_answer"]

Word = Literal["accept", "edit", "respond", "ignore"]
"""What may be said of an action: let it happen, change it, answer in its place, refuse it."""

WORDS: tuple[Word, ...] = ("accept", "edit", "respond", "ignore")

Answer = tuple[Word, Any]
"""What was chosen, and what goes with it: arguments for "edit", a text or `None` for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action that a person may allow, change, answer in its place, or refuse."""

    name: str
    args: Mapping[str, Any]
    description: str | None
    """What the person should know."""
    allowed: Sequence[Word]


@dataclass(frozen=True, slots=True)
class Approval:
    """A question of a known form."""

    actions: Sequence[Action]
    encode: Callable[[Sequence[Answer]], Any]
    """From an answer for each action to what the run is resumed with."""


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
    actions = [_action(one) for one in asked]

    def encode(answers: Sequence[Answer]) -> Any:
        responses = [_response(action, answer) for action, answer in zip(actions, answers, strict=True)]
        return responses if asked is value else responses[0]

    return Approval(actions, encode)


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


def _action(value: Mapping[str, Any]) -> Action:
    asked = value["action_request"]
    return Action(
        name=str(asked["action"]),
        args=asked.get("args") or {},
        description=value.get("description"),
        allowed=[word for word in WORDS if value["config"].get(_FIELDS[word])],
    )


def _response(action: Action, answer: Answer) -> dict[str, Any]:
    word, args = answer
    if word == "edit":
        return {"type": "edit", "args": {"action": action.name, "args": args}}
    return {"type": "response" if word == "respond" else word, "args": args}


_DECISIONS: Mapping[Word, str] = {"accept": "approve", "edit": "edit", "respond": "respond", "ignore": "reject"}


def _is_batch(value: object) -> bool:
    return isinstance(value, Mapping) and {"action_requests", "review_configs"} <= value.keys()


def _batch(value: Mapping[str, Any]) -> Approval:
    """LangChain's form: all actions of a reply in one question."""
    allowed = {config["action_name"]: config["allowed_decisions"] for config in value["review_configs"]}
    actions = [
        Action(
            name=asked["name"],
            args=asked["args"],
            description=asked.get("description"),
            allowed=[word for word in WORDS if _DECISIONS[word] in allowed.get(asked["name"], ())],
        )
        for asked in value["action_requests"]
    ]

    def encode(answers: Sequence[Answer]) -> Any:
        return {"decisions": [_decision(*pair) for pair in zip(actions, answers, strict=True)]}

    return Approval(actions, encode)


def _decision(action: Action, answer: Answer) -> dict[str, Any]:
    word, args = answer
    if word == "edit":
        return {"type": "edit", "edited_action": {"name": action.name, "args": args}}
    return {"type": _DECISIONS[word], **({} if args is None else {"message": args})}


def free_answer(text: str, question: object) -> Any:
    """What a person typed as the answer to a question of no known form: JSON if it is that, else text."""
    schema: object = getattr(question, "response_schema", None)
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
