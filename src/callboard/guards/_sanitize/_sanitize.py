"""`Sanitize`: validation of arguments before a tool runs, and cleaning of its results.

One walk through a call's arguments measures and cleans them, and lists the checks that the caller must run.
"""

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from pydantic import ValidationError

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._errors import error_message, is_control_flow
from callboard._langchain._large_values import run_if_long
from callboard._langchain._outputs import CallNext, Output, facts_of
from callboard._langchain._plan import ToolFacts, injected_args
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._records._policies import CallPolicy, check_count, check_type
from callboard._util._callers import is_plain_function
from callboard._util._suggestions import no_such, suggests_options
from callboard.guards._sanitize._argument_paths import JsonTextError, NoSuchPathError, Path, spellings_of_path
from callboard.guards._sanitize._hosts import Url
from callboard.guards._sanitize._paths import PathIn
from callboard.guards._sanitize._text import RefusedError, Text, quote_untrusted, shorten, strip_invisible
from callboard.guards._sanitize._untrusted import OTHER_NODES, OutputCleaning, Results, urls_in
from callboard.tools._middleware import Middleware, Order
from callboard.tools._middleware_hooks import (
    Missing,
    argument_names,
    check_missing,
    check_tool_names,
    spellings,
    tool_names,
)

# Walk


Rule = Text | Url | PathIn | Callable[[Any], object]
"""Rule for an argument. A function returns the value or a replacement, or raises `ValueError` to refuse it."""

Location = tuple[str | int, ...]
"""Place of a value in the arguments: keys and indices, from the outside in."""

_RULE_NAME = re.compile(r"[^.\[\]]+(?:\[\])*(?:\.[^.\[\]]+(?:\[\])*)*")
_RULE_NAME_PART = re.compile(r"[^.\[\]]+|\[\]")
_MAX_PATH_CHARS = 120
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class Rules:
    """Rules for the arguments of one tool, each for a path in the arguments, such as `files[].path`.

    The name `url` stands for that argument, `files[].path` for the `path` of every item of `files`, and `headers.*`
    for everything in `headers`.
    """

    def __init__(self, rules_by_name: Mapping[str, Rule], tool: BaseTool | None) -> None:
        injected = None if tool is None else injected_args(tool)
        self.injected: frozenset[str] = frozenset() if injected is None else injected.names | injected.unwritable
        """Names of the injected arguments, which do not come from the model and are not checked."""
        spelled_rules: list[tuple[Path, Rule]] = []
        for name, rule in rules_by_name.items():
            paths: Collection[Path] = [split_rule_name(name)]
            if tool is not None:
                with suppress(NoSuchPathError):  # a rule for another tool
                    paths = spellings_of_path(split_rule_name(name), tool)
            spelled_rules += [(path, rule) for path in paths]
        # A JSON schema may have an argument whose own name looks like a path, such as `headers.*`.
        unsplit_rules = [((name,), rule) for name, rule in rules_by_name.items()]
        # The first one that fits a place counts. Paths without `*` precede those with it.
        self._by_path = sorted([*spelled_rules, *unsplit_rules], key=lambda entry: "*" in entry[0])

    def rule_at(self, location: Location) -> Rule | None:
        """Return the rule for a path in the arguments, or `None`."""
        path = tuple("[]" if isinstance(part, int) else part for part in location)
        for pattern, rule in self._by_path:
            if len(pattern) == len(path) and all(name in ("*", part) for name, part in zip(pattern, path, strict=True)):
                return rule
        return None


def split_rule_name(name: str) -> tuple[str, ...]:
    """Return the parts of a rule's name such as `files[].path`; a name in another form is a single part."""
    return tuple(_RULE_NAME_PART.findall(name)) if _RULE_NAME.fullmatch(name) else (name,)


@dataclass(frozen=True, slots=True)
class PendingCheck:
    """Pending check of the value `container[key]`. When the check has run, its result replaces this value."""

    location: Location
    rule: Url | PathIn | Callable[[Any], object]
    container: Any
    key: Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """Refusal of an argument: the path of the refused value in the arguments, and the reason."""

    location: Location
    error: RefusedError


