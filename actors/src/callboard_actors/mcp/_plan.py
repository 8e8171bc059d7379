"""Targets of connections to MCP servers (a command, a URL, or an object of the SDK), and options of the connections."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from inspect import isawaitable
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, cast, get_args
from urllib.parse import urlsplit

from mcp_types import LoggingLevel
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callboard_actors._util._options import check_counts, check_durations, variables
from callboard_actors.mcp._http import http_transport
from callboard_actors.mcp._link import Link, watched
from callboard_actors.mcp._questions import OnElicit
from callboard_actors.mcp._sampling import Sampler
from callboard_actors.mcp._stdio import stdio_transport

# Targets.


@dataclass(frozen=True, slots=True)
class Command:
    """Target of a connection: a command, whose process is the server. Messages go over its stdin and stdout."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)  # may contain API keys
    cwd: str | None

    @property
    def name(self) -> str:
        return PurePath(self.argv[0]).name


@dataclass(frozen=True, slots=True)
class Url:
    """Target of a connection: the URL of a running server, reached over streamable HTTP."""

    url: str = field(repr=False)  # may contain an API key

    @property
    def name(self) -> str:
        return urlsplit(self.url).hostname or "mcp"


@dataclass(frozen=True, slots=True)
class Given:
    """Target of a connection: an object of the SDK.

    It is a server in this process, or a function that returns an SDK transport for each connection.
    """

    server: Any

    @property
    def name(self) -> str:
        return str(getattr(self.server, "name", None) or getattr(self.server, "__name__", "mcp"))


Target = Command | Url | Given


def target_of(
    target: object, *, env: Mapping[str, str] | None, cwd: str | PathLike[str] | None, http: Mapping[str, object]
) -> Target:
    """Return the argument `target` of `McpServer` as a `Command`, `Url` or `Given`.

    Raise `TypeError` or `ValueError` for a wrong target, or for options that do not fit it.
    """
    given = {"env": env, "cwd": cwd, **http}
    if isinstance(target, str):
        _check_options("a URL", given, ("env", "cwd"))
        return _url(target)
    if isinstance(target, Sequence):
        _check_options("a command", given, tuple(http))
        return _command(target, {} if env is None else variables("McpServer(env=...)", env), cwd)
    if target is None or isinstance(target, (bytes, type)):
        raise TypeError(f"McpServer(target) is {_KINDS}; got {target!r}")
    _check_options("a server of the SDK or a transport", given, tuple(given))
    if not callable(target) and not hasattr(target, "lifespan") and not hasattr(target, "streamable_http_app"):
        raise TypeError(f"McpServer(target) is {_KINDS}; got {target!r}")
    return Given(target)


_KINDS = (
    "a command as a list, such as ['npx', '-y', '@modelcontextprotocol/server-everything'], a URL, a server of the SDK "
    "or a function that makes a transport"
)


def _check_options(kind: str, given: Mapping[str, object], others: Sequence[str]) -> None:
    wrong = [name for name in others if given[name] is not None]
    if wrong:
        raise TypeError(f"McpServer({wrong[0]}=...) is not for {kind}; leave it out")


def _url(target: str) -> Url:
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(
            f"McpServer({target!r}) is no URL, which begins with http:// or https://; a command is a list: "
            f"McpServer({target.split()!r})"
        )
    return Url(target)


def _command(target: Sequence[object], env: dict[str, str], cwd: str | PathLike[str] | None) -> Command:
    words = [fspath(cast("Any", word)) if isinstance(word, PathLike) else word for word in target]
    if not words or not all(isinstance(word, str) for word in words) or not words[0]:
        raise ValueError(f"McpServer(target) is a command as a list of texts, the program first; got {target!r}")
    return Command(cast("list[str]", words), env, None if cwd is None else fspath(cwd))


# The plan.

Headers = Mapping[str, str] | Callable[[Hashable], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""HTTP headers for all connections, or a function from the key of a connection to its headers."""

_MODES = ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS)
_LOG_LEVELS = (None, *get_args(LoggingLevel))


@dataclass(frozen=True, slots=True, kw_only=True)
class McpBounds:
    """Limits of time and size of an `McpServer`.

    Args:
        start_timeout: seconds to connect and to list the tools.
        grace: seconds for a command's process to end, once before SIGTERM and once before SIGKILL.
        hold: seconds for which a call to a server of 2025 stays open while a person is asked.
        parallel: maximum number of simultaneous calls of a connection; further calls wait. `None` for no maximum.
        max_message: maximum size of one message of the server, in bytes.

    Raises:
        TypeError: if a number of seconds is not a number.
        ValueError: if a number is out of range.
    """

    start_timeout: float = 30.0
    grace: float = 2.0
    hold: float = 3600.0
    parallel: int | None = None
    max_message: int = 16 * 2**20

    def __post_init__(self) -> None:
        check_durations("McpBounds", start_timeout=self.start_timeout, hold=self.hold)
        check_durations("McpBounds", may_be_zero=True, grace=self.grace)
        parallel = 1 if self.parallel is None else self.parallel
        check_counts("McpBounds", [("max_message", self.max_message, 1), ("parallel", parallel, 1)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Target and options of an `McpServer`. Each connection is made from them, also after a restart of its actor."""

    name: str
    target: Target
    headers: Headers = field(default_factory=dict[str, str], repr=False)
    auth: Any = field(default=None, repr=False)
    mode: str
    bounds: McpBounds = field(default_factory=McpBounds)
    log_level: LoggingLevel | None
    on_elicit: OnElicit | None = None
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        words = {"mode": (self.mode, _MODES), "log_level": (self.log_level, _LOG_LEVELS)}
        for name, (word, known) in words.items():
            if word not in known:
                raise ValueError(f"McpServer({name}=...) is one of {known}, got {word!r}")

    @property
    def is_http(self) -> bool:
        """`True` if each message is an HTTP request of its own, which may fail while the connection goes on working."""
        return isinstance(self.target, Url)

    async def way(self, key: Hashable, link: Link) -> Any:
        """Return a new SDK transport for the connection with this key; `link` is told when the transport ends."""
        bounds = self.bounds
        match self.target:
            case Command(argv, env, cwd):
                transport: Any = stdio_transport(
                    argv, link, env=env, cwd=cwd, max_message=bounds.max_message, grace=bounds.grace
                )
            case Url(url):
                # Computed for each connection, so that a restarted actor gets fresh credentials.
                headers = await self._headers_of(key)
                transport = http_transport(
                    url, headers=headers, auth=self._auth_of(key), max_message=bounds.max_message
                )
            case Given(server):
                transport = server() if callable(server) else server
        return watched(transport, link) if isinstance(transport, AbstractAsyncContextManager) else transport

    async def _headers_of(self, key: Hashable) -> Mapping[str, str]:
        if isinstance(self.headers, Mapping):
            return self.headers
        found = self.headers(key)
        return await found if isawaitable(found) else found

    def _auth_of(self, key: Hashable) -> Any:
        is_auth = hasattr(self.auth, "async_auth_flow") and not isinstance(self.auth, type)
        return self.auth(key) if callable(self.auth) and not is_auth else self.auth
