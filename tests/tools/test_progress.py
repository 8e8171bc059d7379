"""`callboard.progress()`: who receives reports, how often, and what may leave the process."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import TimeoutPolicy
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from callboard import CallEvent, CallPolicy, ToolNode, create_react_agent, observe, progress
from callboard.telemetry import Logs, RecordingWriter, Tracing, read_recording
from callboard.testing import ScriptedModel, calls
from tests.helpers import ask, live_tasks, make, make_sync

WAIT = 60
PAUSE = 0.05
"""Seconds between two reports of a call that observers see."""
GO = {"messages": [("user", "go")]}

Told = list[tuple[float, CallEvent]]


@contextmanager
def reports() -> Iterator[Told]:
    """Collect the progress reports that reach an observer, with their times."""
    timed_events: Told = []

    def take(event: CallEvent) -> None:
        if event.note == "progress":
            timed_events.append((event.time, event))

    with observe(take):
        yield timed_events


async def test_an_observer_hears_of_progress() -> None:
    """The event has the numbers as facts, and the text separately, so that it cannot be mistaken for a fact."""

    async def work() -> str:
        progress("page 9 of 7", done=9, total=7)  # a total is an estimate
        await anyio.sleep(1)
        progress()
        return "done"

    with anyio.fail_after(WAIT), reports() as timed_events:
        await ToolNode([make(work)]).ainvoke(ask("work"))
    (first, event), (second, heartbeat) = timed_events
    assert (event.phase, event.tool, event.call_id, event.attempt) == ("noted", "work", "call_1", 1)
    assert (event.message, event.facts) == ("page 9 of 7", {"done": 9, "total": 7})
    assert (heartbeat.message, heartbeat.facts) == ("", {})
    assert second - first == pytest.approx(1)
    assert "page 9" not in repr(event)


async def test_a_middleware_reports_for_its_call() -> None:
    """A middleware's report belongs to the call, also before and after its attempts."""

    async def around(request: Any, execute: Callable[[Any], Any]) -> Any:
        progress("before")
        message = await execute(request)
        await anyio.sleep(1)
        progress("after")
        return message

    async def work() -> str:
        await anyio.sleep(1)
        return "done"

    with anyio.fail_after(WAIT), reports() as timed_events:
        await ToolNode([make(work)], middleware=[around]).ainvoke(ask("work"))
    assert [(event.message, event.attempt) for _, event in timed_events] == [("before", 0), ("after", 1)]


@pytest.mark.parametrize("name", ["done", "total"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, True, "3", 2j])
def test_an_amount_that_is_none_is_refused(name: str, value: object) -> None:
    """Promise 13: the error names the argument and its value, also outside of a call."""
    progress("alone", done=1, total=2)
    with pytest.raises((TypeError, ValueError), match=rf"progress\({name}=\.\.\.\) .* got {value!r}; "):
        progress(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"progress\(message\) is a text, got 3; an amount is progress\(done=\.\.\.\)"):
        progress(3)  # type: ignore[arg-type]


@given(pauses=st.lists(st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.2]), max_size=30), at_end=st.booleans())
async def test_of_many_reports_the_newest_are_told(pauses: list[float], at_end: bool) -> None:
    """Reports arrive in order, at most every 50 ms and at most that late. The last one arrives before the call ends."""
    given: list[float] = []

    async def work() -> str:
        for number, pause in enumerate(pauses):
            progress(done=number)
            given.append(anyio.current_time())
            await anyio.sleep(pause)
        await anyio.sleep(0 if at_end else 1)
        return "done"

    all_events: list[CallEvent] = []
    with anyio.fail_after(WAIT), observe(all_events.append):
        before = live_tasks()
        await ToolNode([make(work)]).ainvoke(ask("work"))
        assert live_tasks() == before
    progress_events = [event for event in all_events if event.note == "progress"]
    numbers = [int(str(event.facts["done"])) for event in progress_events]
    assert numbers == sorted(set(numbers))
    assert numbers[-1:] == ([len(pauses) - 1] if pauses else [])
    # The last report of an attempt is not delayed.
    assert all(later.time - earlier.time >= PAUSE - 1e-6 for earlier, later in pairwise(progress_events[:-1]))
    for number, event in zip(numbers, progress_events, strict=True):
        assert event.time <= given[number] + PAUSE + 1e-6
        newer = [later_time for later_time in given[number + 1 :] if later_time < event.time - 1e-6]
        assert not newer
    phases = [event.note or event.phase for event in all_events]
    if pauses:
        assert phases.index("attempt_ended") > max(index for index, phase in enumerate(phases) if phase == "progress")


