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
_MIN_BLOCKED_TIME = 0.2
"""Seconds after which an event loop that does not answer the watchdog counts as blocked."""
_MIN_CHECKS = 4
"""Minimum number of checks before a loop counts as blocked: a garbage collection may delay the watchdog, too."""
_LOG_AFTER = 10.0
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
class Blockage:
    """Period in which an event loop was blocked; `until` is `None` while the loop is still blocked."""

    holder: LoopHolder
    location: str
    since: float
    until: float | None = None
    is_logged: bool = False

    def __str__(self) -> str:
        seconds = (time.monotonic() if self.until is None else self.until) - self.since
        return f"{self.holder.description} held the event loop for {seconds:.1f} s at {self.location}"


class LoopMonitor:
    """Watchdog state of one event loop; created in the loop's thread. `post` schedules a function in the loop."""

    def __init__(self, post: Callable[[Callable[[], object]], object]) -> None:
        # The watchdog's thread runs `check`, the loop's thread the other methods. There is no lock: single
        # assignments and deque operations are atomic, and an answer that overlaps with a check is handled in `check`.
        self.thread = threading.get_ident()
        self.unreported: deque[Blockage] = deque(maxlen=16)
        self._post = post
        self._batches = 0
        self._recent_blockages: deque[Blockage] = deque(maxlen=16)
        self._requested_at: float | None = None  # time of the unanswered request; `None` if there is none
        self._checks = 0
        self._blockage: Blockage | None = None

    def enter_batch(self) -> None:
        """Count a batch that begins in the loop, and watch the loop while batches run in it."""
        self._batches += 1
        if self._batches == 1:
            _watchdog.monitors[self] = None
            if not _watchdog.is_active.is_set():
                _watchdog.wake()

    def leave_batch(self) -> None:
        """Count a batch that has ended in the loop; stop watching the loop after the last one."""
        self._batches -= 1
        if not self._batches:
            _watchdog.monitors.pop(self, None)

    def blocking_since(self, since: float) -> str | None:
        """Return a description of the longest blocking of the loop since the time `since`; `None` if there was none."""
        # `since` is a time of `time.monotonic()`. A blocking that still lasts counts, too.
        blockages = [
            blockage for blockage in list(self._recent_blockages) if blockage.until is None or blockage.until > since
        ]
        longest = max(blockages, key=lambda blockage: (blockage.until or math.inf) - blockage.since, default=None)
        return None if longest is None else str(longest)

    def warn(self) -> None:
        """Emit one warning for each tool or function that blocked the loop."""
        while self.unreported:
            blockage = self.unreported.popleft()
            if blockage.holder.key not in _warned:
                _warned.add(blockage.holder.key)
                text = f"{blockage}, and no other call could go on; {blockage.holder.remedy}"
                warnings.warn(text, LoopBlockedWarning, stacklevel=2)

    def check(self, frame: FrameType | None, now: float) -> None:
        """Check whether the loop is blocked, and record the code that blocks it; called in the watchdog's thread."""
        since, blockage = self._requested_at, self._blockage
        if since is None:
            if _find_user_frame(frame) is not None:
                self._requested_at, self._checks = now, 0  # before the post: the answer may come before `_post` returns
                try:
                    self._post(self._record_answer)
                except RuntimeError:  # the loop is closed
                    self._requested_at = None
        elif blockage is None:
            self._checks += 1
            if (
                self._checks >= _MIN_CHECKS
                and now - since >= _MIN_BLOCKED_TIME
                and (blockage := _find_blockage(frame, since)) is not None
            ):
                self._blockage = blockage
                self._recent_blockages.append(blockage)
                self.unreported.append(blockage)
                if self._requested_at is None:  # the loop answered just before `_blockage` was set: end it here
                    self._record_answer()
        elif now - since >= _LOG_AFTER and not blockage.is_logged:
            blockage.is_logged = True
            _log.warning("%s, and still does", blockage)

    def _record_answer(self) -> None:
        self._requested_at = None
        blockage, self._blockage = self._blockage, None
        if blockage is not None:
            blockage.until = time.monotonic()


_warned: set[str] = set()  # keys of holders that were warned about


def _find_user_frame(frame: FrameType | None) -> tuple[FrameType, FrameType] | None:
    """Return the outermost frame of users' code and the registered frame around it; `None` if either is missing."""
    body = None
    while frame is not None:
        if frame.f_code in _marks:
            return None if body is None else (body, frame)
        if not frame.f_globals.get("__name__", "").startswith(_NOT_THEIRS):
            body = frame
        frame = frame.f_back
    return None


def _find_blockage(frame: FrameType | None, since: float) -> Blockage | None:
    user_and_registered_frame = _find_user_frame(frame)
    if frame is None or user_and_registered_frame is None:
        return None
    body, caller = user_and_registered_frame
    kind = _marks[caller.f_code]
    holder_source = next((value for value in caller.f_locals.values() if isinstance(value, kind)), None)
    if holder_source is None:
        return None  # the function has only begun
    location = _location(body) if body is frame else f"{_location(body)} (in {_location(frame)})"
    return Blockage(holder_source.loop_holder, location, since)


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
        self.monitors: dict[LoopMonitor, None] = {}
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
            idle = 0 if self._check_loops() else idle + 1
            if idle >= _IDLE:
                # Cleared before the check: a loop that is added in between is seen by the check, or sets the event.
                self.is_active.clear()
                if not self.monitors:
                    self.is_active.wait()
                idle = 0

    def _check_loops(self) -> bool:
        # A function of its own: its local variables must not keep users' frames alive until the next check.
        if not self.monitors:
            return False
        with current_frames() as frames:
            now = time.monotonic()
            for monitor in list(self.monitors):
                monitor.check(frames.get(monitor.thread), now)
        return True


_watchdog = _Watchdog()


@after_fork_in_child
def _begin_anew() -> None:
    global _watchdog
    _watchdog = _Watchdog()  # a forked child has the object, but not the thread
