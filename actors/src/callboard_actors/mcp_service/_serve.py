"""Public functions `serve_mcp` and `mcp_app`, and the implementation of `callboard mcp`."""

import gc
import inspect
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Final, Literal

import anyio

from callboard import ActorStartError, Drained
from callboard.commands import NotThereError, load_named
from callboard_actors._util._loopback import is_loopback
from callboard_actors.mcp_service._http import PATH, McpApp, serve_http, url_host
from callboard_actors.mcp_service._service import Served, Service
from callboard_actors.mcp_service._stdio import StdioConnection, claim_stdio, serve_stdio
from callboard_actors.mcp_service._token import Token, check_token, take_token

Transport = Literal["stdio", "http"]
"""Name of a transport: "stdio" for the client that started this process, "http" for any client."""

HOST: Final = "127.0.0.1"
PORT: Final = 8000
"""Default address and port to listen on."""

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""Host names of the loopback interface, which clients on this machine use."""
_ANYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - for comparison only
_log = logging.getLogger("callboard")


async def serve_mcp(
    served: Served,
    *,
    transport: Transport = "stdio",
    name: str | None = None,
    description: str | None = None,
    host: str = HOST,
    port: int = PORT,
    allowed_hosts: Sequence[str] = (),
    token: Token | None = None,
    drain: float = 30.0,
) -> Drained:
    """Serve tools by MCP until the client leaves, or until SIGTERM or SIGINT; return the report of the drain.

    Args:
        served: a `ToolNode`, an agent, or tools (functions, LangChain tools, actors, MCP servers); or a function with
            `@asynccontextmanager` that yields one of these. MCP servers are opened while the tools are served.
        transport: "stdio" for the client that started this process, "http" for streamable HTTP.
        name: name of the server, for its clients.
        description: description of an agent, for the models of its clients.
        host: address to listen on, for HTTP.
        port: port to listen on, for HTTP; 0 for any free port, which is printed on stderr.
        allowed_hosts: further host names, without a port, that clients may use to reach the server.
        token: bearer token that all clients must send, or a mapping from client names to their tokens.
        drain: seconds for calls to finish after a signal; later ones are ended.

    Raises:
        TypeError: for an object that cannot be served.
        ValueError: for tools with arguments that only a graph provides, and for contradictory options.
        RuntimeError: for HTTP on trio; run `mcp_app` under an ASGI server that supports trio.
        OSError: if the address cannot be used.
    """
    if transport not in ("stdio", "http"):
        raise ValueError(f'serve_mcp(transport=...) is "stdio" or "http", got {transport!r}')
    if transport == "http":
        app = http_app(served, name=name, description=description, host=host, allowed_hosts=allowed_hosts, token=token)
        return await serve_http(app, host, port, drain)
    if token is not None or allowed_hosts or (host, port) != (HOST, PORT):
        raise ValueError(
            "serve_mcp(host=..., port=..., token=..., allowed_hosts=...) are for HTTP: give transport='http', too"
        )
    service = Service(served, name=name, description=description)
    with claim_stdio() as wire:
        return await serve_stdio(service, wire, drain)


def http_app(
    served: Served,
    *,
    name: str | None,
    description: str | None,
    host: str,
    allowed_hosts: Sequence[str],
    token: Token | None,
) -> McpApp:
    """Return the ASGI application for tools, to run at `host`; warn if other machines can reach it without a token."""
    if host in _ANYWHERE and not allowed_hosts:
        raise ValueError(
            f"clients come to {host} by some other name, and nobody is let in by a name that was not said: give "
            "allowed_hosts=[...], or --allow-host NAME, such as tools.example.com"
        )
    if not is_loopback(host) and token is None:
        _log.warning("whoever reaches %s may call these tools: have clients show a token, or listen at 127.0.0.1", host)
    own_names = () if host in _ANYWHERE or is_loopback(host) else (url_host(host),)
    names = [*_LOOPBACK, *own_names, *allowed_hosts]
    return mcp_app(served, name=name, description=description, allowed_hosts=names, token=token)


def mcp_app(
    served: Served,
    *,
    name: str | None = None,
    description: str | None = None,
    path: str = PATH,
    allowed_hosts: Sequence[str] = _LOOPBACK,
    token: Token | None = None,
) -> McpApp:
    """Return an ASGI application that serves tools by MCP over streamable HTTP, on asyncio and trio.

    Run it under an ASGI server, or mount it in another application that uses its `lifespan`. It can be passed to
    `drain_on_signal`.

    Args:
        served: as for `serve_mcp`, like `name`, `description` and `token`.
        name: of the server.
        description: of an agent.
        path: URL path of the MCP endpoint.
        allowed_hosts: host names, without a port, that clients may use to reach the server.
        token: of the clients.

    Raises:
        TypeError: for an object that cannot be served.
        ValueError: for tools with arguments that only a graph provides, for an empty token, and for equal tokens.
    """
    service = Service(served, name=name, description=description)
    check_token(token)
    return McpApp(service, path=path, allowed_hosts=allowed_hosts, token=token)


# The command: a process that serves until the client leaves, or until a signal.

FAILED, WRONG = 1, 2
"""Exit codes: the server could not start; the command line is wrong. The other codes are those of `Drained`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Command-line options of `callboard mcp`; the help texts in `_command` explain them."""

    tools: str
    name: str | None
    description: str | None
    http: bool
    host: str | None
    port: int | None
    allow_host: list[str] | None
    token_env: list[str] | None
    drain: float
    backend: str
    app_dir: Path


def run(options: Options) -> int:
    """Run `callboard mcp`: serve until the client leaves or a signal arrives, and return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("mcp").setLevel(logging.WARNING)
    with ExitStack() as stack:
        # Before the module is imported: its output must not reach the client.
        wire = None if options.http else stack.enter_context(claim_stdio())
        try:
            serve = _prepare(options, wire)
        except (ImportError, TypeError, ValueError) as error:
            return _fail(WRONG, f"{error}")
        # The garbage collector leaves out what was imported. Otherwise a request of many lists would start collections
        # of 100 ms each.
        gc.collect()
        gc.freeze()
        try:
            return anyio.run(serve, backend=options.backend).exit_code
        except (ActorStartError, OSError) as error:
            return _fail(FAILED, f"{error}")


