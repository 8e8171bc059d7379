"""callboard's agent with the real client of langchain-openai, against a test server."""

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from anyio import to_thread
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from callboard import create_react_agent
from callboard.extend import run_on_asyncio

from ._provider import Answer, Provider, call, deltas_of, hangs_up, openai_model, reply, too_many
from ._savers import AT, complaint, contents, say

pytestmark = pytest.mark.real_clock

WAIT = 20
QUESTION = say("What is it like in Paris?")
CALLS = [call("call_a", "weather", city="Paris"), call("call_b", "clock", city="Paris, at the river")]


@asynccontextmanager
async def provider_and_model(*script: Answer, **options: Any) -> AsyncIterator[tuple[Provider, BaseChatModel]]:
    """A server and a client for it; on trio the client lives on the background loop of asyncio."""
    client = httpx.AsyncClient(verify=False)  # to read the certificates of the machine takes long
    with Provider(*script) as provider:
        model = openai_model(provider, http_async_client=client, timeout=WAIT, **options)
        try:
            yield provider, model
        finally:
            await run_on_asyncio(client.aclose)


class Tools:
    """Two tools that both wait until the other one has begun."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.ran: list[str] = []

    async def weather(self, city: str) -> str:
        """The weather of a city."""
        await to_thread.run_sync(self.barrier.wait, WAIT)
        self.ran.append("weather")
        return f"sunny in {city}"

    def clock(self, city: str) -> str:
        """The time in a city."""
        self.barrier.wait(WAIT)
        self.ran.append("clock")
        return f"noon in {city}"

    @property
    def all(self) -> list[Any]:
        return [self.weather, self.clock]


TURN = ["What is it like in Paris?", "", "sunny in Paris", "noon in Paris, at the river", "Lovely."]


@pytest.mark.parametrize("streaming", [pytest.param(False, marks=pytest.mark.exhaustive), True])
async def test_a_turn_with_two_tools_in_parallel(streaming: bool) -> None:
    tools = Tools()
    async with provider_and_model(reply(calls=CALLS), reply("Lovely."), streaming=streaming) as (provider, model):
        result = await create_react_agent(model, tools.all, prompt="Be brief.").ainvoke(QUESTION)
    assert contents(result) == TURN
    assert sorted(tools.ran) == ["clock", "weather"]
    first_request, second_request = provider.requests
    assert [tool["function"]["name"] for tool in first_request.body["tools"]] == ["weather", "clock"]
    assert [message["role"] for message in first_request.body["messages"]] == ["system", "user"]
    messages = second_request.body["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool"]
    assert [message.get("tool_call_id") for message in messages[3:]] == ["call_a", "call_b"]
    assert [call["id"] for call in messages[2]["tool_calls"]] == ["call_a", "call_b"]
    replies = [message for message in result["messages"] if isinstance(message, AIMessage)]
    assert [message.usage_metadata and message.usage_metadata["total_tokens"] for message in replies] == [18, 18]


async def test_tokens_and_pieces_of_calls_are_streamed_as_they_come() -> None:
    """Pieces of several calls are interleaved on the wire, and assembled at the end."""
    tools = Tools()
    model_says = reply("It is lovely there today.")
    chunks: list[Any] = []
    async with provider_and_model(reply(calls=CALLS), model_says) as (provider, model):
        async for message, metadata in create_react_agent(model, tools.all).astream(QUESTION, stream_mode="messages"):
            chunks.append((message, metadata["langgraph_node"]))

    pieces = [message for message, node in chunks if node == "agent"]
    assert all(isinstance(piece, AIMessageChunk) for piece in pieces)
    call_pieces = [piece for piece in pieces if piece.tool_call_chunks]
    assert [piece.tool_call_chunks[0]["index"] for piece in call_pieces][:6] == [0, 1, 0, 1, 0, 1]
    whole_reply = call_pieces[0]
    for piece in call_pieces[1:]:
        whole_reply += piece
    assert [(call["id"], call["args"]) for call in whole_reply.tool_calls] == [
        ("call_a", {"city": "Paris"}),
        ("call_b", {"city": "Paris, at the river"}),
    ]
    words = [piece.content for piece in pieces if piece.content]
    assert words == ["It", "is", "lovely", "there", "today."]
    answers = [message for message, node in chunks if node == "tools"]
    assert sorted(str(message.content) for message in answers) == ["noon in Paris, at the river", "sunny in Paris"]
    assert all(isinstance(message, ToolMessage) for message in answers)
    assert [request.body["stream"] for request in provider.requests] == [True, True]


async def test_a_refusal_that_stays_is_the_clients_error() -> None:
    import openai

    script = (too_many(0), reply("Lovely."))
    async with provider_and_model(*script, max_retries=0) as (provider, model):
        agent = create_react_agent(model, [], checkpointer=InMemorySaver())
        with pytest.raises(openai.RateLimitError, match="Rate limit reached"):
            await agent.ainvoke(QUESTION, AT)
        result = await agent.ainvoke(None, AT)
    assert contents(result) == ["What is it like in Paris?", "Lovely."]
    assert len(provider.requests) == 2


@pytest.mark.parametrize("door", [pytest.param("invoke", marks=pytest.mark.exhaustive), "stream"])
async def test_a_stream_that_breaks_in_the_middle_leaves_the_thread_usable(door: str) -> None:
    """No call of an incomplete reply runs, and no part of it is in the history."""
    import openai

    tools = Tools()
    half = deltas_of(None, CALLS)[:-4]
    script = (reply(calls=CALLS), hangs_up(*half), reply("Lovely."))
    chunks: list[Any] = []
    async with provider_and_model(*script, streaming=True, max_retries=0) as (provider, model):
        agent = create_react_agent(model, tools.all, checkpointer=InMemorySaver())
        with pytest.raises(openai.APIConnectionError):
            if door == "invoke":
                await agent.ainvoke(QUESTION, AT)
            else:
                async for chunk, _ in agent.astream(QUESTION, AT, stream_mode="messages"):
                    chunks.append(chunk)
        state = await agent.aget_state(AT)
        result = await agent.ainvoke(say("And?"), AT)
    assert contents(state.values) == TURN[:-1]
    assert state.next == ("agent",)
    assert contents(result) == [*TURN[:-1], "And?", "Lovely."]
    assert sorted(tools.ran) == ["clock", "weather"]
    assert complaint(result["messages"]) is None
    assert [message["role"] for message in provider.requests[-1].body["messages"]] == [
        "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
    if door == "stream":
        assert any(chunk.tool_call_chunks for chunk in chunks if isinstance(chunk, AIMessageChunk))


async def test_a_reader_that_leaves_closes_the_connection_to_the_provider() -> None:
    """An abandoned stream must not cost further tokens."""
    closed = threading.Event()

    def endless(handler: Any) -> None:
        handler.begin_events([{"role": "assistant", "content": ""}])
        try:
            while True:
                handler.send_event({"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]})
                time.sleep(0.01)  # as models do; without pauses the client itself swallows cancellations
        except OSError:
            closed.set()
            handler.close_connection = True

    async with provider_and_model(endless) as (_, model):
        stream = create_react_agent(model, []).astream(QUESTION, stream_mode="messages")
        read = [await anext(stream) for _ in range(5)]
        await stream.aclose()
        assert await to_thread.run_sync(closed.wait, WAIT)
    assert "word " in [message.content for message, _ in read]
