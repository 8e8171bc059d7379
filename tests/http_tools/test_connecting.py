"""A host has several addresses, and the first that answers is taken."""

import anyio
import httpcore2
import pytest

from callboard_actors.http._guard import first_connected

WAIT = 30


class Stream(httpcore2.AsyncNetworkStream):
    def __init__(self, address: str) -> None:
        self.address = address
        self.is_closed = False

    async def aclose(self) -> None:
        self.is_closed = True


class Network:
    """Addresses that answer after so many seconds, or fail after so many if they are negative."""

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
    """And not the time that a connection may take; who knows of two addresses has two for this."""
    network = Network(a=1000.0, b=0.01)
    began = anyio.current_time()
    with anyio.fail_after(WAIT):
        stream = await first_connected(network.connect, ["a", "b"])

    assert stream.address == "b"
    assert anyio.current_time() - began < 1.0


async def test_a_quick_address_is_the_only_one_that_is_tried() -> None:
    """Others are left in peace."""
    network = Network(a=0.01, b=0.01)
    with anyio.fail_after(WAIT):
        await first_connected(network.connect, ["a", "b"])

    assert network.tried == ["a"]


async def test_no_more_than_one_connection_is_left_open() -> None:
    """Two may come about at the same moment."""
    network = Network(a=0.5, b=0.25)
    with anyio.fail_after(WAIT):
        stream = await first_connected(network.connect, ["a", "b"])

    assert [one for one in network.streams if not one.is_closed] == [stream]


async def test_if_none_answers_the_first_says_why() -> None:
    """It is the one that the system thinks best of."""
    network = Network(a=-1.0, b=-0.1, c=-0.1)
    with anyio.fail_after(WAIT), pytest.raises(httpcore2.ConnectError, match="has failed"):
        await first_connected(network.connect, ["a", "b", "c"])

    assert network.tried == ["a", "b", "c"]


async def test_who_is_cancelled_leaves_nothing_open() -> None:
    """A connection that came about meanwhile has nobody."""
    network = Network(a=5.0, b=6.0)
    with anyio.move_on_after(1.0):
        await first_connected(network.connect, ["a", "b"])

    assert network.tried == ["a", "b"]
    assert network.streams == []
