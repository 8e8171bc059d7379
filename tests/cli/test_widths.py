"""Views on narrow and wide terminals: rows are distinguishable, and important text is not cut."""

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, ToolMessage
from rich.cells import cell_len
from rich.console import Console

from callboard import tool_call
from callboard._cli._call_counts import CallCounts
from callboard._cli._grid import argument_texts, call_labels, middle
from callboard._cli._screen import Calls, Screen
from callboard._cli._trace_command import Waterfall
from callboard._cli._view import live_table, picture, result_table
from callboard.telemetry import read_recording
from tests.telemetry._events import ENDS, counts_of, event
from tests.telemetry._recordings import HEADER, call, closing_event, in_order, run, write

WIDTHS = pytest.mark.parametrize("width", [40, 50, 80, 120])
INDEX = "the-index-of-all-documents-of-the-company"


def search(page: int) -> Any:
    """Return a call that differs from thirteen others only in the middle of its argument."""
    return tool_call("search_documents", f"call_9f8e7d6c5b4a3f2e1d{page:02}", index=INDEX, page=page, language="en")


def searching(calls: int = 10) -> CallCounts:
    counts = CallCounts([])
    for page in range(calls):
        fields: dict[str, Any] = {"number": page, "tool": "search_documents"}
        counts(event("begun", call=search(page), **fields))
        counts(event("started", attempt=1, **fields))
    return counts


def terminal(width: int) -> Console:
    class Utf8(StringIO):
        encoding = "utf-8"

    return Console(file=Utf8(), record=True, force_terminal=True, width=width, height=40, color_system=None)


def print_lines(width: int, renderable: object) -> list[str]:
    console = terminal(width)
    console.print(renderable)
    return console.export_text().splitlines()


def trace_lines(width: int, path: Path) -> list[str]:
    """Return the lines of `callboard trace` on a terminal of that width."""
    console = terminal(width)
    waterfall = Waterfall(console, read_recording(path))
    waterfall.print(None)
    waterfall.print_summary()
    return console.export_text().splitlines()


def recording(path: Path, *, captures: bool = True, **fields: Any) -> Path:
    events = [*run(1, 0.0, 9.0, agent="LangGraph")]
    for page in range(14):
        request = search(page)
        events += call(
            page + 1, 0.5, wait=page / 10, id=request["id"], tool=request["name"], args=request["args"], **fields
        )
    return write(path, [{**HEADER, "captures": captures}, *in_order(events), closing_event(30, 9.0)])


def pages(lines: list[str]) -> list[int]:
    return [int(number) for text in lines for number in re.findall(r"search\S*\(.*page=(\d+)", text)]


@WIDTHS
def test_calls_that_differ_in_one_argument_show_it(width: int) -> None:
    """Regression: fourteen searches looked the same because the ends of their rows were cut.

    They differ in the live view, and in the table of `callboard run` without `--live`.
    """
    calls = Calls(["search_documents"])
    for page in range(10):
        calls.counts(event("begun", page, tool="search_documents", call=search(page)))

    for view in (picture(searching(), 5.0, width, 40), calls.table(5.0, width)):
        lines = print_lines(width, view)
        assert pages(lines) == list(range(10))
        assert max(map(cell_len, lines)) <= width


@WIDTHS
def test_a_recording_shows_the_argument_that_differs_and_whole_numbers(width: int, tmp_path: Path) -> None:
    """The recording must capture arguments. LangGraph names every unnamed graph "LangGraph", which tells nothing."""
    lines = trace_lines(width, recording(tmp_path / "calls.jsonl"))
    heading = next(number for number, text in enumerate(lines) if text.startswith("tool"))

    assert sorted(set(pages(lines))) == list(range(14))
    assert max(map(cell_len, lines)) <= width
    assert lines[heading + 1].split()[1:3] == ["14", "0"]
    assert "…" not in lines[heading + 1]
    assert any(text.startswith("run 1  agent") for text in lines)
    assert "LangGraph" not in "\n".join(lines)


@WIDTHS
def test_a_recording_without_arguments_shows_ids_and_whole_reasons(width: int, tmp_path: Path) -> None:
    error = "CustomerMailboxUnreachableError"
    lines = trace_lines(width, recording(tmp_path / "calls.jsonl", captures=False, outcome="error", error=error))

    assert [search(page)["id"] for page in range(14)] == re.findall(r"call_\w+", "\n".join(lines))
    assert sum(error in text for text in lines) == 14
    assert not any("page" in text or INDEX in text for text in lines)


