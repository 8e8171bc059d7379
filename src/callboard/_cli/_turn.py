"""Runs of an agent in one thread, and the state of this thread between them. Used inside the event loop."""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any

import anyio
from anyio import CancelScope
from langchain_core.messages import BaseMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, StateSnapshot
from rich.console import Console

from callboard import Agent, observe
from callboard._cli._call_list import Calls
from callboard._cli._load import AnyAgent
from callboard._cli._screen import Screen
from callboard.threads import unanswered

_MODES = ["messages", "updates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State of a thread between two runs: values, open questions and next nodes."""

    exists: bool
    values: Any
    questions: Sequence[Interrupt]
    next: Sequence[str]
    """Names of the next nodes; empty at the end of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of a run: the state of its thread, and the error that ended it, if any."""

    standing: Standing
    failure: Exception | None


class Conversation:
    """Thread of an agent, with its runs.

    Args:
        agent: agent or graph; it is copied, not changed.
        saver: checkpointer for the thread; by default the agent's own, or else one in memory.
        thread_id: name of the thread.
        console: output of the runs.
        live: show the whole live view while calls run.
        recording: makes a context manager that is entered around each run.
    """

    def __init__(
        self,
        agent: AnyAgent,
        saver: Any,
        thread_id: str,
        console: Console,
        *,
        live: bool = False,
        recording: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        own = agent.checkpointer if isinstance(agent.checkpointer, BaseCheckpointSaver) else None
        self.is_kept = saver is not None or (own is not None and not isinstance(own, InMemorySaver))
        self._agent = copy.copy(agent)
        self._agent.checkpointer = saver or own or _memory()
        self._config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        self._console = console
        self._live = live
        self._recording = recording
        self._scope: CancelScope | None = None
        self._cancelled = False

    async def standing(self) -> Standing:
        """Read and return the state of the thread."""
        found: StateSnapshot = await self._agent.aget_state(self._config)
        return Standing(
            exists=found.created_at is not None,
            values=found.values,
            questions=_distinct(found.interrupts),
            next=found.next,
        )

    async def run(self, given: Any) -> RunResult:
        """Run the agent until it stops, and show its output; raise `CommandError` if it cannot be recorded."""
        before = await self.standing()
        calls = Calls(self._agent.tools.tools_by_name if isinstance(self._agent, Agent) else ())
        calls.asked_for(open_calls(before.values))
        screen = Screen(self._console, calls, [message.id for message in _messages(before.values)], live=self._live)
        failure: Exception | None = None
        self._scope = scope = CancelScope()
        if self._cancelled:  # the signal came before the run had a scope
            scope.cancel()
        with self._recording():
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(screen.keep_up)
                with scope:
                    try:
                        await self._show(given, calls, screen)
                    except Exception as error:
                        failure = error  # returned below: the task group would wrap it in a group
                watchers.cancel_scope.cancel()
        return RunResult(standing=await self.standing(), failure=failure)

    def cancel(self) -> None:
        """Cancel the current run and all later ones; calls have their grace."""
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()

    async def _show(self, given: Any, calls: Calls, screen: Screen) -> None:
        agent: Any = self._agent
        stream = agent.astream(given, self._config, stream_mode=_MODES)
        with observe(calls.note, actors=calls.counts.actors):
            async with aclosing(stream) as chunks:
                async for mode, payload in chunks:
                    screen.take(mode, payload)


def _memory() -> InMemorySaver:
    # Questions need a checkpointer even if nothing is stored. Pickle, because the state may have values of any type.
    return InMemorySaver(serde=JsonPlusSerializer(pickle_fallback=True))


def _distinct(questions: Sequence[Interrupt]) -> list[Interrupt]:
    """Return the questions without duplicates: two tasks may report the same question."""
    return list({question.id: question for question in questions}.values())


def open_calls(values: Any) -> list[ToolCall]:
    """Return the calls of the last reply in a state that have no result."""
    return unanswered(_messages(values))


def _messages(values: Any) -> Sequence[BaseMessage]:
    written: Any = values.get("messages") if isinstance(values, Mapping) else getattr(values, "messages", None)
    return [message for message in written or () if isinstance(message, BaseMessage)]
