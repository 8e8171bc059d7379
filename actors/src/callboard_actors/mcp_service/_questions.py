"""MCP forms by which a call asks the client's user, and progress reports."""

import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
from langgraph.types import Interrupt
from mcp import types

from callboard.questions import Action, Answer, Approval, approval_in, free_answer, printable
from callboard_actors._util._sendable import as_sendable
from callboard_actors.mcp._questions import McpAnswer, request_in

_PRIMITIVE: Final = ("string", "number", "integer", "boolean")
_WHAT_FOR: Final = {
    "accept": "run it as it is",
    "edit": "run it with the arguments below",
    "respond": "do not run it; the message below is its result",
    "ignore": "do not run it; the message below, if any, says why",
}


class DeclinedError(Exception):
    """Raised if the user declines to answer a question that must have an answer."""


class InvalidAnswerError(Exception):
    """Raised for an invalid answer of the user; the error text is shown to the user."""


@dataclass(frozen=True, slots=True)
class FormQuestion:
    """Question that interrupts a run, and its MCP forms: one for each action that needs approval, or a single form.

    A question of another MCP server is passed on unchanged, and so is the client's answer, even a refusal.
    """

    question: Interrupt
    approval: Approval | None
    forwarded: types.ElicitRequest | None = None

    @property
    def forms(self) -> list[types.ElicitRequest]:
        """Forms that the client shows to its user."""
        if self.forwarded is not None:
            return [self.forwarded]
        if self.approval is None:
            return [_form(_as_text(self.question.value), _free_schema(self.question))]
        forms: list[types.ElicitRequest] = []
        for action in self.approval.actions:
            # A person must see everything that they approve. RequireApproval has added the arguments already.
            description = action.description or ""
            if printable(f"Args: {dict(action.args)}") not in description:
                description = f"{description}\n\n{action.name}({_as_text(dict(action.args))})".strip()
            forms.append(_form(description, _schema_for(action)))
        return forms

    def answer(self, results: Sequence[types.ElicitResult]) -> object:
        """Convert the filled-in forms to the value with which the interrupted run is resumed."""
        if self.forwarded is not None:
            return McpAnswer(action=results[0].action, content=results[0].content)
        if self.approval is None:
            return _read_free_answer(self.question, results[0])
        actions = zip(self.approval.actions, results, strict=True)
        return self.approval.encode([_read_decision(action, result) for action, result in actions])


def form_questions(questions: Sequence[Interrupt]) -> list[FormQuestion]:
    """Return a `FormQuestion` for each interrupt of a run."""
    return [FormQuestion(question, approval_in(question.value), request_in(question.value)) for question in questions]


def _form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=printable(message), requested_schema=schema)
    )


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)


# Approvals


def _schema_for(action: Action) -> dict[str, Any]:
    what_for = "; ".join(f"{word}: {_WHAT_FOR[word]}" for word in action.allowed)
    fields: dict[str, Any] = {
        "decision": {"type": "string", "title": "Decision", "enum": list(action.allowed), "description": what_for}
    }
    if "edit" in action.allowed:
        fields["arguments"] = {
            "type": "string",
            "title": "Arguments",
            "description": "For edit: a JSON object",
            "default": printable(json.dumps(dict(action.args), ensure_ascii=False, default=str)),
        }
    if "respond" in action.allowed or "ignore" in action.allowed:
        fields["message"] = {"type": "string", "title": "Message", "description": "For respond and ignore"}
    return {"type": "object", "properties": fields, "required": ["decision"]}


def _read_decision(action: Action, result: types.ElicitResult) -> Answer:
    """Return the user's decision about an action, read from its form: the type of the answer, and its arguments."""
    # A form that was not filled in means `ignore`.
    content = result.content or {}
    if result.action != "accept":
        if "ignore" not in action.allowed:
            raise DeclinedError
        return "ignore", None
    decision = next((word for word in action.allowed if content.get("decision") == word), None)
    if decision is None:
        raise InvalidAnswerError(
            f"The decision is one of {', '.join(action.allowed)}; got {content.get('decision')!r}."
        )
    message = content.get("message")
    if decision == "accept":
        return decision, None
    if decision == "ignore":
        return decision, message or None
    if decision == "respond":
        if not isinstance(message, str) or not message:
            raise InvalidAnswerError("To respond takes a message.")
        return decision, message
    try:
        edited = json.loads(str(content.get("arguments")))
    except ValueError as error:
        raise InvalidAnswerError(f"The arguments are no JSON: {error}.") from None
    if not isinstance(edited, dict):
        raise InvalidAnswerError('The arguments are a JSON object, such as {"path": "a.txt"}.')
    return "edit", edited


# Other questions


