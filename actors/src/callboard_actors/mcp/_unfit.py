"""Tools that a server describes in a way that is no description: left out of its list, so that the others can be used.

The SDK reads a list as a whole, or not at all; so what is none of it goes before the SDK sees it.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, cast

from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCResponse, ListToolsResult
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

_NAMELESS = "(without a name)"
MOST_PARTS: Final = 1000
"""Parts of one answer, such as content blocks or resources."""
_LISTS: Final = {
    "tools": "tools",
    "content": "content blocks",
    "contents": "contents",
    "messages": "messages",
    "prompts": "prompts",
    "resources": "resources",
    "resourceTemplates": "templates of resources",
}
"""Lists of the protocol's answers, and what their parts are called."""


class UnfitTools:
    """Which tools of a server were left out, and why.

    `version` of the protocol says what a tool is; it is known once a session has begun.
    """

    def __init__(self) -> None:
        self.version: str | None = None
        self.reasons: dict[str, str] = {}
        self.most: int = MOST_PARTS
        """As many tools a server may have."""

    def sift(self, message: object) -> object:
        """Return a message without what is no tool, if it is a list of tools.

        An answer with too many parts becomes an error, before anybody reads one of them.
        """
        if not isinstance(message, SessionMessage) or not isinstance(message.message, JSONRPCResponse):
            return message
        answer = message.message
        if (why := _too_many(answer.result, self.most)) is not None:
            error = ErrorData(code=PARSE_ERROR, message=why)
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=answer.id, error=error), metadata=message.metadata)
        self._sift(answer.result)
        return message

    def _sift(self, result: dict[str, Any]) -> None:
        tools = result.get("tools")
        # Only a list of tools has them and no content.
        if self.version is None or not isinstance(tools, list) or "content" in result:
            return
        listed = cast("list[object]", tools)
        if _misfit(result, self.version) is None and not any(map(_flaw, listed)):
            return
        if _misfit({**result, "tools": []}, self.version) is not None:
            return  # it is no list of tools, which the SDK says
        result["tools"] = [tool for tool in listed if self._fits(tool, result, self.version)]

    def _fits(self, tool: object, result: Mapping[str, Any], version: str) -> bool:
        why = _misfit({**result, "tools": [tool]}, version) or _flaw(tool)
        if why is not None:
            self.reasons[_name(tool) or _NAMELESS] = why
        return why is None


def _too_many(result: Mapping[str, Any], most_tools: int) -> str | None:
    """Return what there is too much of in a result; each part of these lists is read several times, as any of a union.

    Lists of structured content are not meant: nobody reads their parts.
    """
    for name in _LISTS:
        parts = result.get(name)
        most = most_tools if name == "tools" and "content" not in result else MOST_PARTS
        if isinstance(parts, list) and len(cast("list[object]", parts)) > most:
            remedy = "; if it should have, raise max_tools" if most is most_tools and name == "tools" else ""
            return f"it has more than {most} {_LISTS[name]}{remedy}"
    return None


def _misfit(result: Mapping[str, Any], version: str) -> str | None:
    """What is wrong with a list, first of all; with one tool, what is wrong with that."""
    try:
        with suppress(KeyError):  # for versions of which no more is known
            validate_server_result("tools/list", version, result)
        ListToolsResult.model_validate(result, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][2:])
        return f"{where}: {first['msg']}" if where else first["msg"]
    return None


def _flaw(tool: object) -> str | None:
    """What the protocol lets pass of a tool, and no model does."""
    if not isinstance(tool, dict):
        return None
    if not (name := _name(tool)):
        return "name: it is empty"
    if not name.isprintable():
        return "name: it has characters that cannot be printed"
    schema = cast("Mapping[str, Any]", tool).get("inputSchema")
    properties: object = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if not isinstance(properties, dict):
        return "inputSchema.properties: it is no object"
    found = cast("Mapping[str, object]", properties)
    wrong = next((name for name, one in found.items() if not isinstance(one, (dict, bool))), None)
    return None if wrong is None else f"inputSchema.properties.{wrong}: it is no schema"


def _name(tool: object) -> str:
    """The name of a tool, if it has one."""
    name = cast("Mapping[str, object]", tool).get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""
