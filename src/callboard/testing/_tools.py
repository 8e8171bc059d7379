"""Tools with scripted behaviour that record the events of their calls."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import accumulate, count
from typing import Literal, TypeAlias

import anyio
from langchain_core.tools import StructuredTool

Kind: TypeAlias = Literal["started", "finished", "raised", "cancelled", "cleaned up"]
"""Kind of an event: `cancelled` when the cancellation arrives, `cleaned up` when the clean-up is complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event of a tool call that a `Recorder` records, such as the start or the end of the tool's function."""

    kind: Kind
    """Kind of the event."""
    tool: str
    """Name of the tool."""
    query: str
    """Argument `query` of the call."""
    time: float
    """Seconds since the first event of the log, on the clock of the event loop."""

    def __str__(self) -> str:
        return f"{label(self.tool, self.query)} {self.kind}"


def label(tool: str, query: str) -> str:
    """Return a short name of a call: `search` or `search(tea)`."""
    return f"{tool}({query})" if query else tool


class Recorder:
    """Factory of tools with scripted behaviour that also records the events of their calls.

    Each tool takes one optional argument, `query: str`. Times are seconds since the first event. All records can be
    read from any thread while calls run.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._moves: list[tuple[str, str, int]] = []
        """Tool and query of each entry into a body (+1) and exit from it (-1)."""
        self._machine_origin: float | None = None
        self._loop_origin: float | None = None
        self._lock = threading.Lock()  # sync tools write from worker threads

    def tool(
        self,
        name: str,
        *,
        seconds: float | Callable[[str], float] = 0.0,
        raises: Exception | None = None,
        times: int | None = None,
        returns: object = None,
        hang: bool = False,
        cleanup: float = 0.0,
        shield: Callable[[], AbstractContextManager[object]] = nullcontext,
        ignores_cancel: int = 0,
    ) -> StructuredTool:
        """Return an async tool that takes time, fails or hangs, as a test needs.

        Args:
            name: name of the tool.
            seconds: duration of a call in seconds, or a function from the query to the duration.
            raises: error that a call raises at its end.
            times: number of calls that raise before later calls succeed; by default all calls raise.
            returns: result; by default the query, or the tool's name if the query is empty.
            hang: never end unless cancelled.
            cleanup: seconds of async clean-up in a `finally`, after every call.
            shield: context manager around the clean-up. By default there is none, as in most tools: the clean-up
                is then lost on trio, and on asyncio in a cancelled anyio scope.
            ignores_cancel: number of cancellations that a call swallows before it ends; it starts again after each.
        """
        end = self._ending(name, raises, times, returns)

        async def act(query: str) -> object:
            for ignored in range(ignores_cancel + 1):
                try:
                    await (anyio.sleep_forever() if hang else anyio.sleep(_duration(seconds, query)))
                    break
                except anyio.get_cancelled_exc_class():
                    self._add("cancelled", name, query)
                    if ignored == ignores_cancel:
                        raise
            return end(query)

        async def clean_up(query: str) -> None:
            with shield():
                await anyio.sleep(cleanup)
                self._add("cleaned up", name, query)

        async def body(query: str = "") -> object:
            with self._body(name, query):
                try:
                    return await act(query)
                finally:
                    if cleanup:
                        await clean_up(query)

        return StructuredTool.from_function(coroutine=body, name=name, description=f"Scripted tool {name}.")

    def sync_tool(
        self,
        name: str,
        *,
        seconds: float | Callable[[str], float] = 0.0,
        release: threading.Event | None = None,
        raises: Exception | None = None,
        times: int | None = None,
        returns: object = None,
    ) -> StructuredTool:
        """Return a sync tool that blocks its thread.

        Args:
            name: name of the tool.
            seconds: duration of a call in seconds on the machine's clock, or a function from the query to it.
            release: block until the test sets this event, instead of for `seconds`. Set it in a `finally`: nothing
                else can end the thread.
            raises: error that a call raises at its end.
            times: number of calls that raise before later calls succeed; by default all calls raise.
            returns: result; by default the query, or the tool's name if the query is empty.
        """
        end = self._ending(name, raises, times, returns)

        def body(query: str = "") -> object:
            with self._body(name, query):
                if release is None:
                    time.sleep(_duration(seconds, query))
                else:
                    release.wait()
                return end(query)

        return StructuredTool.from_function(func=body, name=name, description=f"Scripted tool {name}.")

    @property
    def events(self) -> list[Event]:
        """Recorded events so far, in order."""
        with self._lock:
            return list(self._events)

    @property
    def lines(self) -> list[str]:
        """Recorded events so far as texts: `["slow(a) started", "slow(a) cancelled"]`."""
        return [str(event) for event in self.events]

    @property
    def order(self) -> list[str]:
        """Recorded calls in the order of their starts, as texts: `["slow(a)", "slow(b)", "boom"]`."""
        return [label(event.tool, event.query) for event in self.events if event.kind == "started"]

    @property
    def running(self) -> int:
        """Number of calls whose tool functions run now, clean-up included."""
        return self._levels(None, None)[-1]

    @property
    def peak(self) -> int:
        """Highest number of calls whose tool functions ran at the same time."""
        return self.peak_of()

    def peak_of(self, tool: str | None = None, query: str | None = None) -> int:
        """Return the highest number of calls that ran at once: calls of one tool and query, or all calls by default."""
        return max(self._levels(tool, query))

    def _levels(self, tool: str | None, query: str | None) -> list[int]:
        """Return the numbers of running tool functions: 0, then one number after each begin or end of a function."""
        with self._lock:
            steps = [
                step
                for moved_tool, moved_query, step in self._moves
                if tool in (None, moved_tool) and query in (None, moved_query)
            ]
        return list(accumulate(steps, initial=0))

    def count(self, kind: Kind, tool: str | None = None, query: str | None = None) -> int:
        """Return the number of events of a kind: for one tool and query, or for all calls by default."""
        return len(self.times(kind, tool, query))

    def times(self, kind: Kind, tool: str | None = None, query: str | None = None) -> list[float]:
        """Return the times of the events of a kind, in seconds since the first event of the recorder."""
        return [
            event.time
            for event in self.events
            if event.kind == kind and tool in (None, event.tool) and query in (None, event.query)
        ]

    async def wait_for(self, kind: Kind, count: int = 1, *, tool: str | None = None) -> None:
        """Wait until a kind of event has occurred `count` times; the events may come from tasks and threads.

        Call it inside `anyio.fail_after`. It polls every millisecond, and so advances a virtual clock.
        """
        while self.count(kind, tool) < count:
            # Polls, because an event may come from a thread, which cannot set an event of the loop.
            await anyio.sleep(0.001)

    @contextmanager
    def _body(self, tool: str, query: str) -> Generator[None]:
        """Record the start and the end of a tool function; the end may be a return, an error or a cancellation."""
        with self._lock:
            self._moves.append((tool, query, +1))
        self._add("started", tool, query)
        try:
            yield
        finally:
            with self._lock:
                self._moves.append((tool, query, -1))

    def _add(self, kind: Kind, tool: str, query: str) -> None:
        """Record an event, with its time by the event loop's clock or, in threads, the machine's clock."""
        with self._lock:
            machine = time.monotonic()
            if self._machine_origin is None:
                self._machine_origin = machine
            elapsed = machine - self._machine_origin
            # A thread cannot read the loop's clock. The two clocks agree only if the loop's clock is not virtual.
            with suppress(RuntimeError):
                now = anyio.current_time()
                if self._loop_origin is None:
                    self._loop_origin = now - elapsed
                elapsed = now - self._loop_origin
            self._events.append(Event(kind=kind, tool=tool, query=query, time=elapsed))

    def _ending(
        self, name: str, raises: Exception | None, times: int | None, returns: object
    ) -> Callable[[str], object]:
        """Return a function that ends each call of a tool: it returns the result, or raises the error."""
        # `next()` of a counter is atomic: calls in several threads share it without a lock.
        numbers = count()

        def end(query: str) -> object:
            ended_before = next(numbers)
            if raises is not None and (times is None or ended_before < times):
                self._add("raised", name, query)
                raise raises
            self._add("finished", name, query)
            return (query or name) if returns is None else returns

        return end


def _duration(seconds: float | Callable[[str], float], query: str) -> float:
    return seconds(query) if callable(seconds) else seconds
