"""The command line of the MCP inspector from npm: a client that is independent of the SDK."""

import json
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.npm_packages import PACKAGES, find_or_install

from ._commands import COMMAND, PATIENCE, ROOT, arguments, running_process

pytestmark = [pytest.mark.exhaustive, pytest.mark.real_clock]

NAME = "@modelcontextprotocol/inspector"


@pytest.fixture(scope="module")
def inspector() -> Path:
    """Return the inspector; skip the test if it is not installed."""
    program = find_or_install(NAME, PACKAGES[NAME]) if shutil.which("node") else None
    if program is None:
        pytest.skip(f"{NAME} is not here and could not be installed (npm, `python -m tests.npm_packages`)")
    return program


IS_ERROR = 5
"""The inspector's exit code for a result that is an error."""


def read_output(inspector: Path, tmp_path: Path, server: list[str], *options: str) -> Any:
    """Return the inspector's output for a server."""
    done = inspect(inspector, tmp_path, server, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def inspect(inspector: Path, tmp_path: Path, server: list[str], *options: str) -> "subprocess.CompletedProcess[str]":
    """Run the inspector to its end."""
    config = {"mcpServers": {"callboard": server_of(server)}}
    (tmp_path / "mcp.json").write_text(json.dumps(config))
    target = ["--config", str(tmp_path / "mcp.json"), "--server", "callboard"]
    return subprocess.run(
        ["node", str(inspector), "--cli", *target, *options],
        capture_output=True,
        cwd=ROOT,
        timeout=PATIENCE,
        text=True,
        check=False,
    )


def server_of(server: list[str]) -> dict[str, Any]:
    """Return a server in the inspector's configuration format."""
    if server[0].startswith("http"):
        return {"type": "streamable-http", "url": server[0]}
    return {"type": "stdio", "command": server[0], "args": server[1:], "cwd": str(ROOT)}


@pytest.mark.parametrize("over", ["stdio", "http"])
def test_it_lists_and_calls_tools(inspector: Path, tmp_path: Path, over: str) -> None:
    """Output of a tool does not disturb the protocol. Over HTTP, the address is the one that the command prints."""
    # Over HTTP, stdin is not claimed, and `add` would read it.
    tool = {"stdio": ["add", "--tool-arg", "one=1", "other=2"], "http": ["stay", "--tool-arg", "seconds=0"]}[over]
    with ExitStack() as stack:
        server = [*COMMAND, *arguments("tools")]
        if over == "http":
            server = [stack.enter_context(running_process(*arguments("tools", "--http", "--port", "0"))).url()]
            tool.append(f"folder={tmp_path}")
        listed = read_output(inspector, tmp_path, server, "--method", "tools/list")
        result = read_output(inspector, tmp_path, server, "--method", "tools/call", "--tool-name", *tool)

    assert [tool["name"] for tool in listed["tools"]] == ["add", "stay", "plan"]
    assert listed["tools"][0]["inputSchema"]["required"] == ["one", "other"]
    assert ("left" if over == "http" else '"sum": 3') in result["content"][0]["text"]


def test_a_call_that_asks_is_refused_by_a_client_that_cannot(inspector: Path, tmp_path: Path) -> None:
    """The inspector's command line cannot ask a user: the call does not run, and the error says so."""
    server = [*COMMAND, *arguments("node")]
    call = ["--method", "tools/call", "--tool-name", "delete", "--tool-arg", "path=a.txt"]
    done = inspect(inspector, tmp_path, server, *call)

    assert done.returncode == IS_ERROR, done.stderr
    assert "a.txt deleted" not in done.stdout
