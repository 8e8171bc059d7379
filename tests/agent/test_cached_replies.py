"""`Cache(models=True)`: equal requests to a model share a reply."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.tools import tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from pydantic import BaseModel, PrivateAttr

from callboard import MiddlewareOrderWarning, create_agent
from callboard.guards import Redact
from callboard.middleware import Cache, Fallback, Retry, TokenLimit
from callboard.testing import Recorder, ScriptedModel, calls
from tests.middleware._dict_cache import DictCache

from ._savers import AT, QUESTION, contents, run, say

# A model of LangChain needs asyncio: on trio it runs on a loop in another thread.
pytestmark = pytest.mark.real_clock

WAIT = 10
USAGE = UsageMetadata(input_tokens=1, output_tokens=2, total_tokens=3)


@tool
async def search(query: str) -> str:
    """Search."""
    return f"about {query}"


@tool
async def read(path: str) -> str:
    """Read."""
    return path


async def told(agent: Any, given: Any = QUESTION, **options: Any) -> list[Any]:
    """Run an agent, and return its conversation."""
    return list((await run(agent, given, **options))["messages"])


def twice(model: Any, *tools: Any, cache: Any = None, **options: Any) -> list[Any]:
    """Return two agents with one model and one cache."""
    cache = cache or Cache(models=True)
    return [create_agent(model, list(tools), middleware=[cache], **options) for _ in range(2)]


@pytest.mark.parametrize("door", ["ainvoke", "invoke"])
async def test_equal_requests_share_a_reply(door: str) -> None:
    """Agents, runs and threads share it, as with tools; each has a copy of its own."""
    model = ScriptedModel([AIMessage([{"type": "text", "text": "done"}])])
    first, second = [(await told(agent, door=door))[-1] for agent in twice(model)]
    assert len(model.requests) == 1
    assert first.content == second.content
    assert first.content[0] is not second.content[0]
    assert first.id != second.id


async def test_a_whole_conversation_is_reused_with_new_ids_of_its_calls() -> None:
    """Call ids of another conversation would give two calls one id, and so one result and one message."""
    script = [calls(("search", {"query": "tea"}), ("search", {"query": "milk"})), calls(("search", {"query": "cup"}))]
    model = ScriptedModel([*script, "done"])
    first, second = [await told(agent) for agent in twice(model, search)]
    assert len(model.requests) == 3
    assert contents(first) == contents(second) == ["go", "", "about tea", "about milk", "", "about cup", "done"]
    ids = [[one.tool_call_id for one in messages if isinstance(one, ToolMessage)] for messages in (first, second)]
    assert len({*ids[0], *ids[1]}) == 6
    assert len({message.id for message in (*first, *second)}) == 14


async def test_ids_of_calls_are_new_wherever_a_provider_writes_them() -> None:
    content = [{"type": "tool_use", "id": "c1", "name": "search", "input": {"query": "tea", "id": "other"}}]
    call = {"name": "search", "args": {"query": "tea"}, "id": "c1", "type": "tool_call"}
    kept = {"signatures": {"c1": "x"}}
    reply = AIMessage(content, tool_calls=[call], additional_kwargs=kept)
    _, second = [await told(agent) for agent in twice(ScriptedModel([reply, "done"]), search)]
    new = second[1].tool_calls[0]["id"]
    assert new != "c1"
    assert second[1].content == [{**content[0], "id": new}]
    assert second[1].additional_kwargs == {"signatures": {new: "x"}}
    assert second[2].tool_call_id == new


async def test_one_thread_that_asks_again_has_no_id_twice() -> None:
    """A hook that forgets the conversation makes requests of one thread equal."""

    class Forget(AgentMiddleware[Any, Any, Any]):
        def before_model(self, state: Any, runtime: Any) -> Any:
            last = state["messages"][-1]
            return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), last]} if last.type == "human" else None

    model = ScriptedModel([calls(("search", {"query": "tea"})), "done"])
    cache = Cache(models=True)
    agent = create_agent(model, [search], middleware=[Forget(), cache], checkpointer="memory")
    seen: list[Any] = []
    async with agent:
        for _ in range(2):
            seen += [message for message in await told(agent, config=AT) if message.type != "human"]
    assert len(model.requests) == 2
    assert len({message.id for message in seen}) == len(seen) == 6
    assert len({message.tool_call_id for message in seen if message.type == "tool"}) == 2


async def test_tokens_are_counted_once() -> None:
    """A reused reply has cost nothing: a count in it would be charged, limited and exported a second time."""
    counted = {"token_usage": {"total_tokens": 3}, "model_name": "m"}
    model = ScriptedModel([AIMessage("done", usage_metadata=USAGE, response_metadata=counted)])
    first, second = [(await told(agent))[-1] for agent in twice(model)]
    assert (first.usage_metadata, second.usage_metadata) == (USAGE, None)
    assert (first.response_metadata["token_usage"], second.response_metadata) == (
        {"total_tokens": 3},
        {"model_name": "m"},
    )

    limit = TokenLimit(3, per=3600)
    model = ScriptedModel([AIMessage("done", usage_metadata=USAGE)])
    for agent in [create_agent(model, [], middleware=[Cache(models=True), limit])] * 3:
        await told(agent)


class Counting(ScriptedModel):
    """Model that fails or waits at its first requests."""

    _started: list[Any] = PrivateAttr(default_factory=list)
    _first: Callable[[], Any] = PrivateAttr()

    def __init__(self, first: Callable[[], Any], *script: Any) -> None:
        super().__init__(script)
        self._first = first

    async def _agenerate(self, *args: Any, **options: Any) -> Any:
        self._started.append(args)
        if len(self._started) == 1:
            await self._first()
        return await super()._agenerate(*args, **options)


async def pause() -> None:
    await anyio.sleep(0.1)


async def test_equal_requests_at_the_same_time_are_sent_once() -> None:
    model, replies = Counting(pause, AIMessage("done", usage_metadata=USAGE)), list[Any]()

    async def one(agent: Any) -> None:
        replies.append((await told(agent))[-1])

    async with anyio.create_task_group() as tasks:
        for agent in twice(model) * 3:
            tasks.start_soon(one, agent)
    assert len(model._started) == 1
    assert contents(replies) == ["done"] * 6
    assert len({reply.id for reply in replies}) == 6
    assert [reply.usage_metadata for reply in replies].count(USAGE) == 1


async def test_an_error_is_shared_and_not_kept() -> None:
    async def fail() -> None:
        await pause()
        raise ConnectionError("lost")

    model, errors = Counting(fail, "done"), list[Exception]()

    async def one(agent: Any) -> None:
        with pytest.raises(ConnectionError) as caught:
            await told(agent)
        errors.append(caught.value)

    agents = twice(model)
    async with anyio.create_task_group() as tasks:
        for agent in agents:
            tasks.start_soon(one, agent)
    assert len(model._started) == 1
    assert errors[0] is not errors[1]
    assert (await told(agents[0]))[-1].content == "done"


@pytest.mark.parametrize("cancelled", [0, 1], ids=["the one that sends", "the one that waits"])
async def test_a_cancelled_run_does_not_cost_others_their_reply(cancelled: int) -> None:
    """If its request was sent, the next run sends it again."""
    model, replies = Counting(anyio.sleep_forever if cancelled == 0 else pause, "done"), dict[int, Any]()
    scopes = [anyio.CancelScope() for _ in range(2)]

    async def one(number: int, agent: Any) -> None:
        with scopes[number]:
            replies[number] = (await told(agent))[-1].content

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as tasks:
            for number, agent in enumerate(twice(model)):
                tasks.start_soon(one, number, agent)
                await anyio.sleep(0.03)
            scopes[cancelled].cancel()
    assert replies == {1 - cancelled: "done"}
    assert len(model._started) == 2 - cancelled


class Answer(BaseModel):
    """Answer."""

    text: str


OTHER = ScriptedModel([])


class Settings(AgentMiddleware[Any, Any, Any]):
    """Middleware that sets options of each request."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(**self._options))


