"""Requests of an agent past LangChain's callbacks: only if nothing listens, and with the same replies."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, ClassVar

import anyio
import pytest
import sniffio
from langchain_core import globals as langchain_globals
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    get_usage_metadata_callback,
    manager,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.rate_limiters import InMemoryRateLimiter
from pydantic import PrivateAttr

from callboard import CallboardError, cleanup, create_react_agent
from callboard.tools import _direct_request
from callboard.tools._direct_request import _as_read

# A model that does not declare trio runs on a loop in another thread there.
pytestmark = pytest.mark.real_clock

WAIT = 20


class Plain(BaseChatModel):
    """Model that answers at once, and counts how often LangChain's `ainvoke` describes the model to tracers."""

    _through: list[bool] = PrivateAttr(default_factory=list)
    _asked: list[tuple[list[Any], str, str]] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "plain"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self.bind(tools=[], **options)

    @property
    def _serialized(self) -> dict[str, Any]:  # type: ignore[override]
        self._through.append(True)
        return {}

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[Any], *args: Any, **options: Any) -> ChatResult:
        self._asked.append((messages, sniffio.current_async_library(), threading.current_thread().name))
        reply = AIMessage("Done.", usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2})
        reply.response_metadata = {"model_name": "plain"}
        return ChatResult(generations=[ChatGeneration(message=reply)], llm_output={"of": "the request"})


class AlsoOnTrio(Plain):
    """Model whose requests need no asyncio."""

    runs_on_trio: ClassVar[bool] = True


class Waiting(AlsoOnTrio):
    """Model with its own way to ask, which has not declared that this way runs on trio."""

    async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
        return await super()._agenerate(*args, **options)


class Caching(AlsoOnTrio):
    """Model with its own way to a cache, which has not declared that this way runs on trio."""

    async def _agenerate_with_cache(self, *args: Any, **options: Any) -> ChatResult:
        return await super()._agenerate_with_cache(*args, **options)


def look_up(query: str) -> str:
    """Look something up."""
    return query


async def reply_of(model: BaseChatModel, config: Any = None, content: Any = "go") -> AIMessage:
    agent = create_react_agent(model, [look_up])
    with anyio.fail_after(WAIT):
        result = await agent.ainvoke({"messages": [HumanMessage(content)]}, config)
    reply = result["messages"][-1]
    assert isinstance(reply, AIMessage)
    return reply


async def test_a_request_that_nobody_hears_goes_past_ainvoke() -> None:
    model = AlsoOnTrio()
    await reply_of(model)
    assert (len(model._asked), model._through) == (1, [])


async def test_a_direct_reply_is_that_of_ainvoke() -> None:
    """The id of the reply and its metadata are set by LangChain's methods on both ways."""
    model = AlsoOnTrio()
    direct, through = await reply_of(model), await reply_of(model, {"callbacks": [Listener()]})
    assert len(model._through) == 1
    for reply in (direct, through):
        assert reply.id is not None
        assert reply.id.startswith("lc_run--")
        assert reply.id.endswith("-0")
    assert direct.model_copy(update={"id": through.id}) == through


async def test_content_in_an_older_form_is_converted_as_in_ainvoke() -> None:
    image = {"type": "image", "source_type": "url", "url": "https://example.com/a.png", "mime_type": "image/png"}
    model = AlsoOnTrio()
    await reply_of(model, content=[image])
    await reply_of(model, {"callbacks": [Listener()]}, content=[image])
    direct, through = ([message.content for message in messages] for messages, _, _ in model._asked)
    assert direct == through
    assert "source_type" not in direct[0][0]


class Listener(BaseCallbackHandler):
    """Callback handler that counts the requests whose start was reported."""

    run_inline = True

    def __init__(self) -> None:
        self.heard = 0

    def on_chat_model_start(self, *_: Any, **__: Any) -> None:
        self.heard += 1


