"""The live view: its content, its size, and how often it is drawn."""

import re
from io import StringIO
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, RemoveMessage, ToolMessage
from rich.console import Console

from callboard import CallEvent, ToolNode, observe, tool_call
from callboard._cli._call_counts import CallCounts, percentile
from callboard._cli._grid import argument_texts
from callboard._cli._screen import Calls, Screen, messages_in
from callboard._cli._shown_text import one_line
from callboard._cli._view import line, picture, supports_pictures
from tests.telemetry._events import ENDS, counts_of, event

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def busy(tools: int = 3, calls: int = 1_200) -> CallCounts:
    """Return counts in the middle of much work: equal numbers of calls are waiting, running, done and failed."""
    counts = CallCounts([])
    for number in range(calls):
        fields: dict[str, Any] = {"number": number, "tool": f"tool_{number % tools}_{'x' * 30}"}
        args = {"url": f"http://example.org/{number}" + "y" * 100}
        counts(event("begun", call={"name": fields["tool"], "args": args, "id": "1"}, **fields))
        counts(event("queued", **fields))
        if number // tools % 4:
            counts(event("started", attempt=1, time=1.0, queue_wait=1.0, **fields))
        if number // tools % 4 > 1:
            counts(event("attempt_ended", attempt=1, time=2.0, **fields))
            counts(event("ended", time=2.0, **fields, **ENDS["ok" if number // tools % 4 == 2 else "timeout"]))
    return counts


def draw(counts: CallCounts, now: float = 5.0, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=StringIO(), record=True, force_terminal=True, width=width, height=height, color_system=None)
    console.print(picture(counts, now, width, height))
    return console.export_text().splitlines()


def cells(lines: list[str], name: str) -> list[str]:
    return next(text.split()[1:] for text in lines if text.startswith(name))


def test_everything_there_is_to_know_is_in_80_by_24() -> None:
    lines = draw(busy())

    assert len(lines) == 3 + 1 + 3 + 2 + 10
    assert lines[:3] == [
        "5.00 s: 600 of 1200 calls ended, 120.0 a second",
        "300 running, 300 waiting (at most 301, longest 5.00 s)",
        "300 done, 300 failed (300 timeout)",
    ]
    assert lines[3].split() == ["tool", "running", "waiting", "done", "failed", "p50", "p95", "longest", "wait"]
    assert cells(lines, "tool_1") == ["100"] * 4 + "2.00 s 2.00 s 5.00 s".split()
    assert lines[8].split() == ["slowest", "now", "age", "is", "since", "last", "note"]
    assert cells(lines[9:], "tool_0") == ["5.00", "s", "waiting", "5.00", "s"]


@given(st.integers(1, 40), st.integers(0, 200), st.integers(20, 200), st.integers(1, 60))
def test_it_is_never_taller_or_wider_than_the_terminal(tools: int, calls: int, width: int, height: int) -> None:
    lines = draw(busy(tools, calls), width=width, height=height)

    assert len(lines) <= max(1, height - 1)
    assert max((len(text) for text in lines), default=0) <= width


def test_tools_for_which_there_is_no_room_are_added_up() -> None:
    """The tools without a row are added up in one row, so that no count is lost."""
    lines = draw(busy(tools=40, calls=400))

    first, last = lines.index(next(text for text in lines if text.startswith("tool "))), lines.index("")
    tools = [text.split() for text in lines[first + 1 : last]]
    assert tools[-1][:2] == [str(40 - len(tools) + 1), "more"]
    counts = [list(map(int, (text[2:] if text is tools[-1] else text[1:])[:4])) for text in tools]
    assert [sum(column) for column in zip(*counts, strict=True)] == [120, 120, 80, 80]
    assert len(lines) - last > 5


def test_lines_stay_where_they_are_when_calls_end() -> None:
    """A view that shrinks would make the lines jump, so it keeps its height."""
    counts = busy(calls=40)
    before = len(draw(counts))
    for number in tuple(counts.open):
        counts(event("ended", number, 5.0))

    assert len(draw(counts)) == before
    assert not any("(url=" in text for text in draw(counts))


def test_names_and_notes_cannot_act_on_the_terminal() -> None:
    """Models may write escape sequences in tool names and arguments."""
    counts = counts_of(
        event("begun", tool="\x1b[2Kevil\u202e\nname", call=tool_call("evil", "1", x="\x1b[2K")),
        event("noted", tool="evil", note="\x1b[H"),
        event("begun", 2, tool="evil"),
        event("noted", 2, tool="evil", note="progress", message="\x1b[H\u202e"),
    )
    text = "\n".join(draw(counts, width=160)) + line(counts, 1.0, 80)

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "evil" in text


def test_a_line_has_the_totals_and_the_slowest_call() -> None:
    """A log is read at any width: the numbers of each tool would make the line many times as long."""
    counts = counts_of(
        event("begun", tool="fetch", call=tool_call("fetch", "1", url="a")),
        event("started", tool="fetch", attempt=1),
        event("attempt_ended", tool="fetch", attempt=1),
        event("started", tool="fetch", attempt=2, time=2.0),
        event("begun", 2, tool="fetch"),
        event("queued", 2, tool="fetch"),
    )

    assert line(counts, 5.0, 80) == "5.00 s: 0 of 2 ended, 1 running, 1 waiting, 1 retry; fetch(url='a') 3.00 s"


@given(st.integers(1, 40), st.integers(0, 200), st.integers(20, 200))
def test_a_line_is_never_wider_than_its_width(tools: int, calls: int, width: int) -> None:
    assert len(line(busy(tools, calls), 5.0, width)) <= width


def test_equal_open_calls_share_a_row_with_their_number() -> None:
    """Ten rows of one text would hide the call that differs."""
    counts = CallCounts([])
    for number in range(30):
        fields: dict[str, Any] = {"number": number, "tool": "fetch"}
        counts(
            event("begun", call=tool_call("fetch", "1", url="b" if number == 20 else "a"), time=number / 10, **fields)
        )
        counts(event("started", attempt=1, time=number / 10, **fields))
    counts(event("attempt_ended", 7, tool="fetch", attempt=1))
    counts(event("started", 7, tool="fetch", attempt=2))
    lines = draw(counts)

    rows = lines[next(number for number, text in enumerate(lines) if text.startswith("slowest now")) + 1 :]
    assert [text.split() for text in rows if text] == [
        ["fetch(url='a')", "x", "28", "5.00", "s", "running", "5.00", "s"],
        ["fetch(url='a')", "4.30", "s", "running", "5.00", "s", "attempt", "2"],
        ["fetch(url='b')", "3.00", "s", "running", "3.00", "s"],
    ]


def test_retries_have_a_column_once_there_are_any() -> None:
    counts = busy()
    assert "retries" not in draw(counts)[3]
    counts(event("started", 4, tool=next(iter(counts.rows)), attempt=2))
    assert "retries" in draw(counts, width=100)[3]


def terminal() -> Console:
    return Console(file=StringIO(), force_terminal=True, width=80, height=24, color_system=None)


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dumb terminal cannot redraw, so it gets lines."""
    assert supports_pictures(terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert not supports_pictures(terminal())
    assert not supports_pictures(Console(file=StringIO()))


async def show_run(console: Console, *, live: bool) -> str:
    """Return the output of a run whose calls take three and a half seconds."""

    async def wait() -> str:
        """Take long."""
        await anyio.sleep(3.5)
        return "went"

    calls = Calls(["wait"])
    screen = Screen(console, calls, [], live=live)
    request = AIMessage("One moment.", id="asked", tool_calls=[tool_call("wait", "a"), tool_call("wait", "b")])
    async with anyio.create_task_group() as group:
        group.start_soon(screen.keep_up)
        screen.take("updates", {"agent": {"messages": [request]}})
        with observe(calls.counts):
            answers = await ToolNode([wait]).ainvoke({"messages": [request]})
        for number, message in enumerate(answers["messages"]):
            message.id = str(number)
        screen.take("updates", {"tools": answers})
        group.cancel_scope.cancel()
    return _ESCAPES.sub("", console.file.getvalue())  # type: ignore[attr-defined]


async def test_a_run_shows_all_that_goes_on_and_the_conversation_as_before() -> None:
    live, before = await show_run(terminal(), live=True), await show_run(terminal(), live=False)

    assert "2 running, 0 waiting" in live
    assert "slowest now" in live
    assert "slowest now" not in before
    for text in (live, before):
        assert text.startswith("One moment.\n")
        assert text.count("done    wait()  3.50 s  went") == 2


async def test_a_run_without_a_terminal_tells_once_a_second() -> None:
    lines = (await show_run(Console(file=StringIO(), width=1_000), live=True)).splitlines()
    quiet = (await show_run(Console(file=StringIO(), width=1_000), live=False)).splitlines()

    assert [text.split()[0] for text in lines] == ["One", "call", "call", *["calls"] * 4, "done", "done"]
    assert [text for text in lines if not text.startswith("calls ")] == quiet


# The lines of a run without the view of the whole terminal.


def event_of(phase: Any, call_id: str = "1", time: float = 0.0, **fields: Any) -> CallEvent:
    return CallEvent(phase=phase, tool="fetch", call_id=call_id, number=int(call_id), time=time, **fields)


def rows_of(calls: Calls, now: float) -> list[list[str]]:
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        console.print(calls.table(now, 100))
    return [line.split() for line in capture.get().splitlines() if line]


def test_a_call_is_shown_from_its_queue_to_its_end() -> None:
    calls = Calls(["fetch"])
    calls.counts(event_of("begun", time=1.0, call=tool_call("fetch", "1", url="x")))
    calls.counts(event_of("queued", time=1.0))
    assert rows_of(calls, 3.0) == [["fetch(url='x')", "2.00", "s", "waiting", "2.00", "s"]]
    calls.counts(event_of("started", time=3.0, attempt=1))
    calls.counts(event_of("attempt_ended", time=4.0, attempt=1))
    calls.counts(event_of("noted", time=4.0, note="retry"))
    calls.counts(event_of("started", time=5.0, attempt=2))
    assert rows_of(calls, 20.0) == [["fetch(url='x')", "19.00", "s", "running", "15.00", "s", "attempt", "2,", "retry"]]
    calls.counts(event_of("attempt_ended", time=21.5, attempt=2))
    calls.counts(event_of("ended", time=21.5))

    assert rows_of(calls, 22.0) == []
    assert calls.took("1") == "20.50 s, 2 attempts"  # including the queue and the pause
    assert calls.took("2") == ""


def test_of_many_calls_there_are_numbers() -> None:
    calls = Calls(["fetch"])
    for number in range(40):
        calls.counts(event_of("begun", str(number), call=tool_call("fetch", str(number), url=str(number))))
        calls.counts(event_of("started", str(number), attempt=1))
    calls.counts(event_of("attempt_ended", "0", attempt=1))
    calls.counts(event_of("ended", "0"))

    heading, row = rows_of(calls, 1.0)
    assert heading == ["tool", "running", "waiting", "done", "failed", "p50", "p95", "longest", "wait"]
    assert row[:5] == ["fetch", "39", "0", "1", "0"]


def test_messages_are_found_wherever_a_node_puts_them() -> None:
    """A node may return one message, several, several state updates, or no message."""
    first, second = AIMessage("1"), ToolMessage("2", tool_call_id="1")

    assert list(messages_in({"messages": first})) == [first]
    assert list(messages_in([{"messages": [first]}, {"other": 1}, {"messages": [second, RemoveMessage("3")]}]))[:2] == [
        first,
        second,
    ]
    for nothing in (None, {}, "text", {"messages": None}, {"messages": ["text"]}, [None]):
        assert list(messages_in(nothing)) == []


def test_what_a_hook_writes_again_is_not_said_again() -> None:
    """A hook that trims the conversation returns the remaining messages again, and they must not be printed twice."""
    console = Console(width=100)
    screen = Screen(console, Calls([]), shown_ids=["old"])
    with console.capture() as capture:
        screen.take("messages", (AIMessageChunk("ne", id="new"), {"langgraph_node": "agent"}))
        screen.take("messages", (AIMessageChunk("w", id="new"), {"langgraph_node": "agent"}))
        screen.take("updates", {"agent": {"messages": [AIMessage("new", id="new")]}})
        screen.take("updates", {"hook": {"messages": [AIMessage("old", id="old"), AIMessage("new", id="new")]}})
        screen.take("updates", {"agent": None, "__interrupt__": ()})
        screen.take("updates", {"agent": {"messages": [AIMessage("Sorry.", id="other")]}})
        screen.close()

    assert capture.get() == "new\nSorry.\n"


def test_of_many_background_calls_only_failures_are_shown() -> None:
    """As for other calls of a long reply. A result whose call is unknown here is shown with its handle."""
    console = Console(width=100)
    screen = Screen(console, Calls([]), [])
    request = AIMessage("", id="asked", tool_calls=[tool_call("build", f"call_{n}") for n in range(21)])

    def about(handle: object, **fields: object) -> dict[str, Any]:
        return {"callboard": {"background": handle, **fields}}

    def end(handle: object, text: str, **fields: object) -> HumanMessage:
        return HumanMessage(text, id=str(handle), additional_kwargs=about(handle, **fields))

    goes_on = [
        ToolMessage(
            "It goes on.", name="build", id=str(n), tool_call_id=f"call_{n}", additional_kwargs=about(f"bg-{n}")
        )
        for n in range(21)
    ]
    ends = [
        end("bg-0", "[Result]\nbuilt", header=9, status="success"),
        end("bg-1", "[Result]\nno disk", header=9, status="error"),
        end("bg-x", "[Result]\nbuilt", header="no number"),
        end(7, "no handle"),
        HumanMessage("hello", additional_kwargs={"callboard": "no facts"}),
    ]
    with console.capture() as capture:
        for messages in ([request], goes_on, ends, ends):
            screen.take("updates", {"node": {"messages": messages}})
        screen.close()

    assert capture.get().splitlines() == [
        "calls   21: 21 of build",
        "failed  build()  no disk",
        "done    bg-x  [Result] built",
    ]


# The numbers of the live view, computed from events and from recordings.


def test_waits_are_measured() -> None:
    """The longest wait may belong to a call that still waits."""
    counts = counts_of(
        event("begun", 1, 1.0),
        event("begun", 2, 1.0),
        event("queued", 1, 1.0),
        event("queued", 2, 1.0),
        event("started", 1, 3.0, attempt=1, queue_wait=2.0),
    )
    row = counts.rows["fetch"]
    assert +row.states == {"waiting": 1, "running": 1}
    assert (counts.queue, counts.longest_queue) == (1, 2)
    assert counts.rows_at(9.0)["fetch"].longest_wait == 8.0

    counts(event("attempt_ended", 1, 4.5, attempt=1))
    counts(event("ended", 1, 4.5, attempt=1, queue_wait=2.0))
    counts(event("gave_up", 2, 5.0, queue_wait=4.0))
    assert +row.states == {"between": 1, "ok": 1}
    assert (row.longest_wait, row.waited, row.durations) == (4.0, 2.0, [3.5])


def test_a_fallback_counts_for_the_tool_that_was_asked_for() -> None:
    counts = counts_of(
        event("begun"),
        event("started", attempt=1),
        event("attempt_ended", attempt=1),
        event("queued", tool="mirror"),
    )
    assert (+counts.rows["fetch"].states, list(counts.rows)) == ({"waiting": 1}, ["fetch"])
    counts(event("started", tool="mirror", attempt=2, queue_wait=0.5))
    assert +counts.rows["fetch"].states == {"running": 1}


def test_what_a_call_left_behind_is_no_call() -> None:
    """A body may outlive its call, and must not be counted as a running call."""
    counts = counts_of(event("begun"), event("started", attempt=1), event("ended", time=2.0))
    counts(event("attempt_ended", time=3.0, attempt=1))
    counts(event("noted", time=3.0, note="abandoned"))

    assert +counts.rows["fetch"].states == {"ok": 1}


def test_the_slowest_calls_are_those_that_began_first() -> None:
    counts = counts_of(
        event("begun", 1, 0.0, call={"name": "fetch", "args": {"url": "a"}, "id": "same"}),
        event("begun", 2, 1.0),
        event("begun", 3, 2.0),
        event("started", 1, 2.0, attempt=1),
        event("attempt_ended", 1, 3.0, attempt=1),
        event("noted", 1, 3.0, note="retry"),
        event("started", 1, 4.0, attempt=2),
        event("queued", 2, 5.0),
        event("ended", 3, 6.0),
    )

    first, second = counts.slowest(5)
    assert (first.arguments, first.place, first.began, first.since) == ({"url": "'a'"}, "running", 0.0, 4.0)
    assert (first.attempt, first.note) == (2, "retry")
    assert (second.arguments, second.place, second.since, second.attempt) == (None, "waiting", 5.0, 0)
    assert counts.slowest(1) == (first,)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ({"message": "page 3", "facts": {"done": 3, "total": 7}}, "3/7 page 3"),
        ({"facts": {"done": 0.5}}, "0.5"),
        ({"message": "nearly", "facts": {"total": 7}}, "nearly"),
        ({"message": ""}, "progress"),
    ],
)
def test_the_last_progress_of_a_call_is_shown(progress: dict[str, object], expected: str) -> None:
    """The numbers come before the text, because there is little room."""
    counts = counts_of(event("begun"), event("started", attempt=1), event("noted", note="progress", **progress))
    [call] = counts.slowest(1)
    assert call.note == expected


def test_the_clock_starts_with_the_first_call() -> None:
    counts = CallCounts([])
    assert (counts.run_time(7.0), counts.rate(7.0)) == (0.0, 0.0)

    for call_event in (
        event("begun", 1, 10.0),
        event("begun", 2, 10.0),
        event("ended", 1, 11.0),
        event("ended", 2, 11.5),
    ):
        counts(call_event)
    assert (counts.run_time(12.0), counts.rate(12.0)) == (2.0, 1.0)
    assert counts.rate(16.1) == pytest.approx(0.2)
    assert counts.rate(20.0) == 0.0


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([], 50) is None
    assert [percentile([3, 1, 4, 2], percent) for percent in (0, 25, 50, 95, 100)] == [1, 1, 2, 4, 4]


# Long texts.


@pytest.mark.parametrize("text", ["x", "界", "\x1b", " ", "a "])
def test_megabytes_are_cut_before_they_are_read(text: str) -> None:
    """The view is drawn several times a second; Python's interpreter lock is held meanwhile."""
    reads = 0

    class Counted(str):
        __slots__ = ()

        def split(self, *args: Any) -> Any:
            nonlocal reads
            reads += len(self)
            return super().split(*args)

        def __getitem__(self, part: Any) -> Any:
            return Counted(super().__getitem__(part))

    assert len(one_line(Counted(text * 1_000_000), 80)) <= 80
    assert reads <= 80 * 20
    texts = argument_texts({"long": text * 1_000_000})
    assert texts is not None
    assert len(texts["long"]) <= 500


def test_a_long_value_keeps_its_beginning_and_its_end() -> None:
    texts = argument_texts({"long": "begins" + "x" * 1_000_000 + "ends"})

    assert texts is not None
    assert texts["long"].startswith("'begins")
    assert texts["long"].endswith("ends'")


def test_a_line_of_a_text_with_many_spaces_says_that_it_is_cut() -> None:
    assert one_line("a" + " " * 10_000 + "b", 10) == "a…"
    assert one_line("a" + " " * 100 + "b", 10) == "a b"
