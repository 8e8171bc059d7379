"""`Connection`: a session with an MCP server as an actor, whose task it belongs to."""

import logging
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import count
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import INVALID_REQUEST, CallToolResult, Tool, ToolListChangedNotification
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from callboard import Actor, ActorStartError, EngineError, handler
from callboard_actors.mcp._content import McpToolError
from callboard_actors.mcp._http import NO_ANSWER, NOT_SENT
from callboard_actors.mcp._link import ConnectionLostError, Link, is_end
from callboard_actors.mcp._listing import EndlessListError, list_tools, repeated_names
from callboard_actors.mcp._output_schemas import OutputSchemas
from callboard_actors.mcp._plan import Plan
from callboard_actors.mcp._questions import Questions
from callboard_actors.mcp._requests import ToolRequests
from callboard_actors.mcp._signs import log_message, meta_of_call, told_progress

for _late in ("jsonschema", "referencing.exceptions"):
    import_module(_late)  # the SDK loads them within the first call that has an output schema, and holds the event loop

_T = TypeVar("_T")

_log = logging.getLogger("callboard")
_sessions = count(1)

_SETTLES = 0.2
"""Seconds between two listings of tools that a server has changed; one may say so again and again."""
_LISTENS_AGAIN = 1.0
"""Seconds before a lost subscription is asked for again; twice as long each time."""
_LISTENS_AT_MOST = 60.0


class Owner(Protocol):
    """Who has connections to a server; told in the task of that without a key what there is to know of the server."""

    def listed(self, tools: Sequence[Tool], unfit: Mapping[str, str], /) -> None:
        """Take note of all its tools, and why some were left out: it was connected, or they have changed."""
        ...

    def failed(self, reason: str, /) -> None:
        """Take note of why it cannot be talked to."""
        ...


