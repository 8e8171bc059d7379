"""Connections to a host with several addresses: the first one that answers is used."""

from typing import Any

import anyio
import httpcore2
import pytest

from callboard_actors.http._guard import GuardedBackend, rules_of

from ._world import Names

FIRST, SECOND, THIRD = "93.184.216.34", "1.1.1.1", "8.8.8.8"


class Network(httpcore2.AsyncNetworkBackend):
    """Fake network whose addresses answer after a delay, or fail after it if the number is negative."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = {address.removeprefix("at_").replace("_", "."): delay for address, delay in seconds.items()}
        self.tried: list[str] = []

    async def connect_tcp(self, host: str, *_: Any, **options: Any) -> httpcore2.AsyncNetworkStream:
        self.tried.append(host)
        seconds = self._seconds[host]
        await anyio.sleep(abs(seconds))
        if seconds < 0:
            raise httpcore2.ConnectError(f"{host} has failed")
        return httpcore2.AsyncMockStream([])


async def connect(timeout: float = 30.0, **seconds: float) -> list[str]:
    """Connect to a name with the addresses, and return those that were tried."""
    network = Network(**seconds)
    names = Names(tea_example_org=[[*network._seconds]])
    backend = GuardedBackend(rules_of("GuardedTransport", None, private=False, ports=None), names)
    backend._network = network
    try:
        await backend.connect_tcp("tea.example.org", 80, timeout)
    except httpcore2.ConnectError as error:
        return [*network.tried, str(error)]
    return network.tried


async def test_a_quick_address_is_the_only_one_that_is_tried() -> None:
    """No connection attempt is made to the other addresses."""
    assert await connect(at_93_184_216_34=0.5, at_1_1_1_1=0.5) == [FIRST]


async def test_a_silent_address_costs_a_second() -> None:
    """A network without IPv6 often drops packets silently, and the connect timeout would be over before the next."""
    began = anyio.current_time()

    assert await connect(at_93_184_216_34=1000.0, at_1_1_1_1=0.1) == [FIRST, SECOND]
    assert anyio.current_time() - began < 2.0


async def test_an_address_that_refuses_costs_nothing_and_the_last_one_says_why() -> None:
    """All addresses are tried before the connection fails."""
    tried = await connect(at_93_184_216_34=-0.1, at_1_1_1_1=-0.1, at_8_8_8_8=-0.1)

    assert tried == [FIRST, SECOND, THIRD, f"{THIRD} has failed"]


async def test_the_last_address_has_the_whole_time_and_no_more() -> None:
    """A slow server is not given up after a second if there is no other one."""
    assert await connect(at_93_184_216_34=20.0) == [FIRST]
    with pytest.raises(httpcore2.ConnectTimeout, match=r"tea\.example\.org did not answer within 30 s"):
        await connect(at_93_184_216_34=1000.0, at_1_1_1_1=1000.0)
