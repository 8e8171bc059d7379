"""A `Retry-After` of one call pauses the limit of its tool for all calls, as a wait in the queue."""

from email.message import Message
from typing import Any
from urllib.error import HTTPError

import anyio
import pytest

from callboard import CallEvent, CallPolicy, Limit, Rate, ToolNode, create_agent, observe, tool_call
from callboard.middleware import Retry
from callboard.testing import ScriptedModel

WAIT = 10_000.0


class Busy(Exception):
    """The service has too many requests."""

    def __init__(self, retry_after: object) -> None:
        super().__init__("429")
        self.retry_after = retry_after


class Service:
    """A tool whose first call fails with a `Retry-After`, and which notes when each call starts."""

    def __init__(self, retry_after: object) -> None:
        self._retry_after = retry_after
        self.starts: list[tuple[str, float]] = []

    async def fetch(self, host: str) -> str:
        """Fetch from a host."""
        self.starts.append((host, round(anyio.current_time(), 3)))
        if len(self.starts) == 1:
            raise Busy(self._retry_after)
        return host

    def node(self, limit: Limit | None, **options: Any) -> ToolNode:
        policies = {"fetch": CallPolicy(limit=limit)}
        return ToolNode([self.fetch], policies=policies, handle_tool_errors=True, **options)

    async def run(self, node: ToolNode, hosts: str) -> list[float]:
        """Call the tool once, and then for each of the hosts; return the seconds between the first start and theirs."""
        with anyio.fail_after(WAIT):
            for part in (hosts[:1], hosts[1:]):
                await node.ainvoke([tool_call("fetch", f"c{n}", host=host) for n, host in enumerate(part)])
        return [round(start - self.starts[0][1], 3) for _, start in self.starts[1:]]


@pytest.mark.parametrize("options", [{"concurrency": 2}, {"rate": Rate(100, per=1.0)}, {"concurrency": 9, "queue": 5}])
async def test_all_calls_of_the_limit_wait_until_the_time_is_over(options: dict[str, Any]) -> None:
    service = Service(5.0)

    assert await service.run(service.node(Limit(**options)), "aaa") == [5.0, 5.0]


class Unreadable(Exception):
    """Error whose answer can be read only after the request."""

    @property
    def response(self) -> object:
        raise RuntimeError("there is no response yet")


async def test_an_error_whose_attributes_raise_stays_the_error_of_the_call() -> None:
    async def fetch() -> str:
        """Fetch."""
        raise Unreadable("no route to the host")

    node = ToolNode([fetch], policies={"fetch": CallPolicy(limit=Limit(concurrency=1))})
    with anyio.fail_after(WAIT), pytest.raises(Unreadable, match="no route"):
        await node.ainvoke([tool_call("fetch", "1")])


async def test_the_header_is_read_from_an_error_without_a_response() -> None:
    """Errors of urllib and aiohttp have the headers themselves."""
    starts = []
    headers = Message()
    headers["Retry-After"] = "5"

    async def fetch() -> str:
        """Fetch."""
        starts.append(anyio.current_time())
        if len(starts) == 1:
            raise HTTPError("https://example.org/", 429, "Too Many Requests", headers, None)
        return "a page"

    policies = {"fetch": CallPolicy(limit=Limit(concurrency=1))}
    node = ToolNode([fetch], policies=policies, handle_tool_errors=True)
    with anyio.fail_after(WAIT):
        await node.ainvoke([tool_call("fetch", f"c{number}") for number in range(2)])

    assert round(starts[1] - starts[0], 3) == 5.0


async def test_other_keys_go_on() -> None:
    service = Service(5.0)
    node = service.node(Limit(concurrency=1, key=lambda call: call["args"]["host"]))

    assert await service.run(node, "aba") == [0.0, 5.0]


async def test_the_wait_is_one_in_the_queue() -> None:
    service, events = Service("5"), []
    with observe(events.append):
        await service.run(service.node(Limit(concurrency=1)), "aa")

    ended = [event for event in events if isinstance(event, CallEvent) and event.phase == "ended"]
    assert [round(event.queue_wait, 3) for event in ended] == [0.0, 5.0]


@pytest.mark.parametrize("value", [1e9, "inf", "99999999"])
async def test_a_service_cannot_stop_a_limit_for_more_than_a_minute_at_once(value: object) -> None:
    service = Service(value)

    assert await service.run(service.node(Limit(concurrency=1)), "aa") == [60.0]


@pytest.mark.parametrize("value", [0, -3.0, "soon", "half \ud83d", "nan", 10**400, None, object()], ids=range(8))
async def test_a_value_without_sense_pauses_nothing_and_the_model_reads_the_error_itself(value: object) -> None:
    service = Service(value)
    with anyio.fail_after(WAIT):
        began = anyio.current_time()
        requests = [tool_call("fetch", f"c{number}", host="a") for number in range(2)]
        messages = (await service.node(Limit(concurrency=1)).ainvoke(requests))["messages"]

    assert anyio.current_time() == began
    assert "429" in messages[0].text
    assert messages[1].text == "a"


async def test_the_limit_of_the_node_goes_on() -> None:
    """Its other tools belong to other services."""
    service = Service(5.0)

    node = ToolNode([service.fetch], limit=Limit(concurrency=1), handle_tool_errors=True)

    assert await service.run(node, "aa") == [0.0]


async def test_a_retry_and_its_neighbours_wait_once() -> None:
    """The pause of `Retry` and that of the limit are the same seconds."""
    service = Service(5.0)
    retry = Retry(2, any_tool=True, initial=0.001)
    node = service.node(Limit(concurrency=1), middleware=[retry])
    with anyio.fail_after(WAIT):
        await node.ainvoke([tool_call("fetch", "c0", host="a"), tool_call("fetch", "c1", host="b")])

    first, *later = [start for _, start in service.starts]
    assert [5.0 <= start - first <= 6.0 for start in later] == [True, True]


async def test_a_longer_pause_is_not_cut_by_a_shorter_one() -> None:
    delays = [9.0, 2.0]

    async def fetch() -> str:
        """Fetch."""
        if delays:
            await anyio.sleep(0.1 * len(delays))
            raise Busy(delays.pop(0))
        return str(round(anyio.current_time() - began, 3))

    node = ToolNode([fetch], policies={"fetch": CallPolicy(limit=Limit(concurrency=2))}, handle_tool_errors=True)
    with anyio.fail_after(WAIT):
        began = anyio.current_time()
        await node.ainvoke([tool_call("fetch", f"c{n}") for n in range(2)])
        [message] = (await node.ainvoke([tool_call("fetch", "c3")]))["messages"]

    assert float(message.text) >= 9.0


@pytest.mark.real_clock
async def test_requests_to_a_model_wait_as_well() -> None:
    """Agents with one policy have one account at the provider."""
    policy = CallPolicy(limit=Limit(concurrency=4))
    failing, other_agent = (
        create_agent(ScriptedModel(script), [], model_policy=policy) for script in ([Busy(0.5)], ["hello"])
    )
    question = {"messages": [("user", "hi")]}
    began = anyio.current_time()
    with pytest.raises(Busy):
        await failing.ainvoke(question)
    await other_agent.ainvoke(question)

    assert anyio.current_time() - began >= 0.5
