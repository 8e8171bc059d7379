"""`RequireApproval`: middleware by which a person approves a call, with its arguments, before it runs.

The question has a digest of the tool and its arguments. An approval counts only for a call with the same digest.
"""

import inspect
from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Union, cast, get_args

from langchain_core.messages import ToolCall, ToolMessage
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt
from pydantic import BaseModel, Discriminator, RootModel, TypeAdapter, ValidationError, model_validator
from typing_extensions import TypedDict

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._errors import error_message
from callboard._langchain._invoke import refusal
from callboard._langchain._large_values import run_if_long
from callboard._langchain._outputs import CallNext, Output
from callboard._langchain._plan import injected_args, model_args, plan_for
from callboard._langgraph._call_scope import asks_next, is_answer_for, is_next_answer_bound_to_call
from callboard._langgraph._vocabulary import ActionRequest, HumanInterrupt, HumanInterruptConfig, ToolCallRequest
from callboard._records._policies import CallPolicy
from callboard._util._callers import is_plain_function
from callboard._util._canonical import digest, place_of
from callboard._util._suggestions import suggests_options
from callboard.questions import printable
from callboard.tools._middleware import Middleware, Order
from callboard.tools._middleware_hooks import check_tool_names

# Approved arguments


_approved_arguments: ContextVar[Mapping[str, object] | None] = ContextVar("callboard_approved", default=None)


def approved_arguments() -> Mapping[str, object] | None:
    """Return the arguments of the running call that a person approved, or `None` if nobody was asked.

    A tool that must never run without approval compares them with the arguments that it received: a middleware
    between the approval and the tool may have changed those.
    """
    # Copies here and in `RequireApproval`: neither the tool nor other middleware can change the approved arguments.
    return deepcopy(_approved_arguments.get())


# Question


def compute_call_digest(tool: BaseTool, args: Mapping[str, Any]) -> str:
    """Return the digest that ties an approval to a tool and its arguments."""
    # Argument names that begin with "%" are escaped within "args"; these three fixed names need no escape.
    return digest({"args": args, "name": tool.name, "runs": name_tool_code(tool)})


def name_tool_code(tool: BaseTool) -> str:
    """Return the code in which a tool runs: the names of its class and function, the same text in every process."""
    # The tool's name alone would not do: middleware may replace a tool by another tool of the same name.
    function = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return " ".join(place_of(part) for part in (type(tool), function) if part is not None)


AnswerType = Literal["accept", "edit", "response", "ignore"]
"""Kind of a person's answer: the `type` of a `HumanResponse`."""

ANSWER_TYPES: tuple[AnswerType, ...] = get_args(AnswerType)
CONFIG_FIELDS: dict[AnswerType, str] = {
    "accept": "allow_accept",
    "edit": "allow_edit",
    "response": "allow_respond",
    "ignore": "allow_ignore",
}
"""Field of a `HumanInterruptConfig` that allows an answer, by the kind of the answer."""

Decision = tuple[str, ToolCallRequest | ToolMessage]
"""Decision about a call: one word for observers, and the request to run or the message that answers the call."""


class ApprovalRequest(HumanInterrupt):
    """LangGraph's `HumanInterrupt`, with the digest of the tool call that needs approval."""

    digest: str
    """Digest of the tool and its arguments."""


class ChangedCall(TypedDict):
    action: NotRequired[str]
    args: dict[str, Any]


class Accept(TypedDict):
    type: Literal["accept"]
    args: NotRequired[ChangedCall | None]


class Edit(TypedDict):
    type: Literal["edit"]
    args: ChangedCall


class Respond(TypedDict):
    type: Literal["response"]
    args: str


class Ignore(TypedDict):
    type: Literal["ignore"]
    args: NotRequired[str | None]


class _AnswerShape(NamedTuple):
    """Type of one kind of answer, and an example for error texts."""

    type: type
    example: str


_ANSWER_SHAPES: dict[AnswerType, _AnswerShape] = {
    "accept": _AnswerShape(Accept, '{"type": "accept"}'),
    "edit": _AnswerShape(Edit, '{"type": "edit", "args": {"args": {...}}}'),
    "response": _AnswerShape(Respond, '{"type": "response", "args": "text"}'),
    "ignore": _AnswerShape(Ignore, '{"type": "ignore"}'),
}


