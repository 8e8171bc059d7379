"""`callboard doctor`: its table, its JSON, its exit codes, and the remedies of broken installations."""

import json
import re
import subprocess
import sys
import tomllib
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from langsmith import tracing_context
from packaging.markers import default_environment

import callboard.testing
from callboard._cli import _doctor
from callboard.testing import ScriptedModel
from callboard_actors.process._confinement import _support

from ._commands import PATIENCE, Project, environment

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.real_clock


def checks(project: Project, *arguments: str, code: int = 0, **env: str) -> dict[tuple[str, str], Any]:
    """Run the command with `--json`, and return its checks by group and name."""
    done = project.call("doctor", "--json", *arguments, **env)
    report = json.loads(done.stdout)
    assert (done.exit_code, report["ok"], done.stderr) == (code, code == 0, "")
    return {(check.pop("group"), check.pop("name")): check for check in report["checks"]}


def fake_versions(monkeypatch: pytest.MonkeyPatch, **versions: str | None) -> None:
    """Make packages seem to have other versions, or to be missing."""
    chosen = {name.replace("_", "-"): chosen_version for name, chosen_version in versions.items()}

    def version_of(name: str) -> str:
        if (chosen_version := chosen.get(name, "real")) is None:
            raise PackageNotFoundError(name)
        return version(name) if chosen_version == "real" else chosen_version

    monkeypatch.setattr(_doctor, "version", version_of)


