"""Cost of a body on Ray beside Ray's own async actor: `unshare --net python -m tests.ray.measure`.

The cluster has two nodes on this machine. All contestants of a table take turns in the same run.
"""

import argparse
import os
import sys
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import anyio

import tests.ray._tools as tools  # absolute import, because Ray workers import the module by this name
from callboard.extend import Body
from callboard_actors.ray import RayEngine
from tests.benchmark._measure import BACKENDS, WALL, Budget, Table

from .__main__ import running_cluster

_CONCURRENCY = 100
_SECONDS = 0.05
_ASYNC_BODY = Body(fn=tools.pause, args=(0.0,), title="pause")
_SYNC_BODY = Body(fn=tools.crunch, args=(1,), title="crunch")


class _OwnActor:
    """Ray's own async actor with the same function."""

    async def pause(self, seconds: float) -> int:
        return await tools.pause(seconds)


def _own_actors(count: int) -> list[Any]:
    import ray

    make: Any = ray.remote(_OwnActor)
    return [make.options(max_concurrency=_CONCURRENCY, num_cpus=0.5).remote() for _ in range(count)]


def _engine(**options: Any) -> RayEngine:
    return RayEngine(os.environ["CALLBOARD_TEST_RAY"], **{"cpus": 0.5, "concurrency": _CONCURRENCY, **options})


def single_calls(count: int) -> Table:
    """Measure calls one after the other."""
    table = Table("A body on Ray", ["p50, us", *BACKENDS])
    rows = [anyio.run(_single_calls, count, backend=backend) for backend in BACKENDS]
    for name in rows[0]:
        table.add(name, *(row[name] for row in rows))
    for name in ("an async body", "a sync body"):
        ratios = [row[name] / row["Ray's own async actor"] for row in rows]
        table.add(f"{name} : Ray's own async actor", *ratios)
        table.promise(f"{name} on Ray : Ray's own async actor", 1.5, ratios)
    return table


async def _single_calls(count: int) -> dict[str, float]:
    import ray

    async with _engine(workers=1) as engine:
        [actor] = _own_actors(1)

        async def own() -> None:
            reference = actor.pause.remote(0.0)
            if _is_asyncio():
                await reference
            else:  # Ray has no way to await it on trio
                ray.get(reference)

        works: dict[str, Callable[[], Awaitable[object]]] = {
            "Ray's own async actor": own,
            "an async body": lambda: engine.run_body(_ASYNC_BODY),
            "a sync body": lambda: engine.run_body(_SYNC_BODY),
        }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(count + 20):
            for name, call in works.items():
                began = WALL()
                await call()
                if turn >= 20:  # the first turns are a warm-up
                    seconds[name].append(WALL() - began)
        return {name: median(values) * 1e6 for name, values in seconds.items()}


def _is_asyncio() -> bool:
    import sniffio

    return sniffio.current_async_library() == "asyncio"


def many_bodies(count: int, cluster: Any) -> Table:
    """Measure waiting bodies at once, on one node and on two."""
    table = Table(f"{count:,} async bodies of {_SECONDS * 1e3:g} ms", ["", "one node", "two nodes"])
    runs = [anyio.run(_many_bodies, count, 2)]
    node = cluster.add_node(num_cpus=4, node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)
    try:
        runs.append(anyio.run(_many_bodies, count, 4))
    finally:
        cluster.remove_node(node)
    for name in runs[0]:
        table.add(name, *(run[name] for run in runs))
    ratios = [run["bodies of RayEngine, s"] / max(run["rounds, s"], run["empty calls of Ray's own, s"]) for run in runs]
    table.add("bodies : the ideal, which is the longer one of the first two", *ratios)
    table.budgets.append(Budget("many bodies on two nodes : the ideal", 2, ratios[1]))
    return table


async def _many_bodies(count: int, workers: int) -> dict[str, float]:
    async with _engine(workers=workers) as engine:
        actors = _own_actors(workers)
        slots = anyio.Semaphore(workers * _CONCURRENCY)

        async def own(number: int, seconds: float) -> None:
            async with slots:
                await actors[number % workers].pause.remote(seconds)

        async def ours(_: int, seconds: float) -> None:
            await engine.run_body(Body(fn=tools.pause, args=(seconds,), title="pause"))

        await _at_once(ours, 10 * workers, 0.0)
        await _at_once(own, 10 * workers, 0.0)
        return {
            "rounds, s": count / (workers * _CONCURRENCY) * _SECONDS,
            "empty calls of Ray's own, s": await _at_once(own, count, 0.0),
            "calls of Ray's own, s": await _at_once(own, count, _SECONDS),
            "bodies of RayEngine, s": await _at_once(ours, count, _SECONDS),
            "empty bodies of RayEngine, s": await _at_once(ours, count, 0.0),
        }


async def _at_once(call: Callable[[int, float], Awaitable[None]], count: int, seconds: float) -> float:
    began = WALL()
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(call, number, seconds)
    return WALL() - began


def main() -> int:
    """Print the tables; return 1 if a budget is missed by more than the margin."""
    parser = argparse.ArgumentParser("python -m tests.ray.measure", description="A body on Ray beside Ray's own actor.")
    parser.add_argument("--quick", action="store_true", help="fewer calls: noisier")
    parser.add_argument("--check", type=float, metavar="MARGIN", help="exit with 1 beyond MARGIN x a budget")
    options = parser.parse_args()
    with running_cluster() as cluster:
        tables = [
            single_calls(200 if options.quick else 1_000),
            many_bodies(2_000 if options.quick else 10_000, cluster),
        ]
    print(*tables, sep="\n\n")
    budgets = [budget for table in tables for budget in table.budgets]
    return int(any(options.check and budget.measured > options.check * budget.limit for budget in budgets))


if __name__ == "__main__":
    sys.exit(main())
