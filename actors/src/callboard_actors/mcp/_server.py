"""`McpServer`: tools, resources and prompts of an MCP server, shared by any number of agents."""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import anyio.to_thread
from langchain_core.documents.base import Blob
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool
from mcp import Client, types

from callboard import ActorDiedError, ActorGoneError, ActorStartError, Keyed, child, keyed
from callboard.extend import Openable
from callboard_actors._util._sendable import reason_unsendable
from callboard_actors.mcp import _tools
from callboard_actors.mcp._connection import Answer, Catalog, Connection, Headers, McpBounds, Plan, Sending, target_of
from callboard_actors.mcp._questions import OnElicit
from callboard_actors.mcp._schemas import is_small
from callboard_actors.mcp._tools import McpToolError

T = TypeVar("T")

# Lost sessions, which are reported to each conversation once.

_MOST_CONVERSATIONS = 4096
"""Maximum number of conversations whose session is remembered; the least recently used is forgotten."""


class SeenSessions:
    """Record of the last server session of each conversation; it shows when a model must be told of a lost session."""

    def __init__(self) -> None:
        self._sessions_by_conversation: OrderedDict[Hashable, int | None] = OrderedDict()

    def is_news(self, conversation: Hashable, session: int) -> bool:
        """Record the session of a conversation; return whether the model must be told that the last session is lost."""
        # A server without state: nothing can be lost.
        if not session:
            return False
        before = self._sessions_by_conversation.get(conversation)
        self.note(conversation, session)
        return before is not None and before != session

    def note(self, conversation: Hashable, session: int | None) -> None:
        """Record a conversation's current session; `None` means that the model already knows of a lost session."""
        self._sessions_by_conversation[conversation] = session
        self._sessions_by_conversation.move_to_end(conversation)
        if len(self._sessions_by_conversation) > _MOST_CONVERSATIONS:
            self._sessions_by_conversation.popitem(last=False)


# The server.

_log = logging.getLogger("callboard")

KeyOf = Callable[[RunnableConfig], Hashable]
"""Function from the LangChain config of a run to the key of the connection for the calls of the run."""

_TRIES = 3
"""Maximum number of connections that a call tries, if each is lost before the call was sent."""
_START_MARGIN = 20.0
"""Seconds that are added to `start_timeout` for the connection's actor, so that a failed start can end."""
_STOP_MARGIN = 3.0
"""Seconds for the connection's actor to stop, in addition to the two times `grace` for the process to end."""


