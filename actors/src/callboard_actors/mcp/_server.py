"""`McpServer`: the tools of an MCP server, for as many agents as like."""

import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool

from callboard import ActorDiedError, ActorGoneError, ActorStartError, EngineError, Keyed, child, keyed
from callboard_actors._extras import needs
from callboard_actors.mcp._library import Library, T
from callboard_actors.mcp._memory import SeenSessions
from callboard_actors.mcp._options import check_options
from callboard_actors.mcp._targets import target_of

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from mcp import Client
    from mcp_types import CallToolResult, LoggingLevel, Tool

    from callboard_actors.mcp._connection import Answer, Connection
    from callboard_actors.mcp._plan import Headers
    from callboard_actors.mcp._questions import OnElicit

_log = logging.getLogger("callboard")

KeyOf = Callable[[RunnableConfig], Hashable]
"""Says by the config of a run whose connection its calls take."""

_TRIES = 3
"""Connections that a call waits for, if they are lost before it was sent."""
_SPARE = 20.0
"""Seconds that the end of a failed start may take, beside its timeout."""
_LEFT_ALONE = 3.0
"""Seconds that the end of a connection may take, beside the grace of its process; a start that goes on has as many."""


class McpServer(Library):
    """An MCP server, whose tools are there while the block is.

        async with McpServer(["npx", "-y", "@modelcontextprotocol/server-everything"]) as server:
            print(await server.call("echo", {"message": "hello"}))
            agent = create_react_agent(model, ToolNode([server]))

    The session belongs to an actor: a task of its own, which its supervisor starts again if the connection is lost.
    Calls of any number of agents, threads and event loops share it. A call that was under way when it was lost ends as
    unknown, and is not sent again; one that waited is sent over the next connection.

    Args:
        target: a command as a list, the program first; a URL of streamable HTTP; a server of the SDK in this process;
            or a function that makes a transport of the SDK.
        env: environment variables for a command, beside a few that every command has, such as PATH and HOME.
        cwd: the working directory of a command.
        headers: of each HTTP request; or a function of the key that returns them, async or not.
        auth: of each HTTP request, an `httpx2.Auth` such as an OAuth provider of the SDK; or a function of the key.
        name: what to call it; the program's or the host's by default.
        prefix: of the names of its tools, as models see them, such as "files_".
        allow: names of the tools that are wanted; all by default.
        deny: names of those that are not.
        key: a function of a run's config that says whose connection its calls take, such as
            `lambda config: config["configurable"]["user"]`; there is one for each key. By default all share one.
        cap: with a key, how many connections there are at once; the one that was used least recently goes first.
        idle: with a key, seconds after which a connection goes that nobody uses.
        parallel: how many calls a connection has at once; others wait.
        mode: "auto" for any version of the protocol, "legacy" for those with a handshake, or a version.
        log_level: from which level on the server is to log, to the logger `callboard.mcp`.
        on_elicit: answers what the server asks of a person. Without it a person is asked by an interrupt, where a
            `ToolNode` runs the call, and elsewhere the server is told that nobody wants to answer.
        hold: seconds for which a call of a server of 2025 stays open while a person is asked.
        sampling: a model that the server may ask; or `True` for that of the agent whose call it is, which has to be
            one of `create_react_agent`. By default it may ask none.
        resources: whether a model has tools to list and to read the server's resources.
        prompts: whether it has tools to list and to read its prompts.
        start_timeout: seconds to connect and to list the tools.
        grace: seconds for the process of a command to end by itself, before SIGTERM and before SIGKILL.
        max_message: bytes that one message of the server may have.
        max_tools: how many tools it may have.
        intensity: how many times within `period` seconds a lost connection is made again for those who wait; after
            that they fail, and the next call tries anew.
        period: seconds.

    Raises:
        ImportError: without the extra `mcp`.
        TypeError: it is not said where the server is, or an option is not for that.
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        target: "Sequence[str | PathLike[str]] | str | Any",
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        headers: "Headers | None" = None,
        auth: Any = None,
        name: str | None = None,
        prefix: str = "",
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        key: KeyOf | None = None,
        cap: int | None = None,
        idle: float | None = None,
        parallel: int | None = None,
        mode: str = "auto",
        log_level: "LoggingLevel | None" = None,
        on_elicit: "OnElicit | None" = None,
        hold: float = 3600.0,
        sampling: "BaseChatModel | bool | None" = None,
        resources: bool = False,
        prompts: bool = False,
        start_timeout: float = 30.0,
        grace: float = 2.0,
        max_message: int = 16 * 2**20,
        max_tools: int = 1000,
        intensity: int = 3,
        period: float = 60.0,
    ) -> None:
        needs("McpServer(...)", "mcp", extra="mcp")
        from callboard_actors.mcp._connection import Connection
        from callboard_actors.mcp._listing import Choice
        from callboard_actors.mcp._plan import Plan
        from callboard_actors.mcp._sampling import sampler_of

        found = target_of(target, env=env, cwd=cwd, http={"headers": headers, "auth": auth})
        check_options(name, prefix, key, {"cap": cap, "idle": idle})
        self.name = name or found.name
        plan = Plan(
            name=self.name,
            target=found,
            headers=headers or {},
            auth=auth,
            mode=mode,
            start_timeout=start_timeout,
            grace=grace,
            max_message=max_message,
            max_tools=max_tools,
            parallel=parallel,
            log_level=log_level,
            questions={"on_elicit": on_elicit, "hold": hold, "sampler": sampler_of(sampling, self.name)},
        )
        self._prefix = prefix
        self._shelves = {"resources": resources, "prompts": prompts}
        self._choice = Choice(allow, deny)
        self._key_of = key
        self._books = _Books()
        self._spec = child(
            Connection(plan, self._books),
            name=self.name,
            cap=cap,
            idle=idle,
            start_timeout=start_timeout + _SPARE,
            stop_timeout=2 * grace + _LEFT_ALONE,
            intensity=intensity,
            period=period,
        )
        self._sessions = SeenSessions()
        self._connections: Keyed[Connection] | None = None
        self._opened = AsyncExitStack()

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            ActorStartError: the server cannot be had; says why.
            ValueError: a tool that is allowed or denied does not exist, or there are no resources or prompts.
        """
        if self.is_open:
            raise RuntimeError(f"{self!r} is open already; one block at a time")
        async with AsyncExitStack() as opened:
            self._connections = await opened.enter_async_context(keyed(self._spec))
            opened.callback(self._closed)
            tools = await self.list_tools()
            self._choice.check(self.name, [tool.name for tool in tools], self._books.unfit)
            await self._check_shelves()
            self._warn_of_names()
            self._opened = opened.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._opened.__aexit__(kind, error, traceback) or False

    def _closed(self) -> None:
        self._connections = None

    @property
    def is_open(self) -> bool:
        """Whether a block of it runs, so that its tools are known."""
        return self._connections is not None

    @property
    def tools(self) -> list[BaseTool]:
        """Its tools as the server has last listed them, for a `ToolNode` or a model.

        Raises:
            RuntimeError: it is not open.
        """
        from callboard_actors.mcp._reading import prompt_tools, resource_tools
        from callboard_actors.mcp._tools import as_langchain_tool

        self._open()
        wanted = self._choice.of(list(self._books.tools.values()))
        tools = [as_langchain_tool(tool, prefix=self._prefix, call=self._call_of_model) for tool in wanted]
        if self._shelves["resources"]:
            tools += resource_tools(self._use_of_model, self._prefix)
        if self._shelves["prompts"]:
            tools += prompt_tools(self._use_of_model, self._prefix)
        return tools

    def get_tools(self) -> list[BaseTool]:
        """The same, as toolkits of LangChain have it; what `ToolNode([server])` asks for."""
        return self.tools

    async def list_tools(self) -> "list[Tool]":
        """List its tools anew, all of them, as the protocol describes them.

        Raises:
            ActorStartError: the server cannot be had; says why.
            RuntimeError: it is not open.
        """
        try:
            return await self._open()[None].list_tools()
        except ActorGoneError as gone:
            raise ActorStartError(self.name, self._books.failure or gone.reason) from gone

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, key: Hashable = None
    ) -> "CallToolResult":
        """Call a tool, and return its result as the protocol has it, also one that says that it failed.

        Args:
            tool: its name, without a prefix.
            arguments: for it.
            key: whose connection it takes, where there is one for each key.

        Raises:
            ActorGoneError: there is no connection; the call was not sent.
            ActorDiedError: the connection was lost while it was under way; whether it had its effect is unknown.
            EngineError: the same of one request over HTTP; its `ended` says which.
            McpToolError: the server refuses it.
            RuntimeError: it is not open.
        """
        return (await self._answer(tool, dict(arguments or {}), key)).result

    async def _call_of_model(self, tool: str, arguments: dict[str, Any]) -> "tuple[CallToolResult, str]":
        from callboard_actors.mcp._content import McpToolError
        from callboard_actors.mcp._listing import no_tool

        config = ensure_config()
        key = None if self._key_of is None else self._key_of(config)
        conversation = (key, config.get("configurable", {}).get("thread_id"))
        self._open()
        if tool not in self._books.tools:
            wanted = [one.name for one in self._choice.of(self._books.tools.values())]
            raise McpToolError(
                f"Not started: {no_tool(self.name, tool, wanted, self._books.unfit)}. It had this tool before."
            )
        try:
            answer = await self._answer(tool, arguments, key)
        except ActorDiedError:
            self._sessions.is_told(conversation)
            raise
        lost = self._sessions.is_news(conversation, answer.session)
        notice = f"The connection to {self.name} was made anew; what its session held is lost."
        return answer.result, notice if lost else ""

    async def _answer(self, tool: str, arguments: dict[str, Any], key: Hashable) -> "Answer":
        from callboard_actors.mcp._connection import Sending

        for left in reversed(range(_TRIES)):
            sending = Sending()
            try:
                return await self._open()[key].call(tool, arguments, sending)
            except ActorDiedError as died:
                if sending.has_begun:
                    raise ActorDiedError(tool, died.call_id, died.reason) from died.__cause__
                if not left:
                    raise ActorGoneError(tool, died.call_id, died.reason) from died
            except ActorGoneError as gone:
                raise ActorGoneError(tool, gone.call_id, gone.reason) from gone.__cause__
            except EngineError as failed:
                raise failed from failed.__cause__
        raise AssertionError("the last one returns or raises")

    async def _use(self, what: str, work: "Callable[[Client], Awaitable[T]]", key: Hashable) -> T:
        for left in reversed(range(_TRIES)):
            try:
                return await cast("Awaitable[T]", self._open()[key].use(what, work))
            except ActorDiedError as died:
                if not left:
                    raise ActorGoneError(what, died.call_id, died.reason) from died
        raise AssertionError("the last one returns or raises")

    async def _use_of_model(self, what: str, work: "Callable[[Client], Awaitable[T]]") -> T:
        key = None if self._key_of is None else self._key_of(ensure_config())
        return await self._use(what, work, key)

    async def _check_shelves(self) -> None:
        """Refuse to offer what the server does not have: a model would find nothing, again and again."""
        if not any(self._shelves.values()):
            return
        from callboard_actors.mcp._reading import capabilities

        has = await self._use("capabilities", capabilities, None)
        for name, is_wanted in self._shelves.items():
            if is_wanted and getattr(has, name) is None:
                raise ValueError(f"McpServer({name}=True): the MCP server {self.name!r} has no {name}; leave it out")

    def _warn_of_names(self) -> None:
        from callboard_actors.mcp._listing import refused_names

        if refused := refused_names(tool.name for tool in self.tools):
            _log.warning(
                "the MCP server %r has tools with names that some models refuse, and all other tools with them: %r; "
                "McpServer(deny=[...]) leaves them out",
                self.name,
                refused,
            )

    def _open(self) -> "Keyed[Connection]":
        if self._connections is None:
            raise RuntimeError(
                f"{self!r} is not open, so that its tools are not known: async with {self!r} as server: ..."
            )
        return self._connections


class _Books:
    """What is known of a server."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.unfit: Mapping[str, str] = {}
        self.failure = ""

    def listed(self, tools: "Sequence[Tool]", unfit: Mapping[str, str]) -> None:
        self.tools = {tool.name: tool for tool in tools}
        self.unfit = unfit

    def failed(self, reason: str) -> None:
        self.failure = reason
