"""Options of recording a run: whether, where to and with what. The recorder's own tests check the content."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard._cli._storage import recording_name, records_dir

from ._commands import Project


def recordings(project: Project) -> dict[str, list[str]]:
    """Return, by path, how often a recording began, its options, and how often it ended."""
    paths = sorted(project.directory.rglob("*.jsonl"))
    return {str(path.relative_to(project.directory)): list(_borders(path)) for path in paths}


def _borders(path: Path) -> Iterator[str]:
    for line in map(json.loads, path.read_text().splitlines()):
        if line["event"] == "header":
            yield "begin with arguments" if line["captures"] else "begin"
        elif line["event"] == "closed":
            yield "end"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_beside_a_file_each_thread_has_its_recording(project: Project, agents: str, backend: str) -> None:
    options = ("--db", "threads.db", "--backend", backend)
    for thread in ("oslo", "oslo", "a/b"):
        assert project.call("run", f"{agents}:echo", "hi", "--thread", thread, *options).exit_code == 0

    assert recordings(project) == {
        "threads.db.calls/a%2Fb.jsonl": ["begin", "end"],
        "threads.db.calls/oslo.jsonl": ["begin", "end"] * 2,
    }


def test_a_run_that_fails_is_recorded_to_its_end(project: Project, agents: str) -> None:
    """A failed run is the one that users look at, so its recording must be complete."""
    assert project.call("run", f"{agents}:failing", "hi", "--db", "threads.db", "--thread", "1").exit_code == 1

    assert recordings(project) == {"threads.db.calls/1.jsonl": ["begin", "end"]}


@pytest.mark.parametrize("options", [("--db", "threads.db", "--no-record"), ("--no-record", "--record-to", "x"), ()])
def test_who_does_not_want_a_recording_has_none(project: Project, agents: str, options: tuple[str, ...]) -> None:
    """An option turns recording off. A run without a database is not recorded either."""
    assert project.call("run", f"{agents}:echo", "hi", *options).exit_code == 0

    assert recordings(project) == {}
    assert not list(project.directory.glob("*.calls"))


def test_recordings_go_where_they_are_wanted(project: Project, agents: str) -> None:
    """An option or an environment variable selects the directory, with or without a database."""
    to = ("--record-to", "here/there", "--thread", "1")
    output = project.call("run", f"{agents}:echo", "hi", *to).stdout
    project.call("run", f"{agents}:echo", "hi", *to, "--db", "threads.db", "--record")
    project.call("run", f"{agents}:echo", "hi", "--thread", "2", CALLBOARD_RECORDS="elsewhere")

    assert output.startswith(f"recording to {Path('here/there/1.jsonl')}\n")
    assert recordings(project) == {
        "elsewhere/2.jsonl": ["begin", "end"],
        "here/there/1.jsonl": ["begin", "end"] * 2,
    }


def test_arguments_are_recorded_only_on_demand(project: Project, agents: str) -> None:
    """Arguments may be secret, so they are recorded only on request."""
    project.call("run", f"{agents}:echo", "hi", "--db", "threads.db", "--thread", "1", "--capture")

    assert recordings(project) == {"threads.db.calls/1.jsonl": ["begin with arguments", "end"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--record"], "--record needs a recording: --record-to DIR, or --db with the path of a file"),
        (["--capture"], "--capture needs a recording"),
        (["--capture", "--no-record", "--db", "threads.db"], "--capture needs a recording"),
        (["--record", "--db", "postgresql://nowhere/x"], "--record needs a recording"),
        (["--record-to", "log/x"], "cannot record to log/x/1.jsonl: Not a directory"),
    ],
)
def test_a_recording_that_cannot_be_is_told(project: Project, agents: str, options: list[str], message: str) -> None:
    """If the recording cannot start, the command prints one line, ends with exit code 2 and runs nothing."""
    (project.directory / "log").write_text("a file")
    result = project.call("run", f"{agents}:sunny", "hi", "--thread", "1", *options)

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert message in result.stderr
    assert (project.directory / "log").read_text() == "a file"


def test_the_demo_is_recorded_on_demand(project: Project) -> None:
    assert project.call("demo", "--calls", "3", "--record", "demo.jsonl").exit_code == 0

    assert recordings(project) == {"demo.jsonl": ["begin", "end"]}


def test_a_demo_that_cannot_be_recorded_says_so(project: Project) -> None:
    (project.directory / "log").write_text("a file")
    result = project.call("demo", "--calls", "3", "--record", "log/demo.jsonl")

    assert result.exit_code == 2
    assert "cannot record to log/demo.jsonl: log is no directory" in result.stderr


@pytest.mark.parametrize(
    ("db", "folder"),
    [
        ("trip.db", "trip.db.calls"),
        ("some/where/trip.db", "some/where/trip.db.calls"),
        ("sqlite:///trip.db", "trip.db.calls"),
        ("sqlite:////some/where/trip.db", "/some/where/trip.db.calls"),
        ("postgresql://user@host/name", None),
        ("memory://", None),
        ("sqlite:///:memory:", None),
        ("sqlite:///", None),
    ],
)
def test_recordings_are_beside_the_file_of_a_database(db: str, folder: str | None) -> None:
    assert records_dir(db) == (None if folder is None else Path(folder))


@given(st.text(), st.text())
def test_every_thread_has_a_file_name_of_its_own(thread: str, other_thread: str) -> None:
    """File names are unique for each thread and have only characters that every file system allows."""
    name = recording_name(thread)

    assert name.isascii()
    assert all(char.isalnum() or char in "._-~%" for char in name)
    assert (name == recording_name(other_thread)) == (thread == other_thread)
