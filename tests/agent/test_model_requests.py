"""Requests of an agent to its model: each goes through the model's `ainvoke`, in a task of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio
import pytest
import sniffio
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from pydantic import PrivateAttr

from callboard import CallboardError, cleanup, create_react_agent

# On trio, models run on an asyncio loop in another thread.
pytestmark = pytest.mark.real_clock

WAIT = 20


class Plain(BaseChatModel):
    """Model that answers at once, and notes the event loop and the thread of each request."""

    _requests: list[tuple[str, str]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "plain"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[], **options)

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        self._requests.append((sniffio.current_async_library(), threading.current_thread().name))
        reply = AIMessage("Done.", usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2})
        reply.response_metadata = {"model_name": "plain"}
        return ChatResult(generations=[ChatGeneration(message=reply)])


def look_up(query: str) -> str:
    """Look something up."""
    return query


async def reply_of(model: BaseChatModel, config: Any = None) -> AIMessage:
    agent = create_react_agent(model, [look_up])
    result = await agent.ainvoke({"messages": [HumanMessage("go")]}, config)
    reply = result["messages"][-1]
    assert isinstance(reply, AIMessage)
    return reply


class Listener(BaseCallbackHandler):
    """Callback handler that counts the requests whose start was reported."""

    run_inline = True

    def __init__(self) -> None:
        self.request_count = 0

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.request_count += 1


@pytest.mark.parametrize("level", ["config", "model", "bound config"])
async def test_a_callback_handler_hears_of_the_request(level: str) -> None:
    listener = Listener()
    model: Any = Plain(callbacks=[listener] if level == "model" else None)
    if level == "bound config":
        model = model.bind_tools([]).with_config(callbacks=[listener])
        agent = create_react_agent(model, [])
        await agent.ainvoke({"messages": [("user", "go")]})
    else:
        await reply_of(model, {"callbacks": [listener]} if level == "config" else None)
    assert listener.request_count == 1


@pytest.mark.parametrize("level", ["config", "model", "metadata of the model"])
async def test_tags_and_metadata_reach_the_run_manager_of_the_model(level: str) -> None:
    """A model may forward them, such as to a gateway that divides the costs."""

    class Forwarding(Plain):
        async def _agenerate(self, messages: list[Any], *args: Any, run_manager: Any = None, **options: Any) -> Any:
            tags.extend([*run_manager.tags, *run_manager.metadata.values()])
            return await super()._agenerate(messages, *args, **options)

    tags: list[Any] = []
    model = Forwarding(
        tags=["team-a"] if level == "model" else None,
        metadata={"team": "team-a"} if level == "metadata of the model" else None,
    )
    await reply_of(model, {"tags": ["team-a"]} if level == "config" else None)
    assert "team-a" in tags


async def test_context_variables_that_a_model_sets_stay_with_the_request() -> None:
    tenant = ContextVar("tenant", default="unset")

    class Setting(Plain):
        async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
            tenant.set("of the model")
            await anyio.lowlevel.checkpoint()
            assert tenant.get() == "of the model"
            return await super()._agenerate(*args, **options)

    model = Setting()
    await reply_of(model)
    assert (len(model._requests), tenant.get()) == (1, "unset")


class Client(Plain):
    """Model whose client does something to the task of its request."""

    _acts: Callable[[], Awaitable[Any]] = PrivateAttr()

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        await self._acts()
        return await super()._agenerate(*args, **options)


def with_client(acts: Callable[[], Awaitable[Any]]) -> Client:
    model = Client()
    model._acts = acts
    return model


@pytest.mark.backends("asyncio")
async def test_a_client_that_cancels_its_own_task_and_asks_again_gets_its_reply() -> None:
    """Older clients of HTTP implement their timeouts in this way, and never take the cancellation back."""

    async def first_request_is_late() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.get_loop().call_soon(task.cancel)
        with suppress(asyncio.CancelledError):
            await anyio.sleep(WAIT)

    model = with_client(first_request_is_late)
    assert (await reply_of(model)).content == "Done."
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.backends("asyncio")
async def test_a_run_is_cancelled_although_the_client_makes_an_error_of_the_cancellation() -> None:
    begun = anyio.Event()

    async def fail_when_cancelled() -> None:
        begun.set()
        try:
            await anyio.sleep(WAIT)
        except asyncio.CancelledError as error:
            raise ConnectionError("the stream was closed") from error

    task = asyncio.ensure_future(reply_of(with_client(fail_when_cancelled)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("shield", [partial(anyio.CancelScope, shield=True), cleanup], ids=["anyio", "cleanup"])
async def test_a_client_closes_its_connection_although_the_run_is_cancelled(shield: Callable[[], Any]) -> None:
    """anyio's scopes cancel the task of the run at every turn of the event loop."""
    closed: list[bool] = []
    is_sent = threading.Event()

    async def closes() -> None:
        is_sent.set()
        try:
            await anyio.sleep(WAIT)
        finally:
            with shield():
                await anyio.sleep(0.05)
                closed.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(reply_of, with_client(closes))
        await anyio.to_thread.run_sync(is_sent.wait, WAIT)
        group.cancel_scope.cancel()
    assert closed == [True]


