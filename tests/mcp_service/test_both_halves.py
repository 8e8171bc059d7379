"""`McpServer` connected to `callboard mcp`: both ends of the protocol agree."""

from typing import Any

import pytest

from callboard import CallPolicy, ToolNode, idempotency_key
from callboard.testing import tool_call
from callboard_actors.mcp import McpServer
from callboard_actors.mcp_service._service import Service

from ._clients import ERAS
from ._commands import COMMAND, ROOT, arguments

pytestmark = pytest.mark.real_clock


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_is_tried_again_is_the_same_call_at_the_other_end(era: str) -> None:
    """The client's idempotency key becomes the key at the server.

    It is the same in each retry, and different for each other call.
    """
    keys: list[str] = []

    async def pay(cents: int) -> str:
        """Pay."""
        keys.append(idempotency_key())
        return "paid"

    async def twice(request: Any, call_next: Any) -> Any:
        await call_next(request)  # the answer was lost
        return await call_next(request)

    service = Service([pay], name=None, description=None)
    async with service.opened(), McpServer(service.server(), mode=era) as shop:
        node = ToolNode([shop], middleware=[twice], policies={"pay": CallPolicy(idempotent=True)})
        for number in ("1", "2"):
            answer = await node.ainvoke([tool_call("pay", number, cents=500)])
            assert answer["messages"][0].text == "paid"
    first, again, other, other_again = keys

    assert (first, other) == (again, other_again)
    assert first != other


@pytest.mark.exhaustive
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_the_command_is_a_server_for_our_own_agents(era: str, anyio_backend_name: str) -> None:
    """Our own agents start the server by its command, as any client does."""
    command = [*COMMAND, *arguments("tools", "--backend", anyio_backend_name)]
    async with McpServer(command, cwd=ROOT, mode=era) as shop:
        result = await shop.call("add", {"one": 1, "other": 2})

    assert result.structured_content == {"sum": 3, "read": 0}
