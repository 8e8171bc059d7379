"""Actor that owns the session with an MCP server (`Connection`), and the targets and options of connections."""

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from inspect import isawaitable
from itertools import count
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from mcp import Client, MCPError, types
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from callboard import Actor, ActorStartError, EngineError, handler, idempotency_key
from callboard import progress as tell_progress
from callboard.telemetry import carrier
from callboard_actors._util._backoff import Backoff
from callboard_actors._util._options import check_counts, check_environment, check_seconds
from callboard_actors.mcp._http import NO_ANSWER, NOT_SENT, http_transport
from callboard_actors.mcp._lines import MessageSizes
from callboard_actors.mcp._link import ConnectionLostError, Link, is_end, watch_transport
from callboard_actors.mcp._questions import OnElicit, Questions
from callboard_actors.mcp._schemas import OutputSchemas, is_small
from callboard_actors.mcp._stdio import stdio_transport
from callboard_actors.mcp._tools import EndlessListError, McpToolError, list_tools

# Targets.

Headers = Mapping[str, str] | Callable[[Hashable], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""HTTP headers for all connections, or a function from the key of a connection to its headers."""


@dataclass(frozen=True, slots=True)
class Command:
    """Target of a connection: a command that starts the server; messages go over the server's stdin and stdout."""

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
    headers: Headers = field(default_factory=dict[str, str], repr=False)
    auth: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return urlsplit(self.url).hostname or "mcp"


@dataclass(frozen=True, slots=True)
class SdkTarget:
    """Target of a connection: a server object of the MCP SDK, or a function that returns an SDK transport.

    The server object runs in this process. The function is called for each connection.
    """

    server: Any

    @property
    def name(self) -> str:
        return str(getattr(self.server, "name", None) or getattr(self.server, "__name__", "mcp"))


Target = Command | Url | SdkTarget


def target_of(
    target: object,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | PathLike[str] | None = None,
    headers: Headers | None = None,
    auth: Any = None,
) -> Target:
    """Return the argument `target` of `McpServer` as a `Command`, `Url` or `SdkTarget`."""
    options = {"env": env, "cwd": cwd, "headers": headers, "auth": auth}
    if isinstance(target, str):
        _check_options("a URL", options, ("env", "cwd"))
        parts = urlsplit(target)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(
                f"McpServer({target!r}) is no URL, which begins with http:// or https://; a command is a list: "
                f"McpServer({target.split()!r})"
            )
        return Url(target, headers or {}, auth)
    if isinstance(target, Sequence):
        _check_options("a command", options, ("headers", "auth"))
        environment = {} if env is None else check_environment("McpServer(env=...)", env)
        arguments = [fspath(word) if isinstance(word, PathLike) else word for word in target]
        if not arguments or not all(isinstance(word, str) for word in arguments) or not arguments[0]:
            raise ValueError(f"McpServer(target) is a command as a list of texts, the program first; got {target!r}")
        return Command(arguments, environment, None if cwd is None else fspath(cwd))
    if target is None or isinstance(target, (bytes, type)):
        raise TypeError(f"McpServer(target) is {_KINDS}; got {target!r}")
    _check_options("a server of the SDK or a transport", options, tuple(options))
    if not callable(target) and not hasattr(target, "lifespan") and not hasattr(target, "streamable_http_app"):
        raise TypeError(f"McpServer(target) is {_KINDS}; got {target!r}")
    return SdkTarget(target)


_KINDS = (
    "a command as a list, such as ['npx', '-y', '@modelcontextprotocol/server-everything'], a URL, a server of the SDK "
    "or a function that makes a transport"
)


def _check_options(kind: str, options: Mapping[str, object], unsuitable: Sequence[str]) -> None:
    conflicts = [name for name in unsuitable if options[name] is not None]
    if conflicts:
        raise TypeError(f"McpServer({conflicts[0]}=...) is not for {kind}; leave it out")


# The plan.

_MODES = ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpBounds:
    """Limits of time and size of an `McpServer`.

    Args:
        start_timeout: seconds to connect and to list the tools.
        grace: seconds for a command's process to end, once before SIGTERM and once before SIGKILL.
        hold: seconds for which a call to a server of 2025 stays open while a person is asked.
        parallel: maximum number of simultaneous calls of a connection; further calls wait. `None` for no maximum.
        max_arguments: maximum size of the arguments of one call, in characters; each value counts for ten. The event
            loop stands still while the SDK writes them, for about five milliseconds a million.
        max_message: maximum size of one message of the server, in bytes.
        max_values: maximum number of values (texts, numbers, lists, objects) in one message of a command or a URL; the
            event loop stands still while they are read, for about a microsecond each.

    Raises:
        TypeError: if a number of seconds is not a number.
        ValueError: if a number is out of range.
    """

    start_timeout: float = 30.0
    grace: float = 2.0
    hold: float = 3600.0
    parallel: int | None = None
    max_arguments: int = 1_000_000
    max_message: int = 16 * 2**20
    max_values: int = 20_000

    def __post_init__(self) -> None:
        check_seconds("McpBounds", start_timeout=self.start_timeout, hold=self.hold)
        check_seconds("McpBounds", least=0.0, grace=self.grace)
        parallel = 1 if self.parallel is None else self.parallel
        sizes = ("max_arguments", "max_message", "max_values")
        check_counts("McpBounds", [("parallel", parallel, 1), *((name, getattr(self, name), 1) for name in sizes)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Target and options of an `McpServer`, used for each connection of its actors, also after a restart."""

    name: str
    target: Target
    mode: str
    bounds: McpBounds = field(default_factory=McpBounds)
    on_elicit: OnElicit | None = None

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(f"McpServer(mode=...) is one of {_MODES}, got {self.mode!r}")

    @property
    def is_http(self) -> bool:
        """`True` for a URL target: each message is a separate HTTP request, and one may fail without the others."""
        return isinstance(self.target, Url)

    async def transport_for(self, key: Hashable, link: Link) -> Any:
        """Return a new SDK transport for the connection of `key`; when the transport ends, `link` becomes lost."""
        bounds = self.bounds
        sizes = MessageSizes(bounds.max_message, bounds.max_values)
        match self.target:
            case Command(argv, env, cwd):
                transport: Any = stdio_transport(argv, link, env=env, cwd=cwd, sizes=sizes, grace=bounds.grace)
            case Url(url, headers, auth):
                # Computed for each connection, so that a restarted actor gets fresh credentials.
                is_function = callable(auth) and (isinstance(auth, type) or not hasattr(auth, "async_auth_flow"))
                key_auth: Any = auth(key) if is_function else auth
                fields = headers(key) if callable(headers) else headers
                fields = await fields if isawaitable(fields) else fields
                transport = http_transport(url, headers=fields, auth=key_auth, sizes=sizes)
            case SdkTarget(server):
                transport = server() if callable(server) else server
        return watch_transport(transport, link) if isinstance(transport, AbstractAsyncContextManager) else transport


# Metadata of calls (`_meta`), and the server's progress.

IDEMPOTENCY_KEY = "callboard/idempotency-key"
"""Name of the field for the idempotency key in `_meta`. The protocol reserves names with a prefix for extensions."""


def meta_of_call() -> types.RequestParamsMeta:
    """Return the field `_meta` for the request of the current call: its trace context and its idempotency key."""
    meta: dict[str, object] = {**carrier()}
    with suppress(RuntimeError, ValueError):  # not called by a tool, or with arguments that have no JSON form
        meta[IDEMPOTENCY_KEY] = idempotency_key()
    return cast("types.RequestParamsMeta", meta)


async def report_progress(context: Context, progress: float, total: float | None, message: str | None) -> None:
    """Report a server's progress notification as progress of the call to which the notification belongs."""
    # The SDK runs this in another task, so the context of the call is an argument.
    # A copy, because a context can be entered only once at a time, and reports may overlap with the call.
    context.copy().run(tell_progress, message or "", done=_amount(progress), total=_amount(total))


def _amount(value: float | None) -> float | None:
    """Return a number of a progress notification; `None` if the number is negative, not finite or missing."""
    return value if value is not None and 0 <= value < math.inf else None


for _module in ("jsonschema", "referencing.exceptions"):
    import_module(_module)  # otherwise the SDK imports them within the first call, which blocks the event loop

# The connection.

T = TypeVar("T")

_log = logging.getLogger("callboard")
_sessions = count(1)

_LIST_PAUSE = 0.2
"""Minimum seconds between two listings of the tools; a server may report changes very often."""
_FIRST_LISTEN_PAUSE = 1.0
"""Seconds before a lost subscription to tool changes is renewed; doubled after each failure."""
_LONGEST_LISTEN_PAUSE = 60.0
"""Maximum seconds before a lost subscription is renewed."""


class Catalog:
    """Tools in the last list that an MCP server sent, or the reason why the server cannot be used.

    Only the connection without a key writes to it, from its own task.
    """

    def __init__(self) -> None:
        self.tools: dict[str, types.Tool] = {}
        self.capabilities: types.ServerCapabilities | None = None
        self.unfit: Mapping[str, str] = {}
        """Reasons why tools were left out of the list, by tool name."""
        self.failure = ""


@dataclass(slots=True)
class Sending:
    """Record of whether the request of a tool call may have been sent to the server.

    After a lost connection, it tells whether the server may have seen the call.
    """

    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a tool call, and the number of the server session in which the call was made."""

    result: types.CallToolResult
    session: int
    """Number of the session; 0 if the server keeps no state between calls."""


class Connection(Actor):
    """Actor that keeps one connection to an MCP server, with one session.

    The SDK's client is entered and left in the actor's task, whichever task calls, because its cancel scopes belong to
    one task. If the session is lost, the actor fails, and its supervisor starts it again.
    """

    def __init__(self, plan: Plan, catalog: Catalog) -> None:
        self._plan = plan
        self._catalog = catalog
        self._link = Link()
        self._is_started = False
        self._outputs = OutputSchemas()
        self._left_out: Mapping[str, str] = {}
        """Reasons why tools were left out of the last list of tools, by tool name; each reason is logged once."""

    async def start(self) -> None:
        """Connect to the server, and list its tools."""
        # Entered before the client: `_end_when_late()` must run while the client connects.
        self._watchers: TaskGroup = await self.enter(anyio.create_task_group())
        self._watchers.start_soon(self._end_when_late)
        parallel = self._plan.bounds.parallel
        self._capacity = nullcontext() if parallel is None else anyio.CapacityLimiter(parallel)
        self._changed = anyio.Event()
        plan = self._plan
        self._questions = Questions(plan.name, self._watchers, on_elicit=plan.on_elicit, hold=plan.bounds.hold)
        try:
            # Entering the client may block for ever; `_end_when_late()` then fails the actor.
            transport = await plan.transport_for(self.key, self._link)
            callbacks = self._questions.callbacks
            client = Client(transport, mode=plan.mode, message_handler=self._on_notification, **callbacks)
            self._client = await self.enter(client)
            # Results are judged within a budget; the SDK would validate them in the event loop without any limit.
            self._client.session.validate_tool_result = self._outputs.judge  # type: ignore[method-assign]  # see above
            self._link.unfit.version = self._client.protocol_version
            await self._list()
        except Exception as error:
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):  # the SDK's task groups wrap the error, maybe several times
                cause = cause.exceptions[0]
            if isinstance(cause, OSError) and not plan.is_http:
                # Another attempt cannot help if the program is missing or not executable.
                is_permanent = isinstance(cause, (FileNotFoundError, NotADirectoryError, PermissionError))
                raise self._start_error(f"its command cannot be started: {cause}", is_permanent=is_permanent) from error
            self._link.lose(f"{cause}" or repr(cause))
            raise self._start_error(self._link.reason) from error
        self._is_started = True
        self._is_modern = self._client.protocol_version in MODERN_PROTOCOL_VERSIONS
        # Servers of 2026 keep no session over HTTP, so a new connection loses nothing and is not reported.
        self._session = 0 if self._is_modern and self._plan.is_http else next(_sessions)
        for watcher in (self._end_when_lost, self._list_when_changed, self._listen):
            self._watchers.start_soon(watcher)

    def _start_error(self, reason: str, *, is_permanent: bool = False) -> ActorStartError:
        if self.key is None:
            self._catalog.failure = reason
        return ActorStartError(self._plan.name, reason, is_permanent=is_permanent)

    async def stop(self) -> None:
        """Close the session with the server, and end the server's process if there is one."""
        self._watchers.cancel_scope.cancel()

    @handler(group="calls")
    async def call(self, tool: str, arguments: Mapping[str, object], sending: Sending) -> Answer:
        """Call a tool; raise `EngineError` if only this HTTP request failed, `McpToolError` if the call was refused."""
        async with self._capacity:
            # The idempotency key is a digest of all arguments.
            meta = meta_of_call() if is_small(arguments) else await anyio.to_thread.run_sync(meta_of_call)
            # Set before anything is sent: from here the server may see the request, so it must not be sent again.
            sending.has_begun = True
            send = partial(
                self._client.session.call_tool,
                tool,
                dict(arguments),
                progress_callback=partial(report_progress, copy_context()),
                meta=meta,
                allow_input_required=True,
            )
            send_with_answers = partial(self._send_call, tool, send)
            try:
                result = await self._questions.call(tool, arguments, send_with_answers, modern=self._is_modern)
            except MCPError as error:
                raise await self._error_of_request(error, tool, sending) from error
            return Answer(result, self._session)

    async def _send_call(
        self, tool: str, send: Callable[..., Awaitable[T]], responses: types.InputResponses | None, state: str | None, /
    ) -> T:
        """Send a tool call, with the answers to the server's previous requests (if any), and return the response."""
        # `responses` are the answers to its requests; `state` is its `requestState`.
        send_once = partial(send, input_responses=responses, request_state=state)
        try:
            try:
                return await send_once()
            except MCPError as error:
                if error.code != types.HEADER_MISMATCH:
                    raise
            # The tool's schema, which defines headers, has changed since it was listed. The server has refused the
            # request because of its headers, so sending it again cannot run the tool twice.
            await self._list()
            return await send_once()
        except (ValidationError, RuntimeError) as error:
            raise _no_result(tool, error) from error

    @handler(group="calls")
    async def use(self, name: str, operation: Callable[[Client], Awaitable[T]]) -> T:
        """Run a read-only operation with the MCP client, and return its result; errors have its `name`."""
        async with self._capacity:
            try:
                return await operation(self._client)
            except MCPError as error:
                raise await self._error_of_request(error, name, Sending(has_begun=True)) from error
            except (ValidationError, EndlessListError, RuntimeError) as error:
                raise _no_result(name, error) from error

    @handler(group="calls")
    async def list_tools(self) -> list[types.Tool]:
        """List the tools of the server again, and update the catalog."""
        return await self._list()

    async def _error_of_request(self, error: MCPError, tool: str, sending: Sending) -> Exception:
        """Return the error to raise for a failed request; if the session is lost, wait until this actor fails."""
        # If the session is lost, this never returns: the actor fails and ends all calls.
        if self._plan.is_http:
            if error.code == types.INVALID_REQUEST and error.message == "Session terminated":
                # The server checks the session before it handles a request, so this one can be sent again.
                sending.has_begun = False
                self._link.lose("it has ended the session")
                await anyio.sleep_forever()  # until the actor fails, which ends this call
            reason = f"the MCP server {self._plan.name!r} had no answer: {error.message}"
            if error.code == NO_ANSWER or is_end(error, self._link):
                return EngineError(tool, None, reason, ended="unknown")
            if error.code == NOT_SENT:
                return EngineError(tool, None, reason, ended="unavailable")
        elif is_end(error, self._link):
            self._link.lose("the connection was closed")
            await anyio.sleep_forever()  # until the actor fails, so that all waiting calls get the same error
        return McpToolError(f"The server refused the call of {tool!r}: {error.message}")

    async def _list(self) -> list[types.Tool]:
        # The link fills these reasons while the SDK receives the pages of the list.
        self._link.unfit.begin_list()
        tools = await list_tools(self._client)
        unfit = self._link.unfit.reasons
        for name, reason in unfit.items():
            if self._left_out.get(name) != reason:
                _log.warning("the tool %r of the MCP server %r is left out: %s", name, self._plan.name, reason)
        self._left_out = dict(unfit)
        self._outputs.learn(tools)
        counts = Counter(tool.name for tool in tools)
        if names := sorted(name for name, count in counts.items() if count > 1):
            _log.warning("the MCP server %r has several tools of one name: the last of %r", self._plan.name, names)
        if self.key is None:  # a connection with a key may list tools that only its user may see
            self._catalog.capabilities = self._client.server_capabilities
            self._catalog.tools = {tool.name: tool for tool in tools}
            self._catalog.unfit = self._left_out
        return tools

    async def _end_when_late(self) -> None:
        await anyio.sleep(self._plan.bounds.start_timeout)
        # A failed watcher ends the task group, and with it a client that is still connecting.
        if not self._is_started:
            self._link.lose(f"it did not answer within {self._plan.bounds.start_timeout:g} s")
            raise self._start_error(self._link.reason)

    async def _end_when_lost(self) -> None:
        await self._link.lost.wait()
        raise ConnectionLostError(self._plan.name, self._link.reason)

    async def _on_notification(self, message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._changed.set()

    async def _list_when_changed(self) -> None:
        while True:
            await self._changed.wait()
            # A new event before the listing: changes during it cause another one.
            self._changed = anyio.Event()
            try:
                await self._list()
            except (MCPError, ValidationError, EndlessListError) as error:
                _log.warning("the tools of the MCP server %r have changed, and: %s", self._plan.name, error)
            await anyio.sleep(_LIST_PAUSE)

    async def _listen(self) -> None:
        """Subscribe to changes of the tool list, and renew a lost subscription."""
        # Only servers of 2026 need this; older ones report changes without a subscription.
        tools = self._client.server_capabilities.tools
        if not self._is_modern or tools is None or not tools.list_changed:
            return
        backoff = Backoff(_FIRST_LISTEN_PAUSE, _LONGEST_LISTEN_PAUSE)
        while True:
            try:
                async with self._client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        backoff.reset()
                        self._changed.set()
            except SubscriptionLost:
                pass  # listens again below
            except (MCPError, TimeoutError) as error:
                _log.info("the MCP server %r does not tell when its tools change: %s", self._plan.name, error)
            await anyio.sleep(backoff.next_pause())
            self._changed.set()  # changes during the interruption were not reported


def _no_result(request: str, error: Exception) -> McpToolError:
    return McpToolError(f"The server's answer is no result of {request!r}: {error}")
