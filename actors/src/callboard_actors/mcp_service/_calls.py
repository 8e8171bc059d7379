"""Handling of `tools/call`: run the call, ask the client's user if needed, and answer, in all protocol versions."""

from typing import Final

import anyio
from mcp import MCPError, types
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from callboard_actors.mcp_service._callers import Caller, Context, caller_of
from callboard_actors.mcp_service._course import Course, Filled, Outcome, forms
from callboard_actors.mcp_service._open_questions import OpenQuestions, Waiting
from callboard_actors.mcp_service._progress import telling
from callboard_actors.mcp_service._work import Asking, Offer, Tell

Answer = types.CallToolResult | types.InputRequiredResult
_CANNOT_ASK: Final = (
    "The call was not run to its end: a person has to be asked, and this client cannot ask one. It would have to "
    "support elicitation by forms."
)
_CLOSING: Final = "The call was not run to its end: it waited for a person, and the server is shutting down."


class Calls:
    """Calls of all clients of one service."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._open = OpenQuestions()
        self._asking: set[anyio.CancelScope] = set()
        self._is_closing = False

    async def answer(self, context: Context, params: types.CallToolRequestParams) -> Answer:
        """Return a result, or since 2026-07-28 the questions for the client's user.

        Raises:
            MCPError: for an unknown tool, or a question that is not open.
        """
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        caller = caller_of(context)
        waiting = self._taken(caller, params) if is_modern and params.request_state is not None else None
        course = self._begun(caller, params) if waiting is None else waiting.course
        try:
            # Calls return their errors. An error raised in this block would reach the SDK as an exception group.
            async with telling(context.session) as tell:
                if waiting is None:
                    outcome = await course.begin(tell)
                else:
                    outcome = await course.fill_in(waiting.asking, _responses(params), tell)
                while isinstance(outcome, Asking) and not is_modern:
                    outcome = await self._asked_meanwhile(context, course, outcome, tell)
        except BaseException:
            with anyio.CancelScope(shield=True):  # a cancelled call must not leave its thread in the checkpointer
                await course.work.forget()
            raise
        if not isinstance(outcome, Asking):
            return outcome
        if not _can_ask(context):
            return await course.give_up(_CANNOT_ASK)
        return await self._asked_for(caller, params, course, outcome)

    def reopen(self) -> None:
        """Allow questions to people again, after a drain."""
        self._is_closing = False

    async def close(self) -> None:
        """Give up all calls that wait for a person, and ask no more questions."""
        self._is_closing = True
        for scope in list(self._asking):
            scope.cancel()
        await self._open.close()

    def _begun(self, caller: Caller, params: types.CallToolRequestParams) -> Course:
        work = self._offer.begin(params.name, params.arguments or {}, caller)
        if work is None:
            names = ", ".join(tool.name for tool in self._offer.tools())
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}; there are {names}")
        return Course(work)

    # Protocol versions until 2025-11-25: the server sends elicitation requests during the call.

    async def _asked_meanwhile(self, context: Context, course: Course, asking: Asking, tell: Tell) -> Outcome:
        if not _can_ask(context) or not context.session.can_send_request:
            return await course.give_up(_CANNOT_ASK)
        filled = await self._filled(context, asking)
        if isinstance(filled, str):
            return await course.give_up(filled)
        return await course.fill_in(asking, filled, tell)

    async def _filled(self, context: Context, asking: Asking) -> Filled | str:
        """Return the filled-in forms, or a text with the reason for their absence."""
        with anyio.CancelScope() as scope:
            self._asking.add(scope)
            if self._is_closing:  # `close()` has cancelled the scopes that it found, and knows nothing of this one
                scope.cancel()
            try:
                return {key: await _elicited(context, form) for key, form in forms(asking).items()}
            except (MCPError, ValidationError) as error:
                return f"{_CANNOT_ASK} It says: {error}"
            finally:
                self._asking.discard(scope)
        return _CLOSING

    # Protocol versions since 2026-07-28: the answer has the questions; the client repeats its request with the forms.

    def _taken(self, caller: Caller, params: types.CallToolRequestParams) -> Waiting:
        waiting = self._open.take(params.request_state or "", caller, params.name, params.arguments or {})
        if waiting is None:
            raise MCPError(
                types.INVALID_PARAMS,
                "No such question is open: it was answered before, has waited too long, or was asked by a server that "
                "is gone. Nothing was done by this request.",
            )
        return waiting

    async def _asked_for(
        self, caller: Caller, params: types.CallToolRequestParams, course: Course, asking: Asking
    ) -> Answer:
        if self._is_closing:
            return await course.give_up(_CLOSING)
        state = await self._open.keep(Waiting(caller, params.name, params.arguments or {}, course, asking))
        return types.InputRequiredResult(input_requests={**forms(asking)}, request_state=state)


def _can_ask(context: Context) -> bool:
    """Return whether the client supports forms; elicitation without a mode means forms, the only mode at first."""
    capabilities = context.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


async def _elicited(context: Context, form: types.ElicitRequest) -> types.ElicitResult:
    metadata = ServerMessageMetadata(related_request_id=context.request_id)
    return await context.session.send_request(form, types.ElicitResult, metadata=metadata)


def _responses(params: types.CallToolRequestParams) -> Filled:
    given = params.input_responses or {}
    return {key: one for key, one in given.items() if isinstance(one, types.ElicitResult)}
