"""Address of a server, and options of connections to it."""

from collections.abc import Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, cast, get_args

from mcp_types import LoggingLevel
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callboard_actors._server._store import check_seconds
from callboard_actors.mcp._link import Link, watched
from callboard_actors.mcp._targets import Command, Given, Target, Url

Headers = Mapping[str, str] | Callable[[Hashable], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""HTTP headers for all keys, or a function of the key."""

_MODES = ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS)
_LOG_LEVELS = (None, *get_args(LoggingLevel))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of every connection to a server; a restarted actor uses it again.

    `questions` are options of `Questions`, which answers the server's requests.
    """

    name: str
    target: Target
    headers: Headers = field(default_factory=dict[str, str], repr=False)
    auth: Any = field(default=None, repr=False)
    mode: str
    start_timeout: float
    grace: float
    max_message: int
    max_tools: int
    parallel: int | None
    log_level: LoggingLevel | None
    questions: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_seconds("McpServer", [("start_timeout", self.start_timeout, 0.001), ("grace", self.grace, 0)])
        counts = {"max_message": self.max_message, "max_tools": self.max_tools}
        for name, value in (counts if self.parallel is None else {**counts, "parallel": self.parallel}).items():
            if isinstance(value, bool) or not isinstance(cast("object", value), int) or value < 1:
                raise ValueError(f"McpServer({name}=...) is a number, at least 1; got {value!r}")
        words = {"mode": (self.mode, _MODES), "log_level": (self.log_level, _LOG_LEVELS)}
        for name, (word, known) in words.items():
            if word not in known:
                raise ValueError(f"McpServer({name}=...) is one of {known}, got {word!r}")

    @property
    def is_http(self) -> bool:
        """`True` if every message is an HTTP request of its own, which may fail alone."""
        return isinstance(self.target, Url)

    async def way(self, key: Hashable, link: Link) -> Any:
        """Return the transport for the SDK's client, for the actor of a key."""
        transport = await self._transport(key, link)
        return watched(transport, link) if isinstance(transport, AbstractAsyncContextManager) else transport

    async def _transport(self, key: Hashable, link: Link) -> Any:
        match self.target:
            case Command() as command:
                from callboard_actors.mcp._stdio import stdio_transport

                return stdio_transport(command, link, max_message=self.max_message, grace=self.grace)
            case Url(url):
                from callboard_actors.mcp._http import http_transport

                # Computed for each connection, so that a restarted actor gets fresh credentials.
                headers = await self._headers_of(key)
                return http_transport(url, headers=headers, auth=self._auth_of(key), max_message=self.max_message)
            case Given() as given:
                return given.connected()

    async def _headers_of(self, key: Hashable) -> Mapping[str, str]:
        if isinstance(self.headers, Mapping):
            return self.headers
        found = self.headers(key)
        return await found if isawaitable(found) else found

    def _auth_of(self, key: Hashable) -> Any:
        is_auth = hasattr(self.auth, "async_auth_flow") and not isinstance(self.auth, type)
        return self.auth(key) if callable(self.auth) and not is_auth else self.auth
