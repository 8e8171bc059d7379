"""Observers that fail: the calls behave the same."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace

from callboard import CallEvent, CallPolicy, RunEvent, ToolNode, create_react_agent, observe
from callboard._calls._observers import careful_observers
from callboard.telemetry import Tracing
from callboard.testing import Recorder, calls

from ._traces import WAIT, PaidModel, full_reply

GO: Any = {"messages": [("user", "go")]}
PHASES = ["begun", "queued", "gave_up", "started", "attempt_ended", "noted", "ended"]


class Quitting(BaseException):
    """Error that is no `Exception`."""


ERRORS = [ValueError, Quitting, SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration]


def failing(phase: str, error: type[BaseException]) -> Callable[[Any], None]:

    def fail(event: CallEvent | RunEvent) -> None:
        if event.phase == phase:
            raise error

    return fail


def node() -> ToolNode:
    """Return a node and a batch: one call succeeds, one fails, one times out, and some wait."""
    recorder = Recorder()
    ill = recorder.tool("ill", raises=OSError("disk"))
    tools = [recorder.tool("well", seconds=1), ill, recorder.tool("late", hang=True)]
    return ToolNode(tools, handle_tool_errors=True, policies={"late": CallPolicy(timeout=2)})


async def contents() -> list[Any]:
    messages = await node().ainvoke([calls("well", "ill", "late", "none")], {"max_concurrency": 2})
    return [message.content for message in messages]


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "callboard"]


@pytest.mark.parametrize("error", ERRORS)
@settings(max_examples=7, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(phase=st.sampled_from(PHASES))
async def test_an_observer_that_raises_anything_changes_nothing(
    error: type[BaseException], phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An observer may fail in any phase. Later observers are still called, and the failure is reported once."""
    caplog.clear()
    alone: list[str] = []
    phases_beside: list[str] = []
    with anyio.fail_after(WAIT):
        with observe(lambda event: alone.append(event.phase)):
            expected = await contents()
        with observe(failing(phase, error)), observe(lambda event: phases_beside.append(event.phase)):
            assert await contents() == expected
    assert sorted(phases_beside) == sorted(alone)
    assert len(reports(caplog)) == (phase in alone)


def agent_of_one_call() -> Any:
    return create_react_agent(PaidModel([calls("well"), full_reply("done")]), [Recorder().tool("well")])


@pytest.mark.real_clock
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("phase", ["begun", "asked", "answered", "ended"])
async def test_a_run_is_the_same_with_an_observer_that_raises(
    error: type[BaseException], phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_of_one_call()
    fail = failing(phase, error)
    with observe(fail, runs=fail):
        result = await agent.ainvoke(GO)
    assert [message.content for message in result["messages"]] == ["go", "", "well", "done"]
    assert len(reports(caplog)) == 1 + (phase in PHASES)


def test_ctrl_c_in_an_observer_is_somebodys() -> None:
    """Ctrl-C may arrive while an observer runs. It must be raised, not swallowed as a failure of the observer."""
    [careful] = careful_observers(failing("begun", KeyboardInterrupt)).calls
    with pytest.raises(KeyboardInterrupt):
        careful(CallEvent(phase="begun", tool="search", call_id=None, time=0.0))


class Broken:
    """Tracer provider that fails when it is used."""

    def __init__(self, fails: str) -> None:
        self._fails = fails

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def start_span(self, *args: Any, **kwargs: Any) -> Any:
        if self._fails == "start":
            raise RuntimeError("no span")
        return BrokenSpan()


class BrokenSpan(trace.NonRecordingSpan):
    """Span that fails to end."""

    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)

    def end(self, end_time: int | None = None) -> None:
        raise RuntimeError("no end")


@pytest.mark.real_clock
@pytest.mark.parametrize("fails", ["start", "end"])
async def test_a_provider_that_fails_changes_nothing_and_leaves_nothing(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider: Any = Broken(fails)
    agent, before = agent_of_one_call(), trace.get_current_span()
    with Tracing(provider).on():
        result = await agent.ainvoke(GO)
    assert result["messages"][-1].content == "done"
    assert trace.get_current_span() is before
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert len(reports(caplog)) == 2


@pytest.mark.parametrize(
    "observers", [{"observer": 3}, {"observer": print, "runs": "x"}, {"observer": print, "actors": 0}]
)
def test_an_observer_that_cannot_be_called_is_refused_at_once(observers: dict[str, Any]) -> None:
    """Without the check, the object would fail at the first event, visible only in a log line."""
    wrong = list(observers)[-1]
    with (
        pytest.raises(TypeError, match=rf"observe\({wrong}=\.\.\.\) takes a plain function of an event"),
        observe(**observers),
    ):
        raise AssertionError
