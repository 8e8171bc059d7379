"""Question to a person about a call, its allowed answers, and the result of each."""

import inspect
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, Union, cast, get_args

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.types import interrupt
from pydantic import BaseModel, Discriminator, RootModel, TypeAdapter, model_validator
from typing_extensions import TypedDict

from callboard._langgraph import answer_is_for, next_is_asked
from callboard.middleware._digest import digest_of
from callboard.tools._errors import error_message
from callboard.tools._human import ActionRequest, HumanInterrupt, HumanInterruptConfig
from callboard.tools._inject import injected_args
from callboard.tools._vocabulary import ToolCallRequest

AnswerType = Literal["accept", "edit", "response", "ignore"]
"""The `type` of a `HumanResponse`."""

ANSWERS: tuple[AnswerType, ...] = get_args(AnswerType)
FIELDS: dict[AnswerType, str] = {
    "accept": "allow_accept",
    "edit": "allow_edit",
    "response": "allow_respond",
    "ignore": "allow_ignore",
}
"""Field of a `HumanInterruptConfig` that allows each answer."""

Step = tuple[str, ToolCallRequest | ToolMessage]
"""Decision as one word for observers, and the request to run, or the message that answers instead."""


class ApprovalRequest(HumanInterrupt):
    """`HumanInterrupt` with the digest to which its answer is bound."""

    digest: str
    """Digest of the tool and its arguments."""


class Changed(TypedDict):
    action: NotRequired[str]
    args: dict[str, Any]


class Accept(TypedDict):
    type: Literal["accept"]
    args: NotRequired[Changed | None]


class Edit(TypedDict):
    type: Literal["edit"]
    args: Changed


class Respond(TypedDict):
    type: Literal["response"]
    args: str


class Ignore(TypedDict):
    type: Literal["ignore"]
    args: NotRequired[str | None]


_SHAPES: dict[AnswerType, tuple[type, str]] = {
    "accept": (Accept, '{"type": "accept"}'),
    "edit": (Edit, '{"type": "edit", "args": {"args": {...}}}'),
    "response": (Respond, '{"type": "response", "args": "text"}'),
    "ignore": (Ignore, '{"type": "ignore"}'),
}


