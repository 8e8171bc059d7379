"""`callboard worker`: the functions that it serves, and the options with which it refuses to start."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.tools import BaseTool, tool
from typer.testing import CliRunner

from callboard import ToolNode, child
from callboard._cli import _app
from callboard._cli._app import app
from callboard_actors._util._secret import secret_from
from callboard_actors.remote import _command
from callboard_actors.remote._in_worker import name_of
from callboard_actors.remote._server import served

from . import _bodies as bodies
from ._commands import BODIES, COMMAND, ROOT

_OURS = {f"{BODIES}:{name}" for name in ("add", "add_later", "big", "length", "note_and_sleep", "note_id", "parent")}


@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@tool
async def whisper(text: str) -> str:
    """Say it less loud."""
    return text.lower()


class Own(BaseTool):
    """Tool with a class of its own."""

    name: str = "own"
    description: str = "Its own."

    def _run(self, text: str) -> str:
        return text


a_list = [shout, whisper, bodies.add, bodies.Notebook, child(bodies.Notebook), Own()]
a_node = ToolNode([shout, bodies.add])
a_node_with_an_actor = ToolNode([bodies.Notebook()])
a_number = 7
nothing: list[object] = []
HERE = __name__
SECRET = "a secret of sixteen bytes"


def _served(name: str) -> set[str]:
    return set(served(name, ROOT))


@pytest.fixture(autouse=True)
def _is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])


def test_a_module_serves_what_is_public_and_defined_in_it() -> None:
    """Public functions and actors that are defined in the module are served; imported ones are not."""
    assert _served(BODIES) == {*_OURS, f"{BODIES}:where", f"{BODIES}:wherever", f"{BODIES}:Notebook"}


def test_tools_are_served_by_the_names_of_their_functions() -> None:
    """The name of the function counts, whatever list or node contains the tool."""
    both = {f"{HERE}:shout", f"{BODIES}:add"}

    assert _served(f"{HERE}:a_node") == both
    assert _served(f"{HERE}:a_list") == {
        *both,
        f"{HERE}:whisper",
        f"{BODIES}:Notebook",
        f"{HERE}:Own._run",
        "langchain_core.tools.base:BaseTool._arun",
    }
    assert _served(f"{HERE}:shout") == {f"{HERE}:shout"}


def test_the_name_of_a_tool_is_the_same_on_both_sides() -> None:
    """A client calls by the function behind its own tool, so both sides must derive the same name."""
    assert name_of(shout.func) == f"{HERE}:shout"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (f"{HERE}:a_number", "is no function, no tool and no actor, but 7"),
        (f"{HERE}:nothing", "has nothing to serve"),
        (f"{HERE}:missing", "has no 'missing'"),
        (f"{HERE}:a_node_with_an_actor", "handler of the actor Notebook; name its class instead"),
        ("no_such_module_at_all:tools", "there is no module 'no_such_module_at_all'; looked in"),
        ("tools.py", "'tools.py' is a path; write the module, such as tools:tools"),
        ("a b:tools", "'a b' names no module"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(name: str, why: str) -> None:
    """The error comes before the worker listens."""
    with pytest.raises(ValueError, match=why):
        served(name, ROOT)


@pytest.mark.parametrize(
    ("arguments", "secret", "why"),
    [
        (["--listen", "0.0.0.0:0"], SECRET, "can be reached by other machines, and there is no TLS"),
        (["--listen", "somewhere"], SECRET, "'somewhere' is no address"),
        (["--read", "/"], SECRET, "give --confine, too"),
        (["--tls-key", __file__], SECRET, "give --tls-cert, too"),
        (["--tls-cert", __file__], SECRET, "PEM|SSL|substring"),
        ([], "", "there is no secret: set CALLBOARD_WORKER_SECRET"),
    ],
)
def test_options_that_do_not_go_together_and_no_secret_are_refused(
    arguments: list[str], secret: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says which option to change. A default secret would be known to everybody."""
    monkeypatch.delenv("CALLBOARD_WORKER_SECRET", raising=False)
    if secret:
        monkeypatch.setenv("CALLBOARD_WORKER_SECRET", secret)
    with pytest.raises(SystemExit) as ended:
        _command.main([BODIES, *arguments, "--app-dir", str(ROOT)])

    assert ended.value.code == 2  # the exit code of a wrong command line
    assert re.search(why, capsys.readouterr().err)


def test_the_command_is_listed_and_has_its_own_help() -> None:
    """The command is registered by another distribution and still listed by callboard's own help."""
    assert "worker" in CliRunner().invoke(app, ["--help"]).output
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    found = subprocess.run(
        [*COMMAND, "--help"], env=environment, capture_output=True, text=True, timeout=60, check=True
    )

    assert "--handshake-timeout" in found.stdout


def test_without_the_distribution_the_command_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The core distribution only knows the name of the command and how to install it."""
    monkeypatch.setattr(_app, "entry_points", lambda **_: [])
    found = CliRunner().invoke(app, ["worker", "trip:tools"])

    assert found.exit_code == 2
    assert "callboard worker comes with callboard-actors: pip install callboard-actors" in found.output


@pytest.mark.parametrize("file", [None, "secret"])
def test_bodies_do_not_find_the_secret_in_their_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str | None
) -> None:
    """Child processes of the worker do not need it. A file overrules the variable, which is removed all the same."""
    monkeypatch.setenv("CALLBOARD_WORKER_SECRET", "a secret of sixteen bytes")
    (tmp_path / "secret").write_text("another secret of sixteen bytes")

    found = secret_from(tmp_path / file if file else None, forget=True)

    assert found == (b"another secret of sixteen bytes" if file else b"a secret of sixteen bytes")
    assert "CALLBOARD_WORKER_SECRET" not in os.environ


def test_a_secret_is_the_same_in_a_file_and_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tools often end the secret with a line break, which is ignored in the file and in the variable."""
    monkeypatch.setenv("CALLBOARD_WORKER_SECRET", "a secret of sixteen bytes\n")
    (tmp_path / "secret").write_text("a secret of sixteen bytes\n")

    assert secret_from(None) == secret_from(tmp_path / "secret")