def _free_schema(question: Interrupt) -> dict[str, Any]:
    """Return the JSON schema of the form for a question that is not a request for approval."""
    # It is the question's own schema if a form supports it; otherwise the form has one text field.
    schema = _own_schema(question)
    if _is_flat(schema):
        return {name: value for name, value in schema.items() if name in ("type", "properties", "required")}
    if schema.get("type") in _PRIMITIVE:
        field = {"title": "Answer", **schema}
    else:
        field = {"type": "string", "title": "Answer", "description": "JSON, or text"}
    return {"type": "object", "properties": {"answer": field}, "required": ["answer"]}


def _own_schema(question: Interrupt) -> Mapping[str, Any]:
    schema: object = getattr(question, "response_schema", None)
    return schema if isinstance(schema, Mapping) else {}


def _is_flat(schema: Mapping[str, Any]) -> bool:
    # MCP allows only flat objects with primitive fields in a form.
    properties = schema.get("properties")
    return (
        schema.get("type") == "object"
        and bool(properties)
        and all(isinstance(field, Mapping) and field.get("type") in _PRIMITIVE for field in (properties or {}).values())
    )


def _read_free_answer(question: Interrupt, result: types.ElicitResult) -> object:
    if result.action != "accept":
        raise DeclinedError
    content = result.content or {}
    schema = _own_schema(question)
    if _is_flat(schema):
        return content
    if "answer" not in content:
        raise InvalidAnswerError("The answer is missing.")
    answer = content["answer"]
    if isinstance(answer, str) and schema.get("type") not in _PRIMITIVE:
        return free_answer(answer, question)
    return answer


Tell = Callable[[object], None]
"""Function that gets the chunks of a call's stream; it sends each progress report to the client."""

_NOT_RETURNED: Final = types.ElicitResult(action="cancel")
"""Result that is used for each form that the client did not send back."""


@dataclass(frozen=True, slots=True)
class NeedsAnswers:
    """Questions that a call asks the client's user before it can continue."""

    questions: Sequence[FormQuestion]
    complaint: str = ""
    """Error text about the person's previous answer; empty if there is none."""
    complaints: int = 0
    """Number of the person's invalid answers to these questions."""

    @property
    def forms(self) -> dict[str, types.ElicitRequest]:
        """Forms for all questions, each under a unique key; their texts begin with the complaint."""
        forms: dict[str, types.ElicitRequest] = {}
        for number, question in enumerate(self.questions):
            for position, form in enumerate(question.forms):
                message = f"{self.complaint}\n\n{form.params.message}" if self.complaint else form.params.message
                params = form.params.model_copy(update={"message": message})
                forms[f"{number}.{position}"] = form.model_copy(update={"params": params})
        return forms

    def answers(self, results: Mapping[str, types.ElicitResult]) -> dict[str, object]:
        """Return the answer to each question by its id, from the client's results for the forms, by their keys."""
        return {
            question.question.id: question.answer(
                [results.get(f"{number}.{position}", _NOT_RETURNED) for position in range(len(question.forms))]
            )
            for number, question in enumerate(self.questions)
        }


# Progress notifications.

_STEP: Final = 1e-6
"""Minimum step between two progress numbers, as a fraction of the total."""


Report = tuple[float, float | None, str | None]
"""Progress report for a client: number, total (`None` if unknown), message (`None` without one)."""


class ProgressCounter:
    """Source of progress reports with strictly rising numbers, which MCP requires.

    The tools' own reports may lack numbers.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._total: float | None = None

    def report(self, message: object, done: object = None, total: object = None) -> Report:
        """Return the next progress report, with a higher number than the last one even if `done` is not higher."""
        # If `done` is missing or did not rise, the number rises by one, or by a millionth of the last known total.
        if isinstance(total, (int, float)):
            self._total = float(total)
        if isinstance(done, (int, float)) and done >= 0 and (self._last is None or done > self._last):
            self._last = float(done)
        elif self._last is None:
            self._last = 0.0
        else:
            step = 1.0 if self._total is None else _STEP * max(self._total, 1.0)
            # A small step may vanish by rounding.
            self._last = max(self._last + step, math.nextafter(self._last, math.inf))
        return self._last, self._total, message if isinstance(message, str) and message else None


@asynccontextmanager
async def progress_sender(
    report: Callable[[float, float | None, str | None], Awaitable[None]],
) -> AsyncGenerator[Callable[[object], None]]:
    """Yield a function that takes chunks of a stream, and sends the progress reports among them to the client."""
    # `waiting` holds at most one report, the newest: a call never waits for a slow client.
    counter = ProgressCounter()
    waiting: list[Report] = []
    due = anyio.Event()
    is_over = False

    def take(chunk: object) -> None:
        if isinstance(chunk, dict) and chunk.get("type") == "progress":
            message = chunk.get("message")
            text = as_sendable(message) if isinstance(message, str) else message
            waiting[:] = [counter.report(text, chunk.get("done"), chunk.get("total"))]
            due.set()

    async def tell() -> None:
        nonlocal due
        while not is_over:
            await due.wait()
            due = anyio.Event()
            while waiting:
                await report(*waiting.pop())

    async with anyio.create_task_group() as group:
        group.start_soon(tell)
        yield take
        is_over = True
        due.set()