@dataclass(frozen=True, slots=True)
class Question:
    """Question to a person before a call runs.

    Args:
        request: request of the call, without values that the model wrote for injected arguments.
        tool: tool that would run.
        others: tools to which an edit may change the call, by name.
        config: allowed answers.
    """

    request: ToolCallRequest
    tool: BaseTool
    others: Mapping[str, BaseTool]
    config: HumanInterruptConfig

    def ask(self, description: str) -> Step:
        """Interrupt the run with the question, or return the decision if the run was resumed with an answer.

        Raises:
            GraphInterrupt: with the question, while it has no answer.
            pydantic.ValidationError: if the answer is not allowed; the question stays open.
            ValueError: if an argument has no JSON form, so that it cannot be digested.
        """
        value = ApprovalRequest(
            action_request=deepcopy(self._shown),
            config=self.config.copy(),
            description=description,
            digest=self._digest,
        )
        form, token = _form(tuple(self._allowed)), _asking.set(self)
        try:
            # The arguments may have changed while the person decided. An answer to the old question is dropped, and
            # the next `interrupt()` takes the next answer or asks again.
            while True:
                # Building a JSON schema takes milliseconds, so it is used only when a question is really asked.
                schema: Any = deepcopy(form.json_schema) if next_is_asked(get_config()) else form.type
                step: Step | None = interrupt([value], response_schema=schema)
                if step is not None:  # `None`: the answer was for other arguments
                    return step
        finally:
            _asking.reset(token)

    @property
    def _shown(self) -> ActionRequest:
        return ActionRequest(action=self.tool.name, args=self.request.tool_call["args"])

    @property
    def _digest(self) -> str:
        return digest_of(self.tool, self.request.tool_call["args"])

    @property
    def _allowed(self) -> list[AnswerType]:
        return [answer for answer, field in FIELDS.items() if self.config.get(field)]

    def understood(self, answer: Any, check: Callable[[Any], Any]) -> Step | None:
        """Return the decision that an answer makes, or `None` if its question was about other arguments.

        Raise `ValueError` if the answer is not allowed.
        """
        if not answer_is_for(self._digest, get_config()):
            # First of all: an outdated answer must be dropped, even if it would not be allowed now.
            return None
        if isinstance(answer, (list, tuple)) and len(answer) == 1:
            (answer,) = answer
        if not isinstance(answer, Mapping) or answer.get("type") not in self._allowed:
            forms = " or ".join(_SHAPES[one][1] for one in self._allowed)
            raise ValueError(f"Answer with {forms}; got {answer!r}")
        response = check(answer).root
        return self._step(response["type"], response.get("args"))

    def _step(self, answer: AnswerType, args: Any) -> Step:
        if answer == "accept":
            return "approved", self._accepted(args)
        if answer == "edit":
            return "edited", self._edited(args)
        call = self.request.tool_call
        if answer == "response":
            return "answered", ToolMessage(content=args, name=call["name"], tool_call_id=call["id"])
        return "declined", error_message(_declined(call, args), call)

    def _accepted(self, shown: Changed | None) -> ToolCallRequest:
        if shown is not None and {**self._shown, **shown} != self._shown:
            # An "accept" may repeat the request. A copy that differs is an edit, which must not be ignored silently.
            raise ValueError('"accept" runs the call as it was shown; to change it, answer with "edit"')
        return self.request

    def _edited(self, changed: Changed) -> ToolCallRequest:
        name, args = changed.get("action", self.tool.name), changed["args"]
        tool = self.tool if name == self.tool.name else self.others.get(name)
        if tool is None:
            known = sorted({self.tool.name, *self.others})
            raise ValueError(f"The call cannot be changed to one of {name!r}, only to one of {known}")
        if filled := sorted(injected_args(tool).forbidden & args.keys()):
            raise ValueError(f"{tool.name!r} is given {', '.join(filled)} by the agent; an edit cannot change that")
        _check_arguments(tool, args)
        call = cast("ToolCall", {**self.request.tool_call, "name": name, "args": args})
        return self.request.override(tool_call=call, tool=tool)


@dataclass(frozen=True, slots=True)
class Form:
    """Pydantic type that validates an answer, and the JSON schema that a client may show as a form."""

    type: type[BaseModel]
    json_schema: dict[str, Any]


_asking: ContextVar[Question] = ContextVar("callboard_asking")


@cache
def _form(allowed: tuple[AnswerType, ...]) -> Form:
    """Return the form for these answers. It is cached, so its validator finds the question in a context variable."""
    shapes = tuple(_SHAPES[answer][0] for answer in allowed)
    shape: Any = shapes[0] if len(shapes) == 1 else Annotated[Union[shapes], Discriminator("type")]  # noqa: UP007

    class Response(RootModel[shape]):
        @model_validator(mode="wrap")
        @classmethod
        def _understood(cls, answer: Any, check: Callable[[Any], Any]) -> Any:
            return _asking.get().understood(answer, check)

    return Form(Response, TypeAdapter(shape).json_schema())


def _declined(call: ToolCall, reason: str | None) -> str:
    """Return the refusal for the model, in LangChain's wording, which models know from training."""
    if reason:
        return f"User rejected the tool call for `{call['name']}` with reason: {reason}"
    return (
        f"User rejected the tool call for `{call['name']}` with id {call['id']}. The tool was not executed. "
        "Do not retry this tool call unless the user explicitly requests it."
    )


def _check_arguments(tool: BaseTool, args: Mapping[str, Any]) -> None:
    """Raise `ValueError` for the person who edited the call if the arguments are invalid."""
    schema = tool.tool_call_schema
    if not inspect.isclass(schema) or not issubclass(schema, BaseModel):
        return  # a JSON schema, which is not checked here
    try:
        schema.model_validate(args)
    except Exception as error:
        raise ValueError(f"The arguments do not fit {tool.name!r}: {error}") from error
