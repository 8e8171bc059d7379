"""Handling of `tools/call`: run the call, ask the client's user if needed, and answer, in all protocol versions.

Since protocol version 2026-07-28, a call that asks waits in `OpenQuestions` until the client's next request.
"""

import math
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio
from mcp import MCPError, types
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from callboard_actors.mcp_service._agent_offer import AgentOffer
from callboard_actors.mcp_service._callers import Caller, Context, caller_of
from callboard_actors.mcp_service._node_offer import NodeOffer
from callboard_actors.mcp_service._questions import Dialogue, Filled, NeedsAnswers, Outcome, Tell, forms

# Calls that wait between two requests of a client.

MOST: Final = 1000
"""Limit of waiting calls of all clients."""
MOST_OF_ONE: Final = 100
"""Limit of waiting calls of one client."""
PATIENCE: Final = 3600.0
"""Seconds that a call waits for its answers."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """Call that waits for a person, with its open questions."""

    caller: Caller
    name: str
    arguments: dict[str, Any]
    dialogue: Dialogue
    asking: NeedsAnswers
    until: float = math.inf


class OpenQuestions:
    """Waiting calls by a secret state, which only the asked client knows. Each can be taken once, so none runs twice.

    Above the limit per client, the client's oldest call is dropped. Above the limit of all clients, the oldest call
    of the client with the most calls is dropped.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingCall] = {}
        """In the order of their beginning."""

    async def keep(self, waiting: WaitingCall) -> str:
        """Store a call, and return its secret state."""
        # There is no timer: expired calls are dropped here, or refused by `take`.
        for state in [state for state, one in self._waiting.items() if one.until <= anyio.current_time()]:
            await self._forget(state)
        state = secrets.token_urlsafe(32)
        self._waiting[state] = replace(waiting, until=anyio.current_time() + PATIENCE)
        while (surplus := self._surplus(waiting.caller.owner)) is not None:
            await self._forget(surplus)
        return state

    def take(self, state: str, caller: Caller, name: str, arguments: dict[str, Any]) -> WaitingCall | None:
        """Remove and return a waiting call; `None` if it is unknown, expired, or of another client or request."""
        found = self._waiting.get(state)
        # The state is not enough: it must not continue a call of another client, or with other arguments.
        if found is None or (found.caller.principal, found.name, found.arguments) != (
            caller.principal,
            name,
            arguments,
        ):
            return None
        del self._waiting[state]
        return found if found.until > anyio.current_time() else None

    async def close(self) -> None:
        """Drop all waiting calls."""
        while self._waiting:
            await self._forget(next(iter(self._waiting)))

    async def _forget(self, state: str) -> None:
        # A call may be taken, or forgotten, while another one is being forgotten.
        if (found := self._waiting.pop(state, None)) is not None:
            await found.dialogue.work.forget()

    def _surplus(self, owner: tuple[str, str]) -> str | None:
        """Return the call to drop because a limit is exceeded, after a call of `owner` was stored."""
        counts = Counter(one.caller.owner for one in self._waiting.values())
        if counts[owner] <= MOST_OF_ONE:
            if len(self._waiting) <= MOST:
                return None
            # By address first: a client must not evade the limit by opening many connections.
            of_hosts = Counter(_group(*one.caller.owner) for one in self._waiting.values())
            owner = max(counts, key=lambda one: (of_hosts[_group(*one)], counts[one]))
        return next(state for state, one in self._waiting.items() if one.caller.owner == owner)


def _group(host: str, name: str) -> tuple[str, str]:
    """Return the group for the limit of all clients: an authenticated client, or all connections of an address."""
    return (host, name) if host == "principal" else (host, "")


# Progress notifications.

_STEP: Final = 1e-6
"""Smallest step of a progress number, as a fraction of the total."""


Report = tuple[float, float | None, str | None]
"""Progress number of a call, its total, and a message, as sent to the client."""


