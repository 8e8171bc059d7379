"""Helpers for programs that show questions of a run to a person, and pass the answers back.

A question is the value of an interrupt. `approval_in` recognises a question that asks for approval. Any other question
is answered by JSON or text, which `free_answer` parses. `printable` makes a text fit to be shown. This module does no
input and output.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["WORDS", "Action", "Answer", "Approval", "Word", "approval_in", "free_answer", "printable"]

Word = Literal["accept", "edit", "respond", "ignore"]
"""Kind of a person's answer to a question about an action: allow, change, reply in place of, or refuse the action."""

WORDS: tuple[Word, ...] = ("accept", "edit", "respond", "ignore")
"""Kinds of answers, in the order in which a person is offered them."""

Answer = tuple[Word, Any]
"""Answer of a person: its kind, and the edited arguments for the kind "edit", or a text or `None` for other kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Action of an agent, such as a tool call, that needs the approval of a person.

    Args:
        name: name of the action, such as a tool's name.
        args: arguments of the action.
        description: information for the person.
        allowed: kinds of answers that the question allows.
    """

    name: str
    args: Mapping[str, Any]
    description: str | None
    """Description of the action for the person who decides."""
    allowed: Sequence[Word]


@dataclass(frozen=True, slots=True)
class Approval:
    """Question that asks a person to approve one or more actions."""

    actions: Sequence[Action]
    """Actions in the order in which the answers are expected."""
    encode: Callable[[Sequence[Answer]], Any]
    """Function that takes one answer for each action, and returns the value with which to resume the run."""


def approval_in(value: object) -> Approval | None:
    """Return the question in an interrupt's value as an `Approval`; `None` if the question does not ask for approval.

    Args:
        value: value of the interrupt: a `HumanInterrupt`, a list of them, or a question of LangChain's
            `HumanInTheLoopMiddleware`. Or the interrupt itself: its `response_schema` has the answers that are allowed
            to a question of `interrupt_mode="per_call"`, which else has all.
    """
    schema: object = getattr(value, "response_schema", None)
    value = getattr(value, "value", value)
    if isinstance(value, Mapping):
        if value.get("type") == "tool_approval" and {"name", "args"} <= value.keys():
            return _approval_of_call(value, schema)
        if {"action_requests", "review_configs"} <= value.keys():
            return _batch(value)
    interrupts: Sequence[Any] = value if isinstance(value, list | tuple) else [value]
    if not interrupts or not all(_is_human_interrupt(item) for item in interrupts):
        return None
    actions = [_action(item) for item in interrupts]

    def encode(answers: Sequence[Answer]) -> Any:
        responses = [_response(action, answer) for action, answer in zip(actions, answers, strict=True)]
        return responses if interrupts is value else responses[0]

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
    request = value["action_request"]
    return Action(
        name=str(request["action"]),
        args=request.get("args") or {},
        description=value.get("description"),
        allowed=[word for word in WORDS if value["config"].get(_FIELDS[word])],
    )


def _response(action: Action, answer: Answer) -> dict[str, Any]:
    word, args = answer
    if word == "edit":
        return {"type": "edit", "args": {"action": action.name, "args": args}}
    return {"type": "response" if word == "respond" else word, "args": args}


_DECISIONS: Mapping[Word, str] = {"accept": "approve", "edit": "edit", "respond": "respond", "ignore": "reject"}


def _batch(value: Mapping[str, Any]) -> Approval:
    """Return a question of `HumanInTheLoopMiddleware` about all actions of a reply as an `Approval`."""
    allowed = {config["action_name"]: config["allowed_decisions"] for config in value["review_configs"]}
    actions = [
        Action(
            name=request["name"],
            args=request["args"],
            description=request.get("description"),
            allowed=[word for word in WORDS if _DECISIONS[word] in allowed.get(request["name"], ())],
        )
        for request in value["action_requests"]
    ]

    def encode(answers: Sequence[Answer]) -> Any:
        return {"decisions": [_decision(*pair) for pair in zip(actions, answers, strict=True)]}

    return Approval(actions, encode)


def _approval_of_call(value: Mapping[str, Any], schema: object) -> Approval:
    """Return a question of `HumanInTheLoopMiddleware` about a single call as an `Approval`."""
    decisions = _decisions_in(schema) if isinstance(schema, Mapping) else _DECISIONS.values()
    action = Action(
        name=value["name"],
        args=value["args"],
        description=value.get("description"),
        allowed=[word for word in WORDS if _DECISIONS[word] in decisions],
    )
    return Approval([action], lambda answers: _decision(action, answers[0]))


def _decisions_in(schema: Mapping[str, Any]) -> set[str]:
    """Return the decisions, such as "approve", that the JSON schema of an answer allows."""
    decisions: set[str] = set()
    for part in (schema, *schema.get("$defs", {}).values()):
        match part:
            case {"properties": {"type": {"const": str(word)}}}:
                decisions.add(word)
            case _:
                pass
    return decisions


def _decision(action: Action, answer: Answer) -> dict[str, Any]:
    word, args = answer
    if word == "edit":
        return {"type": "edit", "edited_action": {"name": action.name, "args": args}}
    return {"type": _DECISIONS[word], **({} if args is None else {"message": args})}


def free_answer(text: str, question: object) -> Any:
    """Parse a person's typed answer to a question that asks for no approval; return the JSON value, or else the text.

    Args:
        text: the typed answer.
        question: value of the interrupt. If its `response_schema` is a string schema, the text is not parsed.
    """
    schema: object = getattr(question, "response_schema", None)
    if isinstance(schema, Mapping) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


# What a person sees


_JOINERS = "\u200c\u200d\ufe0e\ufe0f"
"""Joiners and presentation selectors: inside words of some scripts, and inside emoji, they are needed."""
# Default_Ignorable_Code_Point of Unicode, as far as the category does not say that nothing is shown.
_IGNORED = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2065\u3164\ufe00-\ufe0d\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """Escape characters that control a terminal or the text direction, or that are not visible.

    Newlines and tabs stay. An escape is that of JSON, so a JSON text keeps its value.

    Args:
        text: a text of a model, a tool or a server.
    """
    # Security: an escape sequence could move the cursor and overwrite the call that a person is about to approve. A
    # direction override could show it reversed.
    if text.isascii() and text.isprintable():
        return text
    hidden = map(_is_hidden, text, f" {text}")
    return "".join(json.dumps(char)[1:-1] if escaped else char for char, escaped in zip(text, hidden, strict=True))


def _is_hidden(char: str, before: str) -> bool:
    if char in "\n\t":
        return False
    if char in _JOINERS:
        return before.isascii()
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") or _IGNORED.match(char) is not None
