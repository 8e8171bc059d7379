"""Load of one turn on each server: the event loop, Redis and PostgreSQL."""

import random
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import redis
from langchain_core.messages import AIMessage, HumanMessage

import callboard
from callboard import CallPolicy, Limit, SharedLimits, ToolNode, tool_call
from callboard_actors.redis import RedisLimits
from tests.agent._postgres import Server
from tests.helpers import make
from tests.server._servers import RedisServer

from ._agent import Parrot
from ._measure import CPU, Table
from ._shared import nothing, servers

_BODY, _MODEL = 0.02, 0.05
"""Average waiting times of a tool and a model in seconds."""
_LEASE = 1.5
_threads = count()
_AT_ONCE = 32
"""Concurrent turns while the cost of a turn is measured."""
_FEW, _MANY = 2, 12
"""Numbers of calls in a turn. The cost of one more call is computed from the difference."""


class SlowParrot(Parrot):
    """Slow model."""

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        await anyio.sleep(random.expovariate(1 / _MODEL))
        return self._generate(messages)


def fleet(*, turns: int) -> Table:
    """Measure the processor time of a turn on each server."""
    with servers() as started:
        costs = anyio.run(_Servers(*started).costs, turns)
    table = Table("Servers of one process", ["", "measured"])
    for name, cost in costs.items():
        table.add(f"{name}, us", cost * 1e6)
    return table


@dataclass(frozen=True, slots=True)
class _Servers:
    redis: RedisServer
    postgres: Server

    async def costs(self, turns: int) -> dict[str, float]:
        """Return the cost of a turn, from the difference between turns with few and with many calls."""
        await self._spent(turns, _MANY)  # warm-up
        few, many = [await self._spent(turns, calls) for calls in (_FEW, _MANY)]
        # A negative difference means that the machine was busy with other work.
        call = [
            max(0.0, cost_of_many - cost_of_few) / (_MANY - _FEW)
            for cost_of_few, cost_of_many in zip(few, many, strict=True)
        ]
        shared, redis_place = await self._place(turns)
        return {
            "event loop, a turn": few[0] - _FEW * call[0],
            "event loop, each call": call[0],
            "event loop, a shared place": shared,
            "Redis, a place": redis_place,
            "Redis, a sign of life": await self._beat(),
            "PostgreSQL, a turn": few[1] - _FEW * call[1],
            "PostgreSQL, each call": call[1],
        }

    async def _spent(self, turns: int, calls: int) -> list[float]:
        """Return the processor time of a turn in this process and in PostgreSQL, while other turns run.

        Models and tools wait as in production, so results arrive and are written one by one.
        """
        async with self._agent(SlowParrot(turns=1, calls=calls)) as agent:
            await _some_turns(agent, 10)
            before = CPU(), self._postgres_seconds()
            await _some_turns(agent, turns)
            after = CPU(), self._postgres_seconds()
        return [(end - start) / turns for end, start in zip(after, before, strict=True)]

    async def _place(self, turns: int) -> tuple[float, float]:
        """Return the extra cost of a shared place over a local one, here and in Redis, for many concurrent calls."""

        batch = [tool_call("nothing", f"c{n}", n=n) for n in range(_MANY)]
        with _limits(self.redis, _LEASE) as shared:
            spent = []
            for shared_limits in (None, shared):
                node = ToolNode(
                    [make(nothing)],
                    policies={"nothing": CallPolicy(limit=Limit(concurrency=100, shared=shared_limits))},
                )
                await node.ainvoke(batch)
                before = CPU(), self._redis_seconds()
                for _ in range(10 * turns):
                    await node.ainvoke(batch)
                spent.append([end - start for end, start in zip((CPU(), self._redis_seconds()), before, strict=True)])
        alone, with_redis = spent
        return max(0.0, with_redis[0] - alone[0]) / (10 * turns * _MANY), with_redis[1] / (10 * turns * _MANY)

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

    @asynccontextmanager
    async def _agent(self, model: Any) -> AsyncGenerator[Any]:
        async def look_up(query: str) -> str:
            """Wait as if for another service."""
            await anyio.sleep(random.expovariate(1 / _BODY))
            return f"found {query}"

        async with callboard.create_react_agent(
            model, ToolNode([make(look_up)]), checkpointer=self.postgres.url()
        ) as agent:
            yield agent

    def _redis_seconds(self) -> float:
        with redis.Redis(unix_socket_path=str(self.redis.socket)) as client:
            cpu_info = client.info("cpu")
        return float(cpu_info["used_cpu_user"]) + float(cpu_info["used_cpu_sys"])

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
    state = await agent.ainvoke({"messages": [HumanMessage(thread, id="question")]}, config)
    assert isinstance(state["messages"][-1], AIMessage)
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
