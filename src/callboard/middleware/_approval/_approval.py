"""`RequireApproval`: a person approves a call, with its arguments, before it runs."""

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
from callboard.middleware._approval._approved import agreed
from callboard.middleware._approval._question import ANSWERS, FIELDS, AnswerType, Question, Step
from callboard.tools._call_output import Output
from callboard.tools._human import HumanInterruptConfig
from callboard.tools._inject import injected_args, written_args
from callboard.tools._large_work import run_if_long
from callboard.tools._tool_names import Missing, check_missing, check_tool_names
from callboard.tools._vocabulary import ToolCallRequest

Predicate = Callable[[ToolCallRequest], bool]


class RequireApproval:
    """Asks a person before a call runs, with LangGraph's `interrupt()`.

    The question is a list of one `HumanInterrupt`. The answer is a `HumanResponse`, or a list of one. "accept" runs
    the call; "edit" runs it with other arguments; "response" is used as the result; "ignore" tells the model that
    the call was declined, with the reason if the answer has a text. "response" and "ignore" run nothing.

    An answer approves one tool and one set of arguments, by a digest. Injected arguments are left out of the digest,
    and values that the model wrote for them are dropped. If the arguments have changed since the question, the person
    is asked again. An edit needs no second approval.

    Args:
        tools: the tools whose calls need approval. A collection of names, or a mapping from a name to a bool, a
            predicate of the request, or the allowed answers (`HumanInterruptConfig`). `None` for every tool.
        when: a predicate of the request; a call needs approval only if this is true as well. It runs again on
            resume, and must return the same then.
        description: text for the person, or a function of the request that returns it. Default: the tool's name and
            the arguments.
        allow: allowed answers of the tools for which `tools` does not give them.
        other_tools: whether an edit may name another tool of the node.
        missing: "error" to reject a name in `tools` that the node does not have, "ignore" to accept it.

    Raises:
        ValueError: if an answer type is unknown, or no answer is allowed.
        TypeError: if an argument has the wrong type.
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
        """`True`: an agent needs a checkpointer to keep the questions until they are answered."""
        return True

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if the node lacks a tool named in `tools`: its calls would run unapproved."""
        check_tool_names("RequireApproval(tools=...)", self._rules, tools, self._missing)

    async def awrap_tool_call(
        self, request: ToolCallRequest, call_next: Callable[[ToolCallRequest], Awaitable[Output]]
    ) -> Output:
        """Ask the person, then run the call or answer it as the person decided.

        Raises:
            GraphInterrupt: with the question, while it has no answer.
            pydantic.ValidationError: if the answer is not allowed; the question stays open.
        """
        tool = request.tool
        rule = None if tool is None else self._rules.get(tool.name, self._rule)
        if tool is None or rule is None:
            return await call_next(request)
        # First drop what the model wrote for injected arguments: `when`, the question, the digest and the tool must
        # all see the same arguments.
        request = _without_forged(request, tool)
        # A pending answer that is bound to a digest is always examined, even if `when` now returns false.
        if not (rule.applies_to(request) or bound_answer_waits(get_config())):
            return await call_next(request)
        others = {one.name: one for one in request.runtime.tools} if self._other_tools else {}

        def ask() -> Step:
            return Question(request, tool, others, rule.config).ask(self._described(request, tool))

        try:
            # Digests of large arguments are computed in a thread, to keep the event loop free.
            decision, step = await run_if_long(self._threads, request.tool_call["args"], ask)
        except GraphInterrupt:
            note("approval_asked")
            raise
        note(decision)
        if isinstance(step, ToolMessage):
            return step
        with agreed(step.tool_call["args"]):
            # Code further inside may change the arguments; the tool can compare them with the approved ones.
            return await call_next(step)

    def _described(self, request: ToolCallRequest, tool: BaseTool) -> str:
        if callable(self._description):
            return self._description(request)
        args = request.tool_call["args"]
        return self._description or f"Tool execution requires approval\n\nTool: {tool.name}\nArgs: {args}"


def _without_forged(request: ToolCallRequest, tool: BaseTool) -> ToolCallRequest:
    """Return the request without values that the model wrote for injected arguments."""
    call = request.tool_call
    args = written_args(call, injected_args(tool))
    return request if len(args) == len(call["args"]) else request.override(tool_call={**call, "args": args})


@dataclass(frozen=True, slots=True)
class _Rule:
    """Allowed answers, and predicates that all must be true for a call to need approval."""

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
    """Return the rule of each tool by name; `None` if its calls need no approval."""
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
