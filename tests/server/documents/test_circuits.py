"""`CircuitBreaker(shared=...)`: a circuit that is open in one process is open in all, and nothing else is shared."""

import anyio
import pytest

from callboard import CallEvent, CallPolicy, CircuitOpenError, ToolNode, observe
from callboard.middleware import CircuitBreaker
from callboard.testing import tool_call
from tests.helpers import make

from ._memory import MemoryDocuments
from ._world import OPEN_FOR, MemoryWorld, Process, Tool, noted

DOWN = OSError("it is down")


async def opened(process: Process[CircuitBreaker], **args: str) -> None:
    """Let the calls of a process fail until its circuit is open."""
    for _ in range(2):
        await process.call(**args)
    assert process.shares.state(args.get("host", "work")) == "open"


async def test_a_circuit_that_one_process_has_opened_is_open_in_all() -> None:
    """A process asks the store with its first call, and after that once in a second."""
    world, tool = MemoryWorld(), Tool(DOWN)
    one, other, third = (tool.broken(world.store()) for _ in range(3))
    await other.call()
    await opened(one)

    assert await third.call() == "unavailable"  # this process has never called the tool
    await anyio.sleep(1)
    assert await other.call() == "unavailable"
    assert tool.runs == 3


async def test_it_is_open_in_all_until_the_same_time_and_each_then_tries_the_tool() -> None:
    """Probes are not shared: each process finds out by itself whether the tool works again."""
    world, tool = MemoryWorld(), Tool(DOWN)
    one, other = (tool.broken(world.store()) for _ in range(2))
    await opened(one)
    await anyio.sleep(10)
    assert await other.call() == "unavailable"
    await anyio.sleep(OPEN_FOR - 10)
    assert one.shares.state("work") == other.shares.state("work") == "half-open"
    tool.error, tool.gate = None, anyio.Event()

    async with anyio.create_task_group() as group:
        for process in (one, other):
            group.start_soon(process.call)
        await anyio.sleep(1)
        assert [await process.call() for process in (one, other)] == ["unavailable"] * 2
        tool.gate.set()

    assert tool.runs == 4
    assert [await process.call() for process in (one, other)] == ["run 5", "run 6"]


async def test_a_failed_probe_opens_the_circuit_in_all() -> None:
    """The process that tried the tool first saves the others the attempt; a probe that still runs does not count."""
    world, tool = MemoryWorld(), Tool(DOWN)
    one, other, third = (tool.broken(world.store()) for _ in range(3))
    await opened(one)
    await other.call()
    await third.call()
    await anyio.sleep(OPEN_FOR)
    slow = tool.gate = anyio.Event()

    async with anyio.create_task_group() as group:
        group.start_soon(third.call)
        await anyio.sleep(1)
        tool.gate = None
        await one.call()
        assert await other.call() == "unavailable"
        assert await third.call() == "unavailable"
        tool.error = None
        slow.set()

    assert tool.runs == 4
    assert third.shares.state("work") == "open"


async def test_failures_are_counted_in_each_process() -> None:
    """Two processes with one failure each have not failed twice."""
    world, tool = MemoryWorld(), Tool(DOWN)
    processes = [tool.broken(world.store()) for _ in range(2)]
    for process in processes:
        await process.call()

    assert [process.shares.state("work") for process in processes] == ["closed"] * 2


@pytest.mark.parametrize("key", ["work", None])
async def test_a_reset_ends_the_time_for_which_other_processes_refuse(key: str | None) -> None:
    """Here the circuit is closed; elsewhere the next call tries the tool. A new process starts with a closed one."""
    world, tool = MemoryWorld(), Tool(DOWN)
    one, other = (tool.broken(world.store()) for _ in range(2))
    await opened(one)
    assert await other.call() == "unavailable"

    one.shares.reset(key)
    assert one.shares.state("work") == "closed"
    await anyio.sleep(1)
    tool.error = None
    events: list[CallEvent] = []
    with observe(events.append):
        assert await other.call() == "run 3"
    assert noted(events) == ["breaker_half_open", "breaker_closed"]
    assert await tool.broken(world.store()).call() == "run 4"
    assert await one.call() == "run 5"


async def test_breakers_of_other_names_and_numbers_and_keys_have_other_circuits() -> None:
    """Different circuits must not be mixed, even if a tool has the same name."""
    world, tool = MemoryWorld(), Tool(DOWN)
    store = world.store()
    await opened(tool.broken(store))
    others = [tool.broken(store, name="other"), tool.broken(store, open_for=31.0), tool.broken(store, ratio=0.9)]

    assert ["it is down" in await other.call() for other in others] == [True] * 3
    assert await tool.broken(store, open_for=30).call() == "unavailable"

    one, other = (tool.broken(world.store(), name="hosts", key=lambda call: call["args"]["host"]) for _ in range(2))
    await opened(one, host="secret")
    assert await other.call(host="secret") == "unavailable"
    assert "it is down" in await other.call(host="b")
    assert "secret" not in repr(world.server.texts)  # keys may contain text of a model


