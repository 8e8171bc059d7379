"""Validation of values by untrusted JSON schemas, within a budget of steps and of time.

A short schema can demand unbounded work: an `allOf` with two references to itself, or an `anyOf` with a thousand
alternatives. Each keyword that is evaluated counts as a step.
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
"""Maximum steps for one value, or for checking one schema."""
_STEPS_OF_PART: Final = 30
"""Additional steps for each part of the value."""
MOST_SECONDS: Final = 5.0
"""Maximum seconds in a worker thread; a single step may be slow if the value or the schema is large."""
_SHOWN: Final = 2000
"""Maximum characters of an error, which may quote the whole value."""
FEW_STEPS: Final = 500
"""Maximum steps in the event loop: a few milliseconds."""

_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "properties"})
"""Keywords with schemas by name; the names are arbitrary and must not be taken for keywords."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords with values, which are no schemas."""
_LEFT_OUT = frozenset({"patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"})
"""Keywords whose cost grows faster than the value; they are removed."""


class OverBudgetError(Exception):
    """Raised if a validation takes more steps, or more time, than allowed."""


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
    """Validator of values for one untrusted schema.

    `steps` limits the check of the schema itself; by default the limit grows with its size. The constructor raises
    `OverBudgetError` if the check takes more.
    """

    def __init__(self, schema: dict[str, Any], steps: int | None = None) -> None:
        self._schema = cast("dict[str, Any]", _harmless(schema))
        self._rules: Any = _counted(validator_for(schema))
        self._flaw = self._flaw_of_schema(steps)

    def misfit(self, value: object, steps: int | None = None) -> str | None:
        """Return the error of a value, or `None` if it is valid as far as it is checked.

        `steps` limits the validation; by default the limit grows with the value's size. Raise `OverBudgetError` if it
        takes more.
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
    """Return the number of values inside of a value, itself included."""
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
    """Return a validator class that counts every keyword as a step."""

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
    # The original `evolve` switches to the class that a nested `$schema` names, which would not count steps.
    made.evolve = attrs.evolve
    return made


def _unjudged(*_: object) -> Iterator[Any]:
    yield from ()


def _harmless(schema: object) -> object:
    """Return a schema without the expensive keywords."""
    if isinstance(schema, list):
        return [_harmless(one) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    words = cast("dict[str, object]", schema)
    # `additionalProperties` depends on `patternProperties`, which is removed, so it would refuse valid properties.
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
