"""`Fallback(models=...)`: other models reply if a request to the agent's model fails."""

import time
from typing import Any

import anyio
import pytest
from langchain.agents.middleware import AgentMiddleware, ModelRefusalMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from callboard import (
    CallPolicy,
    CallRejectedError,
    CallTimeoutError,
    CircuitOpenError,
    Limit,
    RunEvent,
    create_agent,
    observe,
)
from callboard.middleware import CircuitBreaker, Fallback, Value
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import contents, run

# A model of LangChain needs asyncio: on trio it runs on a loop in another thread.
pytestmark = pytest.mark.real_clock

LOST = ConnectionError("lost")


def failing(error: Exception = LOST) -> ScriptedModel:
    return ScriptedModel([error], loop=True)


async def answer_of(model: BaseChatModel, *middleware: Any, **options: Any) -> str:
    return str((await run(create_agent(model, [], middleware=middleware, **options)))["messages"][-1].content)


@pytest.mark.parametrize("door", ["ainvoke", "invoke"])
async def test_the_first_model_that_replies_answers(door: str) -> None:
    second, third, fourth = failing(KeyError("no")), ScriptedModel(["third"]), ScriptedModel([])
    agent = create_agent(failing(), [], middleware=[Fallback(models=[second, third, fourth])])
    events: list[RunEvent] = []
    with observe(lambda _: None, runs=events.append):
        assert (await run(agent, door=door))["messages"][-1].content == "third"
    assert (len(second.requests), fourth.requests) == (1, [])
    assert [(event.note, event.facts["error"]) for event in events if event.phase == "noted"] == [
        ("fallback", "ConnectionError"),
        ("fallback_failed", "KeyError"),
        ("fallback", "ConnectionError"),
    ]


async def test_a_model_that_works_is_left_alone() -> None:
    other = ScriptedModel([])
    assert await answer_of(ScriptedModel(["first"]), Fallback(models=[other])) == "first"
    assert other.requests == []


async def test_the_first_error_stands_with_notes_of_the_others() -> None:
    """An error of the last model would hide why it was asked at all."""
    with pytest.raises(ConnectionError, match="lost") as caught:
        await answer_of(failing(), Fallback(models=[failing(KeyError("no"))]))
    assert "The fallback 'ScriptedModel' failed too: KeyError('no')" in caught.value.__notes__


async def test_another_error_is_raised_at_once() -> None:
    other = ScriptedModel([])
    with pytest.raises(KeyError):
        await answer_of(failing(KeyError("no")), Fallback(models=[other], on=ConnectionError))
    assert other.requests == []


async def test_another_model_replies_after_a_timeout_a_rejection_and_an_open_circuit() -> None:
    """These errors come from the supervision, inside of the fallback."""
    seen: list[type[Exception]] = []

    class Other(ScriptedModel):
        """Model with a name, and so a circuit, of its own."""

    def fallback() -> Fallback:
        return Fallback(models=[Other(["other"])], on=lambda error: seen.append(type(error)) or True)

    slow = ScriptedModel(["late"], loop=True, delay=5.0)
    assert await answer_of(slow, fallback(), model_policy=CallPolicy(timeout=0.05)) == "other"
    breaker = CircuitBreaker(minimum=1, open_for=60)
    for _ in range(2):
        assert await answer_of(failing(), fallback(), breaker) == "other"
    full = create_agent(slow, [], model_policy=CallPolicy(limit=Limit(concurrency=1, queue=0)), middleware=[fallback()])
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(_until_rejected, full, tasks.cancel_scope)
    assert seen == [CallTimeoutError, ConnectionError, CircuitOpenError, CallRejectedError]


async def _until_rejected(agent: Any, scope: anyio.CancelScope) -> None:
    # The other model is asked under the same limit, and rejected, too.
    with pytest.raises(CallRejectedError):
        await run(agent)
    scope.cancel()


@pytest.mark.parametrize("door", ["ainvoke", "invoke"])
async def test_no_other_model_is_asked_after_the_end_of_the_budget(door: str) -> None:
    """The model blocks its loop or thread, so that nothing can cancel it."""
    other = ScriptedModel(["other"])

    class Blocking(ScriptedModel):
        def _generate(self, *args: Any, **options: Any) -> Any:
            time.sleep(0.15)
            raise LOST

        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            return self._generate()

    with pytest.raises((TimeoutError, ConnectionError)):
        await run(create_agent(Blocking([]), [], middleware=[Fallback(models=[other])], budget=0.1), door=door)
    assert other.requests == []


async def test_a_refusal_of_a_model_is_a_failure() -> None:
    refusal = AIMessage([{"type": "refusal", "refusal": "I will not"}])
    fallback = Fallback(models=[ScriptedModel(["other"])])
    assert await answer_of(ScriptedModel([refusal]), fallback, ModelRefusalMiddleware()) == "other"


async def test_settings_of_one_provider_are_left_out_for_another() -> None:
    """As LangChain's `ModelFallbackMiddleware` does: another provider refuses a request with them."""
    seen: list[dict[str, Any]] = []

    class Settings(AgentMiddleware[Any, Any, Any]):
        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            return await handler(request.override(model_settings={"cache_control": {"type": "ephemeral"}, "top_p": 1}))

    class Other(ScriptedModel):
        async def _agenerate(self, *args: Any, **options: Any) -> Any:
            seen.append({name: value for name, value in options.items() if name in ("cache_control", "top_p")})
            return await super()._agenerate(*args, **options)

    assert await answer_of(failing(), Settings(), Fallback(models=[Other(["other"])])) == "other"
    assert seen == [{"top_p": 1}]


async def test_one_fallback_is_for_tools_and_models() -> None:
    recorder = Recorder()
    broken = recorder.tool("search", raises=LOST)
    model = ScriptedModel([calls("search"), LOST])
    fallback = Fallback({"search": Value("from the fallback")}, models=[ScriptedModel(["other"])])
    done = await run(create_agent(model, [broken], middleware=[fallback]))
    assert contents(done) == ["go", "", "from the fallback", "other"]


async def test_a_fallback_of_tools_is_not_around_models() -> None:
    with pytest.raises(ConnectionError):
        await answer_of(failing(), Fallback({}))
    assert not hasattr(Fallback({}), "awrap_model_call")


@pytest.mark.parametrize("models", ["openai:gpt-5.5", [1], [ScriptedModel], ScriptedModel([]), None, 0])
def test_an_option_that_makes_no_sense_is_named(models: Any) -> None:
    with pytest.raises(TypeError, match=r"Fallback\(models=\.\.\.\) takes a list of chat models or names"):
        Fallback(models=models)


@pytest.mark.parametrize("options", [{}, {"models": []}])
def test_a_fallback_without_an_alternative_is_refused(options: Any) -> None:
    with pytest.raises(TypeError, match="Fallback takes alternatives by tool name"):
        Fallback(**options)