@pytest.mark.parametrize("where", ["config", "model", "bound config"])
async def test_a_callback_handler_hears_of_the_request(where: str) -> None:
    listener = Listener()
    model: Any = Plain(callbacks=[listener] if where == "model" else None)
    if where == "bound config":
        model = model.bind_tools([]).with_config(callbacks=[listener])
        agent = create_react_agent(model, [])
        with anyio.fail_after(WAIT):
            await agent.ainvoke({"messages": [("user", "go")]})
    else:
        await reply_of(model, {"callbacks": [listener]} if where == "config" else None)
    assert listener.heard == 1


@pytest.mark.parametrize("place", ["function", "method"])
async def test_an_instrumentation_that_comes_late_hears_of_the_request(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentry replaces `_configure` when it is initialized, which may be after the import of callboard."""
    listener = Listener()
    configure: Any = manager._configure if place == "function" else AsyncCallbackManager.configure.__func__

    def instrumented(kind: Any, *args: Any, **options: Any) -> Any:
        found = configure(kind, *args, **options)
        found.add_handler(listener)
        return found

    if place == "function":
        monkeypatch.setattr(manager, "_configure", instrumented)
    else:
        monkeypatch.setattr(AsyncCallbackManager, "configure", classmethod(instrumented))
    await reply_of(Plain())
    assert listener.heard


@pytest.mark.parametrize("where", ["config", "model", "metadata of the model"])
async def test_tags_and_metadata_reach_the_run_manager_of_the_model(where: str) -> None:
    """A model may forward them, such as to a gateway that divides the costs."""

    class Forwarding(Plain):
        async def _agenerate(self, messages: list[Any], *args: Any, run_manager: Any = None, **options: Any) -> Any:
            found.extend([*run_manager.tags, *run_manager.metadata.values()])
            return await super()._agenerate(messages, *args, **options)

    found: list[Any] = []
    model = Forwarding(
        tags=["team-a"] if where == "model" else None,
        metadata={"team": "team-a"} if where == "metadata of the model" else None,
    )
    await reply_of(model, {"tags": ["team-a"]} if where == "config" else None)
    assert "team-a" in found


@pytest.mark.parametrize("option", [{"tags": ["x"]}, {"metadata": {}}, {"callbacks": []}, {"run_name": "x"}])
async def test_options_that_langchain_refuses_are_refused(option: dict[str, Any]) -> None:
    agent = create_react_agent(Plain().bind(**option), [])
    with anyio.fail_after(WAIT), pytest.raises(TypeError, match="multiple values"):
        await agent.ainvoke({"messages": [("user", "go")]})


async def test_context_variables_that_a_model_sets_stay_with_the_request() -> None:
    """`ainvoke` runs the model in a task of its own."""
    tenant = ContextVar("tenant", default="unset")

    class Setting(AlsoOnTrio):
        runs_on_trio: ClassVar[bool] = True

        async def _agenerate(self, *args: Any, **options: Any) -> ChatResult:
            tenant.set("of the model")
            await anyio.lowlevel.checkpoint()
            assert tenant.get() == "of the model"
            return await super()._agenerate(*args, **options)

    model = Setting()
    await reply_of(model)
    assert (len(model._asked), model._through, tenant.get()) == (1, [], "unset")


@pytest.mark.parametrize("changed", ["on_chat_model_start", "on_llm_end"])
async def test_a_wrapped_callback_method_is_called(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LangChain calls both although no handler listens."""
    kind = AsyncCallbackManager if changed == "on_chat_model_start" else AsyncCallbackManagerForLLMRun
    original, called = getattr(kind, changed), list[bool]()

    async def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        called.append(True)
        return await original(self, *args, **options)

    monkeypatch.setattr(kind, changed, wrapped)
    await reply_of(Plain())
    assert called == [True]


async def test_a_model_may_count_its_tokens_and_check_its_options_in_hooks_of_langchain() -> None:
    class Hooked(AlsoOnTrio):
        def _combine_llm_outputs(self, llm_outputs: list[Any]) -> dict[str, Any]:
            outputs.extend(llm_outputs)
            return {}

        def _get_invocation_params(self, stop: Any = None, **options: Any) -> dict[str, Any]:
            if options.get("seed") == "none":
                raise ValueError("seed is a number")
            return super()._get_invocation_params(stop, **options)

    outputs: list[Any] = []
    model = Hooked()
    await reply_of(model)
    assert (outputs, model._through) == ([{"of": "the request"}], [])
    with pytest.raises(ValueError, match="seed is a number"), anyio.fail_after(WAIT):
        await create_react_agent(model.bind(seed="none"), []).ainvoke({"messages": [("user", "go")]})


async def test_the_run_manager_has_the_metadata_of_ainvoke() -> None:
    class Reading(AlsoOnTrio):
        runs_on_trio: ClassVar[bool] = True

        async def _agenerate(self, messages: list[Any], *args: Any, run_manager: Any = None, **options: Any) -> Any:
            found.append((run_manager.metadata, run_manager.inheritable_metadata))
            return await super()._agenerate(messages, *args, **options)

    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    model = Reading(metadata={"team": "a"})
    for config in ({}, {"callbacks": [Listener()]}):
        await reply_of(model, {"metadata": {"user": "b"}, "configurable": {"tenant": "c"}, **config})
    (direct, inherited), (through, inherited_through) = found
    own = {name for name in through if name.startswith("langgraph_") or name in ("checkpoint_ns", "run_id")}
    assert direct["ls_provider"] == "reading"
    assert {"team", "user"} < direct.keys()
    assert {**direct, **dict.fromkeys(own)} == {**through, **dict.fromkeys(own)}
    assert inherited.keys() == inherited_through.keys()


class Client(AlsoOnTrio):
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
    assert model._through == []
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.backends("asyncio")
async def test_a_run_is_cancelled_although_the_client_makes_an_error_of_the_cancellation() -> None:
    begun = anyio.Event()

    async def closed() -> None:
        begun.set()
        try:
            await anyio.sleep(WAIT)
        except asyncio.CancelledError as error:
            raise ConnectionError("the stream was closed") from error

    task = asyncio.ensure_future(reply_of(with_client(closed)))
    with anyio.fail_after(WAIT):
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("shield", [partial(anyio.CancelScope, shield=True), cleanup], ids=["anyio", "cleanup"])
async def test_a_client_closes_its_connection_although_the_run_is_cancelled(shield: Callable[[], Any]) -> None:
    """anyio's scopes cancel the task of the run at every turn of the event loop."""
    closed: list[bool] = []

    async def closes() -> None:
        try:
            await anyio.sleep(WAIT)
        finally:
            with shield():
                await anyio.sleep(0.05)
                closed.append(True)

    with anyio.move_on_after(0.05) as scope:
        await reply_of(with_client(closes))
    assert scope.cancelled_caught
    assert closed == [True]


@pytest.mark.backends("asyncio")
async def test_a_client_that_holds_up_its_end_is_cancelled_again() -> None:
    """The second cancellation reaches the client, which may have swallowed the first."""
    begun, cancelled = anyio.Event(), list[bool]()

    async def holds_up() -> None:
        begun.set()
        for _ in range(2):
            try:
                await anyio.sleep(WAIT)
            except asyncio.CancelledError:
                cancelled.append(True)

    task = asyncio.ensure_future(reply_of(with_client(holds_up)))
    with anyio.fail_after(WAIT):
        await begun.wait()
        for _ in range(2):
            task.cancel()
            await anyio.sleep(0.01)
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

    with pytest.raises(CallboardError, match="the request to the model was cancelled by other code"):
        await reply_of(with_client(shared_refresh_of_a_token))


async def test_a_handler_in_a_context_variable_hears_of_the_request() -> None:
    model = Plain()
    with get_usage_metadata_callback() as usage:
        await reply_of(model)
    assert usage.usage_metadata["plain"]["total_tokens"] == 2


@contextmanager
def debugging() -> Generator[None]:
    langchain_globals.set_debug(True)
    try:
        yield
    finally:
        langchain_globals.set_debug(False)


async def test_the_debug_mode_of_langchain_shows_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    model = Plain()
    with debugging():
        await reply_of(model)
    assert model._through
    assert "llm/start" in capsys.readouterr().out


async def test_a_verbose_model_is_asked_through_ainvoke() -> None:
    model = Plain(verbose=True)
    await reply_of(model)
    assert model._through


class Overriding(Plain):
    """Model with an `agenerate` of its own."""

    async def agenerate(self, *args: Any, **options: Any) -> Any:
        self._through.append(True)
        return await super().agenerate(*args, **options)


async def test_an_overridden_method_of_the_model_is_called() -> None:
    model = Overriding()
    await reply_of(model)
    assert len(model._through) == 2


@pytest.mark.parametrize("name", ["ainvoke", "agenerate_prompt", "agenerate"])
async def test_a_method_that_an_instrumentation_has_wrapped_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, called = Plain(), list[bool]()
    original = getattr(BaseChatModel, name)

    async def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        called.append(True)
        return await original(self, *args, **options)

    monkeypatch.setattr(BaseChatModel, name, wrapped)
    await reply_of(model)
    assert called == [True]


def test_the_methods_that_are_left_out_are_those_that_were_read() -> None:
    """If this fails with a new release of LangChain, read its methods, and add their names to `_LEFT_OUT`."""
    assert [name for name, _, _ in _as_read()] == list(_direct_request._LEFT_OUT)


def test_a_hook_that_was_wrapped_before_the_import_turns_direct_requests_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _direct_request._hooks_as_read() is not None
    original = AsyncCallbackManager.on_chat_model_start

    @wraps(original)
    async def wrapped(self: Any, *args: Any, **options: Any) -> Any:
        return await original(self, *args, **options)

    monkeypatch.setattr(AsyncCallbackManager, "on_chat_model_start", wrapped)
    assert _direct_request._hooks_as_read() is None


@pytest.mark.parametrize("change", ["another name", "a wrapper"])
def test_a_method_that_differs_from_those_that_were_read_is_not_left_out(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if change == "another name":
        monkeypatch.setitem(_direct_request._LEFT_OUT, "agenerate", "gather")
    else:
        monkeypatch.setattr(BaseChatModel, "ainvoke", lambda *_, **__: None)
    assert _as_read() == []


async def test_a_cache_of_langchain_answers_a_direct_request() -> None:
    model = AlsoOnTrio(cache=InMemoryCache())
    first, second = await reply_of(model), await reply_of(model)
    assert len(model._asked) == 1
    assert first.content == second.content


async def test_a_rate_limiter_delays_a_direct_request() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=1000, check_every_n_seconds=0.001)
    model = AlsoOnTrio(rate_limiter=limiter)
    await reply_of(model)
    assert limiter.last is not None


@pytest.mark.parametrize(
    ("kind", "options", "on_trio"),
    [
        pytest.param(AlsoOnTrio, dict, "trio", id="declared"),
        pytest.param(Plain, dict, "asyncio", id="not declared"),
        pytest.param(Waiting, dict, "asyncio", id="declared for another method"),
        pytest.param(Caching, dict, "asyncio", id="declared for another way to a cache"),
        pytest.param(AlsoOnTrio, lambda: {"cache": InMemoryCache()}, "asyncio", id="with a cache"),
        pytest.param(
            AlsoOnTrio,
            lambda: {"rate_limiter": InMemoryRateLimiter(requests_per_second=1000)},
            "asyncio",
            id="with a rate limiter",
        ),
    ],
)
async def test_only_a_model_that_declares_trio_is_asked_there(
    kind: type[Plain], options: Callable[[], dict[str, Any]], on_trio: str
) -> None:
    """A pooled client of a model belongs to one event loop, and most clients need asyncio."""
    here = sniffio.current_async_library()
    model = kind(**options())
    await reply_of(model)
    [(_, library, thread)] = model._asked
    assert library == (on_trio if here == "trio" else "asyncio")
    assert (thread == threading.current_thread().name) == (library == here)


@pytest.mark.backends("asyncio")
async def test_a_run_that_is_cancelled_sends_no_request() -> None:
    model = AlsoOnTrio()
    task = asyncio.get_running_loop().create_task(
        create_react_agent(model, [look_up]).ainvoke({"messages": [("user", "go")]})
    )
    if asyncio.get_running_loop().get_task_factory() is None:  # an eager task already waits
        await anyio.lowlevel.checkpoint()  # the task waits for the start of the request
    task.cancel()
    with pytest.raises(asyncio.CancelledError), anyio.fail_after(WAIT):
        await task
    assert model._asked == []