def _prepare(options: Options, wire: StdioConnection | None) -> Callable[[], Awaitable[Drained]]:
    """Check the options, load the object to serve, and return the function that serves it."""
    # First of all, so that neither the user's module nor its subprocesses see the token in the environment.
    token = take_token(options.token_env or [])
    if options.http and options.backend == "trio":
        raise ValueError("--http runs uvicorn, which needs asyncio: leave --backend trio out")
    option_flags = {
        "--host": options.host is not None,
        "--port": options.port is not None,
        "--allow-host": bool(options.allow_host),
        "--token-env": bool(options.token_env),
    }
    if not options.http and (of_http := [name for name, is_given in option_flags.items() if is_given]):
        are = "are" if len(of_http) > 1 else "is"
        raise ValueError(f"{' and '.join(of_http)} {are} for clients that come by HTTP: give --http, too")
    try:
        module, served = load_named(options.tools, options.app_dir, example="tools")
    except NotThereError as error:
        raise ValueError(f"{error}; {_names_of(error.module)}" if error.module else f"{error}") from None
    except Exception as error:  # an error in the user's code: they need its traceback
        traceback.print_exception(error)
        raise ValueError(f"{options.tools} could not be loaded: {error!r}") from error
    if served is module:
        raise ValueError(f"which tools of {options.tools}? Write {options.tools}:NAME; {_names_of(module)}")
    if wire is not None:
        service = Service(served, name=options.name, description=options.description)
        return partial(serve_stdio, service, wire, options.drain)
    host = HOST if options.host is None else options.host
    app = http_app(
        served,
        name=options.name,
        description=options.description,
        host=host,
        allowed_hosts=options.allow_host or [],
        token=token,
    )
    return partial(serve_http, app, host, PORT if options.port is None else options.port, options.drain)


def _names_of(module: ModuleType) -> str:
    """Return a text that lists the names in `__all__` of a module, or else those that the module has not imported."""
    own_names = [name for name, value in vars(module).items() if not name.startswith("_") and _is_own(value, module)]
    return f"it has {', '.join(sorted(getattr(module, '__all__', own_names))) or 'nothing'}"


def _is_own(value: object, module: ModuleType) -> bool:
    if isinstance(value, type) or inspect.isroutine(value):
        return getattr(value, "__module__", None) == module.__name__
    # Other objects do not tell where they were made; no tool is among those of `typing` and `__future__`.
    return not isinstance(value, ModuleType) and type(value).__module__ not in ("typing", "__future__")


def _fail(code: int, text: str) -> int:
    print(f"Error: {text}", file=sys.stderr)  # noqa: T201 (output of a command)
    return code
