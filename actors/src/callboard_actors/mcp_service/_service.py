"""`Service`: MCP server for one served object, independent of the transport and the protocol version."""

import base64
import inspect
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from typing import Any, Final, NamedTuple, cast

import anyio
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt
from mcp import MCPError, types
from mcp.server import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from callboard import TOOL_CALL_ERROR_TEMPLATE, Actor, Agent, ChildSpec, Drained, ToolNode
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service._callers import Context, caller_of
from callboard_actors.mcp_service._offers import AgentCall, AgentOffer, NodeCall, NodeOffer
from callboard_actors.mcp_service._questions import (
    DeclinedError,
    InvalidAnswerError,
    NeedsAnswers,
    Tell,
    form_questions,
    progress_sender,
)
from callboard_actors.mcp_service._results import ERRORS_OF_CALLS, error_result, sendable, with_json_results

# Objects that must be opened first: MCP servers, and functions that yield the object to serve.

Block = Callable[[], AbstractAsyncContextManager[Any]]
"""Function without arguments that returns an async context manager, which opens and closes the object to serve."""


def block_of(served: object) -> Block | None:
    """Return a function that opens the served object (an async context manager), or `None` if the object is open."""
    # Two kinds need it: functions with `@asynccontextmanager`, and MCP servers that are not open yet.
    if inspect.isfunction(served) and inspect.isasyncgenfunction(inspect.unwrap(served)):
        return served
    listed: list[object] = list(served) if isinstance(served, (list, tuple)) else [served]
    closed = [server for server in listed if isinstance(server, McpServer) and not server.is_open]
    return (lambda: _with_open(closed, listed)) if closed else None


@asynccontextmanager
async def _with_open(closed: Sequence[McpServer], tools: list[object]) -> AsyncGenerator[list[object]]:
    async with AsyncExitStack() as stack:
        for server in closed:
            await stack.enter_async_context(server)
        yield tools


# Dialogue between a call and the client's user.

Outcome = types.CallToolResult | NeedsAnswers

MOST_COMPLAINTS: Final = 3
"""Maximum number of times that the user is asked again after an invalid answer; then the call is given up."""

_DECLINED: Final = "The call was not run to its end: the user has not answered what it asks."


async def go_on(
    call: NodeCall | AgentCall,
    tell: Tell,
    asking: NeedsAnswers | None = None,
    results: Mapping[str, types.ElicitResult] | None = None,
) -> Outcome:
    """Run a call, or continue it with the filled-in forms of its questions; return its result or its questions.

    A failed call has an error result.
    """
    try:
        return await call.go_on({} if asking is None else asking.answers(results or {}), tell)
    except ERRORS_OF_CALLS as error:
        if isinstance(error, DeclinedError):
            return error_result(_DECLINED)
        if asking is None or not isinstance(error, (InvalidAnswerError, ValidationError)):
            # The text is the one that a `ToolNode` would return.
            return error_result(TOOL_CALL_ERROR_TEMPLATE.format(error=repr(error)))
        if asking.complaints == MOST_COMPLAINTS:
            return error_result(f"{_DECLINED} {error}")
        # The answer was invalid, so the question stays open.
        return NeedsAnswers(asking.questions, str(error), asking.complaints + 1)


# A dialogue as the `requestState` of the protocol: the client keeps it between two requests, and no server does.

_SERIALIZER: Final = JsonPlusSerializer(pickle_fallback=False)


class DialogueState(NamedTuple):
    """State of a dialogue between two requests of a client.

    `nonce` is a random name of this state, by which a repeated answer is recognised.
    """

    nonce: str
    call: Mapping[str, Any]
    questions: Sequence[Interrupt]
    complaint: str
    complaints: int

    @property
    def asking(self) -> NeedsAnswers:
        """Questions that the client has been asked."""
        return NeedsAnswers(form_questions(self.questions), self.complaint, self.complaints)


def dump_dialogue(call: NodeCall | AgentCall, asking: NeedsAnswers) -> str:
    """Return a call that waits for answers as text. It may be confidential, so the SDK encrypts it."""
    questions = [question.question for question in asking.questions]
    fields = (secrets.token_urlsafe(16), call.state, questions, asking.complaint, asking.complaints)
    return base64.b64encode(_SERIALIZER.dumps_typed(fields)[1]).decode()


def load_dialogue(text: str) -> DialogueState:
    """Return the state in a text of `dump_dialogue`. The SDK has checked that no client has made or changed it."""
    return DialogueState(*_SERIALIZER.loads_typed(("msgpack", base64.b64decode(text))))


# The service.

PATIENCE: Final = 30.0
"""Default seconds for running calls to finish when the server ends."""

