"""MCP forms by which a call asks the client's user, the dialogue between the two, and progress reports."""

import base64
import json
import math
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import anyio
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt
from mcp import types
from pydantic import ValidationError

from callboard.questions import Action, Answer, Approval, approval_in, free_answer
from callboard_actors.mcp._questions import McpAnswer, request_in
from callboard_actors.mcp_service._results import ERRORS_OF_CALLS, failed, failed_with

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
        return [_form(_describe(action), _schema_for(action)) for action in self.approval.actions]

    def answer(self, results: Sequence[types.ElicitResult]) -> object:
        """Convert the filled-in forms to the value with which the interrupted run is resumed."""
        if self.forwarded is not None:
            return McpAnswer(action=results[0].action, content=cast("dict[str, Any] | None", results[0].content))
        if self.approval is None:
            return _read_free_answer(self.question, results[0])
        actions = zip(self.approval.actions, results, strict=True)
        return self.approval.encode([_read_decision(action, result) for action, result in actions])


def form_questions(questions: Sequence[Interrupt]) -> list[FormQuestion]:
    """Return a `FormQuestion` for each interrupt of a run."""
    return [FormQuestion(question, approval_in(question.value), request_in(question.value)) for question in questions]


def with_complaint(form: types.ElicitRequest, complaint: str) -> types.ElicitRequest:
    """Return a copy of a form whose text begins with a complaint about the user's last answer."""
    params = form.params
    return form.model_copy(update={"params": params.model_copy(update={"message": f"{complaint}\n\n{params.message}"})})


def _form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)


# Approvals


def _describe(action: Action) -> str:
    """Return the text that asks for approval of an action, with all its arguments."""
    # A person must see everything that they approve.
    description = action.description or ""
    if f"Args: {dict(action.args)}" in description:  # RequireApproval has added the arguments already
        return description
    return f"{description}\n\n{action.name}({_as_text(dict(action.args))})".strip()


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
            "default": json.dumps(dict(action.args), ensure_ascii=False, default=str),
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
    for word in action.allowed:
        if content.get("decision") == word:
            return word, _args_of(word, content)
    raise InvalidAnswerError(f"The decision is one of {', '.join(action.allowed)}; got {content.get('decision')!r}.")


def _args_of(word: str, content: Mapping[str, object]) -> Any:
    message = content.get("message")
    if word == "accept":
        return None
    if word == "ignore":
        return message or None
    if word == "respond":
        if not isinstance(message, str) or not message:
            raise InvalidAnswerError("To respond takes a message.")
        return message
    try:
        edited = json.loads(str(content.get("arguments")))
    except ValueError as error:
        raise InvalidAnswerError(f"The arguments are no JSON: {error}.") from None
    if not isinstance(edited, dict):
        raise InvalidAnswerError('The arguments are a JSON object, such as {"path": "a.txt"}.')
    return edited


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


# Served objects.

Tell = Callable[[object], None]
"""Function that gets the chunks of a call's stream; it sends each progress report to the client."""


@dataclass(frozen=True, slots=True)
class NeedsAnswers:
    """Questions that a call asks the client's user before it can continue."""

    questions: Sequence[FormQuestion]
    complaint: str = ""
    """Error text about the person's previous answer; empty if there is none."""


class ServedCall(Protocol):
    """Tool call that an MCP client has requested from the server; before its result, it may ask the user questions."""

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run the call until it has a result, or questions to the client's user; return the result or the questions.

        `answers` maps question ids to answers; it is empty at the first time. Raise the error of a failed call.
        """
        ...

    async def forget(self) -> None:
        """Delete everything that is stored about the call, because its questions will not be answered."""
        ...

    @property
    def state(self) -> Mapping[str, Any] | None:
        """State from which another request continues the call; `None` if the call cannot outlive its request."""
        ...


Begun = ServedCall | types.CallToolResult | None
"""Prepared call that has not started, or an error result if the call cannot run; `None` for an unknown tool."""

# The dialogue.

Outcome = types.CallToolResult | NeedsAnswers
FormResults = Mapping[str, types.ElicitResult]
"""Filled-in forms: the client's result for each form, by the key of the form."""

MOST_COMPLAINTS: Final = 3
"""Maximum number of invalid answers for which the user is asked again; then the call is given up."""

_DECLINED: Final = "The call was not run to its end: the user has not answered what it asks."


def forms(asking: NeedsAnswers) -> dict[str, types.ElicitRequest]:
    """Return the forms for all questions of a call, each under a unique key."""
    form_by_key = {
        _key(number, position): form
        for number, question in enumerate(asking.questions)
        for position, form in enumerate(question.forms)
    }
    if not asking.complaint:
        return form_by_key
    return {key: with_complaint(form, asking.complaint) for key, form in form_by_key.items()}


