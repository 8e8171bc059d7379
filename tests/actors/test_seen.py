"""Observability of actors: events, spans, metrics, log lines, recordings and the live view."""

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import trace
from rich.console import Console

import callboard.telemetry._names as names
from callboard import (
    Actor,
    ActorDiedError,
    ActorEvent,
    AskEvent,
    Backoff,
    CallEvent,
    Limit,
    Supervisor,
    ToolNode,
    child,
    handler,
    keyed,
    observe,
    running,
    tool_call,
)
from callboard._calls._observers import observe_everywhere
from callboard._cli._call_counts import CallCounts
from callboard._cli._view import line, picture
from callboard.telemetry import Logs, RecordingWriter, read_recording
from tests.helpers import BrokenError, make
from tests.telemetry._measured import Seen
from tests.telemetry._traces import Traces, attributes, events, facts, is_child, record_traces, texts_in

AT_ONCE = Backoff(first=0.5, jitter=0.0)


BROKEN = "tests.helpers.BrokenError"
DIED = "callboard.exceptions.ActorDiedError"


class Desk(Actor):
    """Actor with exclusive handlers."""

    fatal = (BrokenError,)

    def __init__(self, tracer: Any = None) -> None:
        self.tracer = tracer

    @handler
    async def work(self, seconds: float) -> str:
        """Work for a while.

        Args:
            seconds: how long.
        """
        if self.tracer is not None:
            with self.tracer.start_as_current_span("query"):
                pass
        await anyio.sleep(seconds)
        return "done"

    @handler
    async def tear(self) -> str:
        """Break it."""
        raise BrokenError("secret text")

    @handler
    async def fail(self) -> str:
        """Fail, and live on."""
        raise ValueError("secret text")


class Watcher:
    """Observer that keeps the events of actors."""

    def __init__(self) -> None:
        self.asks: list[AskEvent] = []
        self.lives: list[ActorEvent] = []

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        if isinstance(event, AskEvent):
            self.asks.append(event)
        else:
            self.lives.append(event)

    def phases(self) -> list[str]:
        return [event.phase for event in self.asks]


def nobody(_: CallEvent) -> None:
    """Do nothing: observer of calls for tests that observe actors only."""


async def torn_and_restarted() -> None:
    """Run a desk that dies once, and answers in its next life."""
    async with Supervisor([Desk], backoff=AT_ONCE) as tree:
        with pytest.raises(ActorDiedError):
            await tree[Desk].tear()
        await tree[Desk].work(0.0)


async def evict_desk(name: str = "other") -> None:
    """Run two desks by key, of which only one can live at a time."""
    async with keyed(Desk, name=name, cap=1) as desks:
        await desks["a"].work(0.0)
        await desks["b"].work(0.0)


async def test_an_ask_is_told_of_when_it_begins_is_taken_and_ends() -> None:
    watcher = Watcher()
    with observe(nobody, actors=watcher):
        async with running(Desk) as desk, anyio.create_task_group() as group:
            group.start_soon(desk.work, 2.5)
            await anyio.sleep(0.5)
            group.start_soon(desk.work, 3.0)

    first, second = sorted({event.number for event in watcher.asks})
    events_by_ask = {number: [event for event in watcher.asks if event.number == number] for number in (first, second)}
    assert [event.phase for event in events_by_ask[first]] == [event.phase for event in events_by_ask[second]]
    assert [event.phase for event in events_by_ask[second]] == ["begun", "taken", "ended"]
    assert [(event.actor, event.handler, event.key, event.call, event.ahead) for event in events_by_ask[second]] == [
        ("Desk", "work", None, None, 1)
    ] * 3
    assert [event.ahead for event in events_by_ask[first]] == [0, 0, 0]
    assert [event.waited for event in events_by_ask[second]] == [0.0, pytest.approx(2.0), pytest.approx(2.0)]
    assert events_by_ask[second][2].time - events_by_ask[second][0].time == pytest.approx(5.0)
    assert all(event.error is None for event in watcher.asks)


