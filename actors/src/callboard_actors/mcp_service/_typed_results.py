"""Tools whose functions say that they return an object: what it looks like, and its JSON in place of its `str`."""

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
"""Where LangChain's tools keep the functions that they were made of."""


@dataclass(frozen=True, slots=True)
class ResultType:
    """What the function of a tool says that it returns."""

    adapter: TypeAdapter[Any]
    schema: dict[str, Any]

    def as_json(self, name: str, result: object) -> object:
        """A result as the JSON that the schema describes.

        Raises:
            TypeError: it is something else.
        """
        try:
            return self.adapter.dump_python(self.adapter.validate_python(result), mode="json")
        except ValidationError as error:
            # Not as it is: it would be taken for one about arguments, which the model could repair.
            raise TypeError(f"the tool {name!r} did not return what its annotation says: {error}") from None


def result_type(tool: BaseTool) -> ResultType | None:
    """What a tool returns, if that is an object with a schema; one that is told in two parts says nothing of it."""
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
        return None  # nothing that has a schema, such as a Command
    return ResultType(adapter, schema) if schema.get("type") == "object" else None


def _adapter(returned: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(returned)
    except PydanticUserError:
        if not is_typeddict(returned):
            raise
        return TypeAdapter(dict[str, Any])  # one of `typing`, before Python 3.12: what it has in it is not known


def _is_langchains_own(returned: object) -> bool:
    """Whether it is no result itself, but has one in it: a message, a command."""
    kind = get_origin(returned) or returned
    return isinstance(kind, type) and issubclass(kind, ToolOutputMixin | BaseMessage)


def with_json_results(tool: BaseTool) -> BaseTool:
    """A tool whose objects a model reads as JSON; the tool itself where it returns none."""
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
