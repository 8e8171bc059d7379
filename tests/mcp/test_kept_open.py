"""`McpServer.open()` and `aclose()`, from different tasks."""

import anyio
import pytest

from callboard_actors.mcp import McpServer
from tests.mcp._served import server

pytestmark = pytest.mark.real_clock


async def test_a_server_is_closed_by_another_task_than_the_one_that_opened_it() -> None:
    """Cells of a notebook are tasks, and the session's cancel scopes belong to one task."""
    mcp = McpServer(server())
    with anyio.fail_after(60):
        for step in (mcp.open, mcp.open, mcp.aclose, mcp.aclose):
            async with anyio.create_task_group() as group:
                group.start_soon(step)
            if step == mcp.open:
                assert mcp.is_open
                assert "echo" in [tool.name for tool in mcp.tools]

    assert not mcp.is_open