@dataclass(slots=True, kw_only=True)
class ArgumentWalk:
    """Single pass over the arguments of one call. It cleans texts, and collects pending checks and refusals."""

    rules: Rules
    text: Text
    max_depth: int
    max_size: int
    pending_checks: list[PendingCheck] = field(default_factory=list[PendingCheck])
    """Checks that the caller must run; the checks of inner values come before the checks of outer ones."""
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    changed_arguments: set[str] = field(default_factory=set[str])
    """Names of the arguments in which the walk or a check changed something."""
    _refused_containers: set[Location] = field(default_factory=set[Location])
    _total_size: int = 0

    def clean_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a cleaned copy of the arguments."""
        # Values with a pending check are still unchanged. If anything was refused, the result must not be used.
        try:
            return self._copy_mapping(arguments, location=())
        except _TooMuchError:
            # The walk was cut off and the call will be refused, so no check needs to run.
            self.pending_checks.clear()
            return {}

    def is_refused(self, location: Location) -> bool:
        """Return whether the value at a path in the arguments, or a part of this value, is refused."""
        return location in self._refused_containers

    def refuse(self, location: Location, error: RefusedError) -> None:
        """Record that the value at a path in the arguments is refused; values that contain it count as refused, too."""
        self.refusals.append(Refusal(location, error))
        self._refused_containers.update(location[:end] for end in range(len(location) + 1))

    def _copy_mapping(self, value: Mapping[Any, Any], location: Location) -> dict[Any, Any]:
        new: dict[Any, Any] = {}
        for key, item in value.items():
            if not location and key in self.rules.injected:  # a whole argument, which is not from the model
                new[key] = item
                continue
            clean_key: object = key
            if isinstance(key, str):
                self._add_size(len(key), location)
                clean_key = self._clean_text(key, self.text, (*location, key))
            # Two keys differ only by invisible characters. It would be accidental which value the tool gets.
            if clean_key in new:
                self.refuse(location, RefusedError("keys", "two of its keys are the same but for invisible characters"))
            self._copy_into(new, clean_key, item, (*location, str(clean_key)))
        return new

    def _copy_into(self, container: Any, key: object, value: object, location: Location) -> None:
        # Called before the children are visited, but appended after them: inner checks come first.
        rule = self.rules.rule_at(location)
        container[key] = self._copy_value(value, rule, location)
        if rule is not None and not isinstance(rule, Text):
            self.pending_checks.append(PendingCheck(location, rule, container, key))

    def _copy_value(self, value: object, rule: Rule | None, location: Location) -> object:
        # Every value counts, or a huge list of empty texts would be free.
        self._add_size(1 + (len(value) if isinstance(value, str) else 0), location)
        text_rule = rule if isinstance(rule, Text) else self.text
        if isinstance(value, str):
            # URLs and paths are not cleaned first: their checks must see what was written, and refuse what is hidden.
            return value if isinstance(rule, (Url, PathIn)) else self._clean_text(value, text_rule, location)
        if isinstance(rule, Text):
            return self._clean_text(value, rule, location)  # not a text, so `Text` refuses it
        if len(location) > self.max_depth and isinstance(value, (dict, list, tuple)):
            self._refuse_and_stop(location, RefusedError("depth", f"it is nested more than {self.max_depth} deep"))
        if isinstance(value, dict):
            return self._copy_mapping(value, location)
        if not isinstance(value, (list, tuple)):
            return value
        items: list[Any] = [None] * len(value)
        for index, item in enumerate(value):
            self._copy_into(items, index, item, (*location, index))
        return items

    def _clean_text(self, value: object, text_rule: Text, location: Location) -> object:
        try:
            clean_value = text_rule.check(value)
        except RefusedError as error:
            self.refuse(location, error)
            return value
        if clean_value != value:
            self.changed_arguments.add(format_path(location[:1]))
        return clean_value

    def _add_size(self, size: int, location: Location) -> None:
        self._total_size += size
        if self._total_size > self.max_size:
            reason = f"with it the arguments are larger than {self.max_size:,} characters and values in all"
            self._refuse_and_stop(location, RefusedError("size", reason))

    def _refuse_and_stop(self, location: Location, error: RefusedError) -> NoReturn:
        self.refuse(location, error)
        raise _TooMuchError


class _TooMuchError(Exception):
    """Raised inside a `Walk` to stop the pass, because the arguments are too large or too deeply nested."""


def format_path(location: Location) -> str:
    """Return a path in the arguments as text such as `files[2].path`; unusual keys are quoted and cut."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN_KEY.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{quote_untrusted(part)}]"
    return text if len(text) <= _MAX_PATH_CHARS else f"{text[:_MAX_PATH_CHARS]}..."


