"""Calls of MCP clients are supervised: limits, timeouts, cancellation, tracing and drain apply."""

import sys
from typing import cast

import anyio
import pytest
from langgraph.types import interrupt
from mcp import Client, types
from mcp_types import RequestParamsMeta

from callboard import Limit, ToolNode, idempotency_key, progress
from callboard.telemetry import carrier
from tests.telemetry._traces import Traces, attributes, is_child

from ._clients import ERAS, Person, client_of, fill_in, in_both_eras, service_of, text_in


class Hotel:
    """Tools that wait and record how their calls ended."""

    def __init__(self) -> None:
        self.began, self.ended = anyio.Event(), anyio.Event()
        self.at_once = self.peak = 0

    async def stay(self, nights: float) -> str:
        """Stay for some nights."""
        self.at_once += 1
        self.peak = max(self.peak, self.at_once)
        self.began.set()
        try:
            await anyio.sleep(nights)
        finally:
            self.at_once -= 1
            self.ended.set()
        return f"{nights} nights"


@in_both_eras
async def test_a_call_that_its_client_cancels_is_cancelled(era: str) -> None:
    """A cancelled call releases its resources, here its slot of the limit."""
    hotel = Hotel()
    node = ToolNode([hotel.stay], limit=Limit(concurrency=1))
    async with client_of(node, era) as client, anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "stay", {"nights": 1000})
        await hotel.began.wait()
        group.cancel_scope.cancel()
    async with client_of(node, era) as client:
        await hotel.ended.wait()
        assert text_in(await client.call_tool("stay", {"nights": 1})) == "1.0 nights"
        assert node.statistics().running == 0


@in_both_eras
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.real_clock  # a sync tool runs in a thread
async def test_a_tool_that_would_end_the_process_ends_its_call_only(era: str, kind: str) -> None:
    """`sys.exit()` in a tool is an error of its call; once it left all other clients waiting for ever."""

    def leave() -> str:
        """Leave."""
        sys.exit(3)

    async def leave_async() -> str:
        """Leave."""
        sys.exit(3)

    async with client_of([leave if kind == "sync" else leave_async, Hotel().stay], era) as client:
        exit_result = await client.call_tool("leave" if kind == "sync" else "leave_async", {})
        assert exit_result.is_error
        assert "SystemExit(3)" in text_in(exit_result)
        assert text_in(await client.call_tool("stay", {"nights": 0})) == "0.0 nights"


@in_both_eras
async def test_a_client_that_leaves_ends_its_calls(era: str) -> None:
    hotel = Hotel()
    with pytest.raises(ExceptionGroup):
        async with client_of([hotel.stay], era) as client, anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "stay", {"nights": 1000})
            await hotel.began.wait()
            raise OSError("the client has left")

    assert hotel.ended.is_set()


@in_both_eras
async def test_limits_and_timeouts_of_the_node_hold(era: str) -> None:
    """Limits apply to the calls of all clients together; a client reads the same errors as a model."""
    hotel = Hotel()
    node = ToolNode([hotel.stay], limit=Limit(concurrency=2), timeout=5)
    results: list[types.CallToolResult] = []

    async def call(client: Client, nights: float) -> None:
        results.append(await client.call_tool("stay", {"nights": nights}))

    async with (
        service_of(node, era) as (service, first_client),
        Client(type(service)(node).server(), mode=era) as second_client,
    ):
        async with anyio.create_task_group() as group:
            for client in (first_client, second_client):
                for nights in (1, 2, 3):
                    group.start_soon(call, client, nights)
        late = await first_client.call_tool("stay", {"nights": 9})

    assert hotel.peak == 2
    assert sorted(map(text_in, results)) == sorted(f"{n}.0 nights" for n in (1, 2, 3) for _ in "ab")
    assert late.is_error
    assert "5" in text_in(late)


@in_both_eras
async def test_a_client_hears_of_progress_if_it_asks(era: str) -> None:
    """Progress numbers increase, and the last report comes before the result."""
    reports: list[tuple[float, float | None, str | None]] = []

    async def build(parts: int) -> str:
        """Build."""
        for part in range(parts):
            await anyio.sleep(1)
            progress(f"part {part}", done=part + 1, total=parts)
        return "built"

    async def hear(done: float, total: float | None, message: str | None) -> None:
        reports.append((done, total, message))

    async with client_of([build], era) as client:
        await client.call_tool("build", {"parts": 3}, progress_callback=hear)
        await client.call_tool("build", {"parts": 3})

    assert reports == [(1, 3, "part 0"), (2, 3, "part 1"), (3, 3, "part 2")]


@in_both_eras
async def test_the_trace_of_the_client_goes_on(era: str) -> None:
    """The span of the call is a child of the client's span."""
    traces = Traces()

    async def where() -> str:
        """Say where this is."""
        return carrier()["traceparent"]

    with traces.on():
        async with client_of([where], era) as client:
            with traces.tracer.start_as_current_span("client"):
                trace_parent = text_in(await client.call_tool("where", {}, meta=cast("RequestParamsMeta", carrier())))

    [call] = traces.all("execute_tool")
    [caller] = traces.all("client")
    assert is_child(call, caller)
    assert f"{call.context.trace_id:032x}" in trace_parent  # type: ignore[union-attr]
    assert attributes(call)["gen_ai.tool.name"] == "where"


@in_both_eras
async def test_a_call_that_is_made_again_is_known_by_its_key(era: str) -> None:
    """A client that lost the answer repeats the call, and the service behind the tool works only once."""

    async def pay(amount: int) -> str:
        """Pay."""
        return f"{interrupt('Pay?')} {idempotency_key()}"

    async with client_of([pay], era, elicitation_callback=Person(*[fill_in(answer="yes")] * 3)) as client:
        meta = cast("RequestParamsMeta", {"callboard/idempotency-key": "order 7"})
        first, repeated = [text_in(await client.call_tool("pay", {"amount": 3}, meta=meta)) for _ in range(2)]
        unkeyed = text_in(await client.call_tool("pay", {"amount": 3}))

    assert first == repeated != unkeyed


@pytest.mark.parametrize("era", ERAS)
async def test_a_service_that_is_drained_lets_calls_finish_and_begins_none(era: str) -> None:
    """Calls that do not finish in time are ended; each client is told."""
    hotel = Hotel()
    results: list[types.CallToolResult] = []

    async def call(client: Client, nights: float) -> None:
        results.append(await client.call_tool("stay", {"nights": nights}))

    with anyio.fail_after(1000):
        async with service_of(ToolNode([hotel.stay]), era) as (service, client), anyio.create_task_group() as group:
            group.start_soon(call, client, 3)
            group.start_soon(call, client, 500)
            await hotel.began.wait()
            await anyio.sleep(1)
            report = await service.drain(10)
            await call(client, 1)

    finished = [result for result in results if not result.is_error]
    ended = [text_in(result) for result in results if result.is_error]
    assert [text_in(result) for result in finished] == ["3.0 nights"]
    assert (report.finished, report.ended, [result.tool for result in report.unknown]) == (1, 1, ["stay"])
    assert len(ended) == 2
    assert all("drained" in text for text in ended)