class ProgressCounter:
    """Source of reports with strictly rising numbers, as the protocol requires. Tools may report no numbers."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._total: float | None = None

    def report(self, message: object, done: object = None, total: object = None) -> Report:
        """Return the next report; its number is higher than the last one."""
        # If `done` is missing or did not rise, the number rises by one, or by a millionth of the last known total.
        if isinstance(total, (int, float)):
            self._total = float(total)
        self._last = self._next(done)
        return self._last, self._total, message if isinstance(message, str) and message else None

    def _next(self, done: object) -> float:
        if isinstance(done, (int, float)) and done >= 0 and (self._last is None or done > self._last):
            return float(done)
        if self._last is None:
            return 0.0
        step = 1.0 if self._total is None else _STEP * max(self._total, 1.0)
        return max(self._last + step, math.nextafter(self._last, math.inf))  # a small step may vanish by rounding


@asynccontextmanager
async def progress_sender(
    report: Callable[[float, float | None, str | None], Awaitable[None]],
) -> AsyncGenerator[Callable[[object], None]]:
    """Send progress during the block; yield a function that takes stream chunks, and ignores other chunks."""
    # `waiting` holds at most one report, the newest: a call never waits for a slow client.
    rising = ProgressCounter()
    waiting: list[Report] = []
    due = anyio.Event()
    is_over = False

    def take(chunk: object) -> None:
        if isinstance(chunk, dict) and chunk.get("type") == "progress":
            waiting[:] = [rising.report(chunk.get("message"), chunk.get("done"), chunk.get("total"))]
            due.set()

    async def tell() -> None:
        nonlocal due
        while not is_over:
            await due.wait()
            due = anyio.Event()
            while waiting:
                await report(*waiting.pop())

    async with anyio.create_task_group() as group:
        group.start_soon(tell)
        yield take
        is_over = True
        due.set()


# Calls.

Answer = types.CallToolResult | types.InputRequiredResult
_CANNOT_ASK: Final = (
    "The call was not run to its end: a person has to be asked, and this client cannot ask one. It would have to "
    "support elicitation by forms."
)
_CLOSING: Final = "The call was not run to its end: it waited for a person, and the server is shutting down."


Offer = AgentOffer | NodeOffer
"""Served object: its name, its tools, and calls of them."""


class Calls:
    """Calls of all clients of one service."""

    def __init__(self, offer: Offer | None) -> None:
        self.offer = offer
        """`None` while the served object is closed; there are no tools then."""
        self._open = OpenQuestions()
        self._asking: set[anyio.CancelScope] = set()
        self._is_closing = False

    async def answer(self, context: Context, params: types.CallToolRequestParams) -> Answer:
        """Return a result, or since 2026-07-28 the questions for the user; raise MCPError for an unknown tool."""
        is_modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        caller = caller_of(context)
        waiting = self._taken(caller, params) if is_modern and params.request_state is not None else None
        dialogue = self._begun(caller, params) if waiting is None else waiting.dialogue
        if isinstance(dialogue, types.CallToolResult):
            return dialogue
        try:
            # Calls return their errors. An error raised in this block would reach the SDK as an exception group.
            async with progress_sender(context.session.report_progress) as tell:
                if waiting is None:
                    outcome = await dialogue.work.go_on({}, tell)
                else:
                    outcome = await dialogue.fill_in(waiting.asking, _responses(params), tell)
                while isinstance(outcome, NeedsAnswers) and not is_modern:
                    outcome = await self._asked_meanwhile(context, dialogue, outcome, tell)
        except BaseException:
            with anyio.CancelScope(shield=True):  # a cancelled call must not leave its thread in the checkpointer
                await dialogue.work.forget()
            raise
        if not isinstance(outcome, NeedsAnswers):
            return outcome
        if not _can_ask(context):
            return await dialogue.give_up(_CANNOT_ASK)
        return await self._asked_for(caller, params, dialogue, outcome)

    def tools(self) -> list[types.Tool]:
        """Return the tools that clients may see now."""
        return [] if self.offer is None else self.offer.tools()

    def reopen(self) -> None:
        """Allow questions to people again, after a drain."""
        self._is_closing = False

    async def close(self) -> None:
        """Give up all calls that wait for a person, and ask no more questions."""
        self._is_closing = True
        for scope in list(self._asking):
            scope.cancel()
        await self._open.close()

    def _begun(self, caller: Caller, params: types.CallToolRequestParams) -> Dialogue | types.CallToolResult:
        """Return a call that has not begun, or its refusal."""
        work = None if self.offer is None else self.offer.begin(params.name, params.arguments or {}, caller)
        if work is None:
            names = ", ".join(tool.name for tool in self.tools())
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}; there are {names}")
        return work if isinstance(work, types.CallToolResult) else Dialogue(work)

    # Protocol versions until 2025-11-25: the server sends elicitation requests during the call.

    async def _asked_meanwhile(self, context: Context, dialogue: Dialogue, asking: NeedsAnswers, tell: Tell) -> Outcome:
        if not _can_ask(context) or not context.session.can_send_request:
            return await dialogue.give_up(_CANNOT_ASK)
        filled = await self._filled(context, asking)
        if isinstance(filled, str):
            return await dialogue.give_up(filled)
        return await dialogue.fill_in(asking, filled, tell)

    async def _filled(self, context: Context, asking: NeedsAnswers) -> Filled | str:
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

    def _taken(self, caller: Caller, params: types.CallToolRequestParams) -> WaitingCall:
        waiting = self._open.take(params.request_state or "", caller, params.name, params.arguments or {})
        if waiting is None:
            raise MCPError(
                types.INVALID_PARAMS,
                "No such question is open: it was answered before, has waited too long, or was asked by a server that "
                "is gone. Nothing was done by this request.",
            )
        return waiting

    async def _asked_for(
        self, caller: Caller, params: types.CallToolRequestParams, dialogue: Dialogue, asking: NeedsAnswers
    ) -> Answer:
        if self._is_closing:
            return await dialogue.give_up(_CLOSING)
        state = await self._open.keep(WaitingCall(caller, params.name, params.arguments or {}, dialogue, asking))
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
