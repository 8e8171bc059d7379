"""State of a connection to an MCP server (working, or lost for a reason), and checks of received messages.

The SDK rejects a list as a whole if one tool is invalid. `InvalidTools` removes such tools before the SDK sees the
list, so that the valid ones can be used. `watch_transport` wraps a transport of the SDK, and reports its end to the
`Link`.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from mcp import MCPError, types
from mcp.shared.message import SessionMessage
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from callboard import EngineError

# Removal of invalid tools.

_NAMELESS = "(without a name)"
MOST_PARTS: Final = 1000
"""Maximum number of items in one response: content blocks of a result, or tools, resources or prompts of a list."""
_LISTS: Final = {
    "tools": "tools",
    "content": "content blocks",
    "contents": "contents",
    "messages": "messages",
    "prompts": "prompts",
    "resources": "resources",
    "resourceTemplates": "templates of resources",
}
"""Fields of responses that are lists, and the name of their items in error texts."""


class InvalidTools:
    """Filter that removes invalid tools from a server's lists, and records the reason for each removed tool."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.begin_list()

    def begin_list(self) -> None:
        """Forget the tools of the last list; the next pages are those of a new one."""
        self.reasons: dict[str, str] = {}
        self._schemas = _Expansions()

    def sift(self, message: object) -> object:
        """Return a received message without invalid tools; a response with too many items becomes an error response."""
        if not isinstance(message, SessionMessage) or not isinstance(message.message, types.JSONRPCResponse):
            return message
        answer = message.message
        result = answer.result
        # The SDK would validate all items. Structured content is not counted, because it is not validated here.
        for field, item_name in _LISTS.items():
            items = result.get(field)
            if isinstance(items, list) and len(items) > MOST_PARTS:
                reason = f"it has more than {MOST_PARTS} {item_name}"
                return error_response(answer.id, reason, metadata=message.metadata)
        tools = result.get("tools")
        # Answers are recognised by their fields, because a JSON-RPC response does not name its request.
        if self.version is None or not isinstance(tools, list) or "content" in result:
            return message
        flaws = [_flaw(tool, self._schemas) for tool in tools]
        if _misfit(result, self.version) is None and not any(flaws):
            return message
        if _misfit({**result, "tools": []}, self.version) is not None:
            return message  # invalid beyond its tools, which the SDK reports
        result["tools"] = []
        for tool, flaw in zip(tools, flaws, strict=True):
            if (misfit := _misfit({**result, "tools": [tool]}, self.version) or flaw) is None:
                result["tools"].append(tool)
            else:
                self.reasons[_name(tool) or _NAMELESS] = misfit
        return message


def error_response(number: types.RequestId | None, reason: str, *, metadata: Any = None) -> SessionMessage:
    """Return an error message for the request `number`, in place of a response that the SDK cannot or must not read."""
    error = types.ErrorData(code=types.PARSE_ERROR, message=reason)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=number, error=error), metadata=metadata)