class McpServer(Openable):
    """Client of an MCP server; within its `async with` block, agents can use the server's tools.

        command = ["npx", "-y", "@modelcontextprotocol/server-everything"]
        async with McpServer(command) as server:
            print(await server.call("echo", {"message": "hello"}))
            agent = create_react_agent(model, ToolNode([server]))

    The session belongs to an actor: a task of its own, which its supervisor restarts if the connection is lost. Calls
    of any number of agents, threads and event loops share it. If the connection is lost, running calls end as unknown,
    and waiting calls are sent over the next connection. A node or an agent sends a running call again if its tool is
    idempotent.

    Args:
        target: a command as a list, a URL of streamable HTTP, a server of the SDK, or a function for a transport.
        env: environment variables of a command, added to a few that every command has, such as PATH and HOME.
        cwd: working directory of a command.
        headers: headers of each HTTP request, or a function of the key that returns them; it may be async.
        auth: an `httpx2.Auth` for each HTTP request, such as an OAuth provider of the SDK, or a function of the key.
        name: name of the server; by default that of the program or the host.
        prefix: prefix of its tools' names for models, such as "files_".
        allow: names of the tools to offer; by default all.
        deny: names of tools not to offer.
        key: a function of a run's config that returns the key of its connection, such as the user's name.
        cap: with `key`, the maximum number of connections; the least recently used is closed first.
        idle: with `key`, seconds after which an unused connection is closed.
        mode: "auto" for any version of the protocol, "legacy" for versions with a handshake, or a version.
        on_elicit: answers the server's questions; by default a node asks a person by an interrupt.
        resources: whether to add tools that list and read the server's resources.
        prompts: whether to add tools that list and read its prompts.
        bounds: limits of time and size.

    Raises:
        TypeError: if `target` has the wrong type, or an option does not fit it.
        ValueError: for an option without effect, or an unknown `mode`.
    """

    def __init__(
        self,
        target: Sequence[str | PathLike[str]] | str | Any,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | PathLike[str] | None = None,
        headers: Headers | None = None,
        auth: Any = None,
        name: str | None = None,
        prefix: str = "",
        allow: Sequence[str] | None = None,
        deny: Sequence[str] = (),
        key: KeyOf | None = None,
        cap: int | None = None,
        idle: float | None = None,
        mode: str = "auto",
        on_elicit: OnElicit | None = None,
        resources: bool = False,
        prompts: bool = False,
        bounds: McpBounds | None = None,
    ) -> None:
        bounds = McpBounds() if bounds is None else bounds
        if name is not None and (not isinstance(cast("object", name), str) or not name):
            raise TypeError(f"McpServer(name=...) is a text, got {name!r}")
        if not isinstance(bounds, McpBounds):
            raise TypeError(f"McpServer(bounds=...) is an McpBounds, such as McpBounds(grace=5.0); got {bounds!r}")
        if not isinstance(prefix, str):
            raise TypeError(f"McpServer(prefix=...) is a text, such as 'files_'; got {prefix!r}")
        if key is not None and not callable(key):
            raise TypeError(f"McpServer(key=...) is a function of a run's config, got {key!r}")
        for option, value in {"cap": cap, "idle": idle}.items():
            if key is None and value is not None:
                reason = "is for connections by key; say key=..., or leave it out"
                raise ValueError(f"McpServer({option}={value!r}) {reason}")
        server_target = target_of(target, env=env, cwd=cwd, headers=headers, auth=auth)
        self.name = name or server_target.name
        self._max_arguments = bounds.max_arguments
        plan = Plan(name=self.name, target=server_target, mode=mode, bounds=bounds, on_elicit=on_elicit)
        self._prefix = prefix
        self._extra_tools = {"resources": resources, "prompts": prompts}
        self._choice = _tools.Choice(allow, deny)
        self._key_of = key
        self._catalog = Catalog()
        self._spec = child(
            Connection(plan, self._catalog),
            name=self.name,
            cap=cap,
            idle=idle,
            start_timeout=bounds.start_timeout + _START_MARGIN,
            stop_timeout=2 * bounds.grace + _STOP_MARGIN,
        )
        self._sessions = SeenSessions()
        self._connections: Keyed[Connection] | None = None
        self._exit_stack = AsyncExitStack()

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"

    async def __aenter__(self) -> Self:
        """Connect to the server.

        Raises:
            ActorStartError: with the reason, if the server cannot be used.
            ValueError: if an allowed or denied tool does not exist, or the server lacks resources or prompts.
        """
        if self.is_open:
            raise RuntimeError(f"{self!r} is open already; one block at a time")
        async with AsyncExitStack() as stack:
            self._connections = await stack.enter_async_context(keyed(self._spec))
            stack.callback(self._forget_connections)
            tools = await self.list_tools()
            self._choice.check(self.name, [tool.name for tool in tools], self._catalog.unfit)
            for name, is_wanted in self._extra_tools.items():
                if is_wanted and getattr(self._catalog.capabilities, name) is None:
                    reason = f"the MCP server {self.name!r} has no {name}; leave it out"
                    raise ValueError(f"McpServer({name}=True): {reason}")
            if names := [tool.name for tool in self.tools if _tools.PORTABLE_NAME.fullmatch(tool.name) is None]:
                _log.warning(
                    "the MCP server %r has tools with names that some models refuse, and all other tools with them: "
                    "%r; McpServer(deny=[...]) leaves them out",
                    self.name,
                    names,
                )
            # Everything above succeeded: from here `__aexit__()` closes the connection.
            self._exit_stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        return await self._exit_stack.__aexit__(kind, error, traceback) or False

    def _forget_connections(self) -> None:
        self._connections = None

    @property
    def is_open(self) -> bool:
        """`True` within the `async with` block, in which the server's tools can be used."""
        return self._connections is not None

    @property
    def tools(self) -> list[BaseTool]:
        """Tools offered to models, from the server's last list; raise `RuntimeError` if the server is not open."""
        self._open()
        chosen_tools = self._choice.of(list(self._catalog.tools.values()))
        tools = [_tools.as_langchain_tool(tool, prefix=self._prefix, call=self._call_of_model) for tool in chosen_tools]
        if self._extra_tools["resources"]:
            tools += _tools.resource_tools(self._use_of_model, self._prefix)
        if self._extra_tools["prompts"]:
            tools += _tools.prompt_tools(self._use_of_model, self._prefix)
        return tools

    def get_tools(self) -> list[BaseTool]:
        """Return the offered tools. LangChain's toolkits have this method, too, and `ToolNode([server])` calls it."""
        return self.tools

    async def list_tools(self) -> list[types.Tool]:
        """Request the list of all tools from the server, and return the tools as objects of the MCP SDK.

        Raises:
            ActorStartError: with the reason, if the server cannot be used.
            RuntimeError: if the server is not open.
        """
        try:
            return await self._open()[None].list_tools()
        except ActorGoneError as gone:
            raise ActorStartError(self.name, self._catalog.failure or gone.reason) from gone

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, key: Hashable = None
    ) -> types.CallToolResult:
        """Call a tool and return its result as an object of the MCP SDK, even if the result reports a failure.

        Args:
            tool: the tool's name, without the prefix.
            arguments: the arguments of the call.
            key: the key of the connection to use, if there is one for each key.

        Raises:
            ActorGoneError: if there is no connection; the call was not sent.
            ActorDiedError: if the connection was lost during the call; its effect is unknown.
            EngineError: if only this HTTP request failed; `ended` tells whether its effect is unknown.
            McpToolError: if the server refuses the call.
            RuntimeError: if the server is not open.
        """
        return (await self._answer(tool, dict(arguments or {}), key)).result

    # Resources and prompts. Reading has no effects, so it is repeated after a lost connection.

    async def list_resources(self, *, key: Hashable = None) -> list[types.Resource]:
        """List the server's resources; `key` chooses the connection, if each key has its own connection.

        Raises:
            ActorGoneError: if there is no connection.
            McpToolError: if the server has no resources, or refuses the request.
        """
        return await self._use("list_resources", _tools.list_resources, key)

    async def list_resource_templates(self, *, key: Hashable = None) -> list[types.ResourceTemplate]:
        """List the server's templates for resource URIs. The argument and the errors are those of `list_resources`."""
        return await self._use("list_resource_templates", _tools.list_templates, key)

    async def read_resource(self, uri: str, *, key: Hashable = None) -> list[Blob]:
        """Read a resource, and return its contents as LangChain's blobs, with the URI in their metadata."""
        contents = await self._use("read_resource", partial(_tools.read, uri=uri), key)
        return [_tools.as_blob(part) for part in contents]

    async def list_prompts(self, *, key: Hashable = None) -> list[types.Prompt]:
        """List the server's prompts as objects of the MCP SDK; argument and errors are those of `list_resources`."""
        return await self._use("list_prompts", _tools.list_prompts, key)

    async def get_prompt(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, key: Hashable = None
    ) -> list[HumanMessage | AIMessage]:
        """Ask the server to fill arguments into a prompt, and return the messages of the prompt.

        Arguments that are no texts are converted.
        """
        messages = await self._use("get_prompt", partial(_tools.fill_in, name=name, arguments=arguments or {}), key)
        return [_tools.prompt_message(message) for message in messages]

    async def _call_of_model(self, tool: str, arguments: dict[str, Any]) -> tuple[types.CallToolResult, str]:
        config = ensure_config()
        # The key comes from the run's config, never from the model: a model must not choose a user's connection.
        key = None if self._key_of is None else self._key_of(config)
        conversation = (key, config.get("configurable", {}).get("thread_id"))
        self._open()
        if tool not in self._catalog.tools:
            tool_names = [offered.name for offered in self._choice.of(self._catalog.tools.values())]
            reason = _tools.no_tool(self.name, tool, tool_names, self._catalog.unfit)
            raise McpToolError(f"Not started: {reason}. It had this tool before.")
        try:
            answer = await self._answer(tool, arguments, key)
        except ActorDiedError:
            # The model reads from this error that the session is lost, so the next answer need not repeat it.
            self._sessions.note(conversation, None)
            raise
        lost = self._sessions.is_news(conversation, answer.session)
        notice = f"The connection to {self.name} was made anew; what its session held is lost."
        return answer.result, notice if lost else ""

    async def _answer(self, tool: str, arguments: dict[str, Any], key: Hashable) -> Answer:
        most = self._max_arguments
        if not is_small(arguments, most // 10):
            raise McpToolError(
                f"Not started: the arguments of {tool!r} have more than {most} characters. Call it with less text; "
                "McpBounds(max_arguments=...) allows more."
            )
        check = partial(reason_unsendable, arguments)
        if reason := check() if is_small(arguments) else await anyio.to_thread.run_sync(check):
            raise McpToolError(f"Not started: the value of the arguments of {tool!r} cannot be sent: {reason}.")
        return await self._retry_unsent(
            tool, key, lambda connection, sending: connection.call(tool, arguments, sending)
        )

    async def _use(self, name: str, operation: Callable[[Client], Awaitable[T]], key: Hashable) -> T:
        return await self._retry_unsent(name, key, lambda connection, _: connection.use(name, operation))

    async def _retry_unsent(self, name: str, key: Hashable, ask: Callable[[Any, Sending], Awaitable[T]]) -> T:
        """Call the function `ask` with a key's connection; retry if the connection was lost before sending."""
        # A call that the server may have seen is not tried again. Read operations never count as seen.
        lost: ActorDiedError | None = None
        for _ in range(_TRIES):
            # A new one for each attempt; the connection sets it as soon as the server may see the call.
            sending = Sending()
            try:
                return await ask(self._open()[key], sending)
            except ActorDiedError as died:
                if sending.has_begun:
                    # The call may have had its effect, so it must not be sent again.
                    raise ActorDiedError(name, died.call_id, died.reason) from died.__cause__
                lost = died
            except ActorGoneError as gone:
                raise ActorGoneError(name, gone.call_id, gone.reason) from gone.__cause__
        assert lost is not None
        raise ActorGoneError(name, lost.call_id, lost.reason) from lost

    async def _use_of_model(self, name: str, operation: Callable[[Client], Awaitable[T]]) -> T:
        key = None if self._key_of is None else self._key_of(ensure_config())
        return await self._use(name, operation, key)

    def _open(self) -> Keyed[Connection]:
        if self._connections is None:
            raise RuntimeError(
                f"{self!r} is not open, so that its tools are not known: async with {self!r} as server: ..."
            )
        return self._connections
