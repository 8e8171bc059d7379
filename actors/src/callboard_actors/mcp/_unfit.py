"""Removal of invalid tools from a server's lists, so that the valid ones can be used.

The SDK rejects a list as a whole if one tool is invalid. So invalid tools are removed before the SDK sees the list.
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
"""Maximum number of parts of one answer, such as content blocks or resources."""
_LISTS: Final = {
    "tools": "tools",
    "content": "content blocks",
    "contents": "contents",
    "messages": "messages",
    "prompts": "prompts",
    "resources": "resources",
    "resourceTemplates": "templates of resources",
}
"""Lists in the protocol's answers, and the names of their items in errors."""


class UnfitTools:
    """Filter for lists of tools, and the tools that it left out, with reasons.

    `version` is the protocol version, which defines valid tools. It is known once a session has begun.
    """

    def __init__(self) -> None:
        self.version: str | None = None
        self.reasons: dict[str, str] = {}
        self.most: int = MOST_PARTS
        """Maximum number of tools of a server."""

    def sift(self, message: object) -> object:
        """Return a message without invalid tools, if it is a list of tools.

        An answer with too many parts becomes an error before any part is validated.
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
        # Answers are recognised by their fields, because a JSON-RPC response does not name its request.
        if self.version is None or not isinstance(tools, list) or "content" in result:
            return
        listed = cast("list[object]", tools)
        if _misfit(result, self.version) is None and not any(map(_flaw, listed)):
            return
        if _misfit({**result, "tools": []}, self.version) is not None:
            return  # invalid beyond its tools, which the SDK reports
        result["tools"] = [tool for tool in listed if self._fits(tool, result, self.version)]

    def _fits(self, tool: object, result: Mapping[str, Any], version: str) -> bool:
        why = _misfit({**result, "tools": [tool]}, version) or _flaw(tool)
        if why is not None:
            self.reasons[_name(tool) or _NAMELESS] = why
        return why is None


def _too_many(result: Mapping[str, Any], most_tools: int) -> str | None:
    """Return an error for a result with too many parts: the SDK validates each part several times, as a union.

    Lists inside of structured content do not count, because their parts are not validated there.
    """
    for name in _LISTS:
        parts = result.get(name)
        most = most_tools if name == "tools" and "content" not in result else MOST_PARTS
        if isinstance(parts, list) and len(cast("list[object]", parts)) > most:
            remedy = "; if it should have, raise max_tools" if most is most_tools and name == "tools" else ""
            return f"it has more than {most} {_LISTS[name]}{remedy}"
    return None


def _misfit(result: Mapping[str, Any], version: str) -> str | None:
    """Return the first validation error of a list of tools, or `None`."""
    try:
        with suppress(KeyError):  # unknown protocol versions are validated by the general model only
            validate_server_result("tools/list", version, result)
        ListToolsResult.model_validate(result, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][2:])
        return f"{where}: {first['msg']}" if where else first["msg"]
    return None


def _flaw(tool: object) -> str | None:
    """Return an error that the protocol allows but models do not, or `None`."""
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
    """Return the name of a tool, or an empty text."""
    name = cast("Mapping[str, object]", tool).get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""
