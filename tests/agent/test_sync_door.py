"""`invoke` and `stream` with sync clients, with threads, and with models that cannot be interrupted."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.to_thread
import httpx
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableGenerator, RunnableLambda, RunnableParallel
from langchain_core.tools import StructuredTool, tool

from callboard import ToolNode, create_react_agent
from callboard.agent._model import has_sync_variant
from callboard.exceptions import AbandonedThreadWarning, RunDeadlineExceededError
from callboard.testing import ScriptedModel, calls

from ._provider import Provider, openai_model, reply
from ._provider import call as provider_call
from ._savers import say, scripted

pytestmark = pytest.mark.real_clock

WAIT = 20
QUESTION: Any = say("What is it like in Paris?")


class Counted(httpx.HTTPTransport):
    """Transport of a user's own client, which may have a proxy or a certificate."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        return super().handle_request(request)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_users_sync_client_is_used(streaming: bool) -> None:
    """Only this client may have the proxy that leads to the internet."""
    transport = Counted()
    with Provider(reply(calls=[provider_call("a", "weather", city="Paris")]), reply("Lovely.")) as provider:
        with httpx.Client(transport=transport) as client:
            model = openai_model(provider, http_client=client, streaming=streaming, timeout=WAIT, max_retries=0)
            agent = create_react_agent(model, [weather])
            result = agent.invoke(QUESTION)
    assert result["messages"][-1].content == "Lovely."
    assert transport.requests == len(provider.requests) == 2


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@pytest.mark.backends("asyncio")
async def test_one_client_serves_both_doors_in_turn() -> None:
    """The async connections belong to the user's event loop, so `invoke` must not use them from another loop."""
    with Provider(*[reply("Lovely.")] * 5) as provider:
        async with httpx.AsyncClient() as client:
            model = openai_model(provider, http_async_client=client, timeout=WAIT, max_retries=0)
            agent = create_react_agent(model, [])
            results = [
                await anyio.to_thread.run_sync(agent.invoke, QUESTION),
                await agent.ainvoke(QUESTION),
                agent.invoke(QUESTION),
                await agent.ainvoke(QUESTION),
                agent.invoke(QUESTION),
            ]
    assert [result["messages"][-1].content for result in results] == ["Lovely."] * 5


def recursive(node_of: Any) -> Any:
    """An agent with a sync tool that runs the agent again, as often as the question says."""

    @tool
    def dig(depth: int) -> str:
        """Dig deeper."""
        if depth == 0:
            return "ground"
        return str(agent.invoke(say(str(depth - 1)))["messages"][-1].content)

    def dig_on(messages: list[Any]) -> Any:
        last = messages[-1]
        return (
            str(last.content)
            if last.type == "tool"
            else [{"name": "dig", "args": {"depth": int(last.content)}, "id": "d"}]
        )

    agent = scripted([dig_on], node_of([dig]), loop=True)
    return agent


def _pass_on(request: Any, execute: Any) -> Any:
    return execute(request)


@pytest.mark.parametrize(
    "node_of", [lambda tools: tools, lambda tools: ToolNode(tools, wrap_tool_call=_pass_on)], ids=["plain", "wrapped"]
)
@pytest.mark.exhaustive
def test_agents_in_sync_tools_of_themselves_never_wait_for_their_own_threads(node_of: Any) -> None:
    """Forty runs at once, ten levels deep: a tool that waits for an agent holds no thread that the agent needs."""
    agent = recursive(node_of)
    with ThreadPoolExecutor(40) as threads:
        questions = [say("9")] * 40
        results = list(threads.map(agent.invoke, questions, timeout=60))
    assert {result["messages"][-1].content for result in results} == {"ground"}


_user: ContextVar[str] = ContextVar("who", default="nobody")


def test_context_variables_reach_models_hooks_and_tools() -> None:
    """Examples are a tenant, a trace and a locale."""
    part_users: list[tuple[str, str]] = []

    def record_user(part: str, result: Any) -> Any:
        def look(*_: Any) -> Any:
            part_users.append((part, _user.get()))
            return result

        return look

    @tool
    def ask() -> str:
        """Asks."""
        return str(record_user("tool", "ok")())

    model = ScriptedModel([record_user("model", calls("ask")), "done"])
    agent = create_react_agent(
        model, [ask], pre_model_hook=record_user("before", {}), prompt=record_user("prompt", QUESTION["messages"])
    )
    token = _user.set("me")
    try:
        agent.invoke(QUESTION)
    finally:
        _user.reset(token)
    assert {name for name, _ in part_users} == {"tool", "model", "before", "prompt"}
    assert {user for _, user in part_users} == {"me"}


class Slow(ScriptedModel):
    """Yields words without end, and records when it has been stopped."""

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        try:
            while True:
                yield ChatGenerationChunk(message=AIMessageChunk("word "))
                time.sleep(0.01)
        finally:
            stopped.set()


