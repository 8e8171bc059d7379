"""`RequireApproval`: a call runs when a person has agreed to it, with the arguments that they saw."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphInterrupt

from callboard._calls._call import note
from callboard._calls._thread_pool import THREADS, Threads
from callboard._langgraph import bound_answer_waits
from callboard.middleware._approved import agreed
from callboard.middleware._question import ANSWERS, FIELDS, AnswerType, Question, Step
from callboard.tools._call_output import Output
from callboard.tools._human import HumanInterruptConfig
from callboard.tools._inject import injected_args, written_args
from callboard.tools._large_work import run_if_long
from callboard.tools._tool_names import Missing, check_missing, check_tool_names
from callboard.tools._vocabulary import ToolCallRequest

Predicate = Callable[[ToolCallRequest], bool]


class RequireApproval:
    """Asks a person before a call runs, with LangGraph's `interrupt()`.

    The question is a list of one `HumanInterrupt`, the answer a `HumanResponse` or a list of one: "accept" runs
    the call; "edit" runs it with other arguments; "response" has the result; "ignore" tells the model that the
    call was declined, and why if there is a text with it. Neither of the last two runs anything.

    An answer is good for the tool and the arguments that the question was about, by their digest. Arguments that
    are injected are not among them, whatever the model wrote in their place. Where they
    have been changed since, the person is asked again. An edit is its own approval.

    Args:
        tools: whose calls are asked about: names; or by name whether (a bool, or a function of the request), or
            which answers are allowed (a `HumanInterruptConfig`). `None` for every tool.
        when: a function of the request that says whether to ask, in addition to `tools`. It runs again when
            the answer has come, and has to say the same then.
        description: what the person reads, or a function of the request that says it; by default the tool's
            name and the arguments.
        allow: which answers are allowed where `tools` does not say.
        other_tools: whether an edit may name another tool of the node.
        missing: what a name in `tools` is that no tool of the node has: an "error", or one to "ignore".

    Raises:
        ValueError: for an answer that there is not, or where none is allowed.
        TypeError: for an argument of the wrong kind.
    """

    def __init__(
        self,
        tools: Collection[str] | Mapping[str, HumanInterruptConfig | bool | Predicate] | None = None,
        *,
        when: Predicate | None = None,
        description: str | Callable[[ToolCallRequest], str] | None = None,
        allow: Collection[AnswerType] = ANSWERS,
        other_tools: bool = False,
        missing: Missing = "error",
    ) -> None:
        check_missing("RequireApproval", missing)
        if when is not None:
            _check_function("RequireApproval(when=...)", when)
        if description is not None and not isinstance(description, str):
            _check_function("RequireApproval(description=...)", description)
        rule = _Rule(_config_of(allow), when)
        self._rule = rule if tools is None else None
        self._rules = _rules_of(tools, rule)
        self._description = description
        self._other_tools = other_tools
        self._missing: Missing = missing
        self._threads = Threads("RequireApproval", THREADS)

    @property
    def needs_checkpointer(self) -> bool:
        """Whether its questions are kept by an agent's checkpointer until they are answered."""
        return True

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise ValueError if a tool that was named is not among these: its calls would run unasked."""
        check_tool_names("RequireApproval(tools=...)", self._rules, tools, self._missing)

    async def awrap_tool_call(
        self, request: ToolCallRequest, call_next: Callable[[ToolCallRequest], Awaitable[Output]]
    ) -> Output:
        """Ask, and do what the person says.

        Raises:
            GraphInterrupt: with the question, until it is answered.
            pydantic.ValidationError: for an answer that is not allowed; the question stays open.
        """
        tool = request.tool
        rule = None if tool is None else self._rules.get(tool.name, self._rule)
        if tool is None or rule is None:
            return await call_next(request)
        request = _without_forged(request, tool)
        if not (rule.applies_to(request) or bound_answer_waits(get_config())):
            return await call_next(request)
        others = {one.name: one for one in request.runtime.tools} if self._other_tools else {}

        def ask() -> Step:
            return Question(request, tool, others, rule.config).ask(self._described(request, tool))

        try:
            decision, step = await run_if_long(self._threads, request.tool_call["args"], ask)
        except GraphInterrupt:
            note("approval_asked")
            raise
        note(decision)
        if isinstance(step, ToolMessage):
            return step
        with agreed(step.tool_call["args"]):
            return await call_next(step)

    def _described(self, request: ToolCallRequest, tool: BaseTool) -> str:
        if callable(self._description):
            return self._description(request)
        args = request.tool_call["args"]
        return self._description or f"Tool execution requires approval\n\nTool: {tool.name}\nArgs: {args}"


def _without_forged(request: ToolCallRequest, tool: BaseTool) -> ToolCallRequest:
    """The request with the arguments that will be used; what is injected, nobody else has a say in."""
    call = request.tool_call
    args = written_args(call, injected_args(tool))
    return request if len(args) == len(call["args"]) else request.override(tool_call={**call, "args": args})


@dataclass(frozen=True, slots=True)
class _Rule:
    """Which answers are allowed, and which calls are asked about."""

    config: HumanInterruptConfig
    when: Predicate | None
    also_when: Predicate | None = None

    def applies_to(self, request: ToolCallRequest) -> bool:
        return all(when(request) for when in (self.when, self.also_when) if when is not None)


def _config_of(allow: Collection[str]) -> HumanInterruptConfig:
    if isinstance(allow, str) or not set(allow) <= set(ANSWERS):
        raise ValueError(f"RequireApproval(allow=...) is a collection of {list(ANSWERS)}, got {allow!r}")
    return _checked("RequireApproval(allow=...)", {field: answer in allow for answer, field in FIELDS.items()})


def _checked(name: str, config: Mapping[str, object]) -> HumanInterruptConfig:
    fields = set(FIELDS.values())
    if set(config) != fields or not all(isinstance(value, bool) for value in config.values()):
        raise ValueError(f"{name} is a HumanInterruptConfig: {sorted(fields)}, each True or False; got {config!r}")
    if not any(config.values()):
        raise ValueError(f"{name} allows no answer: its questions would stay open for ever")
    return cast("HumanInterruptConfig", dict(config))


def _rules_of(tools: Any, default: _Rule) -> dict[str, _Rule | None]:
    """The rules of each tool, by its name; `None` for a tool whose calls are not asked about."""
    if tools is None:
        return {}
    if isinstance(tools, str) or not isinstance(tools, Collection) or not all(isinstance(one, str) for one in tools):
        raise TypeError(f"RequireApproval(tools=...) takes names of tools, such as ['delete']; got {tools!r}")
    asked: Mapping[str, Any] = tools if isinstance(tools, Mapping) else dict.fromkeys(tools, True)
    return {name: _rule_of(name, value, default) for name, value in asked.items()}


def _rule_of(name: str, value: object, default: _Rule) -> _Rule | None:
    where = f"RequireApproval(tools={{{name!r}: ...}})"
    if isinstance(value, bool):
        return default if value else None
    if isinstance(value, Mapping):
        return _Rule(_checked(where, cast("Mapping[str, object]", value)), default.when)
    _check_function(where, value)
    return _Rule(default.config, default.when, cast("Predicate", value))


def _check_function(name: str, value: object) -> None:
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise TypeError(f"{name} takes a function of the request, and no async one; got {value!r}")
