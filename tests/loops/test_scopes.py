"""Nurseries on each event loop, without calls."""

import anyio
import pytest

from callboard._loops._current import current_loop
from callboard._loops._protocol import Scope

WAIT = 20


async def test_a_child_that_ends_before_it_enters_its_scope_holds_nobody_up() -> None:
    """Promise 1: Ctrl-C may interrupt a child before its first line; its nursery still ends."""

    async def child(scope: Scope) -> None:
        raise RuntimeError("before the first line")

    with anyio.fail_after(WAIT), pytest.raises(RuntimeError, match="before the first line"):
        async with current_loop().nursery() as nursery:
            nursery.start(child, 1.0)
