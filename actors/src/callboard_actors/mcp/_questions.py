"""Handling of an MCP server's requests: a person (through an interrupt) or a function answers them.

Servers of 2026 ask in rounds: a server answers a call with requests, and the call is repeated with the answers. Servers
of 2025 ask during a call, which stays open until a person answers (`HeldCall`). `Questions` serves both.
"""

import hashlib
import json
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired, cast
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt
from mcp import types
from mcp.client.session import ClientRequestContext
from pydantic import AfterValidator, TypeAdapter, WithJsonSchema
from typing_extensions import TypedDict

from callboard import ActorDiedError, can_ask, earlier_question
from callboard_actors._util._sendable import reason_unsendable
from callboard_actors.mcp._schemas import Judge, check_form
from callboard_actors.mcp._tools import McpToolError

# Questions to a person (elicitation), as plain data that a checkpoint can store.

ASKED_BY_SERVER: Literal["mcp_elicitation"] = "mcp_elicitation"

_PARAMS: TypeAdapter[types.ElicitRequestParams] = TypeAdapter(types.ElicitRequestParams)


class McpQuestion(TypedDict):
    """Value of a LangGraph interrupt that passes an MCP server's question to a person. The answer is an `McpAnswer`."""

    type: Literal["mcp_elicitation"]
    server: str
    """Name of the server that asks; the person should know it before answering."""
    tool: str
    """Name of the tool that was called."""
    request: dict[str, Any]
    """Fields of the MCP request: `mode`, `message`, and `requestedSchema` for a form, or `url` for a web page."""
    continuation: dict[str, Any]
    """Opaque data with which the call continues; not meant for people."""


class McpAnswer(TypedDict):
    """Answer of a person to an `McpQuestion`."""

    action: Literal["accept", "decline", "cancel"]
    content: NotRequired[dict[str, Any] | None]
    """Values of the form, by field name, if the person accepted a form."""


