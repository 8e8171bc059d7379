"""Calls to servers of 2026, in rounds: a server may answer with requests, and the call is repeated with the answers.

The server's memory of earlier rounds is in its `requestState`. The question to a person contains it. So the call can
continue in any process in which the answer arrives.
"""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio
from mcp_types import (
    CallToolResult,
    ElicitRequest,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponse,
    InputResponses,
)
from pydantic import TypeAdapter

MAX_ROUNDS = 10
"""Maximum consecutive rounds without a person; more are taken for an endless loop of the server."""
_PAUSE = 0.05
"""First pause in seconds before a round in which the server only needs time; doubled each time."""
_LONGEST_PAUSE = 0.25
"""Maximum of that pause in seconds."""

_REQUESTS: TypeAdapter[dict[str, InputRequest]] = TypeAdapter(dict[str, InputRequest])
_RESPONSES: TypeAdapter[dict[str, InputResponse]] = TypeAdapter(dict[str, InputResponse])


class Send(Protocol):
    """Function that sends the call, with answers to the server's requests."""

    def __call__(
        self, responses: InputResponses | None, state: str | None, /
    ) -> Awaitable[CallToolResult | InputRequiredResult]: ...


class Respond(Protocol):
    """Function that answers a request; `continuation` is stored with the question if a person must be asked."""

    def __call__(self, request: InputRequest, continuation: dict[str, Any], /) -> Awaitable[InputResponse]: ...


class EndlessRoundsError(Exception):
    """Raised if a server keeps asking."""

    def __init__(self) -> None:
        super().__init__(f"the server has asked for more in {MAX_ROUNDS} rounds, one after the other")


@dataclass(slots=True)
class Round:
    """Requests of a server in one response, and the answers so far."""

    requests: Mapping[str, InputRequest]
    state: str | None
    responses: dict[str, InputResponse] = field(default_factory=dict[str, InputResponse])

    @classmethod
    def of(cls, result: InputRequiredResult) -> "Round":
        """Return the round of a response. Requests to a person come first: an interrupt repeats all earlier work."""
        requests = result.input_requests or {}
        by_person = sorted(requests.items(), key=lambda item: not isinstance(item[1], ElicitRequest))
        return cls(dict(by_person), result.request_state)

    @classmethod
    def resumed(cls, continuation: Mapping[str, Any], answer: ElicitResult) -> "Round":
        """Return the round in which a person was asked, completed with the answer."""
        responses = _RESPONSES.validate_python(continuation["responses"])
        responses[continuation["asking"]] = answer
        return cls(_REQUESTS.validate_python(continuation["requests"]), continuation["state"], responses)

    def continuation(self, asking: str) -> dict[str, Any]:
        """Return the round as plain data, with which it continues after the answer to `asking`."""
        dumped: dict[str, Any] = {"by_alias": True, "mode": "json", "exclude_none": True}
        return {
            "state": self.state,
            "requests": _REQUESTS.dump_python(dict(self.requests), **dumped),
            "responses": _RESPONSES.dump_python(self.responses, **dumped),
            "asking": asking,
        }

    async def complete(self, respond: Respond) -> InputResponses | None:
        """Answer all open requests."""
        for key, request in self.requests.items():
            if key not in self.responses:
                self.responses[key] = await respond(request, self.continuation(key))
        return self.responses or None


async def to_the_end(send: Send, respond: Respond, begun: Round | None) -> CallToolResult:
    """Make a call, round after round.

    `begun` is the round in which a person was asked, or `None` for a new call. Raise `EndlessRoundsError` after too
    many rounds.
    """
    pause = _PAUSE
    result = await (send(None, None) if begun is None else send(await begun.complete(respond), begun.state))
    for _ in range(MAX_ROUNDS):
        if isinstance(result, CallToolResult):
            return result
        this = Round.of(result)
        if not this.requests:
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        result = await send(await this.complete(respond), this.state)
    if isinstance(result, CallToolResult):
        return result
    raise EndlessRoundsError
