"""Validation against JSON schemas from MCP servers: answers of people in forms, and structured results of tools.

Schemas are untrusted. Nothing that they refer to is fetched, their patterns run only in a regex engine without
backtracking, and the work for a value is bounded. The SDK would validate in the event loop without any limit.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, Final, TypeVar, cast

import anyio
import anyio.to_thread
import attrs
from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend, validator_for
from mcp import types
from pydantic import ValidationError as MisfitError
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

from callboard_actors.mcp._tools import McpToolError

# Forms, and the values that people fill in.

_ELSEWHERE = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "$id", "$schema", "patternProperties"})
"""Schema keywords that a form may not use, such as references to other schemas. MCP allows only flat forms."""


def check_form(schema: dict[str, Any], server: str) -> None:
    """Raise `McpToolError` if the schema of a form refers to other schemas, or is not valid."""
    flat = {key: value for key, value in schema.items() if key != "$schema"}
    if keyword := _find_keyword(_ELSEWHERE, flat):
        raise McpToolError(f"The MCP server {server!r} asks by a form with {keyword!r}, which no form may have.")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise McpToolError(
            f"The MCP server {server!r} asks a person by a form that is none: {error.message}"
        ) from error


def _find_keyword(keywords: frozenset[str], value: object) -> str | None:
    if isinstance(value, dict):
        return min(keywords & value.keys(), default=None) or _find_keyword(keywords, list(value.values()))
    if isinstance(value, list):
        return next((keyword for item in value if (keyword := _find_keyword(keywords, item))), None)
    return None


def pattern_in_one_pass(_: object, pattern: str, text: object, __: object) -> Iterator[ValidationError]:
    """Yield an error if a text does not match a regex; implements the schema keyword `pattern` in linear time."""
    if not isinstance(text, str):
        return
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern)).validate_python(text)
    except PatternError:
        return
    except MisfitError:
        yield ValidationError(f"{text!r} does not match {pattern!r}")


# Validation within a budget of steps and of time.

MOST_STEPS: Final = 100_000
"""Maximum validation steps for one value, or for checking one schema."""
_STEPS_OF_PART: Final = 30
"""Number of additional validation steps that are allowed for each part of the value, such as a name or an element."""
MOST_SECONDS: Final = 5.0
"""Maximum seconds of a validation in a worker thread; one step may be slow if the value or the schema is large."""
_SHOWN: Final = 2000
"""Maximum characters of a validation error, which may quote the whole value."""
_SMALL: Final = 1_000
"""Maximum parts and tens of characters of a value that is validated without a thread."""
FEW_STEPS: Final = 500
"""Maximum validation steps in the event loop: a few milliseconds."""

_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "properties"})
"""Schema keywords with a dict from names to schemas as their value; these names must not be taken for keywords."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Schema keywords with plain data as their value, which contains no schemas."""
_COSTLY = frozenset({"patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"})
"""Schema keywords that are removed from schemas, because their validation time grows faster than the value."""


class OverBudgetError(ValueError):
    """Raised if a validation exceeds its limit of steps or time; pydantic then reports the value as invalid."""

    def __init__(self) -> None:
        super().__init__("its schema asks for more work than it may: simplify the schema")