async def test_requests_that_differ_do_not_share() -> None:
    cache, other = Cache(models=True), ScriptedModel(["other"])
    structured = calls(("Answer", {"text": "x"}))
    model = ScriptedModel(["1", "2", "3", "4", "5", "6", "7", "8", structured])
    differences: list[dict[str, Any]] = [
        {},
        {"given": say("stop")},
        {"given": {"messages": [HumanMessage("go", name="ann")]}},
        {"system_prompt": "Be brief."},
        {"tools": [read]},
        {"name": "agent"},
        {"settings": {"model_settings": {"temperature": 1}}},
        {"settings": {"tool_choice": "search"}},
        {"response_format": Answer},
        {"model": other},
    ]
    for _ in range(2):  # the second time, all come from the cache
        for options in differences:
            made = {"model": model, "tools": [search], **options}
            changes, given = Settings(**made.pop("settings", {})), made.pop("given", QUESTION)
            await told(create_agent(**made, middleware=[changes, cache]), given)
    assert len(model.requests) == 9
    assert len(other.requests) == 1


async def test_a_structured_response_is_reused_as_a_copy() -> None:
    model = ScriptedModel([calls(("Answer", {"text": "tea"}))])
    states = [await agent.ainvoke(QUESTION) for agent in twice(model, response_format=Answer)]
    assert len(model.requests) == 1
    assert [state["structured_response"] for state in states] == [Answer(text="tea")] * 2
    assert states[0]["structured_response"] is not states[1]["structured_response"]
    call, answer = states[1]["messages"][1:]
    assert answer.tool_call_id == call.tool_calls[0]["id"] != states[0]["messages"][2].tool_call_id


