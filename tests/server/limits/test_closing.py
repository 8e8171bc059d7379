"""Stores that are closed while they are in use."""

import pytest

from callboard import Limit, StorageError
from callboard.extend import PermitRequest
from callboard_actors.redis import RedisLimits


@pytest.mark.real_clock
async def test_whoever_asks_while_a_store_is_closed_has_an_answer() -> None:
    """The thread of the store may end at the moment of the request, which must not wait for ever."""
    store = RedisLimits("redis://127.0.0.1:1/0")
    wanted = PermitRequest(limit=Limit(concurrency=1), name="tool:t", title="the queue of tool 't'")
    client = store._client()
    store.close()

    answered: list[str] = []
    stay = client.ask("tool:t", wanted, lambda: answered.append("late"))
    stay.leave()

    assert answered == ["late"]
    assert isinstance(stay.failure, StorageError)
    assert "the store was closed" in str(stay.failure)