@dataclass(slots=True)
class Sending:
    """How far a call is; its caller knows by it, when the connection is lost, whether the server can have seen it."""

    has_begun: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered."""

    result: CallToolResult
    session: int
    """In which session; 0 if the server keeps nothing from one call to the next."""


class Connection(Actor):
    """A connection to an MCP server, which lives as long as its session does.

    The SDK's client is entered and left in the task of the actor, whoever calls. If the session is lost, the actor
    dies of it, and its supervisor starts another one.

    Args:
        plan: where the server is, and on which terms it is talked to.
        owner: told of its tools, and why it cannot be had.
    """

    def __init__(self, plan: Plan, owner: Owner) -> None:
        self._plan = plan
        self._owner = owner
        self._link = Link()
        self._is_started = False
        self._outputs = OutputSchemas()
        self._left_out: Mapping[str, str] = {}
        """Why tools were left out when they were last listed."""

    async def start(self) -> None:
        """Connect, and list the tools.

        Raises:
            ActorStartError: the server cannot be talked to; says why.
        """
        self._watchers: TaskGroup = await self.enter(anyio.create_task_group())
        self._watchers.start_soon(self._end_when_late)
        parallel = self._plan.parallel
        self._places = nullcontext() if parallel is None else anyio.CapacityLimiter(parallel)
        self._changed = anyio.Event()
        self._questions = Questions(self._plan.name, self._watchers, **self._plan.questions)
        try:
            self._client = await self.enter(await self._new_client())
            self._outputs.judge_for(self._client.session)
            self._link.unfit.most = self._plan.max_tools
            self._link.unfit.version = self._client.protocol_version
            await self._list()
        except Exception as error:
            raise self._not_started(error) from error
        self._is_started = True
        self._is_modern = self._client.protocol_version in MODERN_PROTOCOL_VERSIONS
        self._session = 0 if self._is_modern and self._plan.is_http else next(_sessions)
        await self._ask_for_logs()
        for watcher in (self._end_when_lost, self._list_when_changed, self._listen):
            self._watchers.start_soon(watcher)

    async def _new_client(self) -> Client:
        plan = self._plan
        return Client(
            await plan.way(self.key, self._link),
            mode=plan.mode,
            logging_callback=partial(log_message, plan.name),
            log_level=plan.log_level,
            message_handler=self._notified,
            **self._questions.callbacks,
        )

    def _not_started(self, error: Exception) -> ActorStartError:
        cause: BaseException = error
        while isinstance(cause, BaseExceptionGroup):  # the SDK's task groups
            cause = cause.exceptions[0]
        if isinstance(cause, OSError) and not self._plan.is_http:
            never = isinstance(cause, (FileNotFoundError, NotADirectoryError, PermissionError))
            return self._failed(f"its command cannot be started: {cause}", never=never)
        self._link.lose(f"{cause}" or repr(cause))
        return self._failed(self._link.reason)

    def _failed(self, reason: str, *, never: bool = False) -> ActorStartError:
        if self.key is None:
            self._owner.failed(reason)
        return ActorStartError(self._plan.name, reason, never=never)

    async def stop(self) -> None:
        """Close the session, and end the server if it is ours."""
        self._watchers.cancel_scope.cancel()

    @handler(group="calls")
    async def call(self, tool: str, arguments: Mapping[str, object], sending: Sending) -> Answer:
        """Call a tool of the server.

        Raises:
            EngineError: the request failed alone, over HTTP; says whether the server can have seen it.
            McpToolError: the server refuses it, or answers with what is no result.
        """
        async with self._places:
            sending.has_begun = True
            on_progress = partial(told_progress, copy_context())
            send = ToolRequests(
                self._client, tool, dict(arguments), relist=self._list, on_progress=on_progress, meta=meta_of_call()
            )
            try:
                result = await self._questions.call(tool, arguments, send, modern=self._is_modern)
            except MCPError as error:
                raise await self._judged(error, tool, sending) from error
            return Answer(result, self._session)

    @handler(group="calls")
    async def use(self, what: str, work: Callable[[Client], Awaitable[_T]]) -> _T:
        """Do something with the client that leaves no traces at the server, under the name `what`.

        Raises:
            EngineError: the request failed alone, over HTTP.
            McpToolError: the server refuses it, or answers with what is no result.
        """
        async with self._places:
            try:
                return await work(self._client)
            except MCPError as error:
                raise await self._judged(error, what, Sending(has_begun=True)) from error
            except (ValidationError, EndlessListError, RuntimeError) as error:
                raise McpToolError(f"The server's answer is no result of {what!r}: {error}") from error

    @handler(group="calls")
    async def list_tools(self) -> list[Tool]:
        """List the tools of the server anew."""
        return await self._list()

    async def _judged(self, error: MCPError, tool: str, sending: Sending) -> Exception:
        """What a failed request means for its caller; if it means that the session is lost, the actor ends here."""
        if self._plan.is_http:
            if error.code == INVALID_REQUEST and error.message == "Session terminated":
                sending.has_begun = False
                self._link.lose("it has ended the session")
                await anyio.sleep_forever()
            reason = f"the MCP server {self._plan.name!r} had no answer: {error.message}"
            if error.code == NO_ANSWER or is_end(error, self._link):
                return EngineError(tool, None, reason, ended="unknown")
            if error.code == NOT_SENT:
                return EngineError(tool, None, reason, ended="unavailable")
        elif is_end(error, self._link):
            self._link.lose("the connection was closed")
            await anyio.sleep_forever()  # all who wait learn the same, when the actor dies of it
        return McpToolError(f"The server refused the call of {tool!r}: {error.message}")

    async def _list(self) -> list[Tool]:
        unfit = self._link.unfit.reasons
        unfit.clear()
        tools = await list_tools(self._client, self._plan.max_tools)
        for name, why in unfit.items():
            if self._left_out.get(name) != why:
                _log.warning("the tool %r of the MCP server %r is left out: %s", name, self._plan.name, why)
        self._left_out = dict(unfit)
        self._outputs.learn(tools)
        if repeated := repeated_names(tools):
            _log.warning("the MCP server %r has several tools of one name: the last of %r", self._plan.name, repeated)
        if self.key is None:  # what a user may see is not what all may
            self._owner.listed(tools, self._left_out)
        return tools

    async def _ask_for_logs(self) -> None:
        """Of servers of 2026 each request asks; those before are asked once."""
        if self._plan.log_level is None or self._is_modern or self._client.server_capabilities.logging is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated by the version that this is not
            try:
                await self._client.set_logging_level(self._plan.log_level)  # pyright: ignore[reportDeprecated]
            except MCPError as error:
                _log.warning("the MCP server %r does not log as it is asked to: %s", self._plan.name, error)

    async def _end_when_late(self) -> None:
        await anyio.sleep(self._plan.start_timeout)
        if not self._is_started:
            self._link.lose(f"it did not answer within {self._plan.start_timeout:g} s")
            raise self._failed(self._link.reason)

    async def _end_when_lost(self) -> None:
        await self._link.until_lost()
        raise ConnectionLostError(self._plan.name, self._link.reason)

    async def _notified(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def _list_when_changed(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            try:
                await self._list()
            except (MCPError, ValidationError, EndlessListError) as error:
                _log.warning("the tools of the MCP server %r have changed, and: %s", self._plan.name, error)
            await anyio.sleep(_SETTLES)

    async def _listen(self) -> None:
        """Have a server of 2026 tell when its tools change; those before do without being asked."""
        tools = self._client.server_capabilities.tools
        if not self._is_modern or tools is None or not tools.list_changed:
            return
        wait = _LISTENS_AGAIN
        while True:
            try:
                async with self._client.listen(tools_list_changed=True) as events:
                    async for _ in events:
                        wait = _LISTENS_AGAIN
                        self._changed.set()
            except SubscriptionLost:
                pass
            except (MCPError, TimeoutError) as error:
                _log.info("the MCP server %r does not tell when its tools change: %s", self._plan.name, error)
            await anyio.sleep(wait)
            wait = min(2 * wait, _LISTENS_AT_MOST)
            self._changed.set()  # what it would have told meanwhile