def _key(question: int, form: int) -> str:
    return f"{question}.{form}"


_NOT_RETURNED: Final = types.ElicitResult(action="cancel")
"""Result that is used for each form that the client did not send back."""


@dataclass(slots=True)
class Dialogue:
    """Dialogue between a call and the client's user, with the number of the user's invalid answers."""

    work: ServedCall
    complaints: int = 0

    async def begin(self, tell: Tell) -> Outcome:
        """Run the call; return its result, or questions to the client's user. A failed call has an error result."""
        try:
            return await self.work.go_on({}, tell)
        except ERRORS_OF_CALLS as error:
            return await self._give_up_for(error)

    async def fill_in(self, asking: NeedsAnswers, results: FormResults, tell: Tell) -> Outcome:
        """Continue the call with the filled-in forms; return its result, or further questions to the client's user."""
        try:
            answers = {
                question.question.id: question.answer(
                    [results.get(_key(number, form), _NOT_RETURNED) for form in range(len(question.forms))]
                )
                for number, question in enumerate(asking.questions)
            }
        except DeclinedError:
            return await self.give_up(_DECLINED)
        except InvalidAnswerError as error:
            return await self._complain(NeedsAnswers(asking.questions, str(error)))
        try:
            return await self.work.go_on(answers, tell)
        except ValidationError as error:  # an invalid answer: the question stays open
            return await self._complain(NeedsAnswers(asking.questions, str(error)))
        except ERRORS_OF_CALLS as error:
            return await self._give_up_for(error)

    async def _give_up_for(self, error: BaseException) -> types.CallToolResult:
        await self.work.forget()
        return failed_with(error)

    async def _complain(self, asking: NeedsAnswers) -> Outcome:
        self.complaints += 1
        if self.complaints > MOST_COMPLAINTS:
            return await self.give_up(f"{_DECLINED} {asking.complaint}")
        return asking

    async def give_up(self, why: str) -> types.CallToolResult:
        """Abandon the call, and return an error result with the reason `why`."""
        await self.work.forget()
        return failed(why)


# A dialogue as the `requestState` of the protocol: the client keeps it between two requests, and no server does.

_SERIALIZER: Final = JsonPlusSerializer(pickle_fallback=False)


@dataclass(frozen=True, slots=True)
class DialogueState:
    """State of a dialogue between two requests of a client.

    `nonce` is a random name of this state, by which a repeated answer is recognised.
    """

    nonce: str
    call: Mapping[str, Any]
    questions: Sequence[Interrupt]
    complaint: str
    complaints: int

    @property
    def asking(self) -> NeedsAnswers:
        """Questions that the client has been asked."""
        return NeedsAnswers(form_questions(self.questions), self.complaint)


def dump_dialogue(dialogue: Dialogue, call: Mapping[str, Any], asking: NeedsAnswers) -> str:
    """Return a dialogue that waits for answers as text. It may be confidential, so the SDK encrypts it."""
    questions = [question.question for question in asking.questions]
    fields = (secrets.token_urlsafe(16), call, questions, asking.complaint, dialogue.complaints)
    _, data = _SERIALIZER.dumps_typed(fields)
    return base64.b64encode(data).decode()


def load_dialogue(text: str) -> DialogueState:
    """Return the state in a text of `dump_dialogue`. The SDK has checked that no client has made or changed it."""
    return DialogueState(*_SERIALIZER.loads_typed(("msgpack", base64.b64decode(text))))


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
        self._last = self._next(done)
        return self._last, self._total, message if isinstance(message, str) and message else None

    def _next(self, done: object) -> float:
        if isinstance(done, (int, float)) and done >= 0 and (self._last is None or done > self._last):
            return float(done)
        if self._last is None:
            return 0.0
        step = 1.0 if self._total is None else _STEP * max(self._total, 1.0)
        return max(self._last + step, math.nextafter(self._last, math.inf))  # a small step may vanish by rounding


@asynccontextmanager
async def progress_sender(
    report: Callable[[float, float | None, str | None], Awaitable[None]],
) -> AsyncGenerator[Callable[[object], None]]:
    """Yield a function that takes chunks of a stream, and sends the progress reports among them to the client."""
    # `waiting` holds at most one report, the newest: a call never waits for a slow client.
    rising = ProgressCounter()
    waiting: list[Report] = []
    due = anyio.Event()
    is_over = False

    def take(chunk: object) -> None:
        if isinstance(chunk, dict) and chunk.get("type") == "progress":
            waiting[:] = [rising.report(chunk.get("message"), chunk.get("done"), chunk.get("total"))]
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
