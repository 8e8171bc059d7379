"""`CircuitBreaker(shared=...)`: all processes share one circuit, on every kind of server."""

from typing import Any

import anyio
import pytest

from callboard import CallEvent, CallPolicy, CircuitOpenError, ToolNode, observe
from callboard.middleware import CircuitBreaker
from callboard.testing import tool_call
from tests.helpers import make

from ._memory import MemoryDocuments
from ._world import LEASE, OPEN_FOR, WAIT, MemoryWorld, Process, Tool, World, noted, until

pytestmark = pytest.mark.real_clock

DOWN = OSError("it is down")


async def opened(*processes: Process[CircuitBreaker]) -> None:
    """Let each process fail in turn until the circuit is open for all."""
    for number in range(4):
        await processes[number % len(processes)].call()
    for process in processes:
        await process.until_state("open")


async def half_open(world: World, **options: Any) -> tuple[Tool, Process[CircuitBreaker], Process[CircuitBreaker]]:
    """Return a tool that is down in two processes, at the end of the time for which the circuit is open."""
    tool = Tool(DOWN)
    one, other = (tool.broken(world.store(**options)) for _ in range(2))
    await opened(one, other)
    await world.pass_time(OPEN_FOR + 0.05)
    return tool, one, other


async def test_a_circuit_that_failures_of_all_have_opened_is_open_in_all(world: World) -> None:
    """Two failures in each of two processes count as four."""
    tool = Tool(DOWN)
    one, other, third = (tool.broken(world.store()) for _ in range(3))

    await opened(one, other)

    assert await one.call() == "unavailable"
    assert await third.call() == "unavailable"  # this process has never called the tool
    assert tool.runs == 4


async def test_the_ratio_is_that_of_the_outcomes_of_all(world: World) -> None:
    """Successes in other processes count for the ratio."""
    tool = Tool(DOWN)
    # The store may still receive outcomes: nothing is decided with fewer than all ten.
    one, other = (tool.broken(world.store(), minimum=10, open_for=30.0) for _ in range(2))
    tool.error = None
    for _ in range(6):
        await one.call()
    tool.error = DOWN
    for _ in range(4):
        await other.call()
    await world.pass_time(0.1)
    assert one.shares.state("work") == other.shares.state("work") == "closed"  # 4 of 10

    await one.call()
    await other.call()

    await one.until_state("open")  # 6 of 12
    await other.until_state("open")
    assert tool.runs == 12


async def test_one_call_of_all_processes_tries_the_tool(world: World) -> None:
    """The number of half-open probes is limited for all processes, and the result is shared."""
    tool, one, other = await half_open(world)
    tool.error, tool.gate = None, anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 5)
        assert [await process.call() for process in (one, other, other)] == ["unavailable"] * 3
        tool.gate.set()

    await one.until_state("closed")
    await other.until_state("closed")
    assert await other.call() == "run 6"


async def test_a_failed_probe_opens_the_circuit_for_all(world: World) -> None:
    """The probe is the only call that runs."""
    tool, one, other = await half_open(world)

    await one.call()
    await one.until_state("open")
    await other.until_state("open")

    assert await other.call() == "unavailable"
    assert tool.runs == 5


async def test_a_probe_counts_as_long_as_its_process_lives(world: World) -> None:
    """The probe keeps its slot for as long as its process lives, however long the call takes."""
    tool, one, other = await half_open(world)
    tool.gate = anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 5)
        await world.pass_time(3 * LEASE)
        assert await other.call() == "unavailable"
        tool.gate.set()


async def test_the_probe_of_a_process_that_is_silent_comes_back_after_its_lease(world: World) -> None:
    """A killed process cannot report; otherwise the tool would never be tried again."""
    tool = Tool(DOWN)
    lost = world.store()
    dead, heir = tool.broken(lost), tool.broken(world.store())
    await opened(dead, heir)
    await world.pass_time(OPEN_FOR + 0.05)
    tool.gate = anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(dead.call)
        await until(lambda: tool.runs == 5)
        world.stand_still(lost, 3 * LEASE)
        assert await heir.call() == "unavailable"
        await world.pass_time(1.5 * LEASE)
        tool.error, tool.gate = None, None
        assert await heir.call() == "run 6"
        group.cancel_scope.cancel()