# Middleware

_MAX_LINES = 10
"""Maximum number of refused arguments that one message lists."""
_MAX_REASON_CHARS = 300
"""Maximum characters of the reason that a check gives for a refusal."""
_MAX_DEPTH = 100


@suggests_options()
class Sanitize(Middleware):
    """Middleware that checks and cleans arguments before the tool runs, and results before the model reads them.

    A refused argument ends the call with an error message that names it and the reason; the tool does not run. Injected
    arguments do not come from the model, and stay as they are. Put it outside of middleware that stores, repeats or
    asks about a call.

    Args:
        arguments: rules for all tools, by the name of the argument (`files[].path`, `headers.*`). A rule is a `Url`, a
            `PathIn`, a `Text`, or a function that returns the value or a replacement, or raises `ValueError` with the
            reason. Functions run in the event loop, after the texts in their value have been cleaned.
        tools: rules for single tools, by the name of the tool; they precede `arguments`.
        text: rule for keys, and for every text without a `Text`, `Url` or `PathIn` rule.
        max_depth: maximum nesting of lists and mappings, 1 to 100.
        max_size: maximum size of a call's arguments: characters of all texts and keys, plus one for each value.
        results: rules for results; `None` to leave them unchanged.
        missing: "error" to reject names of tools and arguments that the node does not have, "ignore" to accept them.

    Raises:
        ValueError: if a number is out of range.
        TypeError: if a rule has the wrong type.
    """

    order = Order("sanitize", not_inside={"approval": "a person approves arguments that are changed afterwards"})

    def __init__(
        self,
        arguments: Mapping[str, Rule] | None = None,
        *,
        tools: Mapping[str, Mapping[str, Rule]] | None = None,
        text: Text | None = None,
        max_depth: int = 32,
        max_size: int = 250_000,
        results: Results | None = Results(),  # noqa: B008 (frozen)
        missing: Missing = "error",
    ) -> None:
        check_missing("Sanitize", missing)
        check_count("Sanitize(max_depth=...)", max_depth, least=0)
        if not 1 <= max_depth <= _MAX_DEPTH:
            raise ValueError(f"Sanitize(max_depth=...) must be 1 to {_MAX_DEPTH}, got {max_depth!r}")
        check_count("Sanitize(max_size=...)", max_size, least=1)
        check_type("Sanitize(text=...)", text, Text, "Text(max_chars=1000)")
        check_type("Sanitize(results=...)", results, Results, "Results(max_chars=1000)")
        self._common_rules = _validate_rules("arguments", arguments or {})
        by_tool = tools or {}
        if not isinstance(by_tool, Mapping):
            raise TypeError(
                f"Sanitize(tools=...) takes rules by tool, such as {{'fetch': {{'url': Url()}}}}; got {tools!r}"
            )
        tool_names("Sanitize(tools=...)", by_tool)
        self._rules_by_tool = {name: _validate_rules(f"tools[{name!r}]", rules) for name, rules in by_tool.items()}
        self._text = text or Text()
        self._max_depth = max_depth
        self._max_size = max_size
        self._results = results
        self._missing: Missing = missing
        self._tool_rules = ToolFacts(self._make_checked_rules)
        self._worker_threads = WorkerThreads("Sanitize")

    def check_tools(self, tools: Mapping[str, BaseTool]) -> None:
        """Raise `ValueError` for a rule whose tool or argument does not exist, because the rule would check nothing."""
        if self._missing == "error":
            check_tool_names("Sanitize(tools=...)", self._rules_by_tool, tools, OTHER_NODES)
            if self._results is not None:
                self._results.check_tools(tools)
            remedy = " (missing='ignore' is for other nodes)"
            _check_rules("Sanitize(arguments=...)", self._common_rules, tools.values(), remedy)
        for name in self._rules_by_tool.keys() & tools:
            self._check_tool_rules(tools[name])

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        return "checks arguments" if self._results is None else "checks arguments and cleans results"

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Check the arguments, run the call with cleaned arguments, and clean its result."""
        name, model_args = request.tool_call["name"], request.tool_call["args"]
        # Those of a known tool are cached, because reading annotations takes time.
        rules = self._make_rules(name, tool=None) if request.tool is None else self._tool_rules.of(request.tool)
        walk = ArgumentWalk(rules=rules, text=self._text, max_depth=self._max_depth, max_size=self._max_size)
        checked_args = await run_if_long(self._worker_threads, model_args, partial(walk.clean_arguments, model_args))
        for check in walk.pending_checks:
            # The innermost checks come first. A check of a list must not see items that are already refused.
            if walk.is_refused(check.location):
                continue
            unchecked_value = check.container[check.key]
            try:
                if isinstance(check.rule, (Url, PathIn)):
                    checked_value: object = await check.rule.acheck(unchecked_value)
                else:
                    checked_value = check.rule(unchecked_value)
            except Exception as error:
                if is_control_flow(error):
                    raise
                # Any error refuses the value: a check that fails on a hostile value has not approved it.
                walk.refuse(check.location, _as_refused_error(error, check.rule))
                continue
            is_same_text = isinstance(unchecked_value, str) and unchecked_value == checked_value
            if checked_value is not unchecked_value and not is_same_text:
                walk.changed_arguments.add(format_path(check.location[:1]))
            check.container[check.key] = checked_value
        if walk.refusals:
            return _refuse_call(request, walk.refusals)
        if walk.changed_arguments:
            note("sanitized", arguments=_names_for_observers(walk.changed_arguments, request.tool))
        if walk.changed_arguments or walk.pending_checks:
            request = request.override(tool_call={**request.tool_call, "args": checked_args})
        output = await call_next(request)
        return output if self._results is None else await self._clean_output(output, request, self._results)

    async def aerror_message(self, message: ToolMessage, request: ToolCallRequest) -> ToolMessage:
        """Clean the error message that the model gets if a tool fails and no middleware has handled the error."""
        if self._results is None or "ended" in facts_of(message):
            return message  # written by callboard itself, such as for a timeout
        return cast("ToolMessage", await self._clean_output(message, request, self._results))

    async def _clean_output(self, output: Output, request: ToolCallRequest, result_rules: Results) -> Output:
        call = request.tool_call
        cleaning = OutputCleaning(
            result_rules, call["id"], is_fenced=result_rules.is_fenced(request.tool, call["name"])
        )
        if result_rules.urls is not None:
            urls = await run_if_long(self._worker_threads, output, partial(urls_in, output))
            await cleaning.check_urls(urls)
        clean = await run_if_long(self._worker_threads, output, partial(cleaning.clean_output, output))
        if cleaning.changes:
            note("sanitized", result=sorted(cleaning.changes))
        return clean

    def _make_checked_rules(self, tool: BaseTool) -> Rules:
        self._check_tool_rules(tool)
        return self._make_rules(tool.name, tool)

    def _check_tool_rules(self, tool: BaseTool) -> None:
        _check_rules(f"Sanitize(tools={{{tool.name!r}: ...}})", self._rules_by_tool.get(tool.name, {}), [tool])

    def _make_rules(self, name: str, tool: BaseTool | None) -> Rules:
        return Rules({**self._common_rules, **self._rules_by_tool.get(name, {})}, tool)


def _validate_rules(option: str, rules: Mapping[str, Rule]) -> Mapping[str, Rule]:
    candidate: object = rules
    if not isinstance(candidate, Mapping):
        raise TypeError(f"Sanitize({option}) takes rules by argument, such as {{'url': Url()}}; got {rules!r}")
    for name, rule in rules.items():
        if not isinstance(rule, (Text, Url, PathIn)) and (inspect.isclass(rule) or not is_plain_function(rule)):
            raise TypeError(
                f"Sanitize({option}: {name!r}) takes a Url(...), a PathIn(...), a Text(...) or a plain function of "
                f"the value, got {rule!r}"
            )
    return dict(rules)


def _check_rules(option: str, rules: Mapping[str, Rule], tools: Collection[BaseTool], remedy: str = "") -> None:
    """Raise `ValueError` for a rule that would check nothing in any of the tools."""
    names_by_tool = {tool.name: argument_names(tool) for tool in tools}
    all_names = {name for names in names_by_tool.values() for name in names or ()}
    for rule_name in rules:
        argument_name = split_rule_name(rule_name)[0]
        fitting_tools = [
            tool
            for tool in tools
            # `None`: the names of the tool's arguments are unknown
            if argument_name == "*" or (names := names_by_tool[tool.name]) is None or argument_name in names
        ]
        if not fitting_tools and rule_name not in all_names:
            raise ValueError(f"{option}: {no_such('argument', argument_name, all_names)}{remedy}")
        _check_path(option, rule_name, fitting_tools)


def _check_path(option: str, rule_name: str, tools: Iterable[BaseTool]) -> None:
    """Raise `ValueError` if a rule with a path, such as `files[].path`, reaches no argument of any of the tools."""
    path = split_rule_name(rule_name)
    path_error: NoSuchPathError | None = None
    reaches_argument = len(path) == 1  # another tool may have it; `path_error` is about inner parts
    for tool in tools:
        try:
            reaches_argument |= bool(spellings_of_path(path, tool))
        except JsonTextError as error:
            raise ValueError(f"{option}: the rule {rule_name!r} for the tool {tool.name!r}: {error}") from None
        except NoSuchPathError as error:
            path_error = path_error or error
    if path_error is not None and not reaches_argument:
        raise ValueError(f"{option}: the rule {rule_name!r} checks nothing: {path_error}")


def _as_refused_error(error: Exception, rule: object) -> RefusedError:
    """Return the `RefusedError` for an error that a check raised."""
    # Its text is cleaned for the model, and does not quote the refused value.
    if isinstance(error, RefusedError):
        return error
    rule_name = getattr(rule, "__name__", type(rule).__name__)
    if isinstance(error, ValidationError):  # its own text would repeat the value
        reason = "; ".join(detail["msg"] for detail in error.errors())
    else:
        reason = str(error) if isinstance(error, ValueError) else f"the check ended with {type(error).__name__}"
    one_line = " ".join(strip_invisible(reason).split())
    return RefusedError(rule_name, shorten(one_line, _MAX_REASON_CHARS))


def _refuse_call(request: ToolCallRequest, refusals: list[Refusal]) -> ToolMessage:
    call = request.tool_call
    lines: list[str] = []
    for refusal in refusals[:_MAX_LINES]:
        [argument] = _names_for_observers([format_path(refusal.location[:1])], request.tool)
        note("refused", argument=argument, rule=refusal.error.rule)
        subject = f"argument {format_path(refusal.location)}" if refusal.location else "the arguments"
        lines.append(f"- {subject}: {refusal.error.reason}")
    if len(refusals) > _MAX_LINES:
        lines.append(f"- and {len(refusals) - _MAX_LINES} more")
    # The name of an unknown tool was invented by the model, so it is escaped.
    name = call["name"] if request.tool is not None else quote_untrusted(call["name"])
    text = f"The tool {name} was not run, because of its arguments:\n" + "\n".join(lines)
    return error_message(f"{text}\nChange them and call it again, or go on without it.", call)


def _names_for_observers(arguments: Iterable[str], tool: BaseTool | None) -> list[str]:
    """Return sorted argument names for observers, with `*` in place of each name that the tool does not have."""
    # A name that the tool lacks was written by the model, and becomes `*`.
    schema: Any = None if tool is None else tool.args_schema
    declared = schema.get("properties", {}) if isinstance(schema, dict) else () if tool is None else spellings(tool)
    return sorted({name if name in declared or not name else "*" for name in arguments})