Answer = types.CallToolResult | types.InputRequiredResult
_CANNOT_ASK: Final = (
    "The call was not run to its end: a person has to be asked, and this client cannot ask one. It would have to "
    "support elicitation by forms."
)
_NO_CHECKPOINTER: Final = (
    "The call was not run to its end: a person has to be asked, and the agent has no checkpointer that keeps the run "
    "until the answer. Give the agent one, or use a client of MCP 2025-11-25, which is asked during the call."
)
_NOT_STORABLE: Final = "The call was not run to its end: its question has a value that cannot be stored."
_ANSWER_TIME: Final = 3600.0
"""Maximum seconds in which a client of 2026-07-28 may answer a question."""
_CLOSING: Final = "The call was not run to its end: it waited for a person, and the server is shutting down."


Offer = AgentOffer | NodeOffer
"""Adapter of a served object for MCP: it gives the name and the list of tools, and prepares calls of the tools."""

Tool = BaseTool | Callable[..., Any] | Actor | ChildSpec[Any] | McpServer
Served = ToolNode | Agent | Sequence[Tool] | Tool | Callable[[], AbstractAsyncContextManager[Any]]
"""Types of objects that can be served."""


class Service:
    """MCP server for a node, an agent or tools, independent of the transport.

    Raise TypeError for an object that cannot be served. Raise ValueError for tools with arguments that only a graph
    provides, equal tool names, and an empty list of tools.
    """

    def __init__(self, served: Served, *, name: str | None = None, description: str | None = None) -> None:
        self._served = served
        self._name = name
        self._description = description
        self._own_offer = self._offer_of(served)
        """Adapter of the served object; `None` for an object that must be opened first.

        Such an object has a new adapter each time that it is opened.
        """
        self._offer = self._own_offer
        """Current adapter; `None` while the served object is closed, when there are no tools."""
        self._answered: dict[str, float] = {}
        """Time at which each answered state expires, by its nonce; the oldest is the first."""
        self._state_security = RequestStateSecurity(
            keys=[secrets.token_bytes(32)],
            ttl=_ANSWER_TIME,
            bind_principal=lambda context: caller_of(context).principal,
        )
        self._asking: set[anyio.CancelScope] = set()
        self._is_closing = False

    @property
    def tool_names(self) -> list[str]:
        """Names of the served tools; empty as long as the served object is not open."""
        return [tool.name for tool in self._tools()]

    def server(self) -> Server[Any]:
        """Return a new MCP server object of the SDK, to be run on one transport."""
        server: Server[Any] = Server(
            (self._name or _NAME) if self._offer is None else self._offer.name,
            version=version("callboard-actors"),
            on_list_tools=self._list_tools,
            on_call_tool=self._answer,
            get_tool_input_schema=self._input_schema,
        )
        # Encrypts what clients keep between two requests, and binds it to the client and to its call.
        server.middleware.append(RequestStateBoundary(self._state_security, default_audience=None))
        return server

    def _tools(self) -> list[types.Tool]:
        """Return the list of tools that clients see now."""
        return [] if self._offer is None else self._offer.tools()

    async def _list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self._tools())

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        return next((tool.input_schema for tool in self._tools() if tool.name == name), None)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Open the object that has the served tools, such as a client of an MCP server, for the `async with` block."""
        self._is_closing = False
        async with AsyncExitStack() as stack:
            served, offer = self._served, self._own_offer
            while offer is None:
                block = cast("Block", block_of(served))
                served = await stack.enter_async_context(block())
                offer = self._offer_of(served)
            await stack.enter_async_context(offer.opens)
            self._offer = offer
            try:
                yield
            finally:
                self._offer = self._own_offer

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Withdraw open questions, refuse new calls, and wait for running calls; return the report of the drain."""
        # Questions first: an answer that arrives during the drain could not continue its call.
        self._is_closing = True
        for scope in list(self._asking):
            scope.cancel()
        return Drained() if self._offer is None else await self._offer.supervised.drain(timeout)

    def _offer_of(self, served: Served) -> Offer | None:
        """Return the MCP adapter (`Offer`) for a served object, or `None` if the object must be opened first."""
        if isinstance(served, Agent):
            return AgentOffer(served, name=self._name or served.name, description=self._description)
        block = block_of(served)
        if self._description is not None and block is not served:
            raise ValueError("description=... is for an agent, which is one tool; tools have descriptions of their own")
        if block is not None:
            if block is not served:
                _tools_of(served)  # raises for an object that is no tool, before anything is opened
            return None
        if isinstance(served, ToolNode):
            node, promises_schemas = served, False
        else:
            node, promises_schemas = ToolNode(_tools_of(served), handle_tool_errors=True), True
        if not node.tools_by_name:
            raise ValueError("there is nothing to serve: it has no tools")
        return NodeOffer(node, name=self._name or _NAME, promises_schemas=promises_schemas)

    # Calls.

    async def _answer(self, context: Context, params: types.CallToolRequestParams) -> Answer:
        """Handle a `tools/call` request: return the result of the call, or the questions for the user."""
        # Questions are returned since 2026-07-28; older clients are asked during the call.
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        saved = self._take(params.request_state) if is_modern and params.request_state is not None else None
        call = None
        if self._offer is not None:
            state = None if saved is None else saved.call
            call = self._offer.begin(params.name, params.arguments or {}, caller_of(context), state)
        if call is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}; there are {', '.join(self.tool_names)}")
        if isinstance(call, types.CallToolResult):
            return call
        try:
            # Calls return their errors. An error raised in this block would reach the SDK as an exception group.
            async with progress_sender(context.session.report_progress) as tell:
                if saved is None:
                    outcome = await go_on(call, tell)
                else:
                    responses = (params.input_responses or {}).items()
                    results = {key: result for key, result in responses if isinstance(result, types.ElicitResult)}
                    outcome = await go_on(call, tell, saved.asking, results)
                while isinstance(outcome, NeedsAnswers) and not is_modern:
                    outcome = await self._ask_during_call(context, call, outcome, tell)
        finally:
            with anyio.CancelScope(shield=True):  # a cancelled call must not leave its thread in the checkpointer
                await call.forget()
        if not isinstance(outcome, NeedsAnswers):
            return sendable(outcome, params.name)
        if not _can_ask(context):
            return error_result(_CANNOT_ASK)
        if self._is_closing:
            return error_result(_CLOSING)
        if call.state is None:
            return error_result(_NO_CHECKPOINTER)
        try:
            state_text = dump_dialogue(call, outcome)
        except TypeError as error:
            return error_result(f"{_NOT_STORABLE} {error}")
        return types.InputRequiredResult(input_requests={**outcome.forms}, request_state=state_text)

    # Protocol versions until 2025-11-25: the server sends elicitation requests during the call.

    async def _ask_during_call(
        self, context: Context, call: NodeCall | AgentCall, asking: NeedsAnswers, tell: Tell
    ) -> Outcome:
        """Ask the user during the call, and continue the call; return an error result if the user cannot be asked."""
        if not _can_ask(context) or not context.session.can_send_request:
            return error_result(_CANNOT_ASK)
        metadata = ServerMessageMetadata(related_request_id=context.request_id)
        results: dict[str, types.ElicitResult] | None = None
        with anyio.CancelScope() as scope:
            self._asking.add(scope)
            if self._is_closing:  # `drain()` has cancelled the scopes that it found, and knows nothing of this one
                scope.cancel()
            try:
                results = {
                    key: await context.session.send_request(form, types.ElicitResult, metadata=metadata)
                    for key, form in asking.forms.items()
                }
            except (MCPError, ValidationError) as error:
                return error_result(f"{_CANNOT_ASK} It says: {error}")
            finally:
                self._asking.discard(scope)
        return error_result(_CLOSING) if results is None else await go_on(call, tell, asking, results)

    # Protocol versions since 2026-07-28: the answer has the questions; the client repeats its request with the forms.

    def _take(self, text: str) -> DialogueState:
        """Return the dialogue that a client continues; raise MCPError if the client has continued it before."""
        state, now = load_dialogue(text), time.time()
        while self._answered and next(iter(self._answered.values())) <= now:
            del self._answered[next(iter(self._answered))]
        if state.nonce in self._answered:
            raise MCPError(types.INVALID_PARAMS, "The question was answered before. Nothing was done by this request.")
        self._answered[state.nonce] = now + _ANSWER_TIME
        return state


_NAME: Final = "callboard"


def _tools_of(served: object) -> list[Any]:
    """Convert served objects to forms that `ToolNode` accepts; raise TypeError for an unsupported type."""
    # Actors and MCP servers are taken unchanged. Tools and functions become tools with JSON results.
    tools: list[Any] = []
    for tool in served if isinstance(served, (list, tuple)) else [served]:
        if isinstance(tool, (Actor, ChildSpec, McpServer)):
            tools.append(tool)
        elif isinstance(tool, BaseTool):
            tools.append(with_json_results(tool))
        elif callable(tool) and not isinstance(tool, type):
            tools.append(with_json_results(as_tool(tool)))
        else:
            raise TypeError(
                "an MCP server serves a ToolNode, an agent of create_react_agent, tools or functions; "
                f"got {tool!r:.200}"
            )
    return tools


def _can_ask(context: Context) -> bool:
    """Return whether the client can show forms to its user."""
    # Elicitation without a mode means forms, which were the only mode at first.
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)
