"""Schemas that servers write: which a person can be asked by, and what fits them.

They are a stranger's. Nothing is fetched that they refer to, and no pattern of theirs is searched for by going back.
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
"""Words that lead out of a schema, or to other rules than those here; the protocol's forms are flat and have none."""


def check_form(schema: dict[str, Any], server: str) -> None:
    """Refuse a form by which nobody can be asked.

    Raises:
        McpToolError: the schema is none, or refers to another place.
    """
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
    """What is wrong with what was filled in; `None` if nothing is."""
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
    """By an engine that needs as long as the text is; what it does not know is for the server to judge."""
    if not isinstance(text, str):
        return
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern)).validate_python(text)
    except PatternError:
        return
    except MisfitError:
        yield ValidationError(f"{text!r} does not match {pattern!r}")


_Form: Any = cast("Any", extend)(Draft202012Validator, {"pattern": pattern_in_one_pass})