async def test_models_with_equal_options_share_replies() -> None:
    """An agent that is made for each request has a model of its own each time."""

    class Named(ScriptedModel):
        model: str = "m"
        temperature: float = 0.0

        @classmethod
        def is_lc_serializable(cls) -> bool:
            return True

    shared, other = [Named(["done"], model="m") for _ in range(2)], Named(["other"], model="n")
    cache = Cache(models=True)
    answers = [(await told(create_agent(model, [], middleware=[cache])))[-1].content for model in (*shared, other)]
    assert answers == ["done", "done", "other"]


async def test_a_reply_expires() -> None:
    model = ScriptedModel(["1", "2"])
    agents = twice(model, cache=Cache(models=True, ttl=0.1))
    assert (await told(agents[0]))[-1].content == "1"
    await anyio.sleep(0.2)
    assert (await told(agents[1]))[-1].content == "2"


async def test_replies_are_forgotten_together() -> None:
    cache = Cache(models=True)
    agent = create_agent(ScriptedModel(["1", "2"]), [], middleware=[cache])
    await told(agent)
    cache.clear()
    assert (await told(agent))[-1].content == "2"


async def test_a_key_function_sees_the_request_and_the_run() -> None:
    """It may leave requests out, and it may leave out of the key what does not matter."""

    def key(request: Any, context: Any) -> Any:
        text = request.messages[-1].content
        return None if text == "now" else (context.config["configurable"]["user"], text.lower())

    model = ScriptedModel([str(number) for number in range(9)])
    agent = create_agent(model, [], middleware=[Cache(models=True, key=key)])
    asked = [("ann", "Tea"), ("ann", "tea"), ("bob", "tea"), ("ann", "now"), ("ann", "now")]
    answers = [
        (await told(agent, say(text), config={"configurable": {"user": user}}))[-1].content for user, text in asked
    ]
    assert answers == ["0", "0", "1", "2", "3"]


async def test_a_cache_of_tools_is_not_around_models() -> None:
    model = ScriptedModel(["1", "2"])
    agents = twice(model, search, cache=Cache({"search"}))
    assert [(await told(agent))[-1].content for agent in agents] == ["1", "2"]
    assert not hasattr(Cache({"search"}), "awrap_model_call")


async def test_a_cache_of_models_is_not_around_tools() -> None:
    recorder, model = Recorder(), ScriptedModel([calls("work"), "done"])
    for agent in twice(model, recorder.tool("work")):
        await told(agent)
    assert (recorder.count("finished"), len(model.requests)) == (2, 2)


