"""Guarantees of a fleet's server to its members, on every kind of server."""

from typing import Any

import anyio
import pytest

from ._world import Fleets

pytestmark = [pytest.mark.real_clock, pytest.mark.backends("asyncio")]


async def _owner(fleets: Fleets, member: str) -> tuple[Any, Any]:
    """Return the connection of a new member that owns the key."""
    connection = fleets()._connection_factory()()
    await connection.open(member)
    await connection.send_heartbeat()
    while not (key_owner := await connection.acquire_key("gate")).owner_id:
        await anyio.sleep(0.01)
    assert key_owner.owner_id == member
    return connection, key_owner


@pytest.mark.parametrize("has_saved", [True, False])
async def test_a_state_of_an_owner_that_was_replaced_is_refused(fleets: Fleets, has_saved: bool) -> None:
    """The server knows the token of the next owner, also after that one gave the key up without a state."""
    with anyio.fail_after(30):
        former, lost = await _owner(fleets, "m1")
        await former.leave_fleet()
        later, key_owner = await _owner(fleets, "m2")
        if has_saved:
            assert await later.save_state("gate", key_owner.token, b"new")
        await later.release_key("gate", key_owner.token)

        assert not await former.save_state("gate", lost.token, b"old")
        assert await later.load_state("gate") == (b"new" if has_saved else None)
        for connection in (former, later):
            await connection.close()
