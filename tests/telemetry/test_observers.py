"""Observers that fail or block: the calls behave the same."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor

from callboard import CallEvent, CallPolicy, RunEvent, ToolNode, create_react_agent
from callboard._calls._observers import CarefulObserver, careful_observers, observe
from callboard._records._events import CallPhase
from callboard.telemetry import Tracing
from callboard.testing import Recorder, calls

from ._traces import WAIT, PaidModel, Traces, said

GO: Any = {"messages": [("user", "go")]}
PHASES = ["begun", "queued", "gave_up", "started", "attempt_ended", "noted", "ended"]
TOO_LONG = 0.6
"""Seconds of real time for which an observer blocks the loop: longer than allowed."""


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
    beside: list[str] = []
    with anyio.fail_after(WAIT):
        with observe(lambda event: alone.append(event.phase)):
            expected = await contents()
        with observe(failing(phase, error)), observe(lambda event: beside.append(event.phase)):
            assert await contents() == expected
    assert sorted(beside) == sorted(alone)
    assert len(reports(caplog)) == (phase in alone)


def agent_of_one_call() -> Any:
    return create_react_agent(PaidModel([calls("well"), said("done")]), [Recorder().tool("well")])


@pytest.mark.real_clock
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("phase", ["begun", "asked", "answered", "ended"])
async def test_a_run_is_the_same_with_an_observer_that_raises(
    error: type[BaseException], phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = agent_of_one_call()
    fail = failing(phase, error)
    with observe(fail, runs=fail), anyio.fail_after(WAIT):
        result = await agent.ainvoke(GO)
    assert [message.content for message in result["messages"]] == ["go", "", "well", "done"]
    assert len(reports(caplog)) == 1 + (phase in PHASES)


def test_ctrl_c_in_an_observer_is_somebodys() -> None:
    """Ctrl-C may arrive while an observer runs. It must be raised, not swallowed as a failure of the observer."""
    [careful] = careful_observers(failing("begun", KeyboardInterrupt)).calls
    with pytest.raises(KeyboardInterrupt):
        careful(CallEvent(phase="begun", tool="search", call_id=None, time=0.0))


@pytest.mark.filterwarnings("ignore::callboard.exceptions.LoopBlockedWarning")  # the observer raises it
async def test_one_that_holds_the_loop_up_hears_only_ends_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    """After blocking the loop, an observer is paused: it gets only the ends of calls whose beginnings it saw."""
    told: list[tuple[str, str]] = []

    def slow(event: CallEvent) -> None:
        told.append((event.phase, event.tool))
        if (event.phase, event.tool) == ("started", "well"):
            time.sleep(TOO_LONG)

    with anyio.fail_after(WAIT):
        expected = await contents()
        with observe(slow):
            assert await contents() == expected
            known = [tool for phase, tool in told if phase == "begun"]
            assert sorted(tool for phase, tool in told if phase == "ended") == sorted(known)
            before = len(told)
            assert await contents() == expected
    assert len(told) == before
    assert told[told.index(("started", "well")) + 1][0] == "ended"
    [report] = reports(caplog)
    assert "held up the event loop for 0.6 s, more than 0.5 s; for the next 1 s" in report


class Clock:
    """Manual clock with a watchdog that checks 20 times per second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 2000

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float, *, alone: bool = False) -> None:
        """Let time pass. With `alone`, the watchdog does not run, as if the process were stopped."""
        self.now += seconds
        self.looks += 1 if alone else int(seconds * 20)


class Stalling:
    """Observer that records events, and blocks for this long at each call of a tool "slow"."""

    def __init__(self, clock: Clock, seconds: float = TOO_LONG, *, alone: bool = False) -> None:
        self.told: list[tuple[str, int]] = []
        self.clock, self.seconds, self.alone = clock, seconds, alone

    def __call__(self, event: CallEvent) -> None:
        self.told.append((event.phase, event.number))
        if event.tool == "slow" and event.phase == "started":
            self.clock.pass_by(self.seconds, alone=self.alone)

    def careful(self) -> CarefulObserver[CallEvent]:
        return CarefulObserver(self, self.clock, lambda: self.clock.looks)