stopped = threading.Event()


def test_tokens_of_a_sync_model_are_streamed_as_they_come() -> None:
    """A thread produces the tokens, and a reader in another thread gets them before the model has ended."""
    stopped.clear()
    stream = create_react_agent(Slow([]), []).stream(QUESTION, stream_mode="messages")
    read = [next(stream) for _ in range(3)]
    assert not stopped.is_set()
    stream.close()  # type: ignore[attr-defined]
    assert [message.content for message, _ in read] == ["word "] * 3
    assert all(metadata["langgraph_node"] == "agent" for _, metadata in read)
    assert stopped.wait(WAIT), "the model goes on for nobody"


def test_a_budget_ends_a_sync_model_at_its_next_token() -> None:
    """A thread cannot be stopped between two tokens, so it ends at the next token."""
    stopped.clear()
    agent = create_react_agent(Slow([]), [], budget=0.3)
    with pytest.raises(RunDeadlineExceededError):
        for _ in agent.stream(QUESTION, stream_mode="messages"):
            pass
    assert stopped.wait(WAIT)


def test_a_model_that_hangs_in_its_thread_is_left_behind_with_a_word() -> None:
    let_go = threading.Event()

    def hang(_: Any) -> str:
        let_go.wait(WAIT)
        return "too late"

    agent = scripted([hang], [], budget=0.2)
    begun = time.monotonic()
    try:
        with (
            pytest.warns(AbandonedThreadWarning, match="the worker thread of the model goes on"),
            pytest.raises(RunDeadlineExceededError),
        ):
            agent.invoke(QUESTION)
    finally:
        let_go.set()
    assert time.monotonic() - begun < WAIT / 2


async def _only(city: str) -> str:
    """The weather of a city."""
    await anyio.sleep(0)
    return f"rainy in {city}"


def test_what_is_async_only_runs_by_the_sync_door_too() -> None:
    """LangGraph refuses async tools in `invoke`; callboard runs them on its background loop."""

    async def before(state: Any) -> Any:
        await anyio.sleep(0)
        return {}

    async def prompt(state: Any) -> Any:
        await anyio.sleep(0)
        return state["messages"]

    async def choose(state: Any, runtime: Any) -> Any:
        await anyio.sleep(0)
        return model

    model = ScriptedModel([calls(("weather", {"city": "Rome"})), "done"])
    only = StructuredTool.from_function(coroutine=_only, name="weather")
    result = create_react_agent(choose, [only], pre_model_hook=before, prompt=prompt).invoke(QUESTION)
    assert [message.content for message in result["messages"]][2:] == ["rainy in Rome", "done"]


def test_a_node_that_is_awaited_within_a_sync_run_uses_async_functions() -> None:
    weather_tool = StructuredTool.from_function(_sync, coroutine=_only, name="weather")
    inner = ToolNode([weather_tool])

    async def outer(city: str) -> str:
        """Ask another node."""
        (message,) = (await inner.ainvoke([weather_in(city)]))["messages"]
        return str(message.content)

    def answer(node: ToolNode) -> Any:
        return node.invoke([weather_in("Rome")])["messages"][0].content

    assert answer(inner) == "sunny in Rome"
    assert answer(ToolNode([StructuredTool.from_function(coroutine=outer, name="weather")])) == "rainy in Rome"


def weather_in(city: str) -> Any:
    return {"name": "weather", "args": {"city": city}, "id": "1", "type": "tool_call"}


def _sync(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def _same(value: Any) -> Any:
    return value


async def _asame(value: Any) -> Any:
    return value


async def _chunks(values: Any) -> Any:
    async for value in values:
        yield value


def test_what_consists_of_parts_has_a_sync_half_if_all_of_them_have() -> None:
    """Otherwise LangChain would raise in the middle of the sequence."""
    two_sided, only = RunnableLambda(_same, _asame), RunnableLambda(_asame)
    model = ScriptedModel([])

    for runnable in (
        two_sided,
        model,
        two_sided | model,
        model.bind(stop="."),
        two_sided.with_retry(),
        model.with_fallbacks([two_sided]),
    ):
        assert has_sync_variant(runnable), runnable
    parts = (only, RunnableGenerator(_chunks), only.with_retry(), only.with_config(tags=["x"]), two_sided | only)
    for runnable in (*parts, model.with_fallbacks([only]), RunnableParallel(a=two_sided, b=only), AsyncModel([])):
        assert not has_sync_variant(runnable), runnable


class AsyncModel(ScriptedModel):
    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("await me")


def test_a_model_that_can_only_be_awaited_is() -> None:
    """LangGraph raises the model's error about a missing sync method."""
    assert create_react_agent(AsyncModel(["done"]), []).invoke(QUESTION)["messages"][-1].content == "done"
