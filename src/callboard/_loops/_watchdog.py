"""Watchdog thread that finds functions which block an event loop while calls run.

A blocking function in an async body stops all other calls of the loop, and these run into their timeouts. The warning
names the function that blocked. The thread uses real time, not loop time. It wakes 20 times a second, and posts a
callback to a loop only if it finds the loop inside users' code.
"""

import gc
import logging
import math
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import NamedTuple, Protocol

from callboard._loops._forks import after_fork_in_child
from callboard.exceptions import LoopBlockedWarning

_log = logging.getLogger("callboard")

_TICK = 0.05
"""Seconds between two checks of the event loops."""
_HELD = 0.2
"""Seconds after which an event loop that does not answer the watchdog counts as blocked."""
_LOOKS = 4
"""Minimum number of checks before a loop counts as blocked: a garbage collection may delay the watchdog, too."""
_STILL = 10.0
"""Seconds after which a loop that is still blocked is logged: a block without end would otherwise never be reported."""
_IDLE = 20
"""Number of checks without a running call after which the watchdog thread sleeps until the next call."""
_NOT_THEIRS = ("callboard.", "langchain_core.", "langgraph.", "pydantic.")
"""Prefixes of modules that are not users' code; the search for the blocking code skips the frames of these modules."""


class LoopHolder(NamedTuple):
    """Tool or function that blocks an event loop, with texts for the warning."""

    key: str
    """Identity of the tool or function; each identity is warned about once."""
    description: str
    remedy: str = "await what can be awaited, or make the tool a plain function, which runs in a thread"


class HasLoopHolder(Protocol):
    """Protocol of an object that describes users' code, such as a tool, for the warning about a blocked event loop."""

    @property
    def loop_holder(self) -> LoopHolder: ...


_marks: dict[CodeType, type[HasLoopHolder]] = {}
"""Callboard functions that call users' code, each with the class of its local variable that names this code."""


# The watchdog needs the call of the running task, in another thread. asyncio would tell the task, but trio keeps it in
# a variable of the loop's thread, and a table of tasks would cost each call. So the call is found in the frames, which
# exist anyway: by its class, not by the name of a variable.
def mark(fn: Callable[..., object], kind: type[HasLoopHolder]) -> None:
    """Register a function that calls users' code; the function's local variable of class `kind` describes that code."""
    _marks[fn.__code__] = kind


@dataclass(slots=True)
class Hold:
    """Period in which an event loop was blocked; `until` is `None` while the loop is still blocked."""

    holder: LoopHolder
    location: str
    since: float
    until: float | None = None
    is_logged: bool = False

    def __str__(self) -> str:
        seconds = (time.monotonic() if self.until is None else self.until) - self.since
        return f"{self.holder.description} held the event loop for {seconds:.1f} s at {self.location}"


class Pulse:
    """Watchdog state of one event loop; created in the loop's thread. `post` schedules a function in the loop."""

    def __init__(self, post: Callable[[Callable[[], object]], object]) -> None:
        # The watchdog's thread runs `look`, the loop's thread the other methods. There is no lock: single
        # assignments and deque operations are atomic, and an answer that overlaps with a check is handled in `look`.
        self.thread = threading.get_ident()
        self.unreported: deque[Hold] = deque(maxlen=16)
        self._post = post
        self._batches = 0
        self._recent: deque[Hold] = deque(maxlen=16)
        self._requested_at: float | None = None  # time of the unanswered request; `None` if there is none
        self._looks = 0
        self._hold: Hold | None = None

    def begin(self) -> None:
        """Count a batch that begins in the loop, and watch the loop while batches run in it."""
        self._batches += 1
        if self._batches == 1:
            _watchdog.pulses[self] = None
            if not _watchdog.is_active.is_set():
                _watchdog.wake()

    def end(self) -> None:
        """Count a batch that has ended in the loop; stop watching the loop after the last one."""
        self._batches -= 1
        if not self._batches:
            _watchdog.pulses.pop(self, None)

    def blocking_since(self, since: float) -> str | None:
        """Return a description of the longest blocking of the loop since the time `since`; `None` if there was none."""
        # `since` is a time of `time.monotonic()`. A blocking that still lasts counts, too.
        holds = [hold for hold in list(self._recent) if hold.until is None or hold.until > since]
        longest = max(holds, key=lambda hold: (hold.until or math.inf) - hold.since, default=None)
        return None if longest is None else str(longest)

    def warn(self) -> None:
        """Emit one warning for each tool or function that blocked the loop."""
        while self.unreported:
            hold = self.unreported.popleft()
            if hold.holder.key not in _warned:
                _warned.add(hold.holder.key)
                text = f"{hold}, and no other call could go on; {hold.holder.remedy}"
                warnings.warn(text, LoopBlockedWarning, stacklevel=2)

    def look(self, frame: FrameType | None, now: float) -> None:
        """Check whether the loop is blocked, and record the code that blocks it; called in the watchdog's thread."""
        since, hold = self._requested_at, self._hold
        if since is None:
            if _mark(frame) is not None:
                self._requested_at, self._looks = now, 0  # before the post: the answer may come before `_post` returns
                try:
                    self._post(self._answer)
                except RuntimeError:  # the loop is closed
                    self._requested_at = None
        elif hold is None:
            self._looks += 1
            if self._looks >= _LOOKS and now - since >= _HELD and (hold := _hold_by(frame, since)) is not None:
                self._hold = hold
                self._recent.append(hold)
                self.unreported.append(hold)
                if self._requested_at is None:  # the loop answered just before `_hold` was set: end the hold here
                    self._answer()
        elif now - since >= _STILL and not hold.is_logged:
            hold.is_logged = True
            _log.warning("%s, and still does", hold)

    def _answer(self) -> None:
        self._requested_at = None
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.until = time.monotonic()