async def test_twenty_thousand_reports_are_few_events() -> None:
    """A loop may report every row without flooding observers."""

    async def work() -> str:
        for row in range(20_000):
            progress(done=row, total=20_000)
            if row % 1000 == 0:
                await anyio.sleep(0)
        return "done"

    policies = {"work": CallPolicy(idle_timeout=10)}
    with anyio.fail_after(WAIT), reports() as timed_events:
        await ToolNode([make(work)], policies=policies).ainvoke(ask("work"))
    assert [event.facts["done"] for _, event in timed_events] == [0, 19_999]


async def test_a_cancelled_call_has_its_last_report() -> None:
    """The last report shows how far a cancelled call got."""

    async def work() -> str:
        progress("first")
        progress("last")
        await anyio.sleep(100)
        return "never"

    with anyio.fail_after(WAIT), reports() as timed_events:
        with anyio.move_on_after(0.01):
            await ToolNode([make(work)]).ainvoke(ask("work"))
    assert [event.message for _, event in timed_events] == ["first", "last"]


async def test_a_cancelled_call_reports_no_more_after_its_end() -> None:
    """A task that a middleware has left behind may report later. The span of the call has ended by then."""
    events: list[CallEvent] = []
    contexts: list[Context] = []

    async def work() -> None:
        await anyio.sleep(60)

    async def leave_work_behind(request: Any, call_next: Any) -> Any:
        contexts.append(copy_context())
        return await call_next(request)

    node = ToolNode([make(work)], middleware=[leave_work_behind])
    with observe(events.append), anyio.move_on_after(1):
        await node.ainvoke(ask("work"))
    contexts[0].run(progress, "late")
    assert [event.phase for event in events] == ["begun", "started", "attempt_ended", "ended"]


async def test_an_observer_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The failure of an observer does not affect the call, neither at once nor after the pause."""

    def failing(event: CallEvent) -> None:
        raise RuntimeError("no")

    async def work() -> str:
        for _ in range(3):
            progress()
        await anyio.sleep(1)
        return "done"

    with anyio.fail_after(WAIT), observe(failing):
        [message] = await ToolNode([make(work)]).ainvoke(ask("work"))
    assert message.content == "done"
    assert len(caplog.records) == 1


@pytest.fixture(params=["async", "sync"])
def tool(request: pytest.FixtureRequest) -> Any:
    """Return a tool that reports twice, in the event loop or in a thread."""

    async def work() -> str:
        progress("first", done=1, total=2)
        await anyio.sleep(2 * PAUSE)
        progress("second", done=2, total=2)
        return "done"

    def in_thread() -> str:
        progress("first", done=1, total=2)
        time.sleep(2 * PAUSE)
        progress("second", done=2, total=2)
        return "done"

    return make(work) if request.param == "async" else make_sync(in_thread, "work")


def chunk(message: str, done: int) -> dict[str, object]:
    about = {"type": "progress", "tool": "work", "tool_call_id": "call_1"}
    return {**about, "message": message, "done": done, "total": 2}


def graph_of(tools: Any, **options: Any) -> Any:
    return StateGraph(MessagesState).add_node("tools", tools, **options).add_edge(START, "tools").compile()


CHUNKS = [chunk("first", 1), chunk("second", 2)]


@pytest.mark.real_clock
async def test_readers_of_an_agents_stream_are_told(tool: Any) -> None:
    """Progress appears in the stream mode "custom", like other data that a tool writes."""
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [tool])
    assert [chunk async for chunk in agent.astream(GO, stream_mode="custom")] == CHUNKS
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [tool])
    assert list(agent.stream(GO, stream_mode="custom")) == CHUNKS


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
async def test_readers_of_a_graphs_stream_are_told(tool: Any) -> None:
    """Progress appears in the stream of a LangGraph graph that runs the node."""
    graph = graph_of(ToolNode([tool]))
    graph_input = {"messages": ask("work")}
    assert [chunk async for chunk in graph.astream(graph_input, stream_mode="custom")] == CHUNKS
    assert list(graph.stream(graph_input, stream_mode="custom")) == CHUNKS


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("refresh_on", ["auto", "heartbeat"])
async def test_a_node_with_an_idle_timeout_of_langgraphs_is_kept_alive(refresh_on: Any) -> None:
    """LangGraph's idle timeout would cancel the whole batch."""

    async def work() -> str:
        for _ in range(8):
            await anyio.sleep(0.1)
            progress()
        return "done"

    node = ToolNode([make(work)])

    async def tools(state: MessagesState, config: RunnableConfig) -> Any:
        return await node.ainvoke(state, config)

    graph = graph_of(tools, timeout=TimeoutPolicy(idle_timeout=0.4, refresh_on=refresh_on))
    result = await graph.ainvoke({"messages": ask("work")})
    assert result["messages"][-1].content == "done"


