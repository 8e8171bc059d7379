"""A server that is killed and restarted: never two owners, and asks continue."""

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from callboard import StorageError, keyed
from tests.agent._postgres import Server
from tests.server._servers import Place, crash, store_at

from ._world import LOGS, Counter

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

LEASE = 1.2


async def _go_through(make: Callable[[], Any], log: str, outage: Callable[[], None]) -> list[float]:
    """Ask before and after an outage; return both tokens, and the delay until the second owner started."""
    with anyio.fail_after(60):
        async with (
            keyed(Counter(log), fleet=make()) as first_actors,
            keyed(Counter(log), fleet=make()) as second_actors,
        ):
            _, first = await first_actors["k"].up()
            await second_actors["k"].up()
            await anyio.to_thread.run_sync(outage)
            back = time.monotonic()
            number, second = await second_actors["k"].up()
            after = time.monotonic() - back
            assert (await first_actors["k"].up())[0] == number + 1
    lives = [event for event, _, _ in LOGS[log].lives]
    assert lives == ["start", "stop"] * (len(lives) // 2)  # never two instances
    assert first is not None
    assert second is not None
    return [first, second, after]


async def test_a_postgres_that_crashed_knows_its_owners(own_postgres: Server, log: str) -> None:
    """The tables survive the crash."""

    def outage() -> None:
        crash(own_postgres)
        own_postgres.start()

    first, second, _ = await _go_through(lambda: store_at(own_postgres.url(), "fleet", lease=LEASE), log, outage)

    assert second >= first


async def test_processes_with_another_lease_or_secret_are_told(postgres_url: str, log: str) -> None:
    """Different leases disagree about owners, and different secrets cannot read each other's messages."""
    place = Place(postgres_url)
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=place.store("fleet", lease=1.0)) as first_actors:
            await first_actors["k"].up()
            for option, expected_error in (
                ({"lease": 2.0}, "lease=1, and this one has 2"),
                ({"secret": "2" * 16}, "secret"),
            ):
                async with keyed(Counter(log), fleet=place.store("fleet", **{"lease": 1.0, **option})) as second_actors:
                    with pytest.raises(StorageError, match=expected_error):
                        await second_actors["k"].up()
            assert (await first_actors["k"].up())[0] == 2