def _misfit(result: Mapping[str, Any], version: str) -> str | None:
    """Return the text of the first validation error in a list of tools; `None` if the list is valid."""
    try:
        with suppress(KeyError):  # unknown protocol versions are validated by the general model only
            validate_server_result("tools/list", version, result)
        types.ListToolsResult.model_validate(result, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        location = ".".join(str(part) for part in first["loc"][2:])
        return f"{location}: {first['msg']}" if location else first["msg"]
    return None


def _flaw(tool: object, schemas: "_Expansions") -> str | None:
    """Return the reason why models cannot use a tool that MCP itself allows; `None` if models can use the tool."""
    if not isinstance(tool, dict):
        return None
    if not (name := _name(tool)):
        return "name: it is empty"
    if not name.isprintable():
        return "name: it has characters that cannot be printed"
    schema = tool.get("inputSchema")
    declared: object = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if not isinstance(declared, dict):
        return "inputSchema.properties: it is no object"
    property_name = next((name for name, value in declared.items() if not isinstance(value, (dict, bool))), None)
    if property_name is not None:
        return f"inputSchema.properties.{property_name}: it is no schema"
    return None if (reason := schemas.flaw(schema)) is None else f"inputSchema: {reason}"


_MAX_SCHEMA = 5_000
"""Maximum size of a tool's schema: its parts, and a tenth of its texts, with each reference replaced by its target."""
_MAX_SCHEMAS = 20_000
"""Maximum size of the schemas of all tools that a server lists."""
_MAX_REFERENCES = 30
"""Maximum depth of references in references."""


class _Expansions:
    """Sizes of the schemas of a server's tools, with each reference replaced by its target.

    LangChain replaces them for each request of a model. Two references in each target double a schema, so that 1.5 kB
    become a megabyte; and a reference that cannot be replaced ends the request, with all other tools.
    """

    def __init__(self) -> None:
        self._total = 0

    def flaw(self, schema: object) -> str | None:
        """Return the reason why models cannot use a schema; count the size of one that they can use."""
        size = 0
        remaining: list[tuple[object, frozenset[str]]] = [(schema, frozenset())]
        while remaining:
            part, references = remaining.pop()
            size += 1 + (len(part) // 10 if isinstance(part, str) else 0)
            if size > _MAX_SCHEMA or len(references) > _MAX_REFERENCES:
                return f"with its references expanded, it has more than {_MAX_SCHEMA} parts"
            if isinstance(part, dict):
                if "$ref" in part:
                    try:
                        reference, target = _target(schema, part["$ref"])
                    except LookupError:
                        return f"its reference {part['$ref']!r:.200} leads to no part of it"
                    if reference not in references:
                        remaining.append((target, references | {reference}))
                remaining += [(value, references) for keyword, value in part.items() if keyword != "$defs"]
            elif isinstance(part, list):
                remaining += [(value, references) for value in part]
        if self._total + size > _MAX_SCHEMAS:
            return f"with the schemas of the tools before it, it has more than {_MAX_SCHEMAS} parts"
        self._total += size
        return None


def _target(schema: object, reference: object) -> tuple[str, object]:
    """Return a reference, and the part of a schema that it names; raise `LookupError` if it names none."""
    if not isinstance(reference, str) or reference.split("/")[0] != "#":
        raise LookupError
    part = schema
    for name in reference.split("/")[1:]:
        if isinstance(part, dict):
            part = part[name]
        elif isinstance(part, list) and name.isdecimal():
            part = part[int(name[:9])]
        else:
            raise LookupError
    return reference, part


def _name(tool: object) -> str:
    """Return the name of a listed tool; "" if it has none."""
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else ""


# State and end of the connection.

_END_PREFIXES = ("Connection closed", "SSE stream ")
"""Prefixes of the SDK's error messages about a closed connection."""
_MOST_REQUESTS = 16
"""Number of unanswered requests of a server at which reading from the server pauses."""
_PAUSE = 0.05
"""Maximum seconds for which reading pauses before the next message."""


class ConnectionLostError(EngineError):
    """Raised in the actor of a connection when the connection ends; this error ends the actor."""

    def __init__(self, server: str, reason: str) -> None:
        super().__init__(server, None, reason, ended="unknown")


class Link:
    """State of a connection: working, or lost for a reason.

    The first reason of the loss is kept; later errors are only consequences.
    """

    def __init__(self) -> None:
        self.lost = anyio.Event()
        """Event that is set when the connection is lost: no more messages can be received."""
        self.reason = ""
        """Reason for the loss of the connection, as a clause that follows "because"; "" while it works."""
        self.remarks: Callable[[], str] = str
        """Function that returns other output of the server, such as its stderr, to be added to the reason."""
        self.unfit = InvalidTools()
        """Filter for invalid tools; it keeps the reason for each tool that it removes from the server's lists."""

    def lose(self, reason: str) -> None:
        """Mark the connection as lost; only the first call has an effect."""
        if not self.lost.is_set():
            self.reason = reason + self.remarks()
            self.lost.set()


def is_end(error: MCPError, link: Link) -> bool:
    """Return whether a request failed because the connection ended."""
    # The code alone does not tell: servers also use it, as JSON-RPC's general error code, for errors of one call.
    return error.code == types.CONNECTION_CLOSED and (link.lost.is_set() or error.message.startswith(_END_PREFIXES))


@asynccontextmanager
async def watch_transport(transport: AbstractAsyncContextManager[Any], link: Link) -> AsyncGenerator[Any]:
    """Open a transport of the SDK for an `async with` block; mark `link` as lost when the connection ends."""
    # The link learns of the end before the SDK's session notices it.
    async with transport as (read, write):
        counter = _OpenRequests()
        yield _IncomingStream(read, link, counter), AnswerStream(write, counter.note_answer)


class _OpenRequests:
    """Counter of requests that a server has sent and the SDK has not answered; if it is high, no messages are read.

    A server may send requests faster than they are answered, so reading pauses. The pause is bounded, because a request
    may wait for a person, or never be answered because the server has withdrawn it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._has_fallen = anyio.Event()

    async def note_request(self) -> None:
        """Count a request of the server; if too many requests are unanswered, wait before more messages are read."""
        self._count += 1
        if self._count < _MOST_REQUESTS:
            return
        with anyio.move_on_after(_PAUSE) as pause:
            while self._count >= _MOST_REQUESTS:
                self._has_fallen = anyio.Event()
                await self._has_fallen.wait()
        if pause.cancelled_caught:
            # Some of them will never be answered. Count anew, or every further message would pause.
            self._count = 0

    def note_answer(self, _: object) -> None:
        """Count an answer to a request of the server; if reading is paused, let it continue."""
        if self._count:
            self._count -= 1
            self._has_fallen.set()


class AnswerStream(ObjectSendStream[Any]):
    """Stream for outgoing messages; after it has sent an answer, it calls `on_answer` with the id of the request."""

    def __init__(self, stream: Any, on_answer: Callable[[Any], object]) -> None:
        self._stream = stream
        self._on_answer = on_answer

    async def send(self, item: Any) -> None:
        await self._stream.send(item)
        if isinstance(item.message, (types.JSONRPCResponse, types.JSONRPCError)):
            self._on_answer(item.message.id)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _IncomingStream(ObjectReceiveStream[Any]):
    """Stream of messages from a server, without invalid tools; its end marks the connection as lost.

    It wraps the transport's stream directly, without a task or a buffer.
    """

    def __init__(self, stream: Any, link: Link, counter: _OpenRequests) -> None:
        self._stream = stream
        self._link = link
        self._counter = counter

    @property
    def last_context(self) -> Any:
        """Context variables of the task that sent the last message; `None` if the transport does not provide them."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        try:
            message = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            # Before the session fails its requests: `is_end()` looks at the link to tell why they failed.
            self._link.lose("the connection was closed")
            raise
        if isinstance(message, SessionMessage) and isinstance(message.message, types.JSONRPCRequest):
            await self._counter.note_request()
        return self._link.unfit.sift(message)

    async def aclose(self) -> None:
        await self._stream.aclose()
