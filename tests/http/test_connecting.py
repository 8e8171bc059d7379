"""Connecting to a host with several addresses: the first one that answers is used."""

import anyio
import httpcore2
import pytest

from callboard_actors.http._wire import first_connected


class Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, address: str) -> None:
        self.address = address
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


class Network:
    """Fake network whose addresses answer after a delay, or fail after it if the number is negative."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds
        self.tried: list[str] = []
        self.streams: list[Stream] = []

    async def connect(self, address: str) -> Stream:
        self.tried.append(address)
        seconds = self._seconds[address]
        await anyio.sleep(abs(seconds))
        if seconds < 0:
            raise httpcore2.ConnectError(f"{address} has failed")
        self.streams.append(Stream(address))
        return self.streams[-1]


async def test_a_silent_address_costs_a_quarter_of_a_second() -> None:
    """Attempts are started a quarter of a second apart, without waiting for the connect timeout."""
    network = Network(a=1000.0, b=0.01)
    began = anyio.current_time()
    stream = await first_connected(network.connect, ["a", "b"])

    assert stream.address == "b"
    assert anyio.current_time() - began < 1.0


async def test_a_quick_address_is_the_only_one_that_is_tried() -> None:
    """No connection attempt is made to the other addresses."""
    network = Network(a=0.01, b=0.01)
    await first_connected(network.connect, ["a", "b"])

    assert network.tried == ["a"]


async def test_no_more_than_one_connection_is_left_open() -> None:
    """Two attempts may succeed at the same moment; the second connection is closed."""
    network = Network(a=0.5, b=0.25)
    stream = await first_connected(network.connect, ["a", "b"])

    assert [one for one in network.streams if not one.is_closed] == [stream]


async def test_if_none_answers_the_first_says_why() -> None:
    """The first address is the one that the system prefers."""
    network = Network(a=-1.0, b=-0.1, c=-0.1)
    with pytest.raises(httpcore2.ConnectError, match="has failed"):
        await first_connected(network.connect, ["a", "b", "c"])

    assert network.tried == ["a", "b", "c"]


async def test_who_is_cancelled_leaves_nothing_open() -> None:
    """An attempt that succeeds during the cancellation must be closed."""
    network = Network(a=5.0, b=6.0)
    with anyio.move_on_after(1.0):
        await first_connected(network.connect, ["a", "b"])

    assert network.tried == ["a", "b"]
    assert network.streams == []