@WIDTHS
def test_all_kinds_of_failure_are_shown(width: int) -> None:
    counts = CallCounts([])
    for number, end in enumerate(ENDS):
        counts(event("begun", number))
        counts(event("ended", number, **ENDS[end]))
    text = "\n".join(print_lines(width, picture(counts, 5.0, width, 40)))

    for kind in ("1 timeout", "1 deadline", "1 rejected", "1 error", "1 cancelled", "1 asked a person"):
        assert kind in " ".join(text.split())


@WIDTHS
def test_the_progress_of_a_call_and_the_reason_of_its_retry_are_shown(width: int) -> None:
    facts = {"done": 4.0 * 1024 * 1024, "total": 300.0 * 1024 * 1024}
    counts = counts_of(
        event("begun", call=tool_call("download", "1", url="x")),
        event("noted", note="progress", message="page 4 of 300", facts=facts),
        event("begun", 2, call=tool_call("download", "2", url="y")),
        event("started", 2, attempt=1),
        event("attempt_ended", 2, attempt=1),
        event("noted", 2, note="retry", facts={"attempt": 1, "error": "ConnectError"}),
    )
    text = " ".join("\n".join(print_lines(width, picture(counts, 5.0, width, 40))).split())

    assert "4.19M/315M page 4 of" in text
    assert "retry: Connect" in text


@WIDTHS
def test_tables_of_tools_fit(width: int) -> None:
    """Cells that wrap letter by letter cannot be read."""
    counts = searching()
    counts(event("ended", 3, 5.0, tool="search_documents"))
    live, result = (
        print_lines(width, live_table(counts.rows.items(), width)),
        print_lines(width, result_table(counts, width)),
    )

    assert max(map(cell_len, live + result)) <= width
    assert live[0].split()[:3] == ["tool", "running", "waiting"]
    assert sum("search_documents" in text for text in result) == 1


@WIDTHS
def test_why_a_call_of_a_run_failed_is_told_whole(width: int) -> None:
    console = terminal(width)
    screen = Screen(console, Calls(["search_documents"]), [])
    requests = [search(page) for page in range(2)]
    reason = "the mailbox of the customer is full and the server says to come again after the weekend"
    screen.take("updates", {"agent": {"messages": [AIMessage("", id="asked", tool_calls=requests)]}})
    failed = ToolMessage(reason, name="search_documents", tool_call_id=requests[1]["id"], status="error", id="said")
    screen.take("updates", {"tools": {"messages": [failed]}})
    lines = console.export_text().splitlines()

    assert reason in " ".join(" ".join(lines).split())
    assert pages(lines) == [1]
    assert max(map(cell_len, lines)) <= width


NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(NAMES, st.integers(1, 50))
def test_the_middle_of_a_text_is_cut_to_the_width(text: str, width: int) -> None:
    assert cell_len(middle(text, width)) <= width
    assert middle("send_mail_with_invoice", 15) == "send_ma…invoice"


ARGUMENTS = st.none() | st.dictionaries(NAMES, NAMES | st.integers())


@given(st.lists(st.tuples(NAMES, ARGUMENTS), max_size=6), st.integers(1, 60))
def test_labels_are_never_wider_than_asked_for(calls: list[tuple[str, Any]], width: int) -> None:
    labels = call_labels([(name, argument_texts(args)) for name, args in calls], width)

    assert len(labels) == len(calls)
    assert max(map(cell_len, labels), default=0) <= width


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=9, unique=True), st.integers(30, 60))
def test_labels_of_texts_that_differ_in_their_middle_differ(numbers: list[int], width: int) -> None:
    """An address with a long common beginning and end must stay distinguishable."""
    addresses = [f"https://example.org/{'a' * 80}/{number}/{'b' * 80}" for number in numbers]
    labels = call_labels([("fetch", argument_texts({"url": address, "method": "GET"})) for address in addresses], width)

    assert len(set(labels)) == len(numbers)


def test_a_label_is_the_whole_call_where_there_is_room() -> None:
    first, second = (argument_texts(search(page)["args"]) for page in (1, 2))

    assert call_labels([("search", first), ("search", second)], 200)[1] == (
        f"search(index='{INDEX}', page=2, language='en')"
    )
    assert call_labels([("search", first), ("search", second)], 40)[1] == "search(page=2, …)"
    assert call_labels([("search", None)], 40) == ["search"]
