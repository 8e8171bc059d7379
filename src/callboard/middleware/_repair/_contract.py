"""What validates the arguments of a tool, and where it finds fault with them."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, cast

from langchain_core.tools import BaseTool
from pydantic import BaseModel, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic.v1 import BaseModel as BaseModelV1
from pydantic.v1 import ValidationError as ValidationErrorV1

from callboard._extras import require
from callboard.middleware._repair._schema import Shape
from callboard.middleware._repair._validator import Path, Schema, TooManyChoicesError
from callboard.tools._errors import is_control_flow
from callboard.tools._inject import injected_args

Args = dict[str, Any]

MAX_DEPTH = 32
MAX_NODES = 1_000
MAX_CHARS = 200_000
"""Arguments beyond these are not repaired: the event loop waits meanwhile."""


class Contract:
    """What validates the arguments of one tool.

    Args:
        tool: one with a schema.
        injected: arguments that the model has no say in; for a repair they do not exist.
        validate: takes arguments and returns what the tool gets, or raises; `None` if nothing but the JSON
            schema can judge.
    """

    def __init__(self, tool: BaseTool, injected: frozenset[str], validate: Callable[[Args], object] | None) -> None:
        self.name = tool.name
        self.injected = injected
        self._schema = tool.args_schema
        self._validate = validate

    @cached_property
    def shape(self) -> Shape:
        """The shape that the arguments should have had, by the schema of the tool."""
        return Shape(_json_schema(self._schema), self.injected)

    def faults(self, args: Args) -> tuple[Path, ...]:
        """The places where arguments are wrong, those that are injected left out; none if they are valid."""
        try:
            if self._validate is None:
                return _distinct(self.shape.faults(args)) if is_small(args) else ()
            # A copy, because validators of mode "before" like to take things out of what they get.
            self._validate(_copied(args))
        except Exception as error:
            if is_control_flow(error) or isinstance(error, TooManyChoicesError):
                raise
            return _distinct([_located(location, args) for location in self._locations(error)])
        return ()

    def _locations(self, error: Exception) -> list[tuple[Any, ...]]:
        if isinstance(error, ValidationError):
            if error.error_count() > MAX_NODES:
                return [()]  # to list them takes longer than to find them
            details: Any = error.errors(include_url=False, include_context=False, include_input=False)
        elif isinstance(error, ValidationErrorV1):
            details = error.errors()
        else:
            return [()]  # of a validator that had not thought of such arguments
        return [detail["loc"] for detail in details if not detail["loc"] or detail["loc"][0] not in self.injected]


def contract_of(tool: BaseTool) -> Contract | None:
    """What validates the arguments of a tool; `None` if nothing does, or the tool has its own way with them.

    Raises:
        ImportError: if its schema is JSON, and jsonschema is not installed.
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
        return None  # no schema, or a model without fields, which langchain-core does not ask
    if validate is None:
        whose = f"RepairArguments() for {tool.name!r}, whose schema is JSON,"
        require(whose, "jsonschema", extra="middleware", instead="give the tool a pydantic model")
    injected = injected_args(tool)
    return Contract(tool, injected.forbidden | injected.names, validate)


def _distinct(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(paths))


def _located(location: tuple[Any, ...], args: Args) -> Path:
    """The place in the arguments that an error is about.

    A location also names members of unions, and what is missing; what the arguments lack is passed over.
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


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


def is_small(value: object) -> bool:
    """Whether a value is JSON, and small enough to be looked at again and again."""
    nodes = chars = 0
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
    """A schema for every model: what JSON cannot say may be anything, and nobody is warned of it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's declaration)

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def _json_schema(schema: Any) -> Schema:
    if isinstance(schema, dict):
        return cast("Schema", schema)
    # Not the tool's tool_call_schema, which knows neither aliases nor what the model forbids.
    try:
        v1 = issubclass(schema, BaseModelV1)
        return cast("Schema", schema.schema() if v1 else schema.model_json_schema(schema_generator=_AnySchema))
    except Exception:
        return {}  # which says nothing, so that nothing is repaired
