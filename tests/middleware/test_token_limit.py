"""`TokenLimit`: requests to a model wait while those of the window have used too many tokens."""

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata

from callboard import create_agent
from callboard.middleware import TokenLimit
from callboard.testing import ScriptedModel


def reply(tokens: int) -> AIMessage:
    usage = UsageMetadata(input_tokens=0, output_tokens=tokens, total_tokens=tokens)
    return AIMessage("done", usage_metadata=usage)


class Requests:
    """Sends requests of given sizes through a limit, and notes when each starts."""

    def __init__(self, limit: TokenLimit) -> None:
        self._limit = limit
        self._start = anyio.current_time()
        self.started: list[float] = []

    async def send(self, tokens: int, *, takes: float = 0.0, user: str = "ann") -> None:
        async def model(_: Any) -> Any:
            # A wait may end a millisecond late, because sums of times are not exact.
            self.started.append(round(anyio.current_time() - self._start, 2))
            await anyio.sleep(takes)
            return SimpleNamespace(result=[reply(tokens)])

        request = SimpleNamespace(state={}, runtime=SimpleNamespace(context=user))
        await self._limit.awrap_model_call(request, model)


async def test_a_request_waits_until_the_window_has_room() -> None:
    requests = Requests(TokenLimit(100, per=60))
    for _ in range(4):
        await requests.send(50)
    assert requests.started == [0, 0, 60, 60]


async def test_the_window_slides() -> None:
    requests = Requests(TokenLimit(100, per=60))
    await requests.send(60, takes=10)
    await requests.send(60)
    await requests.send(10)
    assert requests.started == [0, 10, 60]


async def test_a_request_in_flight_counts_as_the_reserve() -> None:
    requests = Requests(TokenLimit(100, per=60, reserve=60))
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(lambda: requests.send(60, takes=5))
    assert requests.started == [0, 0, 60]


async def test_each_key_has_its_own_window() -> None:
    requests = Requests(TokenLimit(100, per=60, key=lambda context: context.context))
    for user in ("ann", "bob", "ann", "bob"):
        await requests.send(100, user=user)
    assert requests.started == [0, 0, 60, 60]


async def test_windows_of_idle_keys_are_dropped() -> None:
    limit = TokenLimit(100, per=60, key=lambda context: context.context)
    requests = Requests(limit)
    for number in range(50):
        await requests.send(1, user=str(number))
        await anyio.sleep(30)
    assert len(limit._windows) <= 4


@pytest.mark.real_clock
async def test_an_agent_counts_the_tokens_of_its_model() -> None:
    limit = TokenLimit(100, per=3600)
    agent = create_agent(ScriptedModel([reply(100), reply(1)]), [], middleware=[limit], budget=0.5)
    await agent.ainvoke({"messages": [("user", "go")]})
    with pytest.raises(TimeoutError):
        await agent.ainvoke({"messages": [("user", "go")]})


@pytest.mark.parametrize(
    ("options", "error"),
    [({"tokens": 0}, ValueError), ({"tokens": 1, "per": 0}, ValueError), ({"tokens": 1, "key": "user"}, TypeError)],
)
def test_an_option_that_makes_no_sense_is_named(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"TokenLimit\("):
        TokenLimit(**options)
