"""The command line of `callboard mcp`: mistakes are reported at once, with a remedy."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from typer.testing import CliRunner

from callboard_actors._util._loopback import is_loopback
from callboard_actors.mcp_service import _serve, serve_mcp
from callboard_actors.mcp_service._command import app
from callboard_actors.mcp_service._serve import FAILED, WRONG, http_app
from callboard_actors.mcp_service._token import TOKEN, take_token

from ._commands import run_command
from ._served import add

MODULES = {
    "empty": "tools = []",
    "breaks": "raise OSError('no disk')",
    "misreads": "raise ValueError('no number')",
    "ends": "import sys\nsys.exit(0)",
    "lacks": "import there_is_no_such_thing",
    "needs": (
        "from typing import Annotated, Any\nfrom callboard import InjectedStore\n"
        "def look(store: Annotated[Any, InjectedStore()]) -> str:\n    'Look.'\n    return ''\n"
        "tools = [look]"
    ),
    "imports": (
        "from __future__ import annotations\nimport os\nfrom os.path import join\nfrom typing import Any, Literal\n"
        "from callboard import Actor, handler\nclass Finder(Actor):\n    @handler\n    async def find(self) -> Any:\n"
        "        'Find.'\ntools = [Finder()]"
    ),
    "listed": "from mcp_fine import add, number\ntools = [add]\n__all__ = ['tools', 'add']",
    "fine": "def add(one: int) -> int:\n    'Add.'\n    return one + 1\ntools = [add]\nnumber = 3",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a folder of modules that can be served; no module of an earlier folder hides them."""
    for name, text in MODULES.items():
        monkeypatch.delitem(sys.modules, f"mcp_{name}", raising=False)
        (tmp_path / f"mcp_{name}.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["mcp_fine"], "which tools of mcp_fine? Write mcp_fine:NAME; it has add, number, tools"),
        (["mcp_fine:nothing"], "mcp_fine has no 'nothing'; it has add, number, tools\n"),
        (["mcp_imports"], "Write mcp_imports:NAME; it has Finder, tools\n"),
        (["mcp_listed"], "Write mcp_listed:NAME; it has add, tools\n"),
        (["mcp_listed:number"], "an MCP server serves a ToolNode, an agent of create_react_agent, tools or functions"),
        (["mcp_fine:number"], "an MCP server serves a ToolNode, an agent of create_react_agent, tools or functions"),
        (["mcp_empty:tools"], "there is nothing to serve"),
        (["mcp_needs:tools"], "the tool 'look' cannot be served by itself: its argument 'store'"),
        (["mcp_breaks:tools"], "mcp_breaks:tools could not be loaded: OSError('no disk')"),
        (["mcp_misreads:tools"], "mcp_misreads:tools could not be loaded: ValueError('no number')"),
        (["mcp_ends:tools"], "mcp_ends calls sys.exit(0) when it is imported"),
        (["mcp_lacks:tools"], "there_is_no_such_thing"),
        (["no.such.module:tools"], "there is no module 'no'"),
        (["./fine.py"], "'./fine.py' is a path; write the module, such as fine:tools, and --app-dir for its folder"),
        (["fi ne:tools"], "'fi ne' names no module; write module:tools, such as trip:tools for `tools` in trip.py"),
        (["mcp_fine:tools", "--description", "Adds."], "is for an agent"),
        (["mcp_fine:tools", "--allow-host", "example.com"], "give --http, too"),
        (["mcp_fine:tools", "--port", "8000"], "--port is for clients that come by HTTP: give --http, too"),
        (["mcp_fine:tools", "--host", "127.0.0.1"], "--host is for clients that come by HTTP: give --http, too"),
        (["mcp_fine:tools", "--token-env", "SESAME"], "names the variable SESAME, which is not set"),
        (["mcp_fine:tools", "--http", "--token-env", "SESAME"], "names the variable SESAME, which is not set"),
        (["mcp_fine:tools", "--http", "--backend", "trio"], "leave --backend trio out"),
        (["mcp_fine:tools", "--http", "--host", "0.0.0.0"], "--allow-host NAME"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_served(
    line: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is one sentence on stderr that names the mistake; the exit code is 2."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("it is served")

    monkeypatch.setattr(anyio, "run", never)
    monkeypatch.setattr(_serve, "claim_stdio", _unclaimed)
    result = CliRunner().invoke(app, [*line, "--app-dir", str(folder)])

    assert result.exit_code == WRONG, result.output
    assert message in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")


class _unclaimed:
    """Context manager that leaves the descriptors of the test process alone."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def test_a_missing_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains the command that installs the extra."""
    monkeypatch.setattr(_serve, "claim_stdio", _unclaimed)
    monkeypatch.setitem(sys.modules, "mcp", None)
    result = CliRunner().invoke(app, ["mcp_fine:tools", "--app-dir", str(folder)])

    assert result.exit_code == WRONG
    assert "an MCP server needs mcp: pip install 'jsonschema<5,>=4.20' 'mcp<3,>=2.3'" in result.stderr


@pytest.mark.exhaustive
def test_to_import_it_costs_no_sdk() -> None:
    """Neither the import nor the help of the command loads the SDK."""
    code = (
        "import sys, callboard_actors.mcp_service._command; assert not {'mcp', 'uvicorn', 'langgraph'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_token_is_taken_out_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes of tools do not get it. Over HTTP the token is required if the usual variable is set."""
    app_options: dict[str, Any] = {}

    def make_app(*_: object, **options: Any) -> object:
        app_options.update(options)
        raise ValueError("enough")

    monkeypatch.setenv(TOKEN, "open sesame")
    monkeypatch.setattr(_serve, "http_app", make_app)
    CliRunner().invoke(app, ["mcp_fine:tools", "--http", "--app-dir", str(folder)])

    assert app_options["token"] == "open sesame"
    assert TOKEN not in os.environ


@pytest.mark.parametrize(
    ("host", "token", "warns"), [("10.0.0.1", None, True), ("10.0.0.1", "t", False), ("::1", None, False)]
)
def test_an_open_door_is_warned_of(host: str, token: str | None, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A server without a token on a network address is rarely intended."""
    with caplog.at_level(logging.WARNING, "callboard"):
        http_app([add], name=None, description=None, host=host, allowed_hosts=(), token=token)

    assert bool(caplog.records) is warns


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "example.com"])
def test_loopback_is_known(host: str) -> None:
    """Every spelling of a loopback address counts."""
    assert is_loopback(host) is (host != "example.com")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transport": "sse"}, 'is "stdio" or "http"'),
        ({"token": "t"}, "give transport='http'"),
        ({"allowed_hosts": ["example.com"]}, "give transport='http'"),
        ({"port": 9000}, "give transport='http'"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    """A token without HTTP would protect nothing."""
    with pytest.raises(ValueError, match=message):
        await serve_mcp([add], **options)


@pytest.mark.backends("trio")
async def test_http_on_trio_is_refused() -> None:
    """The built-in HTTP server needs asyncio; the ASGI application does not."""
    with pytest.raises(RuntimeError, match="hypercorn"):
        await serve_mcp([add], transport="http")


@pytest.mark.exhaustive
def test_an_actor_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """The exit code is not that of a wrong command line."""
    (tmp_path / "mcp_actor.py").write_text(
        "from callboard import Actor, handler\n"
        "class Broken(Actor):\n"
        "    async def start(self):\n        raise OSError('no line')\n"
        "    @handler\n    async def ask(self) -> str:\n        'Ask.'\n        return ''\n"
        "tools = [Broken()]\n"
    )
    code, error = run_command("mcp_actor:tools", "--app-dir", str(tmp_path))

    assert code == FAILED, error
    assert "no line" in error


def test_each_client_may_have_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens come from variables, which are removed from the environment."""
    monkeypatch.setenv("ANN_TOKEN", "one")
    monkeypatch.setenv("BOB_TOKEN", "other")
    assert take_token(["ann=ANN_TOKEN", "bob=BOB_TOKEN"]) == {"ann": "one", "bob": "other"}
    assert not {"ANN_TOKEN", "BOB_TOKEN"} & os.environ.keys()
    for mixed in (["ANN_TOKEN", "bob=BOB_TOKEN"], ["ANN_TOKEN", "BOB_TOKEN"], ["ann=ANN_TOKEN", "ann=BOB_TOKEN"]):
        with monkeypatch.context() as env, pytest.raises(ValueError, match="--token-env"):
            env.setenv("ANN_TOKEN", "one")
            env.setenv("BOB_TOKEN", "other")
            take_token(mixed)