def _validate_answer(answer: Mapping[str, Any], validate_shape: Callable[[Any], Any]) -> Any:
    """Return the response in an answer; raise ValueError with the right form if the answer has another one."""
    try:
        return validate_shape(answer).root
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        place = ".".join(map(str, details["loc"]))
        raise ValueError(
            f"Answer with {_ANSWER_SHAPES[answer['type']].example}; got {answer!r} ({place}: {details['msg']})"
        ) from None


@dataclass(frozen=True, slots=True)
class ApprovalQuestion:
    """Question to a person about one call, before the call runs."""

    request: ToolCallRequest
    tool: BaseTool
    edit_targets: Mapping[str, BaseTool]
    config: HumanInterruptConfig

    def ask_person(self, description: str) -> Decision:
        """Interrupt the run with this question, or return the decision if the run was resumed with an answer."""
        question = ApprovalRequest(
            action_request=deepcopy(self._action_request),
            config=self.config.copy(),
            description=description,
            digest=self._digest,
        )
        answer_form = _make_answer_form(tuple(self._allowed_answers))
        token = _current_question.set(self)  # for the validator of the form
        try:
            # The arguments may have changed while the person decided. An answer to the old question is dropped, and
            # the next `interrupt()` takes the next answer or asks again.
            while True:
                # Building a JSON schema takes milliseconds, so it is used only when a question is really asked.
                schema: Any = deepcopy(answer_form.json_schema) if asks_next(get_config()) else answer_form.type
                decision: Decision | None = interrupt([question], response_schema=schema)
                if decision is not None:  # `None`: the answer was for other arguments
                    return decision
        finally:
            _current_question.reset(token)

    @property
    def _action_request(self) -> ActionRequest:
        return ActionRequest(action=self.tool.name, args=self.request.tool_call["args"])

    @property
    def _digest(self) -> str:
        return compute_call_digest(self.tool, self.request.tool_call["args"])

    @property
    def _allowed_answers(self) -> list[AnswerType]:
        return [answer for answer, field in CONFIG_FIELDS.items() if self.config.get(field)]

    def decision_in(self, answer: Any, validate_shape: Callable[[Any], Any]) -> Decision | None:
        """Return the decision that an answer contains; `None` if the answer is for a call with other arguments."""
        if not is_answer_for(self._digest, get_config()):
            # First of all: an outdated answer must be dropped, even if it would not be allowed now.
            return None
        if isinstance(answer, (list, tuple)) and len(answer) == 1:
            (answer,) = answer
        if not isinstance(answer, Mapping) or answer.get("type") not in self._allowed_answers:
            forms = " or ".join(_ANSWER_SHAPES[answer_type].example for answer_type in self._allowed_answers)
            raise ValueError(f"Answer with {forms}; got {answer!r}")
        response = _validate_answer(answer, validate_shape)
        answer_type, args, call = response["type"], response.get("args"), self.request.tool_call
        if answer_type == "accept":
            if args is not None and {**self._action_request, **args} != self._action_request:
                # An "accept" may repeat the request. A copy that differs is an edit, which must not be ignored.
                raise ValueError('"accept" runs the call as it was shown; to change it, answer with "edit"')
            return "approved", self.request
        if answer_type == "edit":
            return "edited", self._apply_edit(args)
        if answer_type == "response":
            return "answered", ToolMessage(content=args, name=call["name"], tool_call_id=call["id"])
        return "declined", error_message(_rejection_text(call, args), call)

    def _apply_edit(self, changed_call: ChangedCall) -> ToolCallRequest:
        name, args = changed_call.get("action", self.tool.name), changed_call["args"]
        tool = self.tool if name == self.tool.name else self.edit_targets.get(name)
        if tool is None:
            allowed_names = sorted({self.tool.name, *self.edit_targets})
            raise ValueError(f"The call cannot be changed to one of {name!r}, only to one of {allowed_names}")
        if injected_names := sorted(injected_args(tool).unwritable & args.keys()):
            raise ValueError(
                f"{tool.name!r} is given {', '.join(injected_names)} by the agent; an edit cannot change that"
            )
        schema = tool.tool_call_schema
        if inspect.isclass(schema) and issubclass(schema, BaseModel):  # a JSON schema is not checked here
            try:
                schema.model_validate(args)
            except Exception as error:
                raise ValueError(f"The arguments do not fit {tool.name!r}: {error}") from error
        call = cast("ToolCall", {**self.request.tool_call, "name": name, "args": args})
        return self.request.override(tool_call=call, tool=tool)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Form for a person's answer: a pydantic type that validates it, and the JSON schema that a client may show."""

    type: type[BaseModel]
    json_schema: dict[str, Any]