async def test_a_reply_from_the_cache_is_streamed_once() -> None:
    for agent in twice(ScriptedModel(["well done"])):
        with anyio.fail_after(WAIT):
            chunks = [chunk async for chunk, _ in agent.astream(QUESTION, stream_mode="messages")]
        assert "".join(str(chunk.content) for chunk in chunks if isinstance(chunk, AIMessage)) == "well done"


async def answers_of_processes(store: Any, make: Callable[[], Any], **options: Any) -> list[str]:
    """Return the replies of two agents as in two processes: each has a cache and a model of its own."""
    found: list[str] = []
    for number in range(2):
        agent = create_agent(make()([str(number)]), [], middleware=[Cache(models=True, store=store)], **options)
        found.append(str((await told(agent))[-1].content))
    return found


class Serializable(ScriptedModel):
    """Model whose options are known by their text."""

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return True


@pytest.mark.real_clock
async def test_processes_share_replies_of_models_with_equal_options() -> None:
    assert await answers_of_processes(DictCache(), lambda: Serializable) == ["0", "0"]


@pytest.mark.real_clock
async def test_a_model_that_is_known_only_as_an_object_is_not_shared() -> None:
    store = DictCache()
    assert await answers_of_processes(store, lambda: ScriptedModel) == ["0", "1"]
    assert store.values == {}


@pytest.mark.real_clock
async def test_a_damaged_reply_in_a_store_is_ignored() -> None:
    store = DictCache()
    await answers_of_processes(store, lambda: Serializable)
    store.values = {key: text.replace("messages", "message") for key, text in store.values.items()}
    assert (await answers_of_processes(store, lambda: Serializable))[0] == "0"
    agent = create_agent(Serializable(["new"]), [], middleware=[Cache(models=True, store=store)])
    assert (await told(agent))[-1].content == "new"


async def test_a_message_that_has_no_json_form_is_sent() -> None:
    """Its request has no key, as the call of a tool with such arguments."""
    given = {"messages": [HumanMessage([{"type": "text", "text": "go", "raw": object()}])]}
    model = ScriptedModel(["1", "2"])
    assert [(await told(agent, given))[-1].content for agent in twice(model)] == ["1", "2"]


async def test_a_long_conversation_has_a_key() -> None:
    given = say("go " * 20_000)
    model = ScriptedModel(["1"])
    assert [(await told(agent, given))[-1].content for agent in twice(model)] == ["1", "1"]


async def test_retries_inside_of_a_cache_are_one_request() -> None:
    model = ScriptedModel([ConnectionError("lost"), "done"])
    agent = create_agent(model, [], middleware=[Cache(models=True), Retry(2, initial=0)])
    assert [(await told(agent))[-1].content for _ in range(2)] == ["done"] * 2
    assert len(model.requests) == 2


@pytest.mark.parametrize("inner", [lambda: Redact(models=True), lambda: Fallback(models=[OTHER])])
def test_a_wrong_order_is_warned_of(inner: Callable[[], Any]) -> None:
    with pytest.warns(MiddlewareOrderWarning, match=r"Cache is outside of \w+: .* before Cache in middleware"):
        create_agent(OTHER, [], middleware=[Cache(models=True), inner()])
    create_agent(OTHER, [], middleware=[inner(), Cache(models=True)])


@pytest.mark.parametrize("inner", [Redact, lambda: Fallback({}), lambda: Cache([])])
def test_middleware_of_tools_may_stand_anywhere(inner: Callable[[], Any]) -> None:
    create_agent(OTHER, [], middleware=[Cache(models=True), inner()])


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({}, TypeError, r"Cache\(tools\)"),
        ({"models": False}, TypeError, r"Cache\(tools\)"),
        ({"models": "yes"}, TypeError, r"Cache\(models=\.\.\.\)"),
        (
            {"tools": ["search"], "models": True},
            ValueError,
            r"write two, Cache\(\['search'\]\) and Cache\(models=True\)",
        ),
    ],
)
def test_an_option_that_makes_no_sense_is_named(options: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Cache(**options)
