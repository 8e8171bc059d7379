"""Load of one turn on each server of a fleet, and the model of fleets compared with a real fleet of one."""

import gc
import random
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import redis
from langchain_core.messages import AIMessage, HumanMessage

import callboard
from callboard import CallPolicy, Limit, SharedLimits, ToolNode
from callboard.testing import tool_call
from callboard_actors.redis import RedisLimits
from tests.agent._postgres import Server
from tests.helpers import make
from tests.scale._model import Costs, Fleet, Report, simulate
from tests.server._servers import RedisServer

from ._agent import Parrot
from ._measure import CPU, WALL, Table
from ._shared import nothing, servers

_BODY, _MODEL = 0.02, 0.05
"""Average waiting times of a tool and a model in seconds, where the model of fleets is compared with measurements."""
_LEASE = 1.5
_threads = count()
_AT_ONCE = 32
"""Concurrent turns while the cost of a turn is measured."""
_FEW, _MANY = 2, 12
"""Numbers of calls in a turn. The cost of one more call is computed from the difference."""


class SlowParrot(Parrot):
    """Slow model that records how long it waited."""

    waited: dict[str, float]

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        seconds = random.expovariate(1 / _MODEL)
        thread = messages[0].content
        self.waited[thread] = self.waited.get(thread, 0.0) + seconds
        await anyio.sleep(seconds)
        return self._generate(messages)


def fleet(*, turns: int, rates: tuple[float, ...], seconds: float) -> Table:
    """Measure the processor time of a turn. Then compare measured and simulated turns under load.

    Rates are shares of what one event loop can do.
    """
    with servers() as started:
        fleet_of_one = _Servers(*started)
        costs = anyio.run(fleet_of_one.costs, turns)
        table = Table("A fleet of one", ["", "measured", "simulated"])
        for name, cost in (
            ("event loop, a turn", costs.turn),
            ("event loop, each call", costs.call),
            ("event loop, a shared place", costs.shared),
            ("Redis, a place", costs.place),
            ("Redis, a sign of life", costs.beat),
            ("PostgreSQL, a turn", costs.write),
            ("PostgreSQL, each call", costs.write_call),
        ):
            table.add(f"{name}, us", cost * 1e6, None)
        for share in rates:
            one = Fleet(nodes=1, calls=1.0, limited=1.0, limits=1, body=_BODY, model=_MODEL, processors=2, trip=1e-4)
            one = replace(one, calls=share / one.demands(costs)["event loops"])
            measured = anyio.run(fleet_of_one.work, one, seconds)
            simulated = simulate(one, costs, seconds=10 * seconds, warm_up=2.0)
            title = f"{one.turns:.0f} turns a second, {share:.0%} of an event loop"
            table.add(f"{title}: in use", *(found.in_use["event loops"] for found in (measured, simulated)))
            for name, part in (("p50", 0.5), ("p99", 0.99)):
                table.add(f"{title}: overhead {name}, ms", *(r.quantile(part) * 1e3 for r in (measured, simulated)))
    return table