_current_question: ContextVar[ApprovalQuestion] = ContextVar("callboard_asking")


@cache
def _make_answer_form(allowed: tuple[AnswerType, ...]) -> AnswerForm:
    """Return the form for the allowed kinds of answers."""
    # It is cached for all questions, so its validator finds the present question in a context variable.
    answer_types = tuple(_ANSWER_SHAPES[answer].type for answer in allowed)
    answer_union: Any = answer_types[0]
    if len(answer_types) > 1:
        answer_union = Annotated[Union[answer_types], Discriminator("type")]  # noqa: UP007 (of a tuple)

    class Response(RootModel[answer_union]):
        @model_validator(mode="wrap")
        @classmethod
        def _decide(cls, answer: Any, validate_shape: Callable[[Any], Any]) -> Any:
            return _current_question.get().decision_in(answer, validate_shape)

    return AnswerForm(Response, TypeAdapter(answer_union).json_schema())


def _rejection_text(call: ToolCall, reason: str | None) -> str:
    """Return the text that tells the model that a person rejected its call."""
    # It has LangChain's wording, which models know from training.
    if reason:
        return f"User rejected the tool call for `{call['name']}` with reason: {reason}"
    return (
        f"User rejected the tool call for `{call['name']}` with id {call['id']}. The tool was not executed. "
        "Do not retry this tool call unless the user explicitly requests it."
    )


# Middleware

Predicate = Callable[[ToolCallRequest], bool]


@suggests_options()
class RequireApproval(Middleware):
    """Middleware that asks a person before a call runs, with LangGraph's `interrupt()`.

    The question is a list of one `HumanInterrupt`, the answer a `HumanResponse`, or a list of one. An answer approves
    one tool and one set of arguments, by a digest; if the arguments have changed since, the person is asked again.
    Values that the model wrote for injected arguments are dropped before. A call whose arguments the tool refuses gets
    its error message, and nobody is asked.

    Args:
        tools: names of tools; or a mapping from a name to a bool, a predicate of the request, or the allowed answers
            (`HumanInterruptConfig`). `None` for every tool.
        when: a predicate of the request that must be true as well; it runs again on resume, with the same result.
        description: text for the person, or a function of the request that returns it.
        allow: allowed answers of the tools for which `tools` does not give them.
        other_tools: whether an edit may name another tool of the node, whose own rule has to allow edits, too.

    Raises:
        ValueError: if an answer is unknown, or none is allowed.
        TypeError: if an argument has the wrong type.
    """

    order = Order("approval")
    needs_checkpointer = True
    """`True`: an agent needs a checkpointer, which keeps the questions until they are answered."""

    def __init__(
        self,
        tools: Collection[str] | Mapping[str, HumanInterruptConfig | bool | Predicate] | None = None,
        *,
        when: Predicate | None = None,
        description: str | Callable[[ToolCallRequest], str] | None = None,
        allow: Collection[AnswerType] = ANSWER_TYPES,
        other_tools: bool = False,
    ) -> None:
        if when is not None:
            _check_plain_function("RequireApproval(when=...)", when)
        if description is not None and not isinstance(description, str):
            _check_plain_function("RequireApproval(description=...)", description)
        if isinstance(allow, str) or not set(allow) <= set(ANSWER_TYPES):
            raise ValueError(f"RequireApproval(allow=...) is a collection of {list(ANSWER_TYPES)}, got {allow!r}")
        config = _check_config(
            "RequireApproval(allow=...)", {field: answer in allow for answer, field in CONFIG_FIELDS.items()}
        )
        rule = _Rule(config, when)
        self._default_rule = rule if tools is None else None
        self._rules_by_tool = _read_rules(tools, rule)
        self._description = description
        self._other_tools = other_tools
        self._worker_threads = WorkerThreads("RequireApproval")

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if `tools` names a tool that the node lacks; a misspelt name would disable an approval."""
        check_tool_names("RequireApproval(tools=...)", self._rules_by_tool, tools)

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        rule = self._rules_by_tool.get(tool.name, self._default_rule)
        if rule is None:
            return "nothing, the tool needs no approval"
        is_conditional = rule.when is not None or rule.also_when is not None
        return f"asks a person before {'a call for which its predicate is true' if is_conditional else 'the call'}"

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Ask the person; then run the call, or answer it, as the person decided.

        Raises:
            GraphInterrupt: with the question, while it has no answer.
            pydantic.ValidationError: if the answer is not allowed; the question stays open.
        """
        tool = request.tool
        rule = None if tool is None else self._rules_by_tool.get(tool.name, self._default_rule)
        if tool is None or rule is None:
            return await call_next(request)
        # First drop what the model wrote for injected arguments: `when`, the question, the digest and the tool must
        # all see the same arguments.
        call = request.tool_call
        args = model_args(call, injected_args(tool))
        if len(args) != len(call["args"]):
            request = request.override(tool_call={**call, "args": args})
        # A pending answer that is bound to a digest is always examined, even if `when` now returns false.
        if not (rule.applies_to(request) or is_next_answer_bound_to_call(get_config())):
            return await call_next(request)
        # An edit may change the call to one of another tool if that tool's own rule allows edits, too.
        edit_targets: dict[str, BaseTool] = {}
        for other_tool in request.runtime.tools if self._other_tools else ():
            other_rule = self._rules_by_tool.get(other_tool.name, self._default_rule)
            if other_rule is None or other_rule.config["allow_edit"]:
                edit_targets[other_tool.name] = other_tool

        def ask_unless_invalid() -> Decision | ToolMessage:
            # A call with such arguments cannot run, whatever the person answers.
            if (message := refusal(plan_for(tool), request.tool_call)) is not None:
                return cast("ToolMessage", message)
            return ApprovalQuestion(request, tool, edit_targets, rule.config).ask_person(self._describe(request, tool))

        try:
            # Digests of large arguments are computed in a thread, to keep the event loop free.
            decision = await run_if_long(self._worker_threads, request.tool_call["args"], ask_unless_invalid)
        except GraphInterrupt:
            note("approval_asked")
            raise
        if isinstance(decision, ToolMessage):
            return decision
        event_name, answer_or_request = decision
        note(event_name)
        if isinstance(answer_or_request, ToolMessage):
            return answer_or_request
        # Code further inside may change the arguments; the tool can compare them with the approved ones.
        token = _approved_arguments.set(deepcopy(answer_or_request.tool_call["args"]))
        try:
            return await call_next(answer_or_request)
        finally:
            _approved_arguments.reset(token)

    def _describe(self, request: ToolCallRequest, tool: BaseTool) -> str:
        if callable(self._description):
            return printable(self._description(request))
        args = request.tool_call["args"]
        return self._description or printable(f"Tool execution requires approval\n\nTool: {tool.name}\nArgs: {args}")


