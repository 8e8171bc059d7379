"""Calls of servers of 2026, which answer with what they still need: the call is made again with it.

What a server has to know of the rounds before is in its `requestState`. It is part of the question, so that a call
goes on where it was, in whichever process it is answered.
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
"""Rounds in which nobody was asked, after which a server is taken to go round in circles."""
_PAUSE = 0.05
_LONGEST_PAUSE = 0.25
"""Seconds between rounds for which the server needs nothing but time."""

_REQUESTS: TypeAdapter[dict[str, InputRequest]] = TypeAdapter(dict[str, InputRequest])
_RESPONSES: TypeAdapter[dict[str, InputResponse]] = TypeAdapter(dict[str, InputResponse])


class Send(Protocol):
    """Makes the call, with what the server has asked for."""

    def __call__(
        self, responses: InputResponses | None, state: str | None, /
    ) -> Awaitable[CallToolResult | InputRequiredResult]: ...


class Respond(Protocol):
    """Answers what a server asks for; `continuation` is what the call needs to go on, if a person has to be asked."""

    def __call__(self, request: InputRequest, continuation: dict[str, Any], /) -> Awaitable[InputResponse]: ...


class EndlessRoundsError(Exception):
    """A server asks for more, again and again."""

    def __init__(self) -> None:
        super().__init__(f"the server has asked for more in {MAX_ROUNDS} rounds, one after the other")


@dataclass(slots=True)
class Round:
    """What a server asks for, and what of it is there."""

    requests: Mapping[str, InputRequest]
    state: str | None
    responses: dict[str, InputResponse] = field(default_factory=dict[str, InputResponse])

    @classmethod
    def of(cls, result: InputRequiredResult) -> "Round":
        """What a server asks for now. People first: what they wait for is not to be done twice."""
        requests = result.input_requests or {}
        by_person = sorted(requests.items(), key=lambda item: not isinstance(item[1], ElicitRequest))
        return cls(dict(by_person), result.request_state)

    @classmethod
    def resumed(cls, continuation: Mapping[str, Any], answer: ElicitResult) -> "Round":
        """The round in which a person was asked, with the answer."""
        responses = _RESPONSES.validate_python(continuation["responses"])
        responses[continuation["asking"]] = answer
        return cls(_REQUESTS.validate_python(continuation["requests"]), continuation["state"], responses)

    def continuation(self, asking: str) -> dict[str, Any]:
        """All of it as plain data, to go on with when one request is answered."""
        dumped: dict[str, Any] = {"by_alias": True, "mode": "json", "exclude_none": True}
        return {
            "state": self.state,
            "requests": _REQUESTS.dump_python(dict(self.requests), **dumped),
            "responses": _RESPONSES.dump_python(self.responses, **dumped),
            "asking": asking,
        }

    async def complete(self, respond: Respond) -> InputResponses | None:
        """Answer what is open."""
        for key, request in self.requests.items():
            if key not in self.responses:
                self.responses[key] = await respond(request, self.continuation(key))
        return self.responses or None


async def to_the_end(send: Send, respond: Respond, begun: Round | None) -> CallToolResult:
    """Make a call, round after round.

    Args:
        send: makes it.
        respond: answers what the server asks for.
        begun: the round to go on with, where a person was asked; `None` to begin.

    Raises:
        EndlessRoundsError: the server does not come to an end.
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