async def test_an_ask_of_a_call_has_the_calls_number() -> None:
    watcher, begun = Watcher(), list[int]()

    def hear(event: CallEvent) -> None:
        if event.phase == "begun":
            begun.append(event.number)

    async def work_at_desk() -> str:
        return await desk.work(1.0)

    with observe(hear, actors=watcher):
        await ToolNode([Desk()]).ainvoke([tool_call("work", seconds=1.0)])
        async with running(Desk) as desk:
            await ToolNode([make(work_at_desk)]).ainvoke([tool_call("work_at_desk")])

    assert [event.call for event in watcher.asks] == [begun[0]] * 3 + [begun[1]] * 3
    assert watcher.phases() == ["begun", "taken", "ended"] * 2


async def test_an_ask_that_never_began_has_waited_for_all_of_its_time() -> None:
    watcher = Watcher()
    with observe(nobody, actors=watcher):
        async with running(Desk) as desk, anyio.create_task_group() as group:
            group.start_soon(desk.work, 10.0)
            await anyio.sleep(0.5)
            with anyio.move_on_after(4.0):
                await desk.work(1.0)

    gone = [event for event in watcher.asks if event.ahead == 1]
    assert [event.phase for event in gone] == ["begun", "ended"]
    assert gone[1].waited == pytest.approx(4.0)
    assert gone[1].error is not None


async def test_lives_are_told_of_with_what_ended_them_and_who_waits() -> None:
    watcher = Watcher()
    with observe(nobody, actors=watcher):
        await torn_and_restarted()

    lives = [(event.phase, event.actor, type(event.error).__name__) for event in watcher.lives]
    assert lives == [
        ("started", "Desk", "NoneType"),
        ("died", "Desk", "BrokenError"),
        ("restarted", "Desk", "BrokenError"),
        ("stopped", "Desk", "NoneType"),
    ]
    waiting = next(event for event in watcher.asks if event.handler == "work")
    assert watcher.lives[2].asks == (waiting.number,)


async def test_an_eviction_is_told_of_with_the_asks_that_want_the_room() -> None:
    watcher = Watcher()
    with observe(nobody, actors=watcher):
        await evict_desk()

    assert [(event.phase, event.key) for event in watcher.lives] == [
        ("started", "a"),
        ("evicted", "a"),
        ("stopped", "a"),
        ("started", "b"),
        ("stopped", "b"),
    ]
    ask_number = next(event.number for event in watcher.asks if event.key == "b")
    assert watcher.lives[1].asks == (ask_number,)


async def test_the_span_of_an_ask_is_a_child_of_its_call_and_the_parent_of_what_its_handler_does() -> None:
    """The actor may be older than the trace, but the handler runs in the trace of the caller."""
    traces = Traces()
    async with ToolNode([Desk(traces.tracer)]) as node:
        with traces.on():
            await node.ainvoke([tool_call("work", seconds=2.0)])

    ask, attempt = traces.one("ask"), traces.one("attempt")
    assert ask.name == "ask Desk.work"
    assert is_child(ask, attempt)
    assert is_child(attempt, traces.tool())
    assert is_child(traces.one("query"), ask)
    assert attributes(ask) == {
        names.ACTOR: "Desk",
        names.ACTOR_HANDLER: "work",
        names.MAILBOX_LENGTH: 0,
        names.ACTOR_WAIT: 0.0,
        names.OUTCOME: "ok",
    }


async def test_the_span_of_an_ask_says_what_it_waited_for() -> None:
    with record_traces() as traces:
        await torn_and_restarted()
        await evict_desk()

    died, waited = traces.one("ask Desk.tear"), traces.one("ask Desk.work")
    assert attributes(died)[names.ERROR_TYPE] == DIED
    assert events(died) == ["exception"]
    assert attributes(waited)[names.ACTOR_WAIT] == pytest.approx(0.5)
    assert facts(waited, names.ACTOR_RESTARTED) == {names.ACTOR: "Desk", names.ERROR_TYPE: BROKEN}
    first, second = traces.all("ask other.work")
    assert events(first) == [names.ACTOR_STARTED]
    assert events(second) == [names.ACTOR_EVICTED, names.ACTOR_STARTED]


