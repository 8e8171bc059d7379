"""Whether a run is recorded, where to, and what with. What is in a recording is the recorder's affair."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard._cli._recording_files import recording_name, records_dir

from ._agents import AGENT
from ._commands import Project


@pytest.fixture
def agents(project: Project) -> str:
    """The name of the module."""
    return project.module(AGENT)


def recordings(project: Project) -> dict[str, list[str]]:
    """By their paths, how often recording has begun, and with what, and how often it has ended."""
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
    """Without being asked; every run is added to it."""
    options = ("--db", "threads.db", "--backend", backend)
    for thread in ("oslo", "oslo", "a/b"):
        assert project.call("run", f"{agents}:echo", "hi", "--thread", thread, *options).exit_code == 0

    assert recordings(project) == {
        "threads.db.calls/a%2Fb.jsonl": ["begin", "end"],
        "threads.db.calls/oslo.jsonl": ["begin", "end"] * 2,
    }


def test_a_run_that_fails_is_recorded_to_its_end(project: Project, agents: str) -> None:
    """It is the one that somebody will look at."""
    assert project.call("run", f"{agents}:failing", "hi", "--db", "threads.db", "--thread", "1").exit_code == 1

    assert recordings(project) == {"threads.db.calls/1.jsonl": ["begin", "end"]}


@pytest.mark.parametrize("options", [("--db", "threads.db", "--no-record"), ("--no-record", "--record-to", "x"), ()])
def test_who_does_not_want_a_recording_has_none(project: Project, agents: str, options: tuple[str, ...]) -> None:
    """Nor does a run that keeps nothing."""
    assert project.call("run", f"{agents}:echo", "hi", *options).exit_code == 0

    assert recordings(project) == {}
    assert not list(project.directory.glob("*.calls"))


def test_recordings_go_where_they_are_wanted(project: Project, agents: str) -> None:
    """Into any folder, with or without a database, by an option or the environment."""
    to = ("--record-to", "here/there", "--thread", "1")
    told = project.call("run", f"{agents}:echo", "hi", *to).stdout
    project.call("run", f"{agents}:echo", "hi", *to, "--db", "threads.db", "--record")
    project.call("run", f"{agents}:echo", "hi", "--thread", "2", CALLBOARD_RECORDS="elsewhere")

    assert told.startswith(f"recording to {Path('here/there/1.jsonl')}\n")
    assert recordings(project) == {
        "elsewhere/2.jsonl": ["begin", "end"],
        "here/there/1.jsonl": ["begin", "end"] * 2,
    }


def test_arguments_are_recorded_only_on_demand(project: Project, agents: str) -> None:
    """They may be secret."""
    project.call("run", f"{agents}:echo", "hi", "--db", "threads.db", "--thread", "1", "--capture")

    assert recordings(project) == {"threads.db.calls/1.jsonl": ["begin with arguments", "end"]}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--record"], "--record needs a recording: --record-to DIR, or --db with the path of a file"),
        (["--capture"], "--capture needs a recording"),
        (["--capture", "--no-record", "--db", "threads.db"], "--capture needs a recording"),
        (["--record", "--db", "postgresql://nowhere/x"], "--record needs a recording"),
        (["--record-to", "log/x"], "cannot record to log/x/1.jsonl: Not a directory"),
    ],
)
def test_a_recording_that_cannot_be_is_told(project: Project, agents: str, options: list[str], told: str) -> None:
    """Exit code 2 and one line; nothing runs."""
    (project.directory / "log").write_text("a file")
    result = project.call("run", f"{agents}:sunny", "hi", "--thread", "1", *options)

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert told in result.stderr
    assert (project.directory / "log").read_text() == "a file"


def test_the_demo_is_recorded_on_demand(project: Project) -> None:
    """In a file of any name."""
    assert project.call("demo", "--calls", "3", "--record", "demo.jsonl").exit_code == 0

    assert recordings(project) == {"demo.jsonl": ["begin", "end"]}


def test_a_demo_that_cannot_be_recorded_says_so(project: Project) -> None:
    """Before it begins to work."""
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
    """If it has one."""
    assert records_dir(db) == (None if folder is None else Path(folder))


@given(st.text(), st.text())
def test_every_thread_has_a_file_name_of_its_own(one: str, other: str) -> None:
    """Of letters that every file system takes."""
    name = recording_name(one)

    assert name.isascii()
    assert all(char.isalnum() or char in "._-%" for char in name)
    assert (name == recording_name(other)) == (one == other)
