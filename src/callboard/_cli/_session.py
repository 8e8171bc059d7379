"""The part of the demo that runs in an event loop: the service, the agent, the view, and what a signal stops."""

import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio import CancelScope
from httpx2 import AsyncClient
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from callboard import Agent, Statistics, create_react_agent, observe
from callboard._cli._call_counts import CallCounts
from callboard._cli._demo_tools import TOOLS, http_client, make_node
from callboard._cli._service import running_service
from callboard._cli._shown_text import CommandError
from callboard._cli._view import View
from callboard._cli._work import ModelError, Work, request, scripted_model

_PATIENCE = 1.0


@dataclass(slots=True)
class Measurements:
    """The measurements of one run of the demo."""

    counts: CallCounts = field(default_factory=lambda: CallCounts(TOOLS))
    wall_clock: float = 0.0
    """Seconds of the agent's run, the model's replies included."""
    left_over: Sequence[str] = ()
    """The names of the tasks that were alive right after the agent's run and not before it."""
    statistics: Statistics | None = None
    messages: Sequence[BaseMessage] = ()
    service: dict[str, int] = field(default_factory=dict[str, int])
    """How many requests the service has counted, by what became of them."""
    stopped_by: signal.Signals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One run of the demo.

    Args:
        run: to enter the measurements into.
        view: shows them meanwhile.
        work: what to ask the model for.
        model: a real one; `None` for the script.
        seed: of the service and of the order of the work.
        database: the file to ask.
        recording: entered around the agent's run.
    """

    run: Measurements
    view: View
    work: Work
    model: BaseChatModel | None
    seed: int
    database: Path
    recording: Callable[[], AbstractContextManager[object]]

    async def play(self) -> None:
        """Run it to its end, or until SIGINT or SIGTERM.

        Raises:
            ModelError: if a real model failed.
            CommandError: if the run is to be recorded, and that cannot be.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as watchers:
            with CancelScope() as scope:
                watchers.start_soon(self.view.keep_up)
                watchers.start_soon(self._cancel_on_signal, scope)
                try:
                    await self._play()
                except Exception as error:
                    failure = error  # raised below, because the task group would wrap it
            watchers.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cancel_on_signal(self, scope: CancelScope) -> None:
        # asyncio on Windows has no such signals: there Ctrl-C stays a KeyboardInterrupt.
        with suppress(NotImplementedError), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                self.run.stopped_by = number
                scope.cancel()
                return

    async def _play(self) -> None:
        async with running_service(self.seed) as base_url, http_client() as client:
            node = make_node(base_url, client, self.database)
            model = self.model or scripted_model(self.work, base_url, seed=self.seed)
            try:
                with self.recording():
                    await run_agent(self.run, create_react_agent(model, node), request(self.work, base_url))
            except CommandError:
                raise
            except Exception as error:
                if self.model is None:
                    raise
                # Every provider's package has errors of its own.
                raise ModelError(f"the run with the model failed: {type(error).__name__}: {error}") from error
            finally:
                self.run.statistics = node.statistics()
            self.run.service = await _service_stats(client, base_url)


async def run_agent(run: Measurements, agent: Agent, question: str) -> None:
    """Run an agent, and measure: the time, and the tasks that are alive after it and were not before."""
    before = set(anyio.get_running_tasks())
    since = anyio.current_time()
    try:
        with observe(run.counts, actors=run.counts.actors):
            state = await agent.ainvoke({"messages": [("user", question)]})
        run.messages = state["messages"]
    finally:
        # Nothing is awaited in between, so that a task which ends a moment too late is found.
        left_over = set(anyio.get_running_tasks()) - before
        run.left_over = sorted(task.name or "unnamed" for task in left_over)
        run.wall_clock = anyio.current_time() - since


async def _service_stats(client: AsyncClient, base_url: str) -> dict[str, int]:
    """Ask the service what it has seen, once it knows of every connection that was closed."""
    stats: dict[str, int] = {}
    with anyio.move_on_after(_PATIENCE):
        while not stats or stats["in_flight"]:
            stats = (await client.get(f"{base_url}/stats")).json()
            await anyio.sleep(0.01)
    return stats
