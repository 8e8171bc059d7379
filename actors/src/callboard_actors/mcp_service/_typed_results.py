"""Tools with an object as annotated return type: output schema, and JSON results instead of `str` of the object."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, cast, get_origin, get_type_hints, is_typeddict

from langchain_core.messages import BaseMessage
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

_FUNCTIONS: Final = ("func", "coroutine")
"""Attributes of a LangChain tool that hold its functions."""


@dataclass(frozen=True, slots=True)
class ResultType:
    """Annotated return type of a tool's function."""

    adapter: TypeAdapter[Any]
    schema: dict[str, Any]

    def as_json(self, name: str, result: object) -> object:
        """Return a result as JSON value of the schema; raise TypeError if it does not fit."""
        try:
            return self.adapter.dump_python(self.adapter.validate_python(result), mode="json")
        except ValidationError as error:
            # Not a ValidationError: the node would take it for wrong arguments, and ask the model to repair them.
            raise TypeError(f"the tool {name!r} did not return what its annotation says: {error}") from None


def result_type(tool: BaseTool) -> ResultType | None:
    """Return the result type of a tool if it is an object with a schema; `None` for tools with content and artifact."""
    function = next((one for attribute in _FUNCTIONS if (one := getattr(tool, attribute, None)) is not None), None)
    if function is None or tool.response_format != "content":
        return None
    try:
        returned = get_type_hints(function).get("return")
        if returned is None or returned is Any or _is_langchains_own(returned):
            return None
        adapter = _adapter(returned)
        schema = adapter.json_schema(mode="serialization")
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError):
        return None  # a type without a schema, such as a Command
    return ResultType(adapter, schema) if schema.get("type") == "object" else None


def _adapter(returned: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(returned)
    except PydanticUserError:
        if not is_typeddict(returned):
            raise
        return TypeAdapter(dict[str, Any])  # pydantic rejects `typing.TypedDict` before Python 3.12: accept any fields


def _is_langchains_own(returned: object) -> bool:
    """Return whether a type is a container of the result (message or command), and not the result itself."""
    kind = get_origin(returned) or returned
    return isinstance(kind, type) and issubclass(kind, ToolOutputMixin | BaseMessage)


def with_json_results(tool: BaseTool) -> BaseTool:
    """Return a copy of a tool with JSON results; the tool itself if it does not return an object."""
    found = result_type(tool)
    if found is None or not isinstance(tool, StructuredTool):
        return tool
    wrapped: Mapping[str, object] = {
        attribute: _wrapped(tool.name, function, found)
        for attribute in _FUNCTIONS
        if (function := getattr(tool, attribute)) is not None
    }
    return tool.model_copy(update=wrapped)


def _wrapped(name: str, function: Callable[..., Any], found: ResultType) -> Callable[..., Any]:
    if not inspect.iscoroutinefunction(function):

        @wraps(function)
        def plain(*args: object, **kwargs: object) -> object:
            return found.as_json(name, function(*args, **kwargs))

        return plain

    @wraps(function)
    async def awaited(*args: object, **kwargs: object) -> object:
        return found.as_json(name, await cast("Awaitable[object]", function(*args, **kwargs)))

    return awaited
