"""Judging of values by JSON schemas that strangers have written, within a budget of steps and of time.

A schema of a few lines can ask for more work than anybody has time for, such as an `allOf` of two references to
itself, or an `anyOf` of a thousand. Each word of a schema that is looked at is a step.
"""

import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from typing import Any, Final, cast

import attrs
from jsonschema import SchemaError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from callboard_actors.mcp._forms import pattern_in_one_pass

MOST_STEPS: Final = 100_000
"""Steps for one value, or for one schema."""
_STEPS_OF_PART: Final = 30
"""Steps for each part of the value besides."""
MOST_SECONDS: Final = 5.0
"""Seconds for the same, in a worker thread: a step takes as long as the value or the schema is large."""
_SHOWN: Final = 2000
"""Characters of what is wrong with a value, which may have the whole value in it."""
FEW_STEPS: Final = 500
"""Steps that the event loop may take, a few milliseconds."""

_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "properties"})
"""Words of a schema with schemas by name, which may be any."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
_LEFT_OUT = frozenset({"patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"})
"""Words whose work grows faster than the value does."""


class OverBudgetError(Exception):
    """Raised when a judgement takes more steps, or more time, than it may."""


class _Budget:
    """Steps and seconds that are left of a judgement."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._until = time.monotonic() + MOST_SECONDS

    def step(self) -> None:
        """Count a step.

        Raises:
            OverBudgetError: there is none left, or no time.
        """
        self._steps -= 1
        if self._steps < 0 or time.monotonic() > self._until:
            raise OverBudgetError


_budget: ContextVar[_Budget] = ContextVar("budget")


class Judge:
    """Judge of values by one schema.

    Args:
        schema: of a stranger.
        steps: as many may be taken to check it; by default, as many as a schema of this size needs, and more.

    Raises:
        OverBudgetError: to check the schema takes more.
    """

    def __init__(self, schema: dict[str, Any], steps: int | None = None) -> None:
        self._schema = cast("dict[str, Any]", _harmless(schema))
        self._rules: Any = _counted(validator_for(schema))
        self._flaw = self._flaw_of_schema(steps)

    def misfit(self, value: object, steps: int | None = None) -> str | None:
        """Return what is wrong with a value; `None` if nothing is, or nothing that is looked at.

        Args:
            value: is judged.
            steps: as many may be taken; by default, as many as a value of this size needs, and more.

        Raises:
            OverBudgetError: to judge the value takes more.
        """
        if self._flaw is not None:
            return self._flaw
        _budget.set(_budget_for(value, steps))
        try:
            found: Any = best_match(self._rules(self._schema, registry=Registry()).iter_errors(value))
        except (Unresolvable, RecursionError) as error:
            return f"its schema leads nowhere: {error!s:.200}"
        return None if found is None else str(found.message)[:_SHOWN]

    def _flaw_of_schema(self, steps: int | None) -> str | None:
        _budget.set(_budget_for(self._schema, steps))
        try:
            found: Any = best_match(self._rules(self._rules.META_SCHEMA).iter_errors(self._schema))
        except (SchemaError, RecursionError) as error:
            return f"its schema is none: {error!s:.200}"
        return None if found is None else f"its schema is none: {found.message:.200}"


def is_small(value: object, most: int = 1_000) -> bool:
    """Return whether a value has few parts and short texts, so that no step with it takes long."""
    left = most
    values = [value]
    while values:
        one = values.pop()
        left -= 1 + (len(one) // 10 if isinstance(one, str) else 0)
        if left < 0:
            return False
        if isinstance(one, (list, dict)):
            parts = cast("list[object] | dict[str, object]", one)
            if len(parts) > left:
                return False
            values += [*parts, *parts.values()] if isinstance(parts, dict) else parts
    return True


def _budget_for(value: object, steps: int | None) -> _Budget:
    return _Budget(MOST_STEPS + _STEPS_OF_PART * _parts_of(value) if steps is None else steps)


def _parts_of(value: object) -> int:
    """Return how many values a value has in it."""
    count, values = 0, [value]
    while values:
        one = values.pop()
        count += 1
        if isinstance(one, dict):
            values += cast("dict[str, object]", one).values()
        elif isinstance(one, list):
            values += cast("list[object]", one)
    return count


@cache
def _counted(known: Any) -> Any:
    """Return a class of validators of which each word counts."""

    def counted(word: Callable[..., Iterator[Any] | None]) -> Callable[..., Iterator[Any]]:
        def found(*args: Any) -> Iterator[Any]:
            budget = _budget.get()
            budget.step()
            for error in word(*args) or ():
                budget.step()
                yield error

        return found

    words = {**known.VALIDATORS, "pattern": pattern_in_one_pass, "uniqueItems": _unjudged}
    made = cast("Any", extend)(known, {name: counted(word) for name, word in words.items()})
    # The original goes over to the class that `$schema` names in any part of a schema, which does not count.
    made.evolve = attrs.evolve
    return made


def _unjudged(*_: object) -> Iterator[Any]:
    yield from ()


def _harmless(schema: object) -> object:
    """Return a schema without the words that take long."""
    if isinstance(schema, list):
        return [_harmless(one) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    words = cast("dict[str, object]", schema)
    open_ = {"additionalProperties"} if "patternProperties" in words else set[str]()
    return {
        word: value if word in _VALUES else _by_name(value) if word in _BY_NAME else _harmless(value)
        for word, value in words.items()
        if word not in _LEFT_OUT | open_
    }


def _by_name(schemas: object) -> object:
    if not isinstance(schemas, dict):
        return schemas
    return {name: _harmless(one) for name, one in cast("dict[str, object]", schemas).items()}
