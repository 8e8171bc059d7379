"""`callboard init`: the project that it writes runs and passes its test, and nothing is overwritten."""

import subprocess
import sys
import tomllib
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from ._commands import PATIENCE, Project, environment

FILES = [".gitignore", "README.md", "pyproject.toml", "test_trip_to_oslo.py", "trip_to_oslo.py"]

pytestmark = pytest.mark.real_clock


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def run(directory: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        env=environment() | {"AGENT_MODEL": ""},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_project_is_written_and_its_agent_runs(project: Project) -> None:
    """The printed steps work as they are."""
    done = project.call("init", "trip-to-oslo")
    folder = project.directory / "trip-to-oslo"

    assert (done.exit_code, done.stderr, names(folder)) == (0, "", FILES)
    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    assert settings["project"]["name"] == "trip-to-oslo"
    assert "$" not in "".join((folder / name).read_text() for name in FILES)
    step = next(line for line in done.stdout.splitlines() if "callboard run" in line)
    assert step.strip() == 'callboard run trip_to_oslo:agent "What is it like in Oslo?"'
    for backend in ("asyncio", "trio"):
        ran = project.call("run", "trip_to_oslo:agent", "Well?", "--app-dir", str(folder), "--backend", backend)
        assert ran.stdout.endswith("There is sun in Oslo and in Rome.\n")
        assert (ran.exit_code, ran.stdout.count("done ")) == (0, 2)


@pytest.mark.exhaustive
def test_the_written_test_passes_on_asyncio_and_trio(project: Project) -> None:
    project.call("init", "trip-to-oslo")
    folder = project.directory / "trip-to-oslo"
    done = run(folder, "pytest", "-v", "-p", "no:cacheprovider")

    assert done.returncode == 0, done.stdout
    assert "[asyncio] PASSED" in done.stdout
    assert "[trio] PASSED" in done.stdout


@pytest.mark.exhaustive
def test_the_written_code_is_formatted_and_has_its_types(project: Project) -> None:
    """Users check their projects, with the usual line length, and start from no findings."""
    project.call("init", "trip-to-oslo")
    folder = project.directory / "trip-to-oslo"
    without = "CPY,D103,S101"  # no copyright; a test has a name that says all, and asserts

    for command in (
        ("ruff", "format", "--check", "--no-cache", "--isolated", "."),
        ("ruff", "check", "--no-cache", "--isolated", "--select", "ALL", "--ignore", without, "."),
        ("mypy", "--strict", "--cache-dir", "/dev/null", "."),
    ):
        done = run(folder, *command)
        assert done.returncode == 0, done.stdout


def test_the_current_folder_gets_a_project_of_its_name(project: Project) -> None:
    """Hidden files, such as the folder of Git, may be there first."""
    (project.directory / ".git").mkdir()
    done = project.call("init", "--name", "Trip-to.Oslo")

    assert (done.exit_code, names(project.directory)) == (0, sorted([".git", *FILES]))
    assert "cd " not in done.stdout


@pytest.mark.parametrize("name", FILES)
def test_a_file_in_the_way_is_named_and_stays(project: Project, name: str) -> None:
    (project.directory / name).write_text("mine")
    done = project.call("init", "--name", "trip-to-oslo")

    assert done.exit_code == 2
    assert f"the folder '.' is not empty: it has '{name}'" in done.stderr
    assert (names(project.directory), (project.directory / name).read_text()) == ([name], "mine")


def test_a_folder_that_is_not_empty_is_refused(project: Project) -> None:
    """Other files have no place in a new project, and names of modules might meet."""
    for number in range(7):
        (project.directory / f"note{number}.txt").touch()
    done = project.call("init", "--name", "trip")

    assert done.exit_code == 2
    assert "it has 'note0.txt', 'note1.txt', 'note2.txt', 'note3.txt', 'note4.txt' ..." in done.stderr
    assert "name a new folder" in done.stderr


def test_a_file_that_appears_meanwhile_is_not_overwritten(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(()))
    (project.directory / "README.md").write_text("mine")
    done = project.call("init", "--name", "trip")

    assert done.exit_code == 2
    assert "Error: 'README.md' exists, and is never overwritten; name a new folder" in done.stderr
    assert (project.directory / "README.md").read_text() == "mine"


def test_pytest_is_a_step_where_it_is_missing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra `cli` does not bring pytest, and a shell may find the one of another environment."""
    find = PathFinder.find_spec
    monkeypatch.setattr(PathFinder, "find_spec", lambda name, *args: None if name == "pytest" else find(name, *args))
    steps = project.call("init", "trip").stdout.partition("Next:")[2].split("README.md has")[0].split("\n")

    assert [step.strip() for step in steps if step][2:] == ["python -m pip install pytest", "pytest"]


@pytest.mark.parametrize(
    "name", ["", "2nd", "-trip", "trip-", "a b", "../trip", "vår", "class", "json", "langgraph", "Callboard", "trip\n"]
)
def test_a_name_that_no_module_can_have_is_refused(project: Project, name: str) -> None:
    """A module that is called as an installed package would hide it, or be hidden."""
    done = project.call("init", "new", f"--name={name}")

    assert (done.exit_code, names(project.directory)) == (2, [])
    assert "is no name for a project" in done.stderr
    assert "--name trip" in done.stderr


def test_a_file_instead_of_a_folder_is_refused(project: Project) -> None:
    (project.directory / "notes").touch()

    assert "Error: 'notes' is a file; name a folder" in project.call("init", "notes").stderr
    below = project.call("init", "notes/trip")
    assert below.exit_code == 2
    assert "Error: cannot write 'notes/trip': Not a directory; name another folder" in below.stderr
