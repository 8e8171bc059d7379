"""Time of one call on Ray: by Ray's own actor, and through callboard. `python -m tests.rivals._ray` prints it as JSON.

Run it by `unshare --net`: the cluster then listens for nobody else.
"""

import json
import os
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio

from callboard.extend import Body
from tests.benchmark._measure import median_of
from tests.engines import _bodies as bodies
from tests.ray.__main__ import loopback_up

PUBLISHED = {"an actor": 1e6 / 2011.916260420167, "an async actor": 1e6 / 1459.7289131365046}
"""Microseconds of `1_1_actor_calls_sync` and `1_1_async_actor_calls_sync`, from the calls per second that Ray publishes
for its own release in `release/perf_metrics/microbenchmark.json` of its repository."""


def main() -> None:
    """Print the microseconds of each kind of call."""
    loopback_up()
    os.environ |= {
        "RAY_AUTH_MODE": "disabled",
        "PYTHONPATH": str(Path.cwd()),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    }
    import ray

    remote: Any = ray
    remote.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    try:
        own = _own(remote)
        ours = anyio.run(_ours)
    finally:
        remote.shutdown()
    print(json.dumps({"an actor": own, "a body of `RayEngine`": ours}))


def _own(ray: Any, count: int = 1_000) -> float:
    class Adding:
        def add(self, one: int) -> int:
            return one + 1

    actor = ray.remote(Adding).remote()
    taken = []
    for _ in range(count):
        began = perf_counter()
        ray.get(actor.add.remote(1))
        taken.append(perf_counter() - began)
    return statistics.median(taken) * 1e6


async def _ours() -> float:
    from callboard_actors.ray import RayEngine

    body = Body(fn=bodies.add, args=(1,), title="add")
    async with RayEngine("auto", workers=1) as engine:
        return await median_of(lambda: engine.run_body(body), 1_000) * 1e6


if __name__ == "__main__":
    main()