async def test_a_cancelled_probe_makes_room_for_the_next(world: World) -> None:
    """A cancelled probe has no result, and the next one need not wait for its lease."""
    tool, one, other = await half_open(world, lease=20.0)
    tool.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 5)
        group.cancel_scope.cancel()
    tool.error, tool.gate = None, None
    await world.pass_time(0.1)

    assert await other.call() == "run 6"


async def test_a_call_that_began_before_the_circuit_opened_says_nothing_about_it_now(world: World) -> None:
    """The success of an older call says nothing about the failures since then and must not close the circuit."""
    tool = Tool(DOWN)
    one, other = (tool.broken(world.store(), open_for=30.0) for _ in range(2))
    tool.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        gate, tool.gate = tool.gate, None
        await opened(other, one)
        tool.error = None
        gate.set()
    await world.pass_time(0.1)

    assert one.shares.state("work") == other.shares.state("work") == "open"


@pytest.mark.parametrize("key", ["work", None])
async def test_a_reset_is_for_all_processes(world: World, key: str | None) -> None:
    """A reset of one circuit and a reset of all circuits reach every process."""
    tool = Tool(DOWN)
    one, other = (tool.broken(world.store(), open_for=30.0) for _ in range(2))
    await opened(one, other)

    one.shares.reset(key)
    await one.until_state("closed")
    await other.until_state("closed")
    tool.error = None

    assert await other.call() == "run 5"
    assert await tool.broken(world.store(), open_for=30.0).call() == "run 6"


async def test_breakers_of_other_names_and_numbers_have_other_circuits(world: World) -> None:
    """Different circuits must not be mixed, even if a tool has the same name."""
    tool = Tool(DOWN)
    store = world.store()
    one = tool.broken(store, open_for=30.0)
    await opened(one)
    others = [
        tool.broken(store, open_for=30.0, name="other"),
        tool.broken(store, open_for=31.0),
        tool.broken(store, open_for=30.0, ratio=0.9),
    ]

    assert ["it is down" in await other.call() for other in others] == [True] * 3
    assert await tool.broken(store, open_for=30).call() == "unavailable"


async def test_each_key_has_a_circuit(world: World) -> None:
    """A failing host must not open the circuit of other hosts."""
    tool = Tool(DOWN)
    one, other = (tool.broken(world.store(), open_for=30.0, key=lambda call: call["args"]["host"]) for _ in range(2))
    for _ in range(4):
        await one.call(host="a")
    await other.until_state("open", "a")
    tool.error = None

    assert await other.call(host="a") == "unavailable"
    assert await other.call(host="b") == "run 5"


async def test_observers_of_each_process_hear_of_it_with_the_next_call(world: World) -> None:
    """Calls do not wait for the store at their end, so observers hear of the change at the next call."""
    tool = Tool(DOWN)
    one, other = (tool.broken(world.store()) for _ in range(2))
    await opened(one, other)
    events: list[CallEvent] = []
    with observe(events.append):
        await one.call()
        await other.call()
        await world.pass_time(OPEN_FOR + 0.05)
        tool.error = None
        await one.call()
        await one.until_state("closed")
        await other.until_state("closed")
        await other.call()

    assert noted(events) == [
        *("breaker_opened", "breaker_refused"),
        *("breaker_opened", "breaker_refused"),
        "breaker_half_open",
        "breaker_closed",
    ]


async def test_a_closed_circuit_costs_no_trip_before_the_body() -> None:
    """Each process knows the state of the circuit, and the store announces changes."""
    world, tool = MemoryWorld(), Tool(DOWN)
    store = world.store()
    process = tool.broken(store)
    tool.error = None
    await process.call()
    asked: list[int] = []
    tool.gate = anyio.Event()

    async with anyio.create_task_group() as group:
        store.asked.clear()
        group.start_soon(process.call)
        await until(lambda: tool.runs == 2)
        asked.append(len(store.asked))
        tool.gate.set()
    asked.append(len(store.asked))

    assert asked == [0, 1]


