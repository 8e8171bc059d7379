"""Programs that end while an MCP server is open."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import anyio
from callboard_actors.mcp import McpServer
from tests.mcp._served import server

async def main():
    await McpServer(server()).open()
    raise ValueError("the program fails")

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
def test_a_program_that_fails_while_a_server_is_open_ends(backend: str) -> None:
    """asyncio cancels all tasks at once; their errors once had a cycle of contexts, which `AsyncExitStack` followed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert "ValueError: the program fails" in done.stderr
