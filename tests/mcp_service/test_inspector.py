"""The command line of the MCP inspector from npm: a client that is independent of the SDK."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.npm_packages import PACKAGES, find_or_install

from ._commands import COMMAND, PATIENCE, ROOT, arguments, started

pytestmark = [pytest.mark.exhaustive, pytest.mark.real_clock]

NAME = "@modelcontextprotocol/inspector"


@pytest.fixture(scope="module")
def inspector() -> Path:
    """Return the inspector; skip the test if it is not installed."""
    found = find_or_install(NAME, PACKAGES[NAME]) if shutil.which("node") else None
    if found is None:
        pytest.skip(f"{NAME} is not here and could not be installed (npm, `python -m tests.npm_packages`)")
    return found


IS_ERROR = 5
"""The inspector's exit code for a result that is an error."""


def inspected(inspector: Path, tmp_path: Path, server: list[str], *options: str) -> Any:
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


def test_it_lists_and_calls_tools_over_stdio(inspector: Path, tmp_path: Path) -> None:
    """Output of a tool does not disturb the protocol."""
    server = [*COMMAND, *arguments("tools")]
    listed = inspected(inspector, tmp_path, server, "--method", "tools/list")
    call = ["--method", "tools/call", "--tool-name", "add", "--tool-arg", "one=1", "other=2"]
    result = inspected(inspector, tmp_path, server, *call)

    assert [tool["name"] for tool in listed["tools"]] == ["add", "stay", "plan"]
    assert listed["tools"][0]["inputSchema"]["required"] == ["one", "other"]
    assert result["structuredContent"]["sum"] == 3


def test_it_lists_and_calls_tools_over_http(inspector: Path, tmp_path: Path) -> None:
    """The inspector connects to the address that the command prints."""
    with started(*arguments("tools", "--http", "--port", "0")) as server:
        url = server.url()
        listed = inspected(inspector, tmp_path, [url], "--method", "tools/list")
        call = ["--method", "tools/call", "--tool-name", "stay", "--tool-arg", "seconds=0", f"folder={tmp_path}"]
        result = inspected(inspector, tmp_path, [url], *call)

    assert [tool["name"] for tool in listed["tools"]] == ["add", "stay", "plan"]
    assert result["content"][0]["text"] == "left"


def test_a_call_that_asks_is_refused_by_a_client_that_cannot(inspector: Path, tmp_path: Path) -> None:
    """The inspector's command line cannot ask a user: the call does not run, and the error says so."""
    server = [*COMMAND, *arguments("node")]
    call = ["--method", "tools/call", "--tool-name", "delete", "--tool-arg", "path=a.txt"]
    done = inspect(inspector, tmp_path, server, *call)

    assert done.returncode == IS_ERROR, done.stderr
    assert "a.txt deleted" not in done.stdout
