"""`CircuitBreaker(shared=...)`: all processes share one circuit, on every kind of server."""

from typing import Any

import anyio
import pytest

from callboard import CallEvent, CallPolicy, CircuitOpenError, StorageError, ToolNode, observe
from callboard.extend import SharedDocuments
from callboard.middleware import CircuitBreaker
from callboard.testing import tool_call
from tests.helpers import ended, make

from ._memory import MemoryDocuments
from ._world import LEASE, WAIT, MemoryWorld, World, noted, until

pytestmark = pytest.mark.real_clock

OPEN_FOR = 0.3


class Tool:
    """Tool in several processes that fails while it is told to."""

    def __init__(self) -> None:
        self.fails = True
        self.runs = 0
        self.gate: anyio.Event | None = None

    async def work(self, n: int = 0, host: str = "") -> str:
        """Work."""
        self.runs += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise OSError("it is down")
        return "done"

    def process(self, store: SharedDocuments, **options: Any) -> "Process":
        options = {"minimum": 4, "open_for": OPEN_FOR, "on": OSError, **options}
        return Process(self, CircuitBreaker(shared=store, **options))


class Process:
    """Node with a circuit breaker, which stands for one process."""

    def __init__(self, tool: Tool, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.node = ToolNode([make(tool.work)], middleware=[breaker], handle_tool_errors=True)

    async def call(self, **args: Any) -> Any:
        """Return how a call ends."""
        with anyio.fail_after(WAIT):
            result = await self.node.ainvoke([tool_call("work", "1", **args)])
        return ended(result["messages"][0])

    async def until_state(self, state: str, key: str = "work") -> None:
        await until(lambda: self.breaker.state(key) == state)


async def opened(*processes: Process) -> None:
    """Let each process fail in turn until the circuit is open for all."""
    for number in range(4):
        await processes[number % len(processes)].call()
    for process in processes:
        await process.until_state("open")


async def test_a_circuit_that_failures_of_all_have_opened_is_open_in_all(world: World) -> None:
    """Two failures in each of two processes count as four."""
    tool = Tool()
    one, other, third = (tool.process(world.store()) for _ in range(3))

    await opened(one, other)

    assert await one.call() == "unavailable"
    assert await third.call() == "unavailable"  # this process has never called the tool
    assert tool.runs == 4


async def test_the_ratio_is_that_of_the_outcomes_of_all(world: World) -> None:
    """Successes in other processes count for the ratio."""
    tool = Tool()
    # The store may still receive outcomes: nothing is decided with fewer than all ten.
    one, other = (tool.process(world.store(), minimum=10, open_for=30.0) for _ in range(2))
    tool.fails = False
    for _ in range(6):
        await one.call()
    tool.fails = True
    for _ in range(4):
        await other.call()
    await world.pass_time(0.1)
    assert one.breaker.state("work") == other.breaker.state("work") == "closed"  # 4 of 10

    await one.call()
    await other.call()

    await one.until_state("open")  # 6 of 12
    await other.until_state("open")
    assert tool.runs == 12


async def test_one_call_of_all_processes_tries_the_tool(world: World) -> None:
    """The number of half-open probes is limited for all processes, and the result is shared."""
    tool = Tool()
    one, other = (tool.process(world.store(), open_for=OPEN_FOR) for _ in range(2))
    await opened(one, other)
    await world.pass_time(OPEN_FOR + 0.05)
    tool.fails, tool.gate = False, anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 5)
        assert [await process.call() for process in (one, other, other)] == ["unavailable"] * 3
        tool.gate.set()

    await one.until_state("closed")
    await other.until_state("closed")
    assert await other.call() is None
    assert tool.runs == 6


async def test_a_failed_probe_opens_the_circuit_for_all(world: World) -> None:
    """The probe is the only call that runs."""
    tool = Tool()
    one, other = (tool.process(world.store()) for _ in range(2))
    await opened(one, other)
    await world.pass_time(OPEN_FOR + 0.05)

    await one.call()
    await one.until_state("open")
    await other.until_state("open")

    assert await other.call() == "unavailable"
    assert tool.runs == 5


