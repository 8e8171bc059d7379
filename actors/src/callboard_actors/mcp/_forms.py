"""Checks of forms that servers write, and of the values that people fill in.

Schemas are untrusted. Nothing that they refer to is fetched, and their patterns run only in a regex engine without
backtracking.
"""

from collections.abc import Iterator
from typing import Any, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend
from pydantic import ValidationError as MisfitError
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry

from callboard_actors.mcp._content import McpToolError

_ELSEWHERE = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "$id", "$schema", "patternProperties"})
"""Keywords that refer to other schemas, or change the rules. The protocol's forms are flat and need none."""


def check_form(schema: dict[str, Any], server: str) -> None:
    """Raise `McpToolError` for a form that refers to other schemas, or is not a valid schema."""
    flat = {key: value for key, value in schema.items() if key != "$schema"}
    if word := _first_of(_ELSEWHERE, flat):
        raise McpToolError(f"The MCP server {server!r} asks by a form with {word!r}, which no form may have.")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise McpToolError(
            f"The MCP server {server!r} asks a person by a form that is none: {error.message}"
        ) from error


def misfit(schema: dict[str, Any], content: object) -> str | None:
    """Return the first error of filled-in values, or `None`."""
    found = best_match(_Form(schema, registry=Registry()).iter_errors(content))
    return None if found is None else found.message


def _first_of(words: frozenset[str], value: object) -> str | None:
    if isinstance(value, dict):
        known = cast("dict[str, object]", value)
        return min(words & known.keys(), default=None) or _first_of(words, list(known.values()))
    if isinstance(value, list):
        return next((word for one in cast("list[object]", value) if (word := _first_of(words, one))), None)
    return None


def pattern_in_one_pass(_: object, pattern: str, text: object, __: object) -> Iterator[ValidationError]:
    """Yield an error if a text does not match, in linear time; patterns that the engine rejects are ignored."""
    if not isinstance(text, str):
        return
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern)).validate_python(text)
    except PatternError:
        return
    except MisfitError:
        yield ValidationError(f"{text!r} does not match {pattern!r}")


_Form: Any = cast("Any", extend)(Draft202012Validator, {"pattern": pattern_in_one_pass})
