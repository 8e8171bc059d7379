"""Cost of an actor: an ask, a tool call that an actor handles, and the memory of an idle actor."""

import gc
from collections.abc import Callable
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from callboard import Actor, Supervisor, ToolNode, child, handler, running

from ._contestants import LOOK_UP, direct, look_up, queries
from ._measure import BACKENDS, CPU, Contestant, Table, batches, kilobytes, measure_in_turns, repeats


class Desk(Actor):
    """Actor with the same tool as a handler."""

    @handler
    async def look_up(self, query: str, limit: int = 10) -> str:
        """Look something up."""
        return await look_up(query, limit)


def actors(*, asks: int, sizes: tuple[int, ...], idle: int, repetitions: int) -> Table:
    """Compare an ask with memory streams, and an actor's tool call with a plain tool's, and measure idle memory."""
    table = Table("Actors", ["", *BACKENDS])
    trips = {
        f"{name}, {backend}": _whole(measure, backend, asks)
        for backend in BACKENDS
        for name, measure in (("round trip", _round_trips), ("ask", _asks))
    }
    costs = measure_in_turns(trips, repetitions)
    for name in ("round trip", "ask"):
        table.add(f"{name}, us", *(costs[f"{name}, {backend}"] * 1e6 for backend in BACKENDS))
    ratios = [costs.ratio(f"ask, {backend}", f"round trip, {backend}") for backend in BACKENDS]
    table.add("ask : round trip", *ratios)
    table.promise("an ask : round trip", 1.0, ratios)
    for size in sizes:
        _add_calls(table, size, repetitions)
    weights = [kilobytes(_idle, idle, backend) for backend in BACKENDS]
    table.add("idle actor, KB", *weights)
    table.promise("an idle actor, 10 KB", 10, weights)
    return table


def _add_calls(table: Table, size: int, repetitions: int) -> None:
    """Measure a batch of calls of a plain tool, and the same batch through a live actor."""
    contestants: dict[str, Contestant] = {}
    for backend in BACKENDS:
        contestants[f"plain, {backend}"] = batches(backend, direct(ToolNode([LOOK_UP]), queries(size)), size)
        contestants[f"actor, {backend}"] = _whole(_calls(size), backend, repeats(size))
    costs = measure_in_turns(contestants, repetitions)
    for name in ("plain", "actor"):
        table.add(
            f"{size} calls, {name}, us", *(costs[f"{name}, {event_loop}"] / size * 1e6 for event_loop in BACKENDS)
        )
    ratios = [costs.ratio(f"actor, {event_loop}", f"plain, {event_loop}") for event_loop in BACKENDS]
    table.add(f"{size} calls, actor : plain", *ratios)
    if size == 1:
        # Of a large batch, the ratio is only shown: a plain call of it costs a third of one alone, and a message to an
        # actor, with a cancel scope of its own, costs as much as before.
        table.promise("a tool call of an actor, 1.5 x one of a plain tool", 1.5, ratios)


Timed = Callable[[int], Any]
"""Function that prepares and then does something this many times, and returns the seconds per repetition."""


def _whole(measure: Timed, backend: str, times: int) -> Contestant:
    return lambda: anyio.run(measure, times, backend=backend)


async def _seconds(action: Callable[[], Any], times: int) -> float:
    """Return the average seconds in the running loop, after one run as warm-up."""
    await action()
    gc.collect()
    began = CPU()
    for _ in range(times):
        await action()
    return (CPU() - began) / times


async def _round_trips(times: int) -> float:
    ask, question_stream = anyio.create_memory_object_stream[tuple[str, MemoryObjectSendStream[str]]](100)
    answer, answered = anyio.create_memory_object_stream[str](1)

    async def serve(questions: MemoryObjectReceiveStream[tuple[str, MemoryObjectSendStream[str]]]) -> None:
        async for query, to in questions:
            await to.send(await look_up(query))

    async def trip() -> None:
        await ask.send(("tea", answer))
        await answered.receive()

    async with anyio.create_task_group() as group, ask, question_stream, answer, answered:
        group.start_soon(serve, question_stream)
        seconds = await _seconds(trip, times)
        group.cancel_scope.cancel()
    return seconds


async def _asks(times: int) -> float:
    async with running(Desk) as desk:
        return await _seconds(lambda: desk.look_up("tea"), times)


def _calls(size: int) -> Timed:
    async def calls(times: int) -> float:
        async with ToolNode([Desk()]) as node:
            return await _seconds(direct(node, queries(size)), times)

    return calls


def _idle(count: int) -> Supervisor:
    return Supervisor([child(Desk, name=str(number)) for number in range(count)])