async def test_a_probe_counts_as_long_as_its_process_lives(world: World) -> None:
    """The probe keeps its slot for as long as its process lives, however long the call takes."""
    tool = Tool()
    one, other = (tool.process(world.store()) for _ in range(2))
    await opened(one, other)
    await world.pass_time(OPEN_FOR + 0.05)
    tool.gate = anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 5)
        await world.pass_time(3 * LEASE)
        assert await other.call() == "unavailable"
        tool.gate.set()


async def test_the_probe_of_a_process_that_is_silent_comes_back_after_its_lease(world: World) -> None:
    """A killed process cannot report; otherwise the tool would never be tried again."""
    tool = Tool()
    lost = world.store()
    dead, heir = tool.process(lost), tool.process(world.store())
    await opened(dead, heir)
    await world.pass_time(OPEN_FOR + 0.05)
    tool.gate = anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(dead.call)
        await until(lambda: tool.runs == 5)
        world.stand_still(lost, 3 * LEASE)
        assert await heir.call() == "unavailable"
        await world.pass_time(1.5 * LEASE)
        tool.fails, tool.gate = False, None
        assert await heir.call() is None
        group.cancel_scope.cancel()

    assert tool.runs == 6


async def test_a_cancelled_probe_makes_room_for_the_next(world: World) -> None:
    """A cancelled probe has no result, and the next one need not wait for its lease."""
    tool = Tool()
    one, other = (tool.process(world.store(lease=20.0)) for _ in range(2))
    await opened(one, other)
    await world.pass_time(OPEN_FOR + 0.05)
    tool.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 5)
        group.cancel_scope.cancel()
    tool.fails, tool.gate = False, None
    await world.pass_time(0.1)

    assert await other.call() is None


async def test_a_call_that_began_before_the_circuit_opened_says_nothing_about_it_now(world: World) -> None:
    """The success of an older call says nothing about the failures since then and must not close the circuit."""
    tool = Tool()
    one, other = (tool.process(world.store(), open_for=30.0) for _ in range(2))
    tool.gate = anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(one.call)
        await until(lambda: tool.runs == 1)
        gate, tool.gate = tool.gate, None
        await opened(other, one)
        tool.fails = False
        gate.set()
    await world.pass_time(0.1)

    assert one.breaker.state("work") == other.breaker.state("work") == "open"


@pytest.mark.parametrize("key", ["work", None])
async def test_a_reset_is_for_all_processes(world: World, key: str | None) -> None:
    """A reset of one circuit and a reset of all circuits reach every process."""
    tool = Tool()
    one, other = (tool.process(world.store(), open_for=30.0) for _ in range(2))
    await opened(one, other)

    one.breaker.reset(key)
    await one.until_state("closed")
    await other.until_state("closed")
    tool.fails = False

    assert await other.call() is None
    assert await tool.process(world.store(), open_for=30.0).call() is None


async def test_breakers_of_other_names_and_numbers_have_other_circuits(world: World) -> None:
    """Different circuits must not be mixed, even if a tool has the same name."""
    tool = Tool()
    store = world.store()
    one = tool.process(store, open_for=30.0)
    await opened(one)
    others = [
        tool.process(store, open_for=30.0, name="other"),
        tool.process(store, open_for=31.0),
        tool.process(store, open_for=30.0, ratio=0.9),
    ]

    assert [await other.call() for other in others] == [None] * 3
    assert await tool.process(store, open_for=30).call() == "unavailable"


