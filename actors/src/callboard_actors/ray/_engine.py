"""`RayEngine`: bodies of tools and whole actors on a Ray cluster."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from callboard.engines import Body
from callboard_actors._openings import OpenedEngine, Openings
from callboard_actors.ray._cluster import connect
from callboard_actors.ray._crew import Crew
from callboard_actors.ray._crossing import check
from callboard_actors.ray._held_host import HeldHost
from callboard_actors.ray._terms import Terms


class RayEngine(OpenedEngine[Openings[Crew]]):
    """Runs bodies in Ray actors, of a cluster or of a Ray that it starts; see `callboard.Engine`.

        async with RayEngine("auto", workers=8) as engine:
            node = ToolNode(tools, policies={"crunch": CallPolicy(runs_in=engine, timeout=60)})

    Callboard stays the supervisor: timeouts, retries, limits and messages are here, and Ray's own retries are off.
    What Ray cannot say, it is not asked: a body whose Ray actor is lost is unknown, and runs again by its policy only.
    A body runs alone in its Ray actor. An async one that is cancelled has its grace; a sync one that does not end
    within it is killed with its Ray actor, in whose place another one comes.

    Tools with other needs have an engine of their own, on the same cluster.

    Args:
        address: of the cluster, as `ray.init` has it; `"auto"` for the one that runs here. `None` for a Ray of its own.
        workers: how many Ray actors there are, and so how many bodies run at once; others wait their turn here.
        most_workers: how many there may be while bodies wait; as many as `workers`, if it is not given.
        idle_for: seconds without a body after which those beyond `workers` are ended.
        cpus: processors that each Ray actor takes of its node.
        gpus: graphics processors that each takes.
        memory: bytes that each takes, as Ray counts them when it places it.
        resources: others that each takes, by the names that the cluster has for them.
        node: the id of the node where all of them have to be.
        runtime_env: what they need to be installed there; see Ray's manual.
        grace: seconds for a body to end after it was cancelled, unless its call has a shorter one.
        max_result: bytes that a result may have as a pickle.
        start_timeout: seconds for the start of Ray and of its actors.
        patience: seconds that a call waits if no Ray actor lives, and an actor if the cluster has no room for it; if
            all Ray actors are busy, a call waits as long as it may.
        init: more arguments for `ray.init`.

    Raises:
        ValueError: for a number out of range.
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
        self._address = address
        self._init = dict(init or {})
        self._terms = Terms(
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
        self._openings = Openings(self._crew, noun="engine on Ray", task="callboard_actors.ray")

    def _crew(self) -> Crew:
        return Crew(self._terms, partial(connect, self._address, self._init))

    def check(self, fn: Callable[..., Any], /, *, title: str) -> None:
        """Raise TypeError for a function that cannot be sent."""
        check(fn, title)

    async def run_body(self, body: Body, /) -> Any:
        """Run a body in a Ray actor; see `callboard.Engine`."""
        with self._openings.bodies.running(body, grace=self._terms.grace) as noted:
            return await self._openings.here(body.title, body.call_id).run_body(noted)

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[HeldHost]:
        """Have a Ray actor for oneself while the block runs; it is none of the `workers`. See `callboard.Engine`."""
        self._openings.bodies.check_open(title)
        host = await self._openings.here(title).hire(title)
        try:
            yield host
        finally:
            await host.end(f"the Ray actor of {title!r} is ended")