@dataclass(frozen=True, slots=True)
class _Servers:
    redis: RedisServer
    postgres: Server

    async def costs(self, turns: int) -> Costs:
        """Return the cost of a turn, from the difference between turns with few and with many calls."""
        await self._spent(turns, _MANY)  # warm-up
        few, many = [await self._spent(turns, calls) for calls in (_FEW, _MANY)]
        # A negative difference means that the machine was busy with other work.
        call = [max(0.0, more - less) / (_MANY - _FEW) for less, more in zip(few, many, strict=True)]
        shared, place = await self._place(turns)
        return Costs(
            turn=few[0] - _FEW * call[0],
            call=call[0],
            shared=shared,
            place=place,
            beat=await self._beat(),
            write=few[1] - _FEW * call[1],
            write_call=call[1],
        )

    async def _spent(self, turns: int, calls: int) -> list[float]:
        """Return the processor time of a turn in this process and in PostgreSQL, while other turns run.

        Models and tools wait as in production, so results arrive and are written one by one.
        """
        async with self._agent(SlowParrot(turns=1, calls=calls, waited={}), body=_BODY, bodies={}) as agent:
            await _some_turns(agent, 10)
            before = CPU(), self._postgres_seconds()
            await _some_turns(agent, turns)
            after = CPU(), self._postgres_seconds()
        return [(one - other) / turns for one, other in zip(after, before, strict=True)]

    async def _place(self, turns: int) -> tuple[float, float]:
        """Return the extra cost of a shared place over a local one, here and in Redis, for many concurrent calls."""

        batch = [tool_call("nothing", f"c{n}", n=n) for n in range(_MANY)]
        with _limits(self.redis, _LEASE) as shared:
            spent = []
            for where in (None, shared):
                node = ToolNode(
                    [make(nothing)], policies={"nothing": CallPolicy(limit=Limit(concurrency=100, shared=where))}
                )
                await node.ainvoke(batch)
                before = CPU(), self._redis_seconds()
                for _ in range(10 * turns):
                    await node.ainvoke(batch)
                spent.append([one - other for one, other in zip((CPU(), self._redis_seconds()), before, strict=True)])
        alone, both = spent
        return max(0.0, both[0] - alone[0]) / (10 * turns * _MANY), both[1] / (10 * turns * _MANY)

    async def _beat(self) -> float:
        """Return Redis's seconds for one lease renewal, while a place is held and nothing else is requested."""
        seconds, lease, spent = 4.0, 0.3, []

        async def held(n: int) -> int:
            """Keep the place."""
            await anyio.sleep_forever()
            return n

        with _limits(self.redis, lease) as shared:
            for calls in (0, 1):
                node = ToolNode([make(held)], policies={"held": CallPolicy(limit=Limit(concurrency=1, shared=shared))})
                async with anyio.create_task_group() as group:
                    if calls:
                        group.start_soon(node.ainvoke, [tool_call("held", n=0)])
                    await anyio.sleep(2 * lease)
                    before = self._redis_seconds()
                    await anyio.sleep(seconds)
                    spent.append(self._redis_seconds() - before)
                    group.cancel_scope.cancel()
        return max(0.0, spent[1] - spent[0]) / (seconds * 3 / lease)

    async def work(self, fleet: Fleet, seconds: float) -> Report:
        """Start turns at their arrival times, even if earlier turns still run, like `simulate`."""
        model = SlowParrot(turns=1, calls=fleet.calls_a_turn, waited={})
        bodies: dict[str, float] = {}
        overhead: list[float] = []

        async def turn() -> None:
            began = WALL()
            thread = await _turn(agent)
            overhead.append(WALL() - began - model.waited.pop(thread) - bodies.pop(thread))

        with _limits(self.redis, _LEASE) as shared:
            async with self._agent(model, shared, body=_BODY, bodies=bodies) as agent:
                await _turn(agent)
                gc.collect()
                gc.freeze()  # else a collection of all imported objects is p99
                began, cpu = WALL(), CPU()
                async with anyio.create_task_group() as group:
                    due = began
                    while due < began + seconds:
                        due += random.expovariate(fleet.turns)
                        await anyio.sleep(max(0.0, due - WALL()))
                        group.start_soon(turn)
                    in_use = (CPU() - cpu) / (WALL() - began)
        return Report(turns=len(overhead), overhead=overhead, in_use={"event loops": in_use}, depth={})

    @asynccontextmanager
    async def _agent(
        self,
        model: Any,
        shared: SharedLimits | None = None,
        *,
        body: float = 0.0,
        bodies: dict[str, float] | None = None,
    ) -> AsyncGenerator[Any]:
        async def look_up(query: str, config: callboard.ToolRuntime) -> str:
            """Wait as if for another service."""
            seconds = random.expovariate(1 / body) if body else 0.0
            if bodies is not None:
                thread = config.state["messages"][0].content
                bodies[thread] = max(bodies.get(thread, 0.0), seconds)
            await anyio.sleep(seconds)
            return f"found {query}"

        limit = None if shared is None else CallPolicy(limit=Limit(concurrency=10_000, shared=shared))
        node = ToolNode([make(look_up)], policies={} if limit is None else {"look_up": limit})
        async with callboard.create_react_agent(model, node, checkpointer=self.postgres.url()) as agent:
            yield agent

    def _redis_seconds(self) -> float:
        with redis.Redis(unix_socket_path=str(self.redis.socket)) as client:
            found = client.info("cpu")
        return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])

    def _postgres_seconds(self) -> float:
        """Return the processor time of all live PostgreSQL processes. A pool keeps its connections meanwhile."""
        [main] = [int(line) for line in (self.postgres.directory / "data" / "postmaster.pid").read_text().split()[:1]]
        below = [
            path
            for path in Path("/proc").iterdir()
            if (path.name.isdigit() and _parent(path) == main) or path.name == str(main)
        ]
        return sum(int((path / "schedstat").read_text().split()[0]) for path in below) / 1e9


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


async def _turn(agent: Any) -> str:
    """Run a turn in a new thread, because an old thread already has its answer, and return the thread."""
    thread = f"thread {next(_threads)}"
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 50}
    found = await agent.ainvoke({"messages": [HumanMessage(thread, id="question")]}, config)
    assert isinstance(found["messages"][-1], AIMessage)
    return thread


async def _some_turns(agent: Any, turns: int) -> None:
    async def some() -> None:
        for _ in range(max(1, turns // _AT_ONCE)):
            await _turn(agent)

    async with anyio.create_task_group() as group:
        for _ in range(_AT_ONCE):
            group.start_soon(some)


@contextmanager
def _limits(server: RedisServer, lease: float) -> Generator[SharedLimits]:
    limits = RedisLimits(server.url, lease=lease)
    try:
        yield limits
    finally:
        limits.close()