async def test_each_key_has_a_circuit(world: World) -> None:
    """A failing host must not open the circuit of other hosts."""
    tool = Tool()
    one, other = (tool.process(world.store(), open_for=30.0, key=lambda call: call["args"]["host"]) for _ in range(2))
    for _ in range(4):
        await one.call(host="a")
    await other.until_state("open", "a")
    tool.fails = False

    assert await other.call(host="a") == "unavailable"
    assert await other.call(host="b") is None


async def test_observers_of_each_process_hear_of_it_with_the_next_call(world: World) -> None:
    """Calls do not wait for the store at their end, so observers hear of the change at the next call."""
    tool = Tool()
    one, other = (tool.process(world.store()) for _ in range(2))
    await opened(one, other)
    events: list[CallEvent] = []
    with observe(events.append):
        await one.call()
        await other.call()
        await world.pass_time(OPEN_FOR + 0.05)
        tool.fails = False
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
    world, tool = MemoryWorld(), Tool()
    store = world.store()
    process = tool.process(store)
    tool.fails = False
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
    world, tool = MemoryWorld(), Tool()
    one, other = world.store(), world.store()
    knows, new = tool.process(one, open_for=0.2), tool.process(other, open_for=0.2)
    await opened(knows)
    one.is_away = other.is_away = True
    knows.breaker._circuits.heard(None)  # type: ignore[attr-defined]

    assert await knows.call() == "unavailable"
    for _ in range(4):
        assert await new.call() is None  # an error of the tool
    assert await new.call() == "unavailable"
    await anyio.sleep(0.25)
    tool.fails = False
    assert [await new.call(), await new.call()] == [None, None]
    assert new.breaker.state("work") == "closed"

    other.back()
    assert new.breaker.state("work") == "half-open"  # the state in the store


async def test_calls_are_refused_by_choice_while_the_store_is_away() -> None:
    """By option, calls are refused while the state is unknown."""
    tool = Tool()
    store = MemoryWorld().store(away="refuse")
    store.is_away = True

    assert await tool.process(store).call() == "rejected"
    assert tool.runs == 0


async def test_a_store_that_cannot_be_used_is_an_error_of_the_call() -> None:
    """A wrong password is permanent, so the breaker does not ignore it."""
    tool = Tool()
    store = MemoryWorld().store()
    store.failure = StorageError("redis://host", "refuses us.")
    node = ToolNode([make(tool.work)], middleware=[CircuitBreaker(shared=store)])

    with pytest.raises(StorageError, match="refuses us"):
        await node.ainvoke([tool_call("work", "1")])


async def test_a_server_that_has_forgotten_an_open_circuit_is_told_again() -> None:
    """A process that knows the open circuit restores it when the server is back."""
    world, tool = MemoryWorld(), Tool()
    store = world.store()
    one, other = tool.process(store, open_for=30.0), tool.process(world.store(), open_for=30.0)
    await opened(one)
    world.server.texts.clear()
    world.server.marks.clear()

    store.back()

    assert await other.call() == "unavailable"


async def test_names_of_documents_say_nothing_of_keys() -> None:
    """Keys may contain text of a model, so names of documents are digests."""
    world, tool = MemoryWorld(), Tool()
    process = tool.process(world.store(), key=lambda call: call["args"]["host"])

    await process.call(host="secret")

    assert len(world.server.texts) == 1
    assert "secret" not in repr(world.server.texts)


async def test_a_refused_call_says_when_to_try_again() -> None:
    """The time is that of the server's clock."""
    tool = Tool()
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
    tool = Tool()
    store: MemoryDocuments = MemoryWorld().store()
    process = tool.process(store, key=lambda _: object())
    events: list[CallEvent] = []

    with observe(events.append):
        for _ in range(5):
            await process.call()

    assert noted(events) == ["breaker_no_key"] * 5 + ["breaker_opened", "breaker_refused"]
    assert process.breaker.state("work") == "open"


async def test_a_spent_budget_is_told_to_all() -> None:
    """A call that times out counts as a failure; its report is sent although the call is cancelled."""
    world, tool = MemoryWorld(), Tool()
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
