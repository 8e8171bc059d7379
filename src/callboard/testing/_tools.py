"""Tools that do what a test tells them and write down what was done to them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count

import anyio
from langchain_core.tools import StructuredTool

from callboard.testing._log import Event, Kind, Log, label


@dataclass(slots=True, kw_only=True)
class _Part:
    """What one tool does in each of its calls."""

    name: str
    seconds: float | Callable[[str], float] = 0.0
    raises: Exception | None = None
    times: int | None = None
    returns: object = None
    hang: bool = False
    cleanup: float = 0.0
    shield: Callable[[], AbstractContextManager[object]] = nullcontext
    ignores_cancel: int = 0
    release: threading.Event | None = None
    ends: Iterator[int] = field(default_factory=count, init=False)

    def duration(self, query: str) -> float:
        return self.seconds(query) if callable(self.seconds) else self.seconds

    def end(self, query: str) -> object:
        # A counter, because threads share it.
        ended_before = next(self.ends)
        if self.raises is not None and (self.times is None or ended_before < self.times):
            raise self.raises
        return (query or self.name) if self.returns is None else self.returns


class Recorder:
    """Makes tools with scripted behaviour and records what happens to their calls.

    Each tool takes one optional argument, `query: str`. Times are seconds since the first event. Everything
    can be read while calls run, from any thread.
    """

    def __init__(self) -> None:
        self._log = Log()

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
        """Make an async tool that does what a test needs: takes its time, fails, or hangs.

        Args:
            name: The tool's name.
            seconds: How long a call takes; may depend on its query.
            raises: What a call raises when its time is over.
            times: How many calls raise before they succeed; all of them by default.
            returns: The result; by default the query, or without one the tool's name.
            hang: Never end by itself.
            cleanup: Seconds of async clean-up in a `finally`, whenever and however the call ends.
            shield: The context manager around the clean-up. By default there is none, as in tools in the
                wild: such a clean-up is lost on trio, and on asyncio in a cancelled anyio scope.
            ignores_cancel: How many cancellations a call swallows, starting anew each time, before it ends.
        """
        part = _Part(
            name=name,
            seconds=seconds,
            raises=raises,
            times=times,
            returns=returns,
            hang=hang,
            cleanup=cleanup,
            shield=shield,
            ignores_cancel=ignores_cancel,
        )

        async def body(query: str = "") -> object:
            return await self._perform(part, query)

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
        """Make a sync tool, which blocks its thread.

        Args:
            name: The tool's name.
            seconds: How long a call blocks, on the machine's clock; may depend on its query.
            release: Block until the test sets this event instead. Set it in a `finally`: nothing else can end
                the thread.
            raises: What a call raises when its time is over.
            times: How many calls raise before they succeed; all of them by default.
            returns: The result; by default the query, or without one the tool's name.
        """
        part = _Part(name=name, seconds=seconds, release=release, raises=raises, times=times, returns=returns)

        def body(query: str = "") -> object:
            return self._perform_sync(part, query)

        return StructuredTool.from_function(func=body, name=name, description=f"Scripted tool {name}.")

    @property
    def events(self) -> list[Event]:
        """Everything that happened so far, in order."""
        return list(self._log.select(None, None, None))

    @property
    def lines(self) -> list[str]:
        """Everything that happened so far, in words: `["slow(a) started", "slow(a) cancelled"]`."""
        return [str(event) for event in self.events]

    @property
    def order(self) -> list[str]:
        """The calls in the order of their starts, in words: `["slow(a)", "slow(b)", "boom"]`."""
        return [label(event.tool, event.query) for event in self._log.select("started", None, None)]

    @property
    def running(self) -> int:
        """How many calls are inside their bodies now; clean-up counts."""
        return self.running_of()

    @property
    def peak(self) -> int:
        """The most calls that were inside their bodies at once."""
        return self.peak_of()

    def running_of(self, tool: str | None = None, query: str | None = None) -> int:
        """How many calls of a tool, or with a query, are running now."""
        return self._log.levels(tool, query)[-1]

    def peak_of(self, tool: str | None = None, query: str | None = None) -> int:
        """The most calls of a tool, or with a query, that ran at once."""
        return max(self._log.levels(tool, query))

    def count(self, kind: Kind, tool: str | None = None, query: str | None = None) -> int:
        """How often a tool was started, has finished, failed or was cancelled, with a query or with any."""
        return len(self.times(kind, tool, query))

    def times(self, kind: Kind, tool: str | None = None, query: str | None = None) -> list[float]:
        """When something happened, in seconds since the first event."""
        return [event.time for event in self._log.select(kind, tool, query)]

    async def wait_for(self, kind: Kind, count: int = 1, *, tool: str | None = None) -> None:
        """Wait until something has happened `count` times, in a task or in a thread.

        Put it inside `anyio.fail_after`. It asks every millisecond, and so moves a virtual clock.
        """
        while self.count(kind, tool) < count:
            # No event of the loop: a thread may be the one that does it.
            await anyio.sleep(0.001)

    async def _perform(self, part: _Part, query: str) -> object:
        self._log.enter(part.name, query)
        try:
            try:
                return await self._act(part, query)
            finally:
                await self._clean_up(part, query)
        finally:
            self._log.leave(part.name, query)

    async def _act(self, part: _Part, query: str) -> object:
        for ignored in range(part.ignores_cancel + 1):
            try:
                await (anyio.sleep_forever() if part.hang else anyio.sleep(part.duration(query)))
                break
            except anyio.get_cancelled_exc_class():
                self._log.add("cancelled", part.name, query)
                if ignored == part.ignores_cancel:
                    raise
        return self._end(part, query)

    async def _clean_up(self, part: _Part, query: str) -> None:
        if not part.cleanup:
            return
        with part.shield():
            await anyio.sleep(part.cleanup)
            self._log.add("cleaned up", part.name, query)

    def _perform_sync(self, part: _Part, query: str) -> object:
        self._log.enter(part.name, query)
        try:
            if part.release is None:
                time.sleep(part.duration(query))
            else:
                part.release.wait()
            return self._end(part, query)
        finally:
            self._log.leave(part.name, query)

    def _end(self, part: _Part, query: str) -> object:
        try:
            result = part.end(query)
        except Exception:
            self._log.add("raised", part.name, query)
            raise
        self._log.add("finished", part.name, query)
        return result
