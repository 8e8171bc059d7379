"""`RayEngine`: runs tools and actors on a Ray cluster."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from callboard.extend import Body
from callboard_actors._engine._lifecycle import OpenedEngine
from callboard_actors.ray._cluster import RayOptions, connect
from callboard_actors.ray._crew import Crew
from callboard_actors.ray._host import check
from callboard_actors.ray._host_proxy import HostProxy


class RayEngine(OpenedEngine[Crew]):
    """Engine that runs bodies in Ray actors, on a cluster or in a Ray that it starts; see `callboard.Engine`.

        async with RayEngine("auto", workers=8) as engine:
            node = ToolNode(tools, policies={"crunch": CallPolicy(runs_in=engine, timeout=60)})

    callboard stays the supervisor: timeouts, retries, limits and events work as elsewhere, and Ray's own retries are
    disabled. A body whose Ray actor is lost ends as unknown, and only its own policy can repeat it. Each Ray actor runs
    one body at a time. A cancelled async body has its grace. A sync body that does not end within it is killed with its
    Ray actor, which is replaced.

    Use a separate engine on the same cluster for tools with other resources.

    Args:
        address: address of the cluster for `ray.init`; `"auto"` for the one that runs here; `None` to start a local
            Ray.
        workers: number of Ray actors, and so of concurrent bodies; further bodies wait here.
        most_workers: maximum of Ray actors while bodies wait; `workers` by default.
        idle_for: seconds without a body after which a Ray actor beyond `workers` is ended.
        cpus: CPUs that each Ray actor reserves on its node.
        gpus: GPUs that each reserves.
        memory: bytes that each reserves; Ray uses them for placement only.
        resources: other resources that each reserves, by their names in the cluster.
        node: id of the node on which all of them must run.
        runtime_env: software to install for them; see Ray's manual.
        grace: seconds for a cancelled body to end, unless its call has a shorter grace.
        max_result: bytes of a pickled result at most.
        start_timeout: seconds for the start of Ray and of the Ray actors.
        patience: seconds that a call waits while no Ray actor lives, and that an actor waits for room in the cluster.
            For busy Ray actors, a call waits without limit.
        init: further arguments of `ray.init`.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int = 2,
        most_workers: int | None = None,
        idle_for: float = 60.0,
        cpus: float = 1.0,
        gpus: float = 0.0,
        memory: int | None = None,
        resources: Mapping[str, float] | None = None,
        node: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        grace: float = 5.0,
        max_result: int = 64 * 1024 * 1024,
        start_timeout: float = 120.0,
        patience: float = 5.0,
        init: Mapping[str, Any] | None = None,
    ) -> None:
        self._terms = RayOptions(
            workers=workers,
            most_workers=workers if most_workers is None else most_workers,
            idle_for=idle_for,
            cpus=cpus,
            gpus=gpus,
            memory=memory,
            resources=dict(resources or {}),
            node=node,
            runtime_env=runtime_env,
            grace=grace,
            max_result=max_result,
            start_timeout=start_timeout,
            patience=patience,
        )
        join = partial(connect, address, dict(init or {}))
        super().__init__(lambda: Crew(self._terms, join), noun="engine on Ray", task="callboard_actors.ray")

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise `TypeError` for a function that cannot be pickled; `title` names it in the error."""
        check(fn, title)

    async def run_body(self, body: Body, /) -> Any:
        """Run a body, which is one function call of a tool or actor, in a Ray actor; see `callboard.Engine`."""
        with self._bodies.running(body, grace=self._terms.grace) as noted:
            return await self._here(body.title, body.call_id).run_body(noted)

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[HostProxy]:
        """Start a Ray actor for one owner for the duration of the block, in addition to the engine's `workers`."""
        self._bodies.check_open(title)
        host = await self._here(title).hire(title)
        try:
            yield host
        finally:
            await host.end(f"the Ray actor of {title!r} is ended")
