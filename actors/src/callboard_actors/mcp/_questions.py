"""Answers to a server's requests: by a person through an interrupt, a function, a model, or a refusal."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup
from langchain_core.language_models import BaseChatModel
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphInterrupt
from langgraph.types import interrupt
from mcp.client.session import ClientRequestContext
from mcp_types import (
    INVALID_REQUEST,
    CallToolResult,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    InputRequest,
    InputResponse,
    ListRootsResult,
)

from callboard import ActorDiedError, agent_model, answered_question, can_ask
from callboard_actors.mcp._content import McpToolError
from callboard_actors.mcp._elicitation import (
    McpQuestion,
    answer_shape,
    is_question_of,
    name_of_call,
    question_of,
    result_of,
)
from callboard_actors.mcp._held import HeldCall, asks
from callboard_actors.mcp._rounds import EndlessRoundsError, Round, Send, to_the_end
from callboard_actors.mcp._sampling import Sampler, SamplingRefusedError, no_model

_log = logging.getLogger("callboard")

OnElicit = Callable[[ElicitRequestParams], Awaitable[ElicitResult]]
"""Function that answers instead of a person."""


class Questions:
    """Requests of the server of one connection, and the calls that wait for answers.

    Args:
        server: name of the server, shown to people.
        group: task group of the actor, in which open calls run.
        on_elicit: answers instead of a person.
        sampler: asks a model for the server; `None` if the server may not use one.
        hold: seconds for which a call to a server of 2025 stays open without an answer.
    """

    def __init__(
        self,
        server: str,
        group: TaskGroup,
        *,
        on_elicit: OnElicit | None = None,
        sampler: Sampler | None = None,
        hold: float = 3600.0,
    ) -> None:
        self._server = server
        self._group = group
        self._on_elicit = on_elicit
        self._sampler = sampler
        self._hold = hold
        self._under_way: dict[str, HeldCall] = {}
        """Running calls to servers of 2025 by token, in the order of their beginning."""
        self._waiting: dict[str, HeldCall] = {}
        """Open calls by token whose callers were interrupted to ask a person."""
        self._seekers = 0
        """Number of questions whose call is not known yet."""
        self._changed = anyio.Event()

    @property
    def callbacks(self) -> dict[str, Any]:
        """Callbacks for the SDK's client; their presence tells the server which requests are allowed."""
        sampling = {} if self._sampler is None else {"sampling_callback": self._on_sampling}
        return {"elicitation_callback": self._on_request, **sampling}

    async def call(self, tool: str, arguments: Mapping[str, Any], send: Send, *, modern: bool) -> CallToolResult:
        """Make a call, and answer the server's requests for it.

        Within a call of a `ToolNode` a person is asked with `interrupt()`, and the call continues after the answer.
        `modern` is true for a server of 2026 or later.

        Raises:
            GraphInterrupt: to ask a person.
            ActorDiedError: if the call was open for an answer, and its connection is gone.
            McpToolError: if the server asks for a model that it may not have, or asks without end.
        """
        name = name_of_call(self._server, tool, arguments) if can_ask() else ""
        asked = cast("McpQuestion | None", answered_question(partial(is_question_of, name)))
        if modern:
            return await self._in_rounds(tool, name, send, asked)
        if asked is not None:
            return await self._resumed(tool, asked)
        return await self._begun(tool, name, cast("Any", partial(send, None, None)))

    async def _in_rounds(self, tool: str, name: str, send: Send, asked: McpQuestion | None) -> CallToolResult:
        begun = None if asked is None else Round.resumed(asked["continuation"], _answer_to(asked))
        try:
            return await to_the_end(send, partial(self._respond, tool, name), begun)
        except (EndlessRoundsError, SamplingRefusedError) as error:
            raise McpToolError(f"The call of {tool!r} was given up: {error}.") from error

    async def _respond(
        self, tool: str, name: str, request: InputRequest, continuation: dict[str, Any]
    ) -> InputResponse:
        if isinstance(request, ElicitRequest):
            if self._on_elicit is None and can_ask():
                return _answer_to(question_of(request.params, self._server, tool, {"call": name, **continuation}))
            return await self._without_person(request.params)
        if isinstance(request, CreateMessageRequest):
            if self._sampler is None:
                raise no_model(self._server)
            return await self._sampler(request.params, agent_model())
        return ListRootsResult(roots=[])

    async def _without_person(self, params: ElicitRequestParams) -> ElicitResult:
        if self._on_elicit is not None:
            return await self._on_elicit(params)
        _log.warning(
            "The MCP server %r asks %r, and there is nobody to ask here: it is declined. Call its tools in a ToolNode, "
            "where a person is asked by an interrupt, or give McpServer(on_elicit=...).",
            self._server,
            params.message,
        )
        return ElicitResult(action="decline")

    async def _begun(self, tool: str, name: str, send: Callable[[], Awaitable[CallToolResult]]) -> CallToolResult:
        # With `on_elicit` and no models of agents, answers do not depend on the call. So it need not be tracked.
        is_asked = self._on_elicit is None
        if not is_asked and not self._lends_models_of_agents:
            return await send()
        conversation = (var_child_runnable_config.get() or {}).get("configurable", {}).get("thread_id")
        call = HeldCall(tool, name, conversation, send, may_ask=is_asked and can_ask(), model=agent_model())
        self._under_way[call.token] = call
        # In the actor's group, not in the caller's task: an interrupt ends the caller, while the call stays open.
        self._group.start_soon(self._run, call)
        return await self._attend(call)

    async def _run(self, call: HeldCall) -> None:
        try:
            await call.run()
        finally:
            del self._under_way[call.token]
            self._change()
        # It ended while a person was being asked. Keep the result for the caller that returns with the answer.
        if call.token in self._waiting:
            await call.until_fetched()
            self._waiting.pop(call.token, None)

    async def _resumed(self, tool: str, asked: McpQuestion) -> CallToolResult:
        # The token is known only in the process and the life of the actor that hold the call open.
        call = self._waiting.get(asked["continuation"]["token"])
        if call is None:
            raise self._gone(tool, "asked a person, and the call was not kept open until the answer came")
        # First the answer, which may raise for an invalid one: then the call must stay among the waiting ones.
        answer = _answer_to(asked)
        del self._waiting[call.token]
        call.go_on()
        call.answer(answer)
        return await self._attend(call)

    async def _attend(self, call: HeldCall) -> CallToolResult:
        """Wait for the result of a call; if the server asks first, leave the call open and interrupt the caller."""
        try:
            while (asked := await call.until_news()) is not None:
                continuation = {"call": call.name, "token": call.token}
                call.answer(_answer_to(question_of(asked.params, self._server, call.tool, continuation)))
        except GraphInterrupt:
            # The next run may continue in another task, or never; `hold()` bounds the time until then.
            call.hold(self._hold)
            self._waiting[call.token] = call
            raise
        except BaseException:  # cancelled, or the question is invalid: nobody will fetch the result
            await call.end()
            raise
        result = call.result()
        if result is None:
            raise self._gone(call.tool, "was disconnected")
        return result

    def _gone(self, tool: str, what: str) -> ActorDiedError:
        return ActorDiedError(tool, None, f"the MCP server {self._server!r} {what}")

    async def _on_request(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Answer a question of a server of 2025, which arrives while calls are running."""
        call = asks.get()
        if call is None or call.token not in self._under_way:
            call = await self._asker()
        if call is None or not call.may_ask:
            return await self._without_person(params)
        return await call.ask(params)

    async def _asker(self) -> HeldCall | None:
        """Return the call to which the question belongs, or `None`.

        If several calls remain, any of them will do, as long as all belong to one conversation: the same person is
        asked. A question is never shown in another conversation.
        """
        left = await self._narrowed(lambda _: False)
        return left[0] if len({call.conversation for call in left}) == 1 else None

    async def _narrowed(self, suffice: Callable[[list[HeldCall]], bool]) -> list[HeldCall]:
        """Return the running calls that may have caused a request, as soon as `suffice` accepts them.

        Over stdio the protocol does not name the call. But the call that asks cannot end before the answer, while
        others do, so waiting narrows the choice.
        """
        candidates = list(self._under_way.values())
        self._seekers += 1
        self._change()
        try:
            while True:
                left = [call for call in candidates if call.token in self._under_way and call.question is None]
                if len(left) <= self._seekers or suffice(left):
                    # If no more calls than open questions are left, each of them has asked.
                    return left
                await self._changed.wait()
        finally:
            self._seekers -= 1

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _on_sampling(
        self, _: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        assert self._sampler is not None
        try:
            own = await self._model_of_asker() if self._lends_models_of_agents else None
            return await self._sampler(params, own)
        except SamplingRefusedError as refused:
            return ErrorData(code=INVALID_REQUEST, message=str(refused))

    @property
    def _lends_models_of_agents(self) -> bool:
        return self._sampler is not None and self._sampler.is_of_agents

    async def _model_of_asker(self) -> BaseChatModel | None:
        """Return the model of the agent whose call causes the request; never another agent's model."""
        call = asks.get()
        if call is not None and call.token in self._under_way:
            return call.model
        left = await self._narrowed(_have_one_model)
        return left[0].model if _have_one_model(left) else None


def _have_one_model(calls: Sequence[HeldCall]) -> bool:
    return len({id(call.model) for call in calls}) == 1


def _answer_to(question: McpQuestion) -> ElicitResult:
    """Return the answer of a person.

    Raises:
        GraphInterrupt: if there is no answer yet.
        pydantic.ValidationError: if the answer is not allowed; the question stays open.
    """
    return result_of(interrupt(question, response_schema=answer_shape(question)))
