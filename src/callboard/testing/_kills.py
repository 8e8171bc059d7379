"""Simulated crash of an agent's run at a chosen event, and checks of the run after it is resumed."""

from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any

import anyio
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Durability, StateSnapshot

from callboard._calls._observers import observe
from callboard._records._events import CallEvent, RunEvent
from callboard.agent._agent import Agent
from callboard.tools._unanswered import ids_with_answer


class Kill:
    """Observer that ends a run at a chosen event, and records errors of the resumed run, such as a repeated call."""

    def __init__(self, event_number: int | None) -> None:
        self.event_number = event_number
        self.saver = InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))
        """Checkpointer of the run; after the kill, one with everything that was stored by then."""
        self._scope: anyio.CancelScope | None = None
        self.is_done = False
        self.events = 0
        self.violations: list[str] = []
        self._finished_calls: dict[str, int] = {}
        """Calls with a result before the kill, by id."""

    def on_event(self, event: CallEvent | RunEvent) -> None:
        """Count an event; at the chosen event, copy all stored checkpoints and end the run."""
        self.events += 1
        was_killed = self.event_number is not None and self.events > self.event_number
        if isinstance(event, CallEvent) and event.call_id is not None:
            if event.phase == "ended" and event.result is not None and not was_killed:
                self._finished_calls[event.call_id] = event.number
            elif (
                event.phase == "started"
                and was_killed
                and self._finished_calls.get(event.call_id, event.number) != event.number
            ):
                self.violations.append(f"the call {event.call_id} of {event.tool} had finished, and ran again")
        if self.events == self.event_number and self._scope is not None:
            self.saver = _copy(self.saver)
            self._scope.cancel()
            self.is_done = True

    async def run(
        self,
        agent: Agent,
        run_input: Any,
        config: RunnableConfig,
        choose_input: Callable[[StateSnapshot], Any] | None = None,
    ) -> Any:
        """Run an agent and return its final state; after a kill, resume the run with the input of `choose_input`."""
        with anyio.CancelScope() as self._scope:
            return await self._invoke(agent, run_input, config)
        stored = await agent.copy({"checkpointer": self.saver}).aget_state(config)
        if choose_input is not None:
            run_input = choose_input(stored)
        elif stored.next:  # as a new process does: with the thread, or with the input if it was not stored
            run_input = None
        return await self._invoke(agent, run_input, config)

    def _invoke(self, agent: Agent, run_input: Any, config: RunnableConfig) -> Awaitable[Any]:
        # With a kill, all that was decided is stored before the next event.
        durability: Durability = "async" if self.event_number is None else "sync"
        return agent.copy({"checkpointer": self.saver}).ainvoke(run_input, config, durability=durability)

    def check(self, state: Any) -> None:
        """Record an error if a call has two results in the final state."""
        results = [message for message in state["messages"] if isinstance(message, ToolMessage)]
        if len(results) != len(ids_with_answer(results)):
            self.violations.append("a call has two results")


def _copy(saver: InMemorySaver) -> InMemorySaver:
    """Return a copy of a checkpointer. Later writes to the original do not change the copy."""
    new_saver = InMemorySaver(serde=saver.serde)
    new_saver.storage, new_saver.writes, new_saver.blobs = deepcopy((saver.storage, saver.writes, saver.blobs))
    return new_saver


async def kill_at(event: int, agent: Agent, input: Any, config: RunnableConfig | None = None) -> Any:
    """Run an agent, crash the run at an event, resume it from its stored checkpoints, and return the final state.

    Returns `None` if the run ended before the event. The agent's checkpointer is not used. The clean-up of running
    calls still runs, which a crash of a process prevents.

    Args:
        event: number of the event, from 1: beginnings and ends of runs, model requests, calls and attempts.
        agent: agent of callboard, with the tools of the test.
        input: input of the run.
        config: config of the run, with a thread of its own.

    Raises:
        AssertionError: if a finished call ran again, or if a call has two results.
        ValueError: if `event` is smaller than 1.
        TypeError: if `agent` is no agent of callboard, or `event` no number.
    """
    if not isinstance(agent, Agent):
        raise TypeError(f"kill_at(agent=...) takes an agent of callboard, got {agent!r}")
    if not isinstance(event, int):
        raise TypeError(f"kill_at(event=...) is the number of an event, got {event!r}")
    if event < 1:
        raise ValueError(f"kill_at(event=...) is the number of an event, from 1, got {event!r}")
    config = config or {"configurable": {"thread_id": "kill_at"}}
    kill = Kill(event)
    with observe(kill.on_event, runs=kill.on_event):
        state = await kill.run(agent, input, config)
    if not kill.is_done:
        return None
    kill.check(state)
    if kill.violations:
        raise AssertionError(f"killed at event {event}: {'; '.join(kill.violations)}")
    return state
