"""Guarantees of a fleet's server to its members, on every kind of server."""

from typing import Any

import anyio
import pytest

from callboard_actors._server.fleet._client import Owned

from ._world import Fleets

pytestmark = [pytest.mark.real_clock, pytest.mark.backends("asyncio")]


async def _owner(fleets: Fleets, member: str) -> tuple[Any, Owned]:
    """Return the connection of a new member that owns the key."""
    line = fleets()._line()()
    await line.open(member)
    await line.beat()
    while not (owned := await line.own("gate")).owner:
        await anyio.sleep(0.01)
    assert owned.owner == member
    return line, owned


@pytest.mark.parametrize("has_saved", [True, False])
async def test_a_state_of_an_owner_that_was_replaced_is_refused(fleets: Fleets, has_saved: bool) -> None:
    """The server knows the token of the next owner, also after that one gave the key up without a state."""
    with anyio.fail_after(30):
        former, lost = await _owner(fleets, "m1")
        await former.leave()
        later, owned = await _owner(fleets, "m2")
        if has_saved:
            assert await later.save("gate", owned.token, b"new")
        await later.give_back("gate", owned.token)

        assert not await former.save("gate", lost.token, b"old")
        assert await later.load("gate") == (b"new" if has_saved else None)
        for line in (former, later):
            await line.close()
