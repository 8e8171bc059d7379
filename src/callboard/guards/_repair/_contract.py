"""Validation of a tool's arguments, and the places at which they are invalid."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic.v1 import BaseModel as BaseModelV1
from pydantic.v1 import ValidationError as ValidationErrorV1

from callboard._util._extras import require
from callboard.guards._repair._schema import Path, Schema, Shape, TooManyChoicesError
from callboard.tools._errors import is_control_flow
from callboard.tools._plan import injected_args

Args = dict[str, Any]

MAX_DEPTH = 32
MAX_NODES = 1_000
MAX_CHARS = 200_000
"""Arguments beyond these limits are not repaired: every round copies and validates them again."""


class Contract:
    """Validation of the arguments of one tool.

    Args:
        tool: a tool with a schema.
        injected: arguments that the model cannot set; a repair ignores them.
        validate: raises if arguments are invalid; `None` to validate by the JSON schema alone.
    """

    def __init__(self, tool: BaseTool, injected: frozenset[str], validate: Callable[[Args], object] | None) -> None:
        self.name = tool.name
        self.injected = injected
        self._schema = tool.args_schema
        self._validate = validate

    @cached_property
    def shape(self) -> Shape:
        """Shape of valid arguments, from the tool's schema."""
        return Shape(_json_schema(self._schema), self.injected)

    def faults(self, args: Args) -> tuple[Path, ...]:
        """Return the places of errors, without injected arguments; empty if the arguments are valid."""
        try:
            if self._validate is None:
                return _distinct(self.shape.faults(args)) if is_small(args) else ()
            # A copy, because validators of mode "before" may change what they get.
            self._validate(copied(args))
        except Exception as error:
            if is_control_flow(error) or isinstance(error, TooManyChoicesError):
                raise
            return _distinct([_located(location, args) for location in self._locations(error)])
        return ()

    def _locations(self, error: Exception) -> list[tuple[Any, ...]]:
        if isinstance(error, ValidationError):
            if error.error_count() > MAX_NODES:
                return [()]  # building so many error objects takes longer than the validation
            details: Any = error.errors(include_url=False, include_context=False, include_input=False)
        elif isinstance(error, ValidationErrorV1):
            details = error.errors()
        else:
            return [()]  # an unexpected error of a user's validator gives no place
        return [detail["loc"] for detail in details if not detail["loc"] or detail["loc"][0] not in self.injected]


def contract_of(tool: BaseTool) -> Contract | None:
    """Return the contract of a tool; `None` if nothing validates its arguments, or the tool parses them itself.

    Raises:
        ImportError: if the tool has a JSON schema and jsonschema is not installed.
    """
    schema = tool.args_schema
    if type(tool)._parse_input is not BaseTool._parse_input:
        return None
    validate: Callable[[Args], object] | None = None
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        validate = schema.model_validate if schema.model_fields else None
    elif isinstance(schema, type) and issubclass(schema, BaseModelV1):
        validate = schema.parse_obj if schema.__fields__ else None
    if validate is None and not isinstance(schema, dict):
        return None  # no schema, or a model without fields, which langchain-core does not validate
    if validate is None:
        whose = f"RepairArguments() for {tool.name!r}, whose schema is JSON,"
        require(whose, "jsonschema", extra="middleware", instead="give the tool a pydantic model")
    injected = injected_args(tool)
    return Contract(tool, injected.forbidden | injected.names, validate)


def _distinct(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(paths))


def _located(location: tuple[Any, ...], args: Args) -> Path:
    """Return the place in the arguments to which an error location points.

    A location may also name members of unions and missing arguments; keys that the arguments lack are skipped.
    """
    path: list[str | int] = []
    here: Any = args
    for key in location:
        if (isinstance(here, dict) and key in here) or (
            isinstance(here, list) and isinstance(key, int) and key < len(here)
        ):
            path.append(key)
            here = here[key]
    return tuple(path)


def copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


def is_small(value: object) -> bool:
    """Return whether a value is JSON, and small enough to be validated several times."""
    nodes = chars = 0
    # An explicit stack: the model may nest deeper than Python's recursion limit.
    stack: list[tuple[Any, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        nodes += 1
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                return False
            chars += sum(map(len, item))
            item = [*item.values()]
        if isinstance(item, list):
            if depth == MAX_DEPTH or nodes + len(stack) + len(item) > MAX_NODES:
                return False
            stack.extend((inner, depth + 1) for inner in item)
        elif isinstance(item, str):
            chars += len(item)
        elif item is not None and not isinstance(item, (int, float)):
            return False
    return chars <= MAX_CHARS


class _AnySchema(GenerateJsonSchema):
    """Schema generator that works for every model: a type without a JSON form allows any value, without a warning."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's declaration)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def _json_schema(schema: Any) -> Schema:
    if isinstance(schema, dict):
        return cast("Schema", schema)
    # Not the tool's `tool_call_schema`: it lacks aliases and the information that extra arguments are forbidden.
    try:
        v1 = issubclass(schema, BaseModelV1)
        return cast("Schema", schema.schema() if v1 else schema.model_json_schema(schema_generator=_AnySchema))
    except Exception:
        return {}  # an empty schema allows everything, so nothing will be repaired
