"""Targets of a connection: a command, a URL, or an object of the SDK."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, cast
from urllib.parse import urlsplit

from callboard_actors._util._environment import variables


@dataclass(frozen=True, slots=True)
class Command:
    """Server in a child process, reached over stdin and stdout."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)  # may contain API keys
    cwd: str | None

    @property
    def name(self) -> str:
        return PurePath(self.argv[0]).name


@dataclass(frozen=True, slots=True)
class Url:
    """Running server, reached over streamable HTTP."""

    url: str = field(repr=False)  # may contain an API key

    @property
    def name(self) -> str:
        return urlsplit(self.url).hostname or "mcp"


@dataclass(frozen=True, slots=True)
class Given:
    """Server of the SDK in this process, or a function that makes an SDK transport for each connection."""

    server: Any

    @property
    def name(self) -> str:
        return str(getattr(self.server, "name", None) or getattr(self.server, "__name__", "mcp"))

    def connected(self) -> Any:
        """Return the object to which the SDK's client connects."""
        return self.server() if callable(self.server) else self.server


Target = Command | Url | Given

Transports = Callable[[], AbstractAsyncContextManager[Any]]


def target_of(
    target: object, *, env: Mapping[str, str] | None, cwd: str | PathLike[str] | None, http: Mapping[str, object]
) -> Target:
    """Return the target that `McpServer` was given.

    Raises:
        TypeError: if the target has the wrong type, or an option is for another kind of target.
        ValueError: if a command is empty, or a URL is not valid.
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
