"""Model requests of `create_agent` under supervision, on asyncio, on trio, and from sync code."""

from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from langchain.agents.middleware import ModelFallbackMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import PrivateAttr

from callboard import CallPolicy, CallRejectedError, CallTimeoutError, CircuitOpenError, Limit, create_agent
from callboard.middleware import CircuitBreaker, Retry
from callboard.testing import ScriptedModel

from ._savers import QUESTION, run

# A model of LangChain needs asyncio: on trio it runs on a loop in another thread.
pytestmark = pytest.mark.real_clock


class Silent(BaseChatModel):
    """Model that streams some words, and then never goes on, until it is cancelled."""

    words: int = 0
    _cancelled: list[bool] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "silent"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        await self._forever()
        return ChatResult(generations=[ChatGeneration(message=AIMessage("never"))])

    async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(self.words):
            yield ChatGenerationChunk(message=AIMessageChunk("word "))
        await self._forever()

    async def _forever(self) -> None:
        try:
            await anyio.sleep_forever()
        except BaseException:
            self._cancelled.append(True)
            raise


class Failing(ScriptedModel):
    """Model that fails at its first requests with the given errors."""

    _errors: Iterator[Exception] = PrivateAttr()

    def __init__(self, errors: list[Exception], *script: Any) -> None:
        super().__init__(script)
        self._errors = iter(errors)

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        if (error := next(self._errors, None)) is not None:
            raise error
        return super()._generate(*args, **options)

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        if (error := next(self._errors, None)) is not None:
            raise error
        return await super()._agenerate(*args, **options)


class Busy(Exception):
    """Error of a provider that names a time after which to ask again."""

    def __init__(self, seconds: str) -> None:
        super().__init__("busy")
        self.response = type("Response", (), {"headers": {"Retry-After": seconds}, "status_code": 429})()


both_doors = pytest.mark.parametrize("door", ["ainvoke", "invoke"])


async def test_a_model_request_has_a_timeout_that_cancels_it() -> None:
    model = Silent()
    agent = create_agent(model, [], model_policy=CallPolicy(timeout=0.05))
    with pytest.raises(CallTimeoutError, match=r"^The model did not finish within its timeout of 0.05 s"):
        await run(agent)
    assert model._cancelled == [True]


async def test_a_stream_that_stops_is_given_up() -> None:
    agent = create_agent(Silent(words=3), [], model_policy=CallPolicy(idle_timeout=0.05))
    with pytest.raises(CallTimeoutError, match="The model was given up") as caught:
        await run(agent)
    assert caught.value.idle


async def test_a_stream_that_goes_on_is_not_given_up() -> None:
    class Slow(Silent):
        async def _forever(self) -> None:
            """End the reply."""

        async def _astream(self, *args: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
            for _ in range(8):
                await anyio.sleep(0.05)
                yield ChatGenerationChunk(message=AIMessageChunk("word "))

    agent = create_agent(Slow(), [], model_policy=CallPolicy(idle_timeout=0.3))
    assert (await run(agent))["messages"][-1].content == "word " * 8


@both_doors
async def test_a_failed_request_is_sent_again(door: str) -> None:
    model = Failing([ConnectionError("lost"), ConnectionError("lost")], "done")
    agent = create_agent(model, [], middleware=[Retry(attempts=3, initial=0)], model_policy=CallPolicy(timeout=5))
    assert (await run(agent, door=door))["messages"][-1].content == "done"


async def test_a_provider_that_asks_for_a_pause_of_days_gets_no_further_request() -> None:
    model = Failing([Busy("200000")], "done")
    agent = create_agent(model, [], middleware=[Retry(attempts=2, initial=0)])
    with pytest.raises(Busy):
        await run(agent)
    assert model.requests == []


async def test_a_request_is_not_repeated_after_the_end_of_the_budget() -> None:
    model = Failing([Busy("60")], "done")
    agent = create_agent(model, [], middleware=[Retry(attempts=2, initial=0)], budget=30)
    with pytest.raises(Busy):
        await run(agent)


@both_doors
async def test_a_circuit_opens_for_a_model_that_keeps_failing(door: str) -> None:
    model = Failing([ConnectionError("lost")] * 2, "done")
    agent = create_agent(model, [], middleware=[CircuitBreaker(minimum=2, open_for=60)])
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await run(agent, door=door)
    with pytest.raises(CircuitOpenError, match=r"^The model 'Failing'"):
        await run(agent, door=door)


async def test_an_error_that_is_not_matched_is_raised_at_once() -> None:
    agent = create_agent(Failing([KeyError("no")], "done"), [], middleware=[Retry(on=ConnectionError)])
    with pytest.raises(KeyError):
        await run(agent)


async def test_a_fallback_of_langchain_stands_outside_of_supervision() -> None:
    fallback = ModelFallbackMiddleware(ScriptedModel(["from the other"]))
    agent = create_agent(Silent(), [], middleware=[fallback], model_policy=CallPolicy(timeout=0.05))
    assert (await run(agent))["messages"][-1].content == "from the other"


class Counted(ScriptedModel):
    """Model that counts its requests that run at once."""

    _running: list[int] = PrivateAttr(default_factory=lambda: [0, 0])

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        with self._count_call():
            return super()._generate(*args, **options)

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        with self._count_call():
            await anyio.sleep(0.01)
            return await super()._agenerate(*args, **options)

    @contextmanager
    def _count_call(self) -> Generator[None]:
        self._running[0] += 1
        self._running[1] = max(self._running)
        yield
        self._running[0] -= 1


@both_doors
async def test_a_limit_holds_for_all_agents_that_have_the_policy(door: str) -> None:
    model, policy = Counted(["done"], loop=True), CallPolicy(limit=Limit(concurrency=1))
    agents = [create_agent(model, [], model_policy=policy) for _ in range(2)]
    async with anyio.create_task_group() as tasks:
        for agent in agents * 2:
            tasks.start_soon(partial(run, agent, door=door))
    assert model._running == [0, 1]


async def test_a_request_is_rejected_when_the_queue_is_full() -> None:
    policy = CallPolicy(limit=Limit(concurrency=1, queue=0), timeout=0.2)
    agent = create_agent(Silent(), [], model_policy=policy)
    errors: list[Exception] = []

    async def one() -> None:
        try:
            await run(agent)
        except (CallRejectedError, CallTimeoutError) as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
    assert {type(error) for error in errors} == {CallRejectedError, CallTimeoutError}
    assert "The model was not started" in "".join(map(str, errors))


async def test_a_key_of_a_limit_sees_the_run() -> None:
    users: list[Any] = []

    def user(call: Any, context: Any) -> str:
        users.append(context.config["configurable"]["user"])
        return str(users[-1])

    policy = CallPolicy(limit=Limit(concurrency=1, key=user))
    agent = create_agent(ScriptedModel(["done"]), [], model_policy=policy)
    await agent.ainvoke(QUESTION, {"configurable": {"user": "ann"}})
    assert users == ["ann"]


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        (partial(CallPolicy, idempotent=True), ValueError),
        (partial(CallPolicy, on_unknown="ask"), ValueError),
        (dict, TypeError),
    ],
)
def test_an_option_that_is_for_tools_is_refused(policy: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="model_policy"):
        create_agent(ScriptedModel(["done"]), [], model_policy=policy())
