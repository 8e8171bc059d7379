"""Whether results of a server's tools are what their schemas say, without doing all that the schemas ask for.

A schema is a stranger's. The SDK would search by its patterns with an engine that goes back, which can hold the event
loop for ever.
"""

from collections.abc import Callable, Iterable
from typing import Any, cast

from jsonschema import SchemaError
from jsonschema.exceptions import best_match
from jsonschema.validators import extend, validator_for
from mcp import ClientSession
from mcp_types import CallToolResult, Tool
from referencing import Registry
from referencing.exceptions import Unresolvable

from callboard_actors.mcp._forms import pattern_in_one_pass

_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "properties"})
"""Words of a schema with schemas by name, which may be any."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
_LEFT_OUT = frozenset({"patternProperties", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"})
"""What takes longer than the value is long."""


class OutputSchemas:
    """What the tools of one server say of their results."""

    def __init__(self) -> None:
        self._schemas: dict[str, dict[str, Any]] = {}
        self._judges: dict[str, Callable[[object], str | None]] = {}

    def learn(self, tools: Iterable[Tool]) -> None:
        """Take in what the server has listed."""
        before = self._schemas
        self._schemas = {tool.name: tool.output_schema for tool in tools if tool.output_schema is not None}
        self._judges = {name: one for name, one in self._judges.items() if self._schemas.get(name) == before[name]}

    def judge_for(self, session: ClientSession) -> None:
        """Have a session of the SDK ask here, where it would judge by itself."""
        session.validate_tool_result = self._judge  # type: ignore[method-assign]

    async def _judge(self, name: str, result: CallToolResult) -> None:
        """Refuse what a tool should not have returned; the SDK's own words for it.

        Raises:
            RuntimeError: says why.
        """
        if (schema := self._schemas.get(name)) is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        if (judge := self._judges.get(name)) is None:
            judge = self._judges[name] = judge_of(schema)
        if (why := judge(result.structured_content)) is not None:
            raise RuntimeError(f"Invalid structured content returned by tool {name}: {why}")


def judge_of(schema: dict[str, Any]) -> Callable[[object], str | None]:
    """Says what is wrong with a value; `None` if nothing is, or nothing that is looked at here."""
    harmless = cast("dict[str, Any]", _harmless(schema))
    known: Any = validator_for(harmless)
    try:
        known.check_schema(harmless)
    except SchemaError as error:
        why = f"its schema is none: {error.message}"
        return lambda _: why
    rules = cast("Any", extend)(known, {"pattern": pattern_in_one_pass})(harmless, registry=Registry())

    def judge(value: object) -> str | None:
        try:
            found: Any = best_match(rules.iter_errors(value))
        except (Unresolvable, RecursionError) as error:
            return f"its schema leads nowhere: {error}"
        return None if found is None else str(found.message)

    return judge


def _harmless(schema: object) -> object:
    """A schema without what takes long."""
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
