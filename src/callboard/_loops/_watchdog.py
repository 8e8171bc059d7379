"""Who holds an event loop: a thread that looks, while calls run, whether the loops still turn.

A function that blocks in an async body stops all its neighbours, and what ends then is a neighbour, by its
timeout. The thread watches real time, whatever the loop's clock says, and costs the calls nothing: it wakes 20
times a second, and asks a loop for a sign of life only if it finds it within a body.
"""

import gc
import logging
import math
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

from callboard._loops._forks import after_fork_in_child
from callboard.exceptions import LoopBlockedWarning

_log = logging.getLogger("callboard")

_TICK = 0.05
"""Seconds between two looks."""
_HELD = 0.2
"""Seconds without a sign of life after which a loop is held."""
_LOOKS = 4
"""Looks at the least: where a collector of garbage or a busy machine keeps the watchdog too, nobody is blamed."""
_STILL = 10.0
"""Seconds after which it is said at once, because what is held for ever says nothing at its end."""
_IDLE = 20
"""Looks without a call after which the thread sleeps until there is one."""
_NOT_THEIRS = ("callboard.", "langchain_core.", "langgraph.", "pydantic.")
"""Modules whose frames are no user's body."""


class Holder(NamedTuple):
    """Whoever may hold an event loop."""

    key: str
    """What is warned of once."""
    who: str
    remedy: str = "await what can be awaited, or make the tool a plain function, which runs in a thread"


Named = Callable[[Mapping[str, Any]], Holder]
"""From the variables of a function of ours to whom it works for."""

marks: dict[CodeType, Named] = {}
"""The functions of ours in which users' code runs."""


@dataclass(slots=True)
class Hold:
    """A time in which an event loop stood still."""

    holder: Holder
    where: str
    since: float
    until: float | None = None
    told: bool = False

    def __str__(self) -> str:
        seconds = (time.monotonic() if self.until is None else self.until) - self.since
        return f"{self.holder.who} held the event loop for {seconds:.1f} s at {self.where}"


class Pulse:
    """The signs of life of one event loop; made in its thread.

    Args:
        post: has a function called in the loop soon, from any thread.
    """

    def __init__(self, post: Callable[[Callable[[], object]], object]) -> None:
        self.thread = threading.get_ident()
        self.untold: deque[Hold] = deque(maxlen=16)
        self._post = post
        self._batches = 0
        self._recent: deque[Hold] = deque(maxlen=16)
        self._asked: float | None = None
        self._looks = 0
        self._hold: Hold | None = None

    def begin(self) -> None:
        """Look after the loop while a batch runs in it."""
        self._batches += 1
        if self._batches == 1:
            _watchdog.look_after(self)

    def end(self) -> None:
        self._batches -= 1
        if not self._batches:
            _watchdog.leave_alone(self)

    def held_since(self, since: float) -> str | None:
        """The longest hold, in words, that was not over at a moment of `time.monotonic()`."""
        found = [hold for hold in list(self._recent) if hold.until is None or hold.until > since]
        longest = max(found, key=lambda hold: (hold.until or math.inf) - hold.since, default=None)
        return None if longest is None else str(longest)

    def tell(self) -> None:
        """Warn of those who held the loop, of each once."""
        while self.untold:
            hold = self.untold.popleft()
            if hold.holder.key not in _told:
                _told.add(hold.holder.key)
                text = f"{hold}, and no other call could go on; {hold.holder.remedy}"
                warnings.warn(text, LoopBlockedWarning, stacklevel=2)

    def look(self, frame: FrameType | None, now: float) -> None:
        """Ask the loop for a sign of life, or note who kept it from giving one; in the watchdog's thread."""
        asked, hold = self._asked, self._hold
        if asked is None:
            if _mark(frame) is not None:
                self._ask(now)
        elif hold is None:
            self._looks += 1
            if self._looks >= _LOOKS and now - asked >= _HELD and (hold := _hold_by(frame, asked)) is not None:
                self._hold = hold
                self._recent.append(hold)
                self.untold.append(hold)
                if self._asked is None:  # it answered in this moment
                    self._answer()
        elif now - asked >= _STILL and not hold.told:
            hold.told = True
            _log.warning("%s, and still does", hold)

    def _ask(self, now: float) -> None:
        self._asked, self._looks = now, 0
        try:
            self._post(self._answer)
        except RuntimeError:  # the loop is closed
            self._asked = None

    def _answer(self) -> None:
        self._asked = None
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.until = time.monotonic()


_told: set[str] = set()


def _mark(frame: FrameType | None) -> tuple[FrameType, FrameType] | None:
    """The outermost frame of a user's function in a loop's thread, and ours around it."""
    body = None
    while frame is not None:
        if frame.f_code in marks:
            return None if body is None else (body, frame)
        if not frame.f_globals.get("__name__", "").startswith(_NOT_THEIRS):
            body = frame
        frame = frame.f_back
    return None


def _hold_by(frame: FrameType | None, since: float) -> Hold | None:
    found = _mark(frame)
    if frame is None or found is None:
        return None
    body, around = found
    where = _place(body) if body is frame else f"{_place(body)} (in {_place(frame)})"
    return Hold(marks[around.f_code](around.f_locals), where, since)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}, {frame.f_code.co_name}()"


def _frames_without_collection() -> dict[int, FrameType]:
    """What `sys._current_frames` says, while no garbage is collected."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if is_enabled:
            gc.enable()


# CPython 3.11 before 3.11.9 takes a lock for this that each new thread needs, and may begin to collect garbage with the
# lock in hand. If another thread has its turn then, the process stands still for good (python/cpython#106883).
_current_frames = _frames_without_collection if sys.version_info[:3] < (3, 11, 9) else sys._current_frames


class _Watchdog:
    """One daemon thread for all event loops of the process; started by the first call."""

    def __init__(self) -> None:
        self._pulses: dict[Pulse, None] = {}
        self._wanted = threading.Event()
        self._started = False
        self.looks = 0

    def look_after(self, pulse: Pulse) -> None:
        self._pulses[pulse] = None
        if not self._wanted.is_set():
            self._wake()

    @property
    def is_looking(self) -> bool:
        """Whether there is an event loop to look after."""
        return bool(self._pulses)

    def leave_alone(self, pulse: Pulse) -> None:
        self._pulses.pop(pulse, None)

    def _wake(self) -> None:
        self._wanted.set()
        if not self._started:
            self._started = True
            threading.Thread(target=self._work, name="callboard watchdog", daemon=True).start()

    def _work(self) -> None:
        idle = 0
        while True:
            time.sleep(_TICK)
            idle = 0 if self._look() else idle + 1
            if idle >= _IDLE:
                # Cleared first: who comes in between either is seen here or sets it again.
                self._wanted.clear()
                if not self._pulses:
                    self._wanted.wait()
                idle = 0

    def _look(self) -> bool:
        # In a function of its own, so that no frame is kept until the next look.
        if not self._pulses:
            return False
        self.looks += 1
        frames, now = _current_frames(), time.monotonic()
        for pulse in list(self._pulses):
            pulse.look(frames.get(pulse.thread), now)
        return True


_watchdog = _Watchdog()


def watchdog_looks() -> int | None:
    """Return how often the watchdog has looked so far; `None` if there is nothing that it looks after now."""
    return _watchdog.looks if _watchdog.is_looking else None


def _begin_anew() -> None:
    global _watchdog
    _watchdog = _Watchdog()  # a child has the object, but not the thread


after_fork_in_child(_begin_anew)
