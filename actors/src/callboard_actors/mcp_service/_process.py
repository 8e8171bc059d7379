"""Implementation of `callboard mcp`: a process that serves tools by MCP until a signal."""

import logging
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from callboard import ActorStartError, Drained
from callboard.commands import load_named
from callboard_actors.mcp_service._serve import HOST, PORT, http_app, over_http
from callboard_actors.mcp_service._service import Service
from callboard_actors.mcp_service._stdio import StdioConnection, claimed_stdio, serve_stdio
from callboard_actors.mcp_service._token import take_token

FAILED, WRONG = 1, 2
"""Exit codes: the server could not start; the command line is wrong. The other codes are those of `Drained`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of the command line; the help texts in `_command` explain them."""

    tools: str
    name: str | None
    description: str | None
    http: bool
    host: str | None
    port: int | None
    allow_host: list[str]
    token_env: list[str]
    drain: float
    backend: str
    app_dir: Path


def run(options: Options) -> int:
    """Serve until the client leaves or a signal arrives; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("mcp").setLevel(logging.WARNING)
    with ExitStack() as stack:
        # Before the module is imported: its output must not reach the client.
        wire = None if options.http else stack.enter_context(claimed_stdio())
        try:
            serve = _planned(options, wire)
        except (ImportError, TypeError, ValueError) as error:
            return _said(WRONG, f"{error}")
        try:
            return anyio.run(serve, backend=options.backend).exit_code
        except (ActorStartError, OSError) as error:
            return _said(FAILED, f"{error}")


def _planned(options: Options, wire: StdioConnection | None) -> Callable[[], Awaitable[Drained]]:
    """Check the options, load the object to serve, and return the function that serves it."""
    # First of all, so that neither the user's module nor its subprocesses see the token in the environment.
    token = take_token(options.token_env)
    _check(options)
    served = _served(options)
    if wire is not None:
        service = Service(served, name=options.name, description=options.description)
        return partial(serve_stdio, service, wire, options.drain)
    host = HOST if options.host is None else options.host
    app = http_app(
        served,
        name=options.name,
        description=options.description,
        host=host,
        allowed_hosts=options.allow_host,
        token=token,
    )
    return partial(over_http, app, host, PORT if options.port is None else options.port, options.drain)


def _check(options: Options) -> None:
    """Raise ValueError for options that contradict each other."""
    if options.http and options.backend == "trio":
        raise ValueError("--http runs uvicorn, which needs asyncio: leave --backend trio out")
    given = {
        "--host": options.host is not None,
        "--port": options.port is not None,
        "--allow-host": bool(options.allow_host),
        "--token-env": bool(options.token_env),
    }
    if not options.http and (of_http := [name for name, is_given in given.items() if is_given]):
        are = "are" if len(of_http) > 1 else "is"
        raise ValueError(f"{' and '.join(of_http)} {are} for clients that come by HTTP: give --http, too")


def _served(options: Options) -> Any:
    try:
        module, found = load_named(options.tools, options.app_dir, example="tools")
    except (ImportError, ValueError):
        raise
    except Exception as error:  # an error in the user's code: they need its traceback
        traceback.print_exception(error)
        raise ValueError(f"{options.tools} could not be loaded: {error!r}") from error
    if found is module:
        public = sorted(name for name in vars(module) if not name.startswith("_"))
        raise ValueError(f"which tools of {options.tools}? Write {options.tools}:NAME; it has {', '.join(public)}")
    return found


def _said(code: int, what: str) -> int:
    print(f"Error: {what}", file=sys.stderr)  # noqa: T201
    return code