async def test_a_span_is_not_current_any_more_when_the_ask_has_ended() -> None:
    """A span that stays current would adopt unrelated later spans. A failed ask must reset it, too."""
    with record_traces() as traces:
        async with running(Desk) as desk:
            with traces.tracer.start_as_current_span("around") as outer_span:
                await desk.work(0.0)
                assert trace.get_current_span() is outer_span
                with pytest.raises(ValueError, match="secret"):
                    await desk.fail()
                assert trace.get_current_span() is outer_span


async def test_neither_keys_nor_errors_texts_leave_unless_they_are_captured() -> None:
    """Keys and error texts may contain what a model wrote, so they are exported only if captured."""

    async def work() -> None:
        async with keyed(Desk) as desks:
            with pytest.raises(ValueError, match="secret"):
                await desks["tenant-7"].fail()

    with record_traces() as quiet:
        await work()
    with record_traces(capture=True, redact=False) as telling:
        await work()

    assert "secret" not in texts_in(quiet.spans)
    assert "tenant-7" not in texts_in(quiet.spans)
    assert attributes(telling.one("ask"))[names.ACTOR_KEY] == "tenant-7"
    assert "secret" in texts_in(telling.spans)


async def test_mailboxes_waits_restarts_and_evictions_are_measured() -> None:
    """Metrics are labelled with actor names only: keys would create an unbounded number of time series."""
    meter = Seen()
    with meter.metrics.on():
        async with Supervisor([Desk], backoff=AT_ONCE) as tree:
            with pytest.raises(ActorDiedError):
                await tree[Desk].tear()
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(tree[Desk].work, 1.0)
                await anyio.sleep(1.0)
                during = {name: measurement.data.data_points for name, measurement in meter.all().items()}
        await evict_desk()
    after = {name: measurement.data.data_points for name, measurement in meter.all().items()}

    [waiting] = [
        measurement for measurement in during[names.MAILBOXES] if measurement.attributes[names.ACTOR_HANDLER] == "work"
    ]
    assert (waiting.value, dict(waiting.attributes)) == (2, {names.ACTOR: "Desk", names.ACTOR_HANDLER: "work"})
    assert [(measurement.value, measurement.attributes[names.ACTOR]) for measurement in during[names.ACTORS_ALIVE]] == [
        (1, "Desk")
    ]
    assert {measurement.value for measurement in after[names.MAILBOXES]} == {0}
    assert {measurement.value for measurement in after[names.ACTORS_ALIVE]} == {0}
    assert [(measurement.value, dict(measurement.attributes)) for measurement in after[names.RESTARTS]] == [
        (1, {names.ACTOR: "Desk"})
    ]
    assert [(measurement.value, dict(measurement.attributes)) for measurement in after[names.EVICTIONS]] == [
        (1, {names.ACTOR: "other"})
    ]
    [waits] = [measurement for measurement in after[names.MAILBOX_WAIT] if measurement.attributes == waiting.attributes]
    assert (waits.count, waits.sum) == (3, pytest.approx(0.5 + 1.5 + 2.5))
    failed = [
        dict(measurement.attributes)
        for measurement in after[names.ASK_DURATION]
        if names.ERROR_TYPE in measurement.attributes
    ]
    assert failed == [{names.ACTOR: "Desk", names.ACTOR_HANDLER: "tear", names.ERROR_TYPE: DIED}]


