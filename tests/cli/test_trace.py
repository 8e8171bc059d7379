"""`callboard trace`: recordings on the terminal, as a page, and found by thread name."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard._cli._trace_command import ASCII, Scale, bar
from callboard.telemetry import RecordedAttempt, RecordedCall, Wait
from tests.telemetry._recordings import HEADER, busy, call, closing_event, in_order, run, write

from ._commands import Project

SPANS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 50)).map(lambda one: (one[0], one[0] + one[1])))


@pytest.fixture
def recording(project: Project) -> Path:
    """Write a recording of two calls of a run, one of which failed, and one call outside a run."""
    events = [
        *run(1, 0.0, 4.0),
        *call(1, 0.5, wait=1, took=2),
        *call(2, 0.5, took=0.25, tool="query", outcome="timeout", error="CallTimeoutError"),
        *call(3, 3, took=0.002, run=None, batch=2, tool="lonely"),
        {"event": "noted", "t": 1, "call": 1, "what": "cache_miss"},
    ]
    return write(project.directory / "calls.jsonl", [HEADER, *in_order(events), closing_event(30, 4.0)])


def trace(project: Project, *arguments: str, **env: str) -> str:
    done = project.call("trace", *arguments, **env)
    assert done.exit_code == 0, done.stderr
    return str(done.stdout)


def refusal_of(project: Project, *arguments: str, **env: str) -> str:
    done = project.call("trace", *arguments, **env)
    assert done.exit_code == 2
    return str(done.stderr)


def line_of(text: str, name: str) -> str:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{name} ") and "░█─"[1] in line]
    return line


def test_a_call_is_a_line_with_a_bar(project: Project, recording: Path) -> None:
    row = line_of(trace(project, str(recording)), "fetch")
    (drawn,) = [word for word in row.split() if "░" in word]

    assert set(drawn) == {"░", "█"}
    assert abs(drawn.count("█") - 2 * drawn.count("░")) <= 2
    assert row.split() == ["fetch", "ok", drawn, "3.00", "s", "cache_miss", "c1"]


def test_an_outcome_is_not_repeated_as_the_error(project: Project) -> None:
    """The number of progress reports is not shown: "10/10 x3" would look like a third of the work."""
    done = [
        {"event": "noted", "t": t, "call": 1, "what": "progress", "facts": {"done": 5 * t, "total": 10}} for t in (1, 2)
    ]
    events = [*run(1, 0.0), *done, *call(1, 0.5, took=2, outcome="timeout", error="timeout")]
    events.append({"event": "run_ended", "t": 4.0, "run": 1, "outcome": "cancelled", "error": "cancelled"})
    output = trace(project, str(write(project.directory / "calls.jsonl", [HEADER, *in_order(events)])))

    assert (output.count("timeout"), output.count("cancelled")) == (1, 1)
    assert line_of(output, "fetch").split()[-2:] == ["10/10", "c1"]


def test_calls_stand_under_their_batch_and_run(project: Project, recording: Path) -> None:
    """Calls without an agent are grouped by their batch."""
    row_names = [line.split("  ")[0] or line.split()[0] for line in trace(project, str(recording)).splitlines()[1:8]]

    assert row_names == ["run 1", "batch", "fetch", "query", "calls without an agent", "batch", "lonely"]


def test_runs_and_their_batches_are_counted(project: Project) -> None:
    """A recording numbers runs, batches and calls together, so the numbers of its batches have gaps."""
    events = [*run(3, 0, 9), *run(7, 4, 9), *call(5, 1, run=3, batch=4), *call(9, 5, run=7, batch=8)]
    events += [*call(11, 6, run=7, batch=10), *call(13, 7, run=None, batch=12)]
    recording = write(project.directory / "calls.jsonl", [HEADER, *in_order(events)])
    output = trace(project, str(recording))

    expected = ["run 1", "  batch 1", "run 2", "  batch 1", "  batch 2", "  batch 1"]
    assert re.findall(r"^run \d+|^  batch \d+", output, re.MULTILINE) == expected


def test_the_summary_counts_by_tool_and_says_what_recording_cost(project: Project, recording: Path) -> None:
    output = trace(project, str(recording))

    assert re.search(r"^fetch +1 +0 +0( +3\.00 s){3} +1\.00 s +1\.00 s$", output, re.MULTILINE)
    assert re.search(r"^query +1 +1 +0( +250 ms){3} +0 ms +0 ms$", output, re.MULTILINE)
    assert (
        "30 events, no events lost, 9.0 kB; recording took 2.0 ms of the event loop's time, 4.0 µs an event" in output
    )


def test_a_recording_that_was_cut_off_says_so(project: Project) -> None:
    path = write(project.directory / "cut.jsonl", [HEADER, *call(1, 0)[:2], {"event": "lost", "t": 2, "events": 5}])
    output = trace(project, str(path))

    assert "open" in line_of(output, "fetch")
    assert "cut off: the process ended early, or goes on; 5 events lost" in output


def test_what_others_wrote_cannot_act(project: Project) -> None:
    """Names come from models and servers, so they are escaped."""
    hostile = call(1, 0, tool="\x1b[2Jrm\u202e", id="\x07", error="\x1b]0;x\x07", outcome="error\r")
    output = trace(project, str(write(project.directory / "x.jsonl", [HEADER, *run(1, agent="a\x1b[1m"), *hostile])))

    assert {char for char in output if not char.isprintable()} == {"\n"}
    assert "\\u001b[2Jrm\\u202e" in output


def test_a_line_break_in_a_name_does_not_forge_a_line(project: Project) -> None:
    """Names of tools, agents and threads may be chosen by a model or a user."""
    forged = "x\nrun 7  honest  ok"
    events = [*run(1, 0.0, 4.0, agent=forged, thread=forged), *call(1, 0.5, took=2, tool=forged)]
    write(project.directory / "forged.jsonl", [HEADER, *in_order(events), closing_event(9, 4.0)])

    output = trace(project, "forged.jsonl")

    assert not [line for line in output.splitlines() if line.startswith("run 7")]
    assert output.count("x\\nrun 7") >= 3


def test_of_many_calls_those_are_shown_that_failed_or_took_longest(project: Project) -> None:
    """Failed and slow calls are more useful than a thousand lines."""
    path = write(project.directory / "busy.jsonl", busy(1000))
    output = trace(project, str(path))

    assert "    and 960 more; --all" in output.splitlines()
    assert sum("█" in line or "░" in line for line in output.splitlines()) == 40
    assert not any(line.split()[1] == "ok" for line in output.splitlines() if "░" in line)


def test_all_shows_all_and_slowest_the_slowest(project: Project) -> None:
    """With `--all` a bar may be empty: a rejected call takes no time. The slowest calls stand side by side."""
    path = str(write(project.directory / "busy.jsonl", busy(200)))
    output, slowest = trace(project, path, "--all"), trace(project, path, "--slowest", "3")

    assert "more; --all" not in output
    assert len(output.splitlines()) > 200
    assert sum("█" in line for line in slowest.splitlines()) == 3
    assert "    and 197 more; --all" in slowest.splitlines()
    assert "batch" not in slowest


def test_the_slowest_call_is_the_one_that_worked_longest_and_not_the_last_of_the_queue(project: Project) -> None:
    """The last calls of a long queue have the longest times in all, and would hide the page that is slow."""
    slow = call(1, 0, wait=1, took=5, id="slow")
    queued = [event for number in range(2, 52) for event in call(number, 0, wait=number, took=1, id="queued")]
    parallel = [  # a second attempt waits while the first one runs, so no time of the call is a wait
        {"event": "begun", "t": 0, "call": 60, "tool": "fetch", "id": "parallel", "batch": 1, "run": 1},
        {"event": "started", "t": 0, "call": 60, "attempt": 1, "waited": 0},
        {"event": "queued", "t": 1, "call": 60},
        {"event": "attempt_ended", "t": 4, "call": 60, "attempt": 1},
        {"event": "gave_up", "t": 4, "call": 60, "waited": 3, "error": "cancelled"},
        {"event": "ended", "t": 4, "call": 60, "outcome": "ok", "waited": 3, "attempts": 1},
    ]
    path = str(
        write(project.directory / "crawl.jsonl", [HEADER, *in_order([*run(1, 0, 60), *slow, *queued, *parallel])])
    )
    lines = trace(project, path, "--slowest", "3").splitlines()

    ids = [line.split()[-1] for line in lines if "█" in line]
    assert ids == ["slow", "parallel", "queued"]
    assert [line.rpartition("█")[2].split()[:5] for line in lines if "█" in line] == [
        ["5.00", "s", "waited", "1.00", "s"],
        ["4.00", "s", "parallel"],
        ["1.00", "s", "waited", "2.00", "s"],
    ]
    assert "slow" in trace(project, path)  # one of the forty, among fifty calls that took longer with their waits


def test_calls_of_one_tool_or_failed_calls_only(project: Project, recording: Path) -> None:
    of_one_tool = trace(project, str(recording), "--tool", "query")
    failed = trace(project, str(recording), "--failed")

    assert line_of(of_one_tool, "query")
    assert "fetch" not in of_one_tool + failed
    assert "lonely" not in of_one_tool + failed


def test_a_tool_that_is_not_there_is_named_with_those_that_are(project: Project, recording: Path) -> None:
    """The error lists the tools of the recording, so that a typo is obvious."""
    assert "no call of a tool 'fetsh' is in the recording; it has fetch, lonely, query" in refusal_of(
        project, str(recording), "--tool", "fetsh"
    )


def test_a_recording_is_found_by_the_name_of_its_thread(project: Project, recording: Path) -> None:
    calls_folder = Path(f"{project.db}.calls")
    calls_folder.mkdir()
    elsewhere = project.directory / "elsewhere"
    elsewhere.mkdir()
    for directory in (calls_folder, elsewhere):
        (directory / "trip%20to%20Oslo.jsonl").write_bytes(recording.read_bytes())

    assert "lonely" in trace(project, "trip to Oslo", "--db", project.db)
    assert "lonely" in trace(project, "trip to Oslo", CALLBOARD_DB=project.db)
    assert "lonely" in trace(project, "trip to Oslo", "--records", str(elsewhere))
    assert "lonely" in trace(project, "trip to Oslo", CALLBOARD_RECORDS=str(elsewhere))


def test_what_is_not_there_is_named_with_where_it_was_looked_for(project: Project) -> None:
    nowhere = refusal_of(project, "oslo", CALLBOARD_DB="", CALLBOARD_RECORDS="")
    not_beside = refusal_of(project, "oslo", "--db", project.db)
    server = refusal_of(project, "oslo", "--db", "postgresql://user@host/name")

    assert "there is no file 'oslo'" in nowhere
    assert "--db or --records" in nowhere
    assert f"'{project.db}.calls/oslo.jsonl' is not there" in not_beside
    assert "callboard run ... --record" in nowhere
    assert "callboard run ... --record" in not_beside
    assert "--records" in server
    assert "there is no file" in refusal_of(project, "x" * 5000, "--db", project.db)


def test_what_is_no_recording_is_refused(project: Project) -> None:
    (project.directory / "notes.txt").write_text("hello\n")

    assert "notes.txt, line 1: not a recording" in refusal_of(project, "notes.txt")


@given(SPANS, st.integers(1, 60), st.floats(0, 200))
def test_a_bar_is_as_wide_as_its_scale(spans: list[tuple[float, float]], width: int, length: float) -> None:
    """The bar has the exact width for any times, even from a clock that jumped."""
    attempts = tuple(RecordedAttempt(number=1, start=start, end=end) for start, end in spans)
    waits = tuple(Wait(start=start, end=end) for start, end in spans)
    recorded_call = RecordedCall(number=1, batch=1, tool="t", id=None, start=3, waits=waits, attempts=attempts)

    assert len(bar(recorded_call, 7, Scale(0, length, width), ASCII)) == width


def test_a_view_does_not_write_over_its_recording(project: Project, recording: Path) -> None:
    """An output path that equals the recording, or that cannot be written, is an error."""
    assert "is the recording itself" in refusal_of(project, str(recording), "--html", str(recording))
    assert "No such file" in refusal_of(project, str(recording), "--html", "nowhere/out.html")


@pytest.mark.parametrize("view", ["--html", None])
def test_arguments_are_shown_only_if_the_recording_captures_them(project: Project, view: str | None) -> None:
    secret = call(1, 0, args={"city": "Xanadu"}, result="Xanadu is sunny")
    outputs: dict[bool, str] = {}
    for captures in (False, True):
        path = write(project.directory / "x.jsonl", [{**HEADER, "captures": captures}, *secret])
        target = project.directory / "out"
        output = trace(project, str(path), *([view, str(target)] if view else []))
        outputs[captures] = target.read_text() if view else output

    assert "Xanadu" not in outputs[False]
    assert ("Xanadu" if view else "fetch(city='Xanadu')  ok") in outputs[True]