class _Budget:
    """Remaining steps and seconds of a validation."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._until = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        """Count a step; raise `OverBudgetError` if no steps or no time are left."""
        self._steps -= 1
        if self._steps < 0 or time.monotonic() > self._until:
            raise OverBudgetError


_budget: ContextVar[_Budget] = ContextVar("budget")


class Judge:
    """Validator that checks values against one untrusted JSON schema.

    The schema is checked first. Raise `OverBudgetError` if this takes more than `steps`.

    Without `steps`, the limit grows with the schema; if its check takes more, no value is valid.
    """

    def __init__(self, schema: dict[str, Any], steps: int | None = None) -> None:
        self._schema = _without_costly_keywords(schema)
        self._rules: Any = _counting_class(validator_for(schema))
        self._flaw: str | None
        try:
            message = _first_error(self._rules(self._rules.META_SCHEMA), self._schema, steps)
            self._flaw = None if message is None else f"its schema is none: {message:.200}"
        except (SchemaError, RecursionError) as error:
            self._flaw = f"its schema is none: {error!s:.200}"
        except OverBudgetError as error:
            if steps is not None:
                raise
            self._flaw = str(error)

    def misfit(self, value: object, steps: int | None = None) -> str | None:
        """Return the text of a validation error in a value, or `None` if it is valid; `steps` limits the work."""
        if self._flaw is not None:
            return self._flaw
        try:
            message = _first_error(self._rules(self._schema, registry=Registry()), value, steps)
        except (Unresolvable, RecursionError) as error:
            return f"its schema leads nowhere: {error!s:.200}"
        return None if message is None else message[:_SHOWN]


def _first_error(rules: Any, value: object, steps: int | None) -> str | None:
    if steps is None:
        steps = MOST_STEPS + _STEPS_OF_PART * sum(1 for _ in _parts_of(value))
    _budget.set(_Budget(steps))
    error: Any = best_match(rules.iter_errors(value))
    return None if error is None else str(error.message)


def is_small(value: object, most: int = _SMALL) -> bool:
    """Return whether a value has few parts and short texts, so that each validation step on it is fast.

    `most` is the maximum number of parts, and of tens of characters.
    """
    size = 0
    for part in _parts_of(value):
        size += 1 + (len(part) // 10 if isinstance(part, str) else 0)
        if size > most:
            return False
    return True


def _parts_of(value: object) -> Iterator[object]:
    """Yield a value, and the values and names that are nested in it."""
    values = [value]
    while values:
        part = values.pop()
        yield part
        if isinstance(part, dict):
            values += [*part, *part.values()]
        elif isinstance(part, list):
            values += part


@cache
def _counting_class(validator_class: Any) -> Any:
    """Return a validator class that counts a step of the current budget for every keyword that it checks."""

    def count_steps(check: Callable[..., Iterator[Any] | None]) -> Callable[..., Iterator[Any]]:
        def iter_errors(*args: Any) -> Iterator[Any]:
            budget = _budget.get()
            budget.step()
            for error in check(*args) or ():
                budget.step()
                yield error

        return iter_errors

    checks = {**validator_class.VALIDATORS, "pattern": pattern_in_one_pass, "uniqueItems": lambda *_: None}
    counting_class = cast("Any", extend)(
        validator_class, {keyword: count_steps(check) for keyword, check in checks.items()}
    )
    # The original `evolve` switches to the class that a nested `$schema` names, which would not count steps.
    counting_class.evolve = attrs.evolve
    return counting_class


def _without_costly_keywords(schema: object) -> object:
    """Return a copy of a schema without the keywords in `_COSTLY`, whose validation may take too long."""
    if isinstance(schema, list):
        return [_without_costly_keywords(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # `additionalProperties` depends on `patternProperties`, which is removed, so it would refuse valid properties.
    open_ = {"additionalProperties"} if "patternProperties" in schema else set[str]()
    reduced: dict[str, object] = {}
    for keyword, value in schema.items():
        if keyword in _COSTLY | open_:
            continue
        if keyword in _VALUES:
            reduced[keyword] = value
        elif keyword in _BY_NAME and isinstance(value, dict):
            reduced[keyword] = {name: _without_costly_keywords(inner) for name, inner in value.items()}
        else:
            reduced[keyword] = _without_costly_keywords(value)
    return reduced


# Output schemas of tools; validation that may take long runs in a worker thread.

T = TypeVar("T")

_THREADS = 2
"""Maximum number of worker threads that validate for one server at a time."""


class OutputSchemas:
    """Output schemas of the tools of one server, with their validators."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._judges: dict[str, Judge] = {}
        self._threads: anyio.CapacityLimiter | None = None

    def learn(self, tools: Iterable[types.Tool]) -> None:
        """Replace all schemas by the schemas in a new list of tools; keep the validators of unchanged schemas."""
        old_schemas = self._schemas
        self._schemas = {tool.name: tool.output_schema for tool in tools if tool.output_schema is not None}
        self._judges = {
            name: judge for name, judge in self._judges.items() if self._schemas.get(name) == old_schemas[name]
        }

    async def judge(self, name: str, result: types.CallToolResult) -> None:
        """Raise `RuntimeError`, with the SDK's error text, if the structured content of a tool's result is invalid."""
        if (schema := self._schemas.get(name)) is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        value: object = result.structured_content
        try:
            if (judge := self._judges.get(name)) is None:
                judge = await self._run(Judge, schema, is_small(schema))
                # The tools may have been listed again during the await; then this validator is outdated.
                if self._schemas.get(name) is schema:
                    self._judges[name] = judge
            reason = await self._run(judge.misfit, value, is_small(schema) and is_small(value))
        except OverBudgetError as error:
            reason = str(error)
        if reason is not None:
            raise RuntimeError(f"Invalid structured content returned by tool {name}: {reason}")

    async def _run(self, judge: Callable[[Any, int | None], T], value: object, is_light: bool) -> T:
        """Run a validation in the event loop if it takes few steps, otherwise in a worker thread; return its result."""
        if is_light:
            with suppress(OverBudgetError):  # it was not light: a thread does it again, with the whole budget
                return judge(value, FEW_STEPS)
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_THREADS)
        # A cancelled call abandons the thread, which ends by its own budget.
        validate = partial(judge, value, None)
        return await anyio.to_thread.run_sync(validate, abandon_on_cancel=True, limiter=self._threads)