def tell(observer: CarefulObserver[CallEvent], number: int, *phases: CallPhase, tool: str = "quick") -> None:
    for phase in phases:
        observer(CallEvent(phase=phase, tool=tool, call_id=None, time=0.0, number=number))


def test_an_observer_that_stalled_once_is_told_everything_again_after_a_pause(caplog: pytest.LogCaptureFixture) -> None:
    """One slow disk access must not silence an observer for the life of the process."""
    clock = Clock()
    stalling = Stalling(clock)
    observer = stalling.careful()
    tell(observer, 1, "begun", "started", "ended", tool="slow")
    tell(observer, 2, "begun", "started")
    clock.pass_by(1.1)
    tell(observer, 2, "attempt_ended", "ended")
    tell(observer, 3, "begun", "started", "ended")
    phases = ("begun", "started", "ended")
    assert stalling.told == [(phase, number) for number in (1, 3) for phase in phases]
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_an_observer_that_stalls_again_and_again_has_longer_pauses(caplog: pytest.LogCaptureFixture) -> None:
    """Repeated stalls get longer pauses, so that the loop is blocked less.

    After a long good time they start short again.
    """
    clock = Clock()
    observer = Stalling(clock).careful()
    for number in range(12):
        tell(observer, number, "begun", "started", "ended", tool="slow")
        clock.pass_by(600)
    clock.pass_by(2000)
    tell(observer, 99, "begun", "started", "ended", tool="slow")
    pauses = [report.partition("for the next ")[2].partition(" s")[0] for report in reports(caplog)]
    assert pauses == ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "600", "600", "1"]


def test_an_observer_is_not_blamed_for_a_process_that_stood_still(caplog: pytest.LogCaptureFixture) -> None:
    """A stopped process or a busy machine delays the watchdog as well, so such delays are not counted."""
    stalling = Stalling(Clock(), alone=True)
    observer = stalling.careful()
    tell(observer, 1, "begun", "started", "ended", tool="slow")
    tell(observer, 2, "begun", "ended")
    assert len(stalling.told) == 5
    assert reports(caplog) == []


def test_what_began_in_a_pause_is_not_kept_after_its_end() -> None:
    """Any number of calls may begin during a pause, so their ids must not be kept."""
    observer = Stalling(Clock()).careful()
    tell(observer, 1, "begun", "started", "ended", tool="slow")
    for number in range(2, 50):
        tell(observer, number, "begun", "started", "ended")
    assert observer._missed == set()
    assert observer._announced == set()


class SlowOnce(SpanProcessor):
    """Span processor that blocks at the first end, like an exporter that sends synchronously."""

    patience = TOO_LONG

    def on_end(self, span: Any) -> None:
        time.sleep(self.patience)
        self.patience = 0


@pytest.mark.real_clock
async def test_a_tracing_that_has_a_pause_leaves_no_span_open_and_none_current(
    caplog: pytest.LogCaptureFixture,
) -> None:
    traces = Traces()
    traces.provider.add_span_processor(SlowOnce())
    agent, before = agent_of_one_call(), trace.get_current_span()
    with traces.on(), anyio.fail_after(WAIT):
        await agent.ainvoke(GO)
    assert trace.get_current_span() is before
    assert "invoke_agent LangGraph" in traces.names
    assert len(reports(caplog)) == 1


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
    with Tracing(provider).on(), anyio.fail_after(WAIT):
        result = await agent.ainvoke(GO)
    assert result["messages"][-1].content == "done"
    assert trace.get_current_span() is before
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert len(reports(caplog)) == 2


@pytest.mark.parametrize("given", [{"observer": 3}, {"observer": print, "runs": "x"}, {"observer": print, "actors": 0}])
def test_an_observer_that_cannot_be_called_is_refused_at_once(given: dict[str, Any]) -> None:
    """Without the check, the object would fail at the first event, visible only in a log line."""
    wrong = list(given)[-1]
    with pytest.raises(TypeError, match=rf"observe\({wrong}=\.\.\.\) is called with each event"), observe(**given):
        raise AssertionError