async def test_observers_of_each_process_hear_of_it() -> None:
    """A process that follows another one says so with the call that finds the open circuit."""
    world, tool = MemoryWorld(), Tool(DOWN)
    one, other = (tool.broken(world.store()) for _ in range(2))
    events: list[CallEvent] = []
    with observe(events.append):
        await opened(one)
        await other.call()
        await other.call()

    assert noted(events) == ["breaker_opened", "breaker_opened", "breaker_refused", "breaker_refused"]


async def test_calls_ask_the_store_once_in_a_second() -> None:
    """Calls in between are decided by what the process knows; a success is not reported."""
    world, tool = MemoryWorld(), Tool()
    store = world.store()
    process = tool.broken(store)
    for _ in range(5):
        await process.call()
    assert len(store.asked) == 1

    await anyio.sleep(1)
    await process.call()
    assert len(store.asked) == 2


async def test_a_process_goes_on_with_what_it_knows_while_the_store_is_away() -> None:
    """An outage of the store must not stop calls, and an open circuit stays open."""
    world, tool = MemoryWorld(), Tool(DOWN)
    one, other = world.store(), world.store()
    knows, new = tool.broken(one), tool.broken(other)
    await opened(knows)
    one.is_away = other.is_away = True
    await anyio.sleep(2)

    assert await knows.call() == "unavailable"
    await opened(new)
    await anyio.sleep(OPEN_FOR)
    for store in (one, other):
        store.back()
    tool.error = None
    # What opened during the outage is not reported after it: the circuit would stay open for too long elsewhere.
    assert await tool.broken(world.store()).call() == "run 5"
    assert [await process.call() for process in (knows, new)] == ["run 6", "run 7"]


async def test_a_circuit_that_opened_while_the_store_was_away_stays_open_here_for_its_time() -> None:
    """After the outage the store has no document of it, which says nothing about the tool."""
    world, tool = MemoryWorld(), Tool(DOWN)
    store = world.store()
    process = tool.broken(store)
    store.is_away = True
    await opened(process)
    store.back()
    await anyio.sleep(2)

    assert await process.call() == "unavailable"
    assert tool.runs == 2
    await anyio.sleep(OPEN_FOR)
    await process.call()
    assert tool.runs == 3


async def test_an_open_circuit_that_the_server_has_forgotten_is_half_open() -> None:
    """The server's memory may be lost; one call tries the tool then."""
    world, tool = MemoryWorld(), Tool(DOWN)
    process = tool.broken(world.store())
    await opened(process)
    world.server.texts.clear()
    world.server.marks.clear()
    await anyio.sleep(1)

    await process.call()

    assert tool.runs == 3
    assert await tool.broken(world.store()).call() == "unavailable"


async def test_a_refused_call_says_when_to_try_again() -> None:
    """The time is that until which all processes refuse calls."""
    world, tool = MemoryWorld(), Tool(DOWN)
    await opened(tool.broken(world.store()))
    await anyio.sleep(12)
    breaker = CircuitBreaker(shared=world.store(), minimum=2, open_for=OPEN_FOR)
    node = ToolNode([make(tool.work)], middleware=[breaker], handle_tool_errors=False)

    with pytest.raises(CircuitOpenError) as caught:
        await node.ainvoke([tool_call("work", "2")])

    assert caught.value.retry_after == pytest.approx(18, abs=0.2)


async def test_a_key_that_is_no_json_is_noted_and_the_tool_has_one_circuit() -> None:
    """Other processes could not compute the same key, so the tool gets one circuit without keys."""
    tool = Tool(DOWN)
    store: MemoryDocuments = MemoryWorld().store()
    process = tool.broken(store, key=lambda _: object())
    events: list[CallEvent] = []

    with observe(events.append):
        for _ in range(3):
            await process.call()

    assert noted(events) == [*["breaker_no_key"] * 2, "breaker_opened", "breaker_no_key", "breaker_refused"]
    assert process.shares.state("work") == "open"


async def test_a_spent_budget_is_told_to_all() -> None:
    """A call that times out counts as a failure; the store is told although the call is cancelled."""
    world, tool = MemoryWorld(), Tool(DOWN)
    tool.gate = anyio.Event()
    breaker = CircuitBreaker(shared=world.store(), minimum=2, open_for=OPEN_FOR, on=OSError)
    node = ToolNode([make(tool.work)], middleware=[breaker], policies={"work": CallPolicy(budget=0.1)})
    for _ in range(2):
        await node.ainvoke([tool_call("work", "1")])

    assert await tool.broken(world.store()).call() == "unavailable"
