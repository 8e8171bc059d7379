"""Async part of the demo: the service, the agent, the view, and cancellation by signals."""

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
"""Seconds to wait for the service to notice the closed connections."""


@dataclass(slots=True)
class Measurements:
    """Measurements of one run of the demo."""

    counts: CallCounts = field(default_factory=lambda: CallCounts(TOOLS))
    wall_clock: float = 0.0
    """Seconds of the agent's run, the model's replies included."""
    left_over: Sequence[str] = ()
    """Names of the tasks that were alive right after the agent's run, and not before it."""
    statistics: Statistics | None = None
    messages: Sequence[BaseMessage] = ()
    service: dict[str, int] = field(default_factory=dict[str, int])
    """Request counts of the service: `served`, `abandoned`, `in_flight` and `peak_in_flight`."""
    stopped_by: signal.Signals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Run of the demo.

    Args:
        run: receives the measurements.
        view: display during the run.
        work: calls that the model is to make.
        model: real model; `None` for the scripted one.
        seed: seed of the service and of the order of the calls.
        database: SQLite file of the tool `query`.
        recording: makes a context manager that is entered around the agent's run.
    """

    run: Measurements
    view: View
    work: Work
    model: BaseChatModel | None
    seed: int
    database: Path
    recording: Callable[[], AbstractContextManager[object]]

    async def play(self) -> None:
        """Run the demo to its end, or until SIGINT or SIGTERM.

        Raises:
            ModelError: if a real model failed.
            CommandError: if the recording cannot be written.
        """
        failure: Exception | None = None
        async with anyio.create_task_group() as watchers:
            with CancelScope() as scope:
                watchers.start_soon(self.view.keep_up)
                watchers.start_soon(self._cancel_on_signal, scope)
                try:
                    await self._play()
                except Exception as error:
                    failure = error  # raised below: the task group would wrap it in a group
            watchers.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cancel_on_signal(self, scope: CancelScope) -> None:
        # asyncio on Windows cannot receive signals this way; Ctrl-C then raises KeyboardInterrupt.
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
                # Any exception, because each provider's package has its own error classes.
                raise ModelError(f"the run with the model failed: {type(error).__name__}: {error}") from error
            finally:
                self.run.statistics = node.statistics()
            self.run.service = await _service_stats(client, base_url)


async def run_agent(run: Measurements, agent: Agent, question: str) -> None:
    """Run an agent, and measure its time and the tasks that it leaves running."""
    before = set(anyio.get_running_tasks())
    since = anyio.current_time()
    try:
        with observe(run.counts, actors=run.counts.actors):
            state = await agent.ainvoke({"messages": [("user", question)]})
        run.messages = state["messages"]
    finally:
        # No await between the end of the run and this line: else a task that ends too late would not be found.
        left_over = set(anyio.get_running_tasks()) - before
        run.left_over = sorted(task.name or "unnamed" for task in left_over)
        run.wall_clock = anyio.current_time() - since


async def _service_stats(client: AsyncClient, base_url: str) -> dict[str, int]:
    """Return the counts of the service, after it has noticed every closed connection."""
    stats: dict[str, int] = {}
    with anyio.move_on_after(_PATIENCE):
        while not stats or stats["in_flight"]:
            stats = (await client.get(f"{base_url}/stats")).json()
            await anyio.sleep(0.01)
    return stats