_warned: set[str] = set()  # keys of holders that were warned about


def _mark(frame: FrameType | None) -> tuple[FrameType, FrameType] | None:
    """Return the outermost frame of users' code and the registered frame around it; `None` if either is missing."""
    body = None
    while frame is not None:
        if frame.f_code in _marks:
            return None if body is None else (body, frame)
        if not frame.f_globals.get("__name__", "").startswith(_NOT_THEIRS):
            body = frame
        frame = frame.f_back
    return None


def _hold_by(frame: FrameType | None, since: float) -> Hold | None:
    marked = _mark(frame)
    if frame is None or marked is None:
        return None
    body, caller = marked
    kind = _marks[caller.f_code]
    described = next((value for value in caller.f_locals.values() if isinstance(value, kind)), None)
    if described is None:
        return None  # the function has only begun
    location = _location(body) if body is frame else f"{_location(body)} (in {_location(frame)})"
    return Hold(described.loop_holder, location, since)


def _location(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}()"


# In CPython 3.11, each allocation may start a garbage collection, also those within `sys._current_frames()`,
# `frame.f_back` and `frame.f_locals`. A finalizer then runs in the middle of them, and other threads get their turn:
# the frame that the function works on may end, and the process crashes, or deadlocks (python/cpython#106883). Without
# a collection, each of these functions is atomic. From 3.12 on, a collection begins between two instructions only.
@contextmanager
def current_frames() -> Generator[dict[int, FrameType]]:
    """Return the frame of each thread, by its id; in the `with` block, CPython 3.11 collects no garbage."""
    pauses = sys.version_info < (3, 12) and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield sys._current_frames()
    finally:
        if pauses:
            gc.enable()


class _Watchdog:
    """Watchdog of all event loops of the process; runs in a daemon thread, which the first batch of calls starts."""

    def __init__(self) -> None:
        self.pulses: dict[Pulse, None] = {}
        """Watchdog states of the loops in which a batch runs; each loop's thread adds and removes its own state."""
        self.is_active = threading.Event()
        """Event that is set while the watchdog thread checks loops; while it is not set, the thread sleeps."""
        self._started = False

    def wake(self) -> None:
        self.is_active.set()
        if not self._started:
            self._started = True
            threading.Thread(target=self._work, name="callboard watchdog", daemon=True).start()

    def _work(self) -> None:
        idle = 0
        while True:
            time.sleep(_TICK)
            idle = 0 if self._look() else idle + 1
            if idle >= _IDLE:
                # Cleared before the check: a loop that is added in between is seen by the check, or sets the event.
                self.is_active.clear()
                if not self.pulses:
                    self.is_active.wait()
                idle = 0

    def _look(self) -> bool:
        # A function of its own: its local variables must not keep users' frames alive until the next check.
        if not self.pulses:
            return False
        with current_frames() as frames:
            now = time.monotonic()
            for pulse in list(self.pulses):
                pulse.look(frames.get(pulse.thread), now)
        return True


_watchdog = _Watchdog()


def _begin_anew() -> None:
    global _watchdog
    _watchdog = _Watchdog()  # a forked child has the object, but not the thread


after_fork_in_child(_begin_anew)