def set_confinement(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [EntryPoint("confinement", value, _doctor.GROUP) for value in values]
    monkeypatch.setattr(_doctor, "entry_points", lambda **_: points)


@pytest.fixture(autouse=True)
def _unconfined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the check of the kernel out, which starts a process each time; its own tests put it back."""
    set_confinement(monkeypatch)


def test_a_complete_installation_is_shown_as_a_table(project: Project) -> None:
    done = project.call("doctor")

    assert (done.exit_code, done.stderr) == (0, "")
    headings = re.findall(r"^\w+$", done.stdout, re.MULTILINE)
    assert headings == ["versions", "extras", "confinement", "backends"]
    assert re.search(r"^  ok +anyio +[\d.]+ \(.*>=4\.14.*\)$", done.stdout, re.MULTILINE)
    assert re.search(r"^  ok +trio +an agent called a tool, [\d.]+ m?s$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("All required parts work.\n")


def test_a_version_outside_its_bounds_is_broken(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip installs such a version if another package asks for it; the command tells the bounds of callboard."""
    fake_versions(monkeypatch, anyio="3.7.1", structlog=None)
    results = checks(project, code=1)

    assert results["versions", "anyio"]["state"] == results["versions", "structlog"]["state"] == "broken"
    assert results["versions", "anyio"]["value"] == "3.7.1 (outside <5,>=4.14)"
    assert results["versions", "anyio"]["remedy"] == "pip install 'anyio<5,>=4.14'"
    assert results["versions", "structlog"]["value"] == "not installed (>=25.1)"


def test_a_python_that_was_built_from_a_repository_is_no_problem(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version, such as 3.13.1+, is no valid version of a package."""
    monkeypatch.setattr("platform.python_version", lambda: "3.13.1+")

    assert checks(project)["versions", "Python"]["value"] == "3.13.1 (>=3.11)"


def test_two_distributions_of_different_releases_are_broken(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """`callboard-actors` is released with its version of callboard, and uses no other."""
    fake_versions(monkeypatch, callboard="9.0")

    assert checks(project, code=1)["versions", "callboard"]["value"].startswith("9.0 (outside ==")


def test_an_absent_extra_is_not_broken_and_its_command_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An extra of an extra counts, too: `psycopg[pool]` is a part of `callboard[postgres]`."""
    fake_versions(monkeypatch, uvloop=None, psycopg_pool=None, schwifty="2020.1", callboard_actors=None)
    results = checks(project)

    assert results["extras", "callboard[postgres]"] == {
        "state": "absent",
        "value": "missing: psycopg-pool",
        "remedy": "pip install 'psycopg-pool'",
    }
    assert results["extras", "callboard[redact]"]["state"] == "warning"
    assert results["extras", "callboard[redact]"]["value"] == "schwifty 2020.1 (outside >=2026.7.3)"
    assert results["backends", "uvloop"]["remedy"] == "pip install 'uvloop>=0.21'"
    assert "pip" not in results["versions", "callboard-actors"]["remedy"]
    assert not any(name.startswith("callboard-actors[") for _, name in results)


def test_uvloop_is_not_for_windows(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A remedy would be wrong: the extra installs nothing there."""
    system = {**default_environment(), "sys_platform": "win32"}
    monkeypatch.setattr("packaging.markers.default_environment", lambda: system)
    fake_versions(monkeypatch, uvloop=None)
    results = checks(project)

    assert results["backends", "uvloop"] == {"state": "absent", "value": "not for this system", "remedy": ""}
    assert results["extras", "callboard[uvloop]"]["value"] == "not for this Python and platform"


def test_an_agent_that_hangs_on_an_event_loop_makes_it_broken(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "_TIMEOUT", 0.05)
    monkeypatch.setattr(callboard.testing, "ScriptedModel", partial(ScriptedModel, delay=PATIENCE))
    results = checks(project, code=1)

    for backend in ("asyncio", "uvloop", "trio"):
        assert results["backends", backend]["state"] == "broken"
        assert results["backends", backend]["value"].startswith("TimeoutError")
        assert results["backends", backend]["remedy"]


def test_the_agent_is_not_traced(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent over the network, also if traces of all runs are wanted."""
    instances: list[object] = []

    def no_tracer(self: object, *_: object, **__: object) -> None:
        instances.append(self)
        raise RuntimeError("no tracer")

    monkeypatch.setattr("langchain_core.tracers.langchain.LangChainTracer.__init__", no_tracer)
    with tracing_context(enabled=True):
        results = checks(project)

    assert (results["backends", "asyncio"]["state"], instances) == ("ok", [])


def test_a_check_that_raises_an_error_is_broken_and_the_others_are_made(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "_packages", lambda *_: 1 / 0)
    results = checks(project, code=1)

    assert results["versions", "versions"]["value"] == "ZeroDivisionError: division by zero"
    assert results["backends", "trio"]["state"] == "ok"


# Without packages.

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["callboard", "doctor", *{arguments!r}]
from callboard._cli import main
main()
"""


def run_without(packages: list[str], *arguments: str, code: str = WITHOUT) -> "subprocess.CompletedProcess[str]":
    code = code.format(packages=packages, arguments=arguments)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False)


EXTRAS = ["typer", "rich", "httpx2", "langchain", "uvloop", "psycopg", "redis"]


@pytest.mark.exhaustive
def test_it_needs_no_extra() -> None:
    """The extra `cli` may be the missing one."""
    done = run_without(EXTRAS, "--json")

    assert (done.returncode, done.stderr) == (1, "")  # uvloop is installed here, and cannot be imported
    states = {check["name"]: check["state"] for check in json.loads(done.stdout)["checks"]}
    assert (states["asyncio"], states["uvloop"], states["trio"]) == ("ok", "broken", "ok")


def test_a_required_package_that_is_missing_is_named() -> None:
    """Other commands fail with an ImportError, whose text does not say how to repair the installation."""
    done = run_without(["pydantic_core", "langgraph"])

    assert (done.returncode, done.stderr) == (1, "")
    assert "No module named" in done.stdout
    assert "-> pip install" in done.stdout


# Confinement.


def test_the_actors_tell_which_confinement_the_kernel_supports(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tomllib.loads((ROOT / "actors" / "pyproject.toml").read_text())
    set_confinement(monkeypatch, *settings["project"]["entry-points"][_doctor.GROUP].values())
    results = {name: result for (group, name), result in checks(project).items() if group == "confinement"}

    assert list(results) == ["Landlock", "seccomp"]
    assert {result["state"] for result in results.values()} <= {"ok", "absent"}
    assert {bool(result["remedy"]) for result in results.values() if result["state"] == "absent"} <= {True}


def test_a_kernel_that_cannot_confine_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Confinement is optional; each missing part has its reason and its remedy."""
    monkeypatch.setattr(_support._landlock, "version", lambda: 0)
    monkeypatch.setattr("callboard_actors.process._confinement._confinement._landlock.version", lambda: 0)
    rows = {name: cells for name, *cells in _support._check_rows()}

    assert [state for state, _, _ in rows.values()] == ["absent"] * 2
    assert rows["Landlock"][1].startswith("confine= needs Landlock")
    assert rows["Landlock"][2] == "use Linux 6.2 or later"

    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert _support._check_rows() == [("Confine(...)", "absent", "confines on Linux only, and this is Darwin", "")]


@pytest.mark.parametrize(("values", "reason"), [([], "comes with"), (["no_such_module:checks"], "No module named")])
def test_a_system_without_confinement_is_not_broken(
    project: Project, monkeypatch: pytest.MonkeyPatch, values: list[str], reason: str
) -> None:
    """`callboard-actors` may be missing, or the system may have no worker processes."""
    set_confinement(monkeypatch, *values)

    only = checks(project)["confinement", "Confine(...)"]
    assert (only["state"], reason in only["value"]) == ("absent", True)