async def test_asks_and_lives_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Deaths and restarts are logged at warning level or above, so that they are noticed."""
    caplog.set_level(logging.DEBUG, "callboard.calls")
    with Logs().on():
        await torn_and_restarted()

    lines = [record for record in caplog.records if record.name == "callboard.calls"]
    log_entries = [(record.levelname, record.getMessage()) for record in lines]
    assert log_entries == [
        ("DEBUG", "actor started"),
        ("DEBUG", "actor asked"),
        ("WARNING", "actor died"),
        ("WARNING", "actor restarted"),
        ("DEBUG", "actor asked"),
        ("DEBUG", "actor stopped"),
    ] or log_entries[1:3] == [("WARNING", "actor died"), ("DEBUG", "actor asked")]
    assert {record.__dict__["actor"] for record in lines} == {"Desk"}
    assert next(record for record in lines if record.getMessage() == "actor restarted").__dict__["error_type"] == BROKEN


async def test_a_recording_has_the_asks_of_its_calls_and_the_lives_of_actors(tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "run.jsonl", clock=anyio.current_time):
        async with ToolNode([child(Desk, key=lambda call: "tenant-7")], limit=Limit(concurrency=1)) as node:
            await node.ainvoke([tool_call("work", "c1", seconds=2.0), tool_call("work", "c2", seconds=1.0)])
        async with running(Desk) as desk:
            await desk.work(0.5)

    [part] = read_recording(tmp_path / "run.jsonl").parts
    assert [len(call.asks) for call in part.calls] == [1, 1]
    ask = part.calls[0].asks[0]
    assert (ask.actor, ask.handler, ask.outcome, ask.key) == ("Desk", "work", "ok", None)
    assert ask.call == part.calls[0].number
    assert ask.handler_start is not None
    assert ask.end is not None
    assert ask.start <= ask.handler_start <= ask.end
    assert [actor_ask.call is None for actor_ask in part.asks] == [False, False, True]
    assert [change.phase for change in part.lives] == ["started", "stopped", "started", "stopped"]
    assert "tenant-7" not in (tmp_path / "run.jsonl").read_text()


async def test_a_captured_recording_has_keys(tmp_path: Path) -> None:
    """Keys are recorded only with capture, as in spans."""
    with RecordingWriter(tmp_path / "run.jsonl", capture=True, redact=False):
        async with keyed(Desk) as desks:
            await desks["tenant-7"].work(0.0)

    [part] = read_recording(tmp_path / "run.jsonl").parts
    assert [ask.key for ask in part.asks] == ["tenant-7"]
    assert {change.key for change in part.lives} == {"tenant-7"}


async def test_the_live_view_has_a_line_for_each_actor() -> None:
    counts = CallCounts(["work"])
    console = Console(width=120, record=True, force_terminal=True)
    with observe(counts, actors=counts.actors):
        async with ToolNode([Desk()]) as node, anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(node.ainvoke, [tool_call("work", seconds=1.0)])
            await anyio.wait_all_tasks_blocked()
            console.print(picture(counts, anyio.current_time(), 120, 30))
            line_of_text = line(counts, anyio.current_time(), 80)

    screen = console.export_text()
    heading, row = (text for text in screen.splitlines() if text.startswith(("actor", "Desk")))
    assert heading.split() == "actor running waiting done alive restarts evictions longest wait".split()
    assert row.split()[:7] == ["Desk", "1", "2", "0", "0", "0", "0"] or row.split()[:5] == ["Desk", "1", "2", "0", "1"]
    assert "; Desk: 2 waiting; " in line_of_text


async def test_an_observer_of_actors_that_fails_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(event: AskEvent | ActorEvent) -> None:
        raise ValueError(f"told of {event.actor}")

    with observe(nobody, actors=broken):
        async with running(Desk) as desk:
            assert [await desk.work(0.0) for _ in range(3)] == ["done"] * 3

    reports = [record.getMessage() for record in caplog.records if "observer" in record.getMessage()]
    assert len(reports) == 1
    assert "told of Desk" not in reports[0]


async def test_a_life_whose_beginning_was_not_measured_is_not_counted_at_its_end() -> None:
    """Metrics may be set up while an actor is alive. Counting its end alone would make the gauge negative."""
    meter = Seen()
    desks = running(Desk)
    desk = await desks.__aenter__()
    token = observe_everywhere(meter.metrics.observers)
    await desk.work(0.0)
    await desks.__aexit__(None, None, None)
    token()
    assert names.ACTORS_ALIVE not in meter.all()


async def test_a_call_that_runs_again_names_its_actor_without_the_key() -> None:
    """The key may be an argument, so the event of a repeated call leaves it out."""
    with record_traces() as traces:
        desk = child(Desk, key=lambda call: "tenant-7")
        async with ToolNode([desk], handle_tool_errors=True, on_unknown="rerun") as node:
            await node.ainvoke([tool_call("tear")])
    assert events(traces.tool()).count("callboard.rerun") == 3
    assert "tenant-7" not in texts_in(traces.spans)