def question_of(params: types.ElicitRequestParams, server: str, tool: str, continuation: dict[str, Any]) -> McpQuestion:
    """Convert a server's question into the value of a LangGraph interrupt, which passes the question to a person."""
    if isinstance(params, types.ElicitRequestFormParams):
        # The form was written by the server, so it is checked before a client shows it.
        check_form(params.requested_schema, server)
    elif urlsplit(params.url).scheme not in ("http", "https"):
        raise McpToolError(f"The MCP server {server!r} sends a person to {params.url!r:.200}, which is no web page.")
    request = params.model_dump(by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"})
    return McpQuestion(type=ASKED_BY_SERVER, server=server, tool=tool, request=request, continuation=continuation)


def is_question_of(call: str, value: object) -> bool:
    """Return whether an interrupt's value is a question that a server asked in the call with the digest `call`."""
    if not isinstance(value, dict):
        return False
    question = cast("dict[str, Any]", value)
    return question.get("type") == ASKED_BY_SERVER and question["continuation"].get("call") == call


def request_in(value: object) -> types.ElicitRequest | None:
    """Return the MCP server's request in the value of an interrupt; `None` if the interrupt has another origin."""
    if not isinstance(value, dict) or value.get("type") != ASKED_BY_SERVER:
        return None
    return types.ElicitRequest(params=_PARAMS.validate_python(cast("McpQuestion", value)["request"]))


def answer_shape(question: McpQuestion) -> Any:
    """Return a type with which pydantic validates the answer to a question."""
    params = _PARAMS.validate_python(question["request"])
    if not isinstance(params, types.ElicitRequestFormParams):
        return McpAnswer
    schema = params.requested_schema
    json_schema = {
        "type": "object",
        "properties": {"action": {"enum": ["accept", "decline", "cancel"]}, "content": schema},
        "required": ["action"],
    }
    return Annotated[McpAnswer, AfterValidator(partial(_fits, schema)), WithJsonSchema(json_schema)]


def _fits(schema: dict[str, Any], answer: McpAnswer) -> McpAnswer:
    if answer["action"] == "accept" and (misfit := Judge(schema).misfit(answer.get("content") or {})):
        raise ValueError(f"content: {misfit}")
    return answer


# Rounds, with servers of 2026.

MAX_ROUNDS = 10
"""Maximum number of times in a row that a server may ask for more input without an interrupt for a person."""
_PAUSE = 0.2
"""Seconds to wait before a call is repeated, if the server wants it repeated but has made no request."""

_REQUESTS: TypeAdapter[dict[str, types.InputRequest]] = TypeAdapter(dict[str, types.InputRequest])
_RESPONSES: TypeAdapter[dict[str, types.InputResponse]] = TypeAdapter(dict[str, types.InputResponse])


Send = Callable[[types.InputResponses | None, str | None], Awaitable[types.CallToolResult | types.InputRequiredResult]]
"""Function that sends a tool call, with the answers to the server's last requests and the server's `requestState`."""
Respond = Callable[[types.InputRequest, dict[str, Any]], Awaitable[types.InputResponse]]
"""Function that answers a request; the second argument is stored with the question if a person must be asked."""


@dataclass(slots=True)
class Round:
    """One round of a call: the requests that the server sent instead of a result, and the answers so far."""

    requests: Mapping[str, types.InputRequest]
    state: str | None
    """`requestState` of the server's response, which is sent back with the answers. The question to a person contains
    it, so the call can continue in any process in which the answer arrives.
    """
    responses: dict[str, types.InputResponse] = field(default_factory=dict[str, types.InputResponse])

    @classmethod
    def restore(cls, continuation: Mapping[str, Any], answer: types.ElicitResult) -> "Round":
        """Restore a `Round` (a server's requests and their answers) from a checkpoint, and add a person's answer."""
        responses = _RESPONSES.validate_python(continuation["responses"])
        responses[continuation["asking"]] = answer
        return cls(_REQUESTS.validate_python(continuation["requests"]), continuation["state"], responses)

    def continuation(self, asking: str) -> dict[str, Any]:
        """Return the requests and answers as plain data for a checkpoint; `restore()` restores the `Round` from it."""
        dumped: dict[str, Any] = {"by_alias": True, "mode": "json", "exclude_none": True}
        return {
            "state": self.state,
            "requests": _REQUESTS.dump_python(dict(self.requests), **dumped),
            "responses": _RESPONSES.dump_python(self.responses, **dumped),
            "asking": asking,
        }

    async def complete(self, respond: Respond) -> types.InputResponses | None:
        """Answer each open request by `respond`; return the answers by key, or `None` if the server made no request."""
        for key, request in self.requests.items():
            if key not in self.responses:
                self.responses[key] = await respond(request, self.continuation(key))
        return self.responses or None


# Open calls, with servers of 2025.

_log = logging.getLogger("callboard")

current_call: ContextVar["HeldCall | None"] = ContextVar("callboard_mcp_call", default=None)
"""Call during which a server sent the request that is being handled.

It is known over HTTP, where the request arrives with the context of its call, but not over stdio.
"""


MOST_OPEN: Final = 16
"""Maximum number of questions of one call that wait for a person; the server gets an error for a further one."""
_SHOWN: Final = 200
"""Maximum number of characters of a server's question in the log."""


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """Question of a server to a person, and the person's answer (`None` until it arrives)."""

    params: types.ElicitRequestParams
    answer_event: anyio.Event = field(default_factory=anyio.Event)
    answer: types.ElicitResult | None = None


@dataclass(slots=True, eq=False)
class HeldCall:
    """Call to a server with an MCP version of 2025, run in a separate task that may outlive the callers.

    `name` is a digest that distinguishes the call from others of the same tool body. Questions are shown in
    `conversation` only.
    """

    tool: str
    name: str
    conversation: object
    send: Callable[[], Awaitable[types.CallToolResult]]
    may_ask: bool
    token: str = field(default_factory=lambda: uuid4().hex)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _ended: anyio.Event = field(default_factory=anyio.Event)
    _news: anyio.Event = field(default_factory=anyio.Event)
    _questions: deque[OpenQuestion] = field(default_factory=deque[OpenQuestion])
    _result: types.CallToolResult | None = None
    _error: Exception | None = None

    async def run(self, on_end: Callable[[], object]) -> None:
        """Run the call, and keep its result or error until a caller has it, or the time limit of the call is over."""
        # Set in this task: the SDK copies the context into requests of the server that arrive for this call.
        current_call.set(self)
        with self._scope:
            try:
                self._result = await self.send()
            except Exception as error:
                self._error = error
            finally:
                # Also if the actor is cancelled; otherwise waiting callers would never wake up.
                self._ended.set()
                self._news.set()
                on_end()
            await anyio.sleep_forever()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    @property
    def asks_too_much(self) -> bool:
        """`True` if so many questions wait for a person that no further one is accepted."""
        return len(self._questions) >= MOST_OPEN

    @property
    def question(self) -> OpenQuestion | None:
        """Oldest question of the server without an answer, or `None`; questions are answered one after the other."""
        return self._questions[0] if self._questions else None

    async def until_news(self) -> OpenQuestion | None:
        """Wait until the server asks a question, or the call ends; return the question, or `None` after the end."""
        while self.question is None and not self.has_ended:
            await self._news.wait()
            # After the end the event stays set, so that no later wait can block.
            if not self.has_ended:
                self._news = anyio.Event()
        return self.question

    def result(self) -> types.CallToolResult | None:
        """Return the result of the ended call, or raise its error; `None` if the call was cancelled before its end."""
        self._scope.cancel()  # it need not be kept any longer
        if self._error is not None:
            raise self._error
        return self._result

    async def ask(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Add a question of the server to the open questions, wait for the person's answer, and return it."""
        question = OpenQuestion(params)
        self._questions.append(question)
        self._news.set()
        try:
            await question.answer_event.wait()
        finally:
            if question in self._questions:  # cancelled, because the server has withdrawn the question
                self._questions.remove(question)
        assert question.answer is not None
        return question.answer

    def answer(self, answer: types.ElicitResult) -> None:
        """Answer the oldest open question; do nothing if the server has withdrawn it."""
        if not self._questions:
            _log.info("The server has not waited for the answer to what its tool %r asked.", self.tool)
            return
        question = self._questions.popleft()
        question.answer = answer
        question.answer_event.set()

    def hold(self, seconds: float) -> None:
        """Start a time limit: the call is dropped unless a caller returns with an answer within `seconds`."""
        self._scope.deadline = anyio.current_time() + seconds

    def go_on(self) -> None:
        """Remove the time limit of the call, because its caller has returned."""
        self._scope.deadline = math.inf

    @property
    def is_held(self) -> bool:
        """`True` while a person is asked, and no caller waits for the call."""
        return self._scope.deadline < math.inf

    async def end(self) -> None:
        """Cancel the call and wait until its task has ended, so that the server is notified."""
        self._scope.cancel()
        # Shielded: the caller is usually being cancelled, and the SDK needs time to send its notification.
        with anyio.CancelScope(shield=True):
            await self._ended.wait()


# Both kinds of servers.

OnElicit = Callable[[types.ElicitRequestParams], Awaitable[types.ElicitResult]]
"""Function that answers a server's question to a person, in place of the person."""


@dataclass(slots=True, eq=False)
class Questions:
    """Handler of the requests that one server sends, and list of the calls that wait for answers."""

    server: str
    """Name of the server, shown to people."""
    group: TaskGroup
    """Task group of the actor, in which open calls run."""
    on_elicit: OnElicit | None
    hold: float
    _calls: dict[str, HeldCall] = field(default_factory=dict[str, HeldCall])
    """Calls to a server with an MCP version of 2025, by token, until a caller has the result; the oldest is first."""
    _unassigned: int = 0
    """Number of requests of the server for which it is not known yet which call has caused the request."""
    _changed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def callbacks(self) -> dict[str, Any]:
        """Callbacks for the SDK's client, as keyword arguments. They determine which requests the server may send."""
        return {"elicitation_callback": self._on_request}

    async def call(self, tool: str, arguments: Mapping[str, Any], send: Send, *, modern: bool) -> types.CallToolResult:
        """Call a tool, answer the requests that the server sends for this call, and return the result."""
        name = ""
        if can_ask():
            # Tells apart the calls within one tool function.
            text = json.dumps([self.server, tool, arguments], sort_keys=True, default=repr)
            name = hashlib.sha256(text.encode()).hexdigest()
        question = cast("McpQuestion | None", earlier_question(partial(is_question_of, name)))
        if modern:
            return await self._in_rounds(tool, name, send, question)
        if question is not None:
            # The token is known only in the process and the life of the actor that hold the call open.
            call = self._calls.get(question["continuation"]["token"])
            if call is None or not call.is_held:
                raise self._lost_call(tool, "asked a person, and the call was not kept open until the answer came")
            # First the answer, which may raise for an invalid one: then the call must stay held.
            answer = _answer_to(question)
            call.go_on()
            call.answer(answer)
            return await self._attend(call)
        send_once = cast("Callable[[], Awaitable[types.CallToolResult]]", partial(send, None, None))
        # With `on_elicit`, answers do not depend on the call. So it need not be tracked.
        if self.on_elicit is not None:
            return await send_once()
        conversation = (var_child_runnable_config.get() or {}).get("configurable", {}).get("thread_id")
        call = HeldCall(tool, name, conversation, send_once, may_ask=can_ask())
        self._calls[call.token] = call
        # In the actor's group, not in the caller's task: an interrupt ends the caller, while the call stays open.
        self.group.start_soon(self._run, call)
        return await self._attend(call)

    async def _in_rounds(self, tool: str, name: str, send: Send, question: McpQuestion | None) -> types.CallToolResult:
        """Call a tool of a server with MCP version 2026; repeat the call with answers while the server asks."""
        # `question` is the one that interrupted the call in an earlier run, if any; its answer is sent first.
        respond = partial(self._respond, tool, name)
        if question is None:
            result = await send(None, None)
        else:
            first_round = Round.restore(question["continuation"], _answer_to(question))
            result = await send(await first_round.complete(respond), first_round.state)
        for _ in range(MAX_ROUNDS):
            if isinstance(result, types.CallToolResult):
                break
            # Requests to a person come first, because an interrupt repeats all earlier work.
            requests = sorted(
                (result.input_requests or {}).items(), key=lambda item: not isinstance(item[1], types.ElicitRequest)
            )
            next_round = Round(dict(requests), result.request_state)
            if not next_round.requests:
                await anyio.sleep(_PAUSE)
            result = await send(await next_round.complete(respond), next_round.state)
        if isinstance(result, types.CallToolResult):
            return result
        reason = f"the server has asked for more in {MAX_ROUNDS} rounds, one after the other"
        raise McpToolError(f"The call of {tool!r} was given up: {reason}.")

    async def _respond(
        self, tool: str, name: str, request: types.InputRequest, continuation: dict[str, Any]
    ) -> types.InputResponse:
        if isinstance(request, types.ElicitRequest):
            if self.on_elicit is None and can_ask():
                return _answer_to(question_of(request.params, self.server, tool, {"call": name, **continuation}))
            return await self._without_person(request.params)
        if isinstance(request, types.CreateMessageRequest):
            reason = f"the MCP server {self.server!r} asks for a model, and this client lends none"
            raise McpToolError(f"The call of {tool!r} was given up: {reason}.")
        return types.ListRootsResult(roots=[])

    async def _without_person(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        if self.on_elicit is not None:
            return await self.on_elicit(params)
        _log.warning(
            "The MCP server %r asks %r, and there is nobody to ask here: it is declined. Call its tools in a ToolNode, "
            "where a person is asked by an interrupt, or give McpServer(on_elicit=...).",
            self.server,
            params.message[:_SHOWN],
        )
        return types.ElicitResult(action="decline")

    async def _run(self, call: HeldCall) -> None:
        try:
            await call.run(self._change)
        finally:
            del self._calls[call.token]

    async def _attend(self, call: HeldCall) -> types.CallToolResult:
        """Return the result of a call to a server with MCP version 2025; interrupt the caller if the server asks."""
        # If the server asks a question first, the call stays open, and its caller is interrupted to ask a person.
        try:
            while (question := await call.until_news()) is not None:
                continuation = {"call": call.name, "token": call.token}
                call.answer(_answer_to(question_of(question.params, self.server, call.tool, continuation)))
        except GraphInterrupt:
            # The next run may continue in another task, or never; `hold()` bounds the time until then.
            call.hold(self.hold)
            raise
        except BaseException:  # cancelled, or the question is invalid: nobody will fetch the result
            await call.end()
            raise
        result = call.result()
        if result is None:
            raise self._lost_call(call.tool, "was disconnected")
        return result

    def _lost_call(self, tool: str, reason: str) -> ActorDiedError:
        return ActorDiedError(tool, None, f"the MCP server {self.server!r} {reason}")

    async def _on_request(
        self, _: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        """Answer a question that a server with an MCP version of 2025 sends during a call; a callback of the SDK."""
        call = current_call.get()
        if call not in (candidates := [call for call in self._calls.values() if not call.has_ended]):
            # Over stdio the protocol does not name the call. But the call that asks cannot end before the answer, while
            # others do, so waiting narrows the choice.
            self._unassigned += 1
            self._change()
            try:
                while True:
                    remaining = [call for call in candidates if not call.has_ended and call.question is None]
                    if len(remaining) <= self._unassigned:
                        # If no more calls than open questions are left, each of them has asked.
                        break
                    await self._changed.wait()
            finally:
                self._unassigned -= 1
            # If several calls remain, any of them will do, as long as all belong to one conversation: the same person
            # is asked. A question is never shown in another conversation.
            call = remaining[0] if len({call.conversation for call in remaining}) == 1 else None
        if call is None or not call.may_ask:
            return await self._without_person(params)
        if call.asks_too_much:
            return types.ErrorData(code=types.INVALID_REQUEST, message=f"{MOST_OPEN} questions wait for a person")
        return await call.ask(params)

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _answer_to(question: McpQuestion) -> types.ElicitResult:
    """Ask a person a question by an interrupt, and return the answer as an MCP result."""
    # Raise `GraphInterrupt` if there is no answer yet, and `ValidationError` for an invalid one.
    answer: McpAnswer = interrupt(question, response_schema=answer_shape(question))
    # Values are sent only if the person accepted.
    content = answer.get("content") if answer["action"] == "accept" else None
    if reason := reason_unsendable(content):
        raise McpToolError(f"The call of {question['tool']!r} was given up: the answer cannot be sent: {reason}.")
    return types.ElicitResult(action=answer["action"], content=content)