@pytest.mark.exhaustive
@pytest.mark.backends("asyncio")
async def test_a_client_that_holds_up_its_end_is_cancelled_again() -> None:
    """A client may have swallowed the cancellation, which is repeated when the grace is over."""
    begun, cancelled = anyio.Event(), list[bool]()

    async def holds_up() -> None:
        begun.set()
        for _ in range(2):
            try:
                await anyio.sleep(WAIT)
            except asyncio.CancelledError:
                cancelled.append(True)

    task = asyncio.ensure_future(reply_of(with_client(holds_up)))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [True, True]


@pytest.mark.backends("asyncio")
async def test_a_client_that_stays_open_leaves_the_scopes_of_the_run_alone() -> None:
    opened: list[Any] = []

    async def opens_once() -> None:
        if not opened:
            opened.append(anyio.create_task_group())
            await opened[0].__aenter__()

    model = with_client(opens_once)
    with anyio.move_on_after(WAIT) as scope:
        for _ in range(2):
            assert (await reply_of(model)).content == "Done."
    assert not scope.cancelled_caught


@pytest.mark.backends("asyncio")
async def test_a_request_that_other_code_cancels_is_an_error_of_the_run() -> None:
    """A bare cancellation would end a task of a task group without an error and without a result."""

    async def shared_refresh_of_a_token() -> None:
        refresh = asyncio.ensure_future(anyio.sleep(WAIT))
        refresh.get_loop().call_soon(refresh.cancel)
        await refresh

    with pytest.raises(AttributeError, match="CancelledError"):  # LangChain's own error
        await reply_of(with_client(shared_refresh_of_a_token))
    chain = RunnableLambda(lambda _: None, afunc=lambda _: shared_refresh_of_a_token())
    with pytest.raises(CallboardError, match="the request to the model was cancelled by other code"):
        await create_react_agent(chain, []).ainvoke({"messages": [("user", "go")]})


async def test_a_handler_in_a_context_variable_hears_of_the_request() -> None:
    model = Plain()
    with get_usage_metadata_callback() as usage:
        await reply_of(model)
    assert usage.usage_metadata["plain"]["total_tokens"] == 2


@pytest.mark.parametrize("name", ["ainvoke", "agenerate_prompt", "agenerate"])
async def test_a_method_that_an_instrumentation_has_wrapped_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, called = Plain(), list[bool]()
    original = getattr(BaseChatModel, name)

    async def instrumented(self: Any, *args: Any, **options: Any) -> Any:
        called.append(True)
        return await original(self, *args, **options)

    monkeypatch.setattr(BaseChatModel, name, instrumented)
    await reply_of(model)
    assert called == [True]


@pytest.mark.backends("asyncio")
async def test_a_run_that_is_cancelled_sends_no_request() -> None:
    model = Plain()
    task = asyncio.get_running_loop().create_task(
        create_react_agent(model, [look_up]).ainvoke({"messages": [("user", "go")]})
    )
    if asyncio.get_running_loop().get_task_factory() is None:  # an eager task already waits
        await anyio.lowlevel.checkpoint()  # the task waits for the start of the request
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model._requests == []


async def test_a_model_is_asked_on_asyncio() -> None:
    """A pooled client of a model belongs to one event loop, and most clients need asyncio."""
    own_library = sniffio.current_async_library()
    model = Plain()
    await reply_of(model)
    [(library, thread)] = model._requests
    assert library == "asyncio"
    assert (thread == threading.current_thread().name) == (own_library == "asyncio")