@pytest.mark.real_clock
async def test_the_stream_is_written_in_the_loop_of_the_call() -> None:
    """Writers do not have to be thread-safe: reports from any thread or loop are written in the loop of the call."""
    threads: list[int] = []

    def work() -> str:
        progress("from a thread")
        time.sleep(2 * PAUSE)
        anyio.run(from_another_loop)
        return "done"

    async def from_another_loop() -> None:
        progress("from another loop")

    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [make_sync(work)])

    def record_thread(event: CallEvent) -> None:
        if event.note == "progress":
            threads.append(threading.get_ident())

    with observe(record_thread):
        texts = [chunk["message"] async for chunk in agent.astream(GO, stream_mode="custom")]
    assert texts == ["from a thread", "from another loop"]
    assert threads == [threading.get_ident()] * 2


async def test_a_writer_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The reader of the stream may have gone, so an error of the writer is ignored."""

    def failing(_: object) -> None:
        raise RuntimeError("nobody reads")

    async def work() -> str:
        for _ in range(3):
            progress()
            await anyio.sleep(1)
        return "done"

    with anyio.fail_after(WAIT):
        result = await ToolNode([make(work)]).ainvoke(ask("work"), runtime=Runtime(stream_writer=failing))
    assert [message.content for message in result] == ["done"]
    assert len(caplog.records) == 1


@pytest.mark.real_clock
async def test_a_thread_that_was_given_up_reports_no_more() -> None:
    """The call of an abandoned thread already has its message, and perhaps another attempt runs."""
    release, ended = threading.Event(), threading.Event()

    def work() -> str:
        progress("in time")
        release.wait(20)
        progress("far too late")
        ended.set()
        return "late"

    node = ToolNode([make_sync(work)], timeout=0.2)
    try:
        with (
            anyio.fail_after(WAIT),
            reports() as timed_events,
            pytest.warns(UserWarning, match="goes on after its call"),
        ):
            await node.ainvoke(ask("work"))
            release.set()
            await anyio.to_thread.run_sync(ended.wait, 20)
            await anyio.sleep(2 * PAUSE)
    finally:
        release.set()
    assert [event.message for _, event in timed_events] == ["in time"]


async def secretly() -> str:
    progress("reading ann@example.com", done=1, total=2)
    return "done"


async def run_secretly() -> ToolMessage:
    with anyio.fail_after(WAIT):
        [message] = await ToolNode([make(secretly, "work")]).ainvoke(ask("work"))
    return message


@pytest.mark.parametrize("capture", [False, True])
async def test_spans_have_the_numbers_and_the_text_if_it_is_captured(capture: bool) -> None:
    """The events are on the span of the attempt. Captured texts are redacted like arguments."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with Tracing(provider, capture=capture).on():
        await run_secretly()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert not spans["execute_tool work"].events
    [event] = spans["attempt work"].events
    attributes = dict(event.attributes or {})
    text = attributes.pop("callboard.message", None)
    assert (event.name, attributes) == ("callboard.progress", {"callboard.done": 1, "callboard.total": 2})
    assert (text is None) is not capture
    assert "ann@example.com" not in "".join(span.to_json() for span in spans.values())


@pytest.mark.parametrize("capture", [False, True])
async def test_recordings_have_the_numbers_and_the_text_if_it_is_captured(capture: bool, tmp_path: Path) -> None:
    """The progress events of a recording belong to their call."""
    with RecordingWriter(tmp_path / "run.jsonl", capture=capture, redact=False):
        await run_secretly()
    [line] = [json.loads(text) for text in (tmp_path / "run.jsonl").read_text().splitlines() if "noted" in text]
    assert (line["what"], line["facts"]) == ("progress", {"done": 1, "total": 2})
    assert line.get("message") == ("reading ann@example.com" if capture else None)
    [call] = read_recording(tmp_path / "run.jsonl").calls()
    [note] = call.notes
    assert (note.kind, note.facts, note.message) == ("progress", line["facts"], line.get("message"))


async def test_log_lines_have_the_numbers_only(caplog: pytest.LogCaptureFixture) -> None:
    """Progress is logged at debug level, because it is frequent."""
    with caplog.at_level(logging.DEBUG, "callboard.calls"), Logs().on():
        await run_secretly()
    [line] = [record for record in caplog.records if record.message == "progress"]
    assert (line.levelno, line.__dict__["facts"]) == (logging.DEBUG, {"done": 1, "total": 2})
    assert "ann@example.com" not in caplog.text