async def test_a_process_goes_on_with_what_it_knows_while_the_store_is_away() -> None:
    """An outage of the store must not stop calls, and an open circuit stays open."""
    world, tool = MemoryWorld(), Tool(DOWN)
    one, other = world.store(), world.store()
    knows, new = tool.broken(one, open_for=0.2), tool.broken(other, open_for=0.2)
    await opened(knows)
    one.is_away = other.is_away = True
    knows.shares._circuits.heard(None)  # type: ignore[attr-defined]

    assert await knows.call() == "unavailable"
    for _ in range(4):
        assert "it is down" in await new.call()
    assert await new.call() == "unavailable"
    await anyio.sleep(0.25)
    tool.error = None
    assert [await new.call(), await new.call()] == ["run 9", "run 10"]
    assert new.shares.state("work") == "closed"

    other.back()
    assert new.shares.state("work") == "half-open"  # the state in the store


async def test_a_server_that_has_forgotten_an_open_circuit_is_told_again() -> None:
    """A process that knows the open circuit restores it when the server is back."""
    world, tool = MemoryWorld(), Tool(DOWN)
    store = world.store()
    one, other = tool.broken(store, open_for=30.0), tool.broken(world.store(), open_for=30.0)
    await opened(one)
    world.server.texts.clear()
    world.server.marks.clear()

    store.back()

    assert await other.call() == "unavailable"


async def test_names_of_documents_say_nothing_of_keys() -> None:
    """Keys may contain text of a model, so names of documents are digests."""
    world, tool = MemoryWorld(), Tool(DOWN)
    process = tool.broken(world.store(), key=lambda call: call["args"]["host"])

    await process.call(host="secret")

    assert len(world.server.texts) == 1
    assert "secret" not in repr(world.server.texts)


async def test_a_refused_call_says_when_to_try_again() -> None:
    """The time is that of the server's clock."""
    tool = Tool(DOWN)
    store = MemoryWorld().store()
    breaker = CircuitBreaker(shared=store, minimum=1, open_for=20.0)
    node = ToolNode([make(tool.work)], middleware=[breaker], handle_tool_errors=False)
    with pytest.raises(OSError, match="down"):
        await node.ainvoke([tool_call("work", "1")])

    with pytest.raises(CircuitOpenError) as caught:
        await node.ainvoke([tool_call("work", "2")])

    assert 19 < caught.value.retry_after <= 20


async def test_a_key_that_is_no_json_is_noted_and_the_tool_has_one_circuit() -> None:
    """Other processes could not compute the same key, so the tool gets one circuit without keys."""
    tool = Tool(DOWN)
    store: MemoryDocuments = MemoryWorld().store()
    process = tool.broken(store, key=lambda _: object())
    events: list[CallEvent] = []

    with observe(events.append):
        for _ in range(5):
            await process.call()

    assert noted(events) == ["breaker_no_key"] * 5 + ["breaker_opened", "breaker_refused"]
    assert process.shares.state("work") == "open"


async def test_a_spent_budget_is_told_to_all() -> None:
    """A call that times out counts as a failure; its report is sent although the call is cancelled."""
    world, tool = MemoryWorld(), Tool(DOWN)
    tool.gate = anyio.Event()
    stores = [world.store(), world.store()]
    breakers = [CircuitBreaker(shared=store, minimum=2, open_for=30.0) for store in stores]
    nodes = [
        ToolNode([make(tool.work)], middleware=[breaker], policies={"work": CallPolicy(budget=0.1)})
        for breaker in breakers
    ]
    with anyio.fail_after(WAIT):
        for node in nodes:
            await node.ainvoke([tool_call("work", "1")])

    assert [breaker.state("work") for breaker in breakers] == ["open", "open"]