@dataclass(frozen=True, slots=True)
class _Rule:
    """Rule for a tool's calls: the allowed answers, and predicates that are all true for a call that needs approval."""

    config: HumanInterruptConfig
    when: Predicate | None
    also_when: Predicate | None = None

    def applies_to(self, request: ToolCallRequest) -> bool:
        return all(when(request) for when in (self.when, self.also_when) if when is not None)


def _check_config(option: str, config: Mapping[str, object]) -> HumanInterruptConfig:
    fields = set(CONFIG_FIELDS.values())
    if set(config) != fields or not all(isinstance(value, bool) for value in config.values()):
        raise ValueError(f"{option} is a HumanInterruptConfig: {sorted(fields)}, each True or False; got {config!r}")
    if not any(config.values()):
        raise ValueError(f"{option} allows no answer: its questions would stay open for ever")
    return cast("HumanInterruptConfig", dict(config))


def _read_rules(tools: Any, default_rule: _Rule) -> dict[str, _Rule | None]:
    """Return the option `tools` as a dict from tool name to rule; the rule `None` means that no approval is needed."""
    if tools is None:
        return {}
    if isinstance(tools, str) or not isinstance(tools, Collection) or not all(isinstance(tool, str) for tool in tools):
        raise TypeError(f"RequireApproval(tools=...) takes names of tools, such as ['delete']; got {tools!r}")
    rule_options: Mapping[str, Any] = tools if isinstance(tools, Mapping) else dict.fromkeys(tools, True)
    rules: dict[str, _Rule | None] = {}
    for name, rule_option in rule_options.items():
        option = f"RequireApproval(tools={{{name!r}: ...}})"
        if isinstance(rule_option, bool):
            rules[name] = default_rule if rule_option else None
        elif isinstance(rule_option, Mapping):
            rules[name] = _Rule(_check_config(option, rule_option), default_rule.when)
        else:
            _check_plain_function(option, rule_option)
            rules[name] = _Rule(default_rule.config, default_rule.when, also_when=rule_option)
    return rules


def _check_plain_function(option: str, value: object) -> None:
    if not is_plain_function(value):
        raise TypeError(f"{option} takes a function of the request, and no async one; got {value!r}")
