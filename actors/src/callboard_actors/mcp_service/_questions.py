"""Questions to a person as MCP forms for the client's user, and the dialogue between a call and the user."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from langgraph.types import Interrupt
from mcp import types

from callboard.questions import Action, Answer, Approval, approval_in, free_answer
from callboard_actors.mcp._questions import McpAnswer, request_in
from callboard_actors.mcp_service._results import failed

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
    """Question of a run and the MCP forms that ask it: one for each action that waits for approval, else a single one.

    A question of another MCP server is passed on unchanged, and so is the client's answer, even a refusal.
    """

    question: Interrupt
    approval: Approval | None
    passed_on: types.ElicitRequest | None = None

    @property
    def forms(self) -> list[types.ElicitRequest]:
        """Forms that the client shows to its user."""
        if self.passed_on is not None:
            return [self.passed_on]
        if self.approval is None:
            return [_form(_as_text(self.question.value), _free_schema(self.question))]
        return [_form(_described(action), _schema_for(action)) for action in self.approval.actions]

    def answer(self, filled: Sequence[types.ElicitResult]) -> object:
        """Return the value with which the run is resumed, from the filled-in forms.

        Raise DeclinedError if the user declined, and InvalidAnswerError for an invalid answer.
        """
        if self.passed_on is not None:
            return McpAnswer(action=filled[0].action, content=cast("dict[str, Any] | None", filled[0].content))
        if self.approval is None:
            return _free_answer(self.question, filled[0])
        decided = [_decided(action, one) for action, one in zip(self.approval.actions, filled, strict=True)]
        return self.approval.encode(decided)


def asked(questions: Sequence[Interrupt]) -> list[FormQuestion]:
    """Return a `FormQuestion` for each interrupt of a run."""
    return [FormQuestion(question, approval_in(question.value), request_in(question.value)) for question in questions]


def with_complaint(form: types.ElicitRequest, complaint: str) -> types.ElicitRequest:
    """Return a copy of a form whose text begins with a complaint about the last answer."""
    params = form.params
    return form.model_copy(update={"params": params.model_copy(update={"message": f"{complaint}\n\n{params.message}"})})


def _form(message: str, schema: dict[str, Any]) -> types.ElicitRequest:
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=message, requested_schema=schema))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str)


# Approvals


def _described(action: Action) -> str:
    """Return the text that asks for approval of an action, with all its arguments.

    A person must see everything that they approve.
    """
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


def _decided(action: Action, filled: types.ElicitResult) -> Answer:
    """Return the decision about an action from its filled-in form: the type of the answer, and its arguments.

    A form that was not filled in means `ignore`.
    """
    content = filled.content or {}
    if filled.action != "accept":
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
    """Return the schema of the form for a question.

    It is the question's own schema if a form supports it; otherwise the form has one text field.
    """
    schema = _own_schema(question)
    if _is_flat(schema):
        return {name: value for name, value in schema.items() if name in ("type", "properties", "required")}
    if schema.get("type") in _PRIMITIVE:
        field = {"title": "Answer", **schema}
    else:
        field = {"type": "string", "title": "Answer", "description": "JSON, or text"}
    return {"type": "object", "properties": {"answer": field}, "required": ["answer"]}


def _own_schema(question: Interrupt) -> Mapping[str, Any]:
    found: object = getattr(question, "response_schema", None)
    return found if isinstance(found, Mapping) else {}


def _is_flat(schema: Mapping[str, Any]) -> bool:
    # MCP allows only flat objects with primitive fields in a form.
    properties = schema.get("properties")
    return (
        schema.get("type") == "object"
        and bool(properties)
        and all(isinstance(one, Mapping) and one.get("type") in _PRIMITIVE for one in (properties or {}).values())
    )


def _free_answer(question: Interrupt, filled: types.ElicitResult) -> object:
    if filled.action != "accept":
        raise DeclinedError
    content = filled.content or {}
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
"""Function that takes the chunks of a stream, and sends the progress reports among them to the client."""


@dataclass(frozen=True, slots=True)
class NeedsAnswers:
    """Questions that a call asks a person before it can continue."""

    questions: Sequence[FormQuestion]
    complaint: str = ""
    """Error text about the person's previous answer; empty if there is none."""


class ServedCall(Protocol):
    """Call of a client on the server, from its arguments through its questions to its result."""

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run until the call has a result, or a person must be asked.

        `answers` maps question ids to answers; it is empty at the first time.
        """
        ...

    async def forget(self) -> None:
        """Delete everything that is stored about the call, because its questions will not be answered."""
        ...


Begun = ServedCall | types.CallToolResult | None
"""Call that has not begun, or an error result if it cannot run; `None` for an unknown tool."""

# The dialogue.

Outcome = types.CallToolResult | NeedsAnswers
Filled = Mapping[str, types.ElicitResult]
"""Filled-in forms: the client's result for each form, by the key of the form."""

MOST_COMPLAINTS: Final = 3
"""Maximum number of invalid answers for which the user is asked again; then the call is given up."""

_DECLINED: Final = "The call was not run to its end: the user has not answered what it asks."


def forms(asking: NeedsAnswers) -> dict[str, types.ElicitRequest]:
    """Return the forms for all questions of a call, each under a unique key."""
    found = {_key(n, place): form for n, one in enumerate(asking.questions) for place, form in enumerate(one.forms)}
    return {key: with_complaint(form, asking.complaint) for key, form in found.items()} if asking.complaint else found


def _key(question: int, place: int) -> str:
    return f"{question}.{place}"


_LEFT: Final = types.ElicitResult(action="cancel")
"""Result that stands for a form which the client did not send back."""


@dataclass(slots=True)
class Dialogue:
    """State of the dialogue between a call and the user: the call, and the number of invalid answers so far."""

    work: ServedCall
    complaints: int = 0

    async def fill_in(self, asking: NeedsAnswers, filled: Filled, tell: Tell) -> Outcome:
        """Continue the call with the filled-in forms; return its result, or questions.

        After an invalid answer, the same questions are returned with a complaint.
        """
        try:
            answers = {
                one.question.id: one.answer([filled.get(_key(n, place), _LEFT) for place in range(len(one.forms))])
                for n, one in enumerate(asking.questions)
            }
        except DeclinedError:
            return await self.give_up(_DECLINED)
        except InvalidAnswerError as error:
            return await self._complain(NeedsAnswers(asking.questions, str(error)))
        outcome = await self.work.go_on(answers, tell)
        if isinstance(outcome, NeedsAnswers) and outcome.complaint:
            return await self._complain(outcome)
        return outcome

    async def _complain(self, asking: NeedsAnswers) -> Outcome:
        self.complaints += 1
        if self.complaints > MOST_COMPLAINTS:
            return await self.give_up(f"{_DECLINED} {asking.complaint}")
        return asking

    async def give_up(self, why: str) -> types.CallToolResult:
        """Abandon the call, and return an error result with the reason `why`."""
        await self.work.forget()
        return failed(why)
