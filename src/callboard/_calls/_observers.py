"""Who is told what happens to calls and runs. Knows the records, not what anybody does with them."""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from time import perf_counter
from traceback import format_tb
from typing import Any, Generic, NamedTuple, TypeVar

from callboard._actor_events import ActorEvent, ActorObserver, AskEvent
from callboard._call_events import CallEvent, Observer, RunEvent, RunInfo, RunObserver
from callboard._loops._watchdog import Holder, marks, watchdog_looks

E = TypeVar("E", CallEvent, RunEvent, AskEvent | ActorEvent)

_log = logging.getLogger("callboard")

LOGGER = "callboard.calls"
"""Where log lines about calls go; quiet until its level, or that of "callboard", is set."""

PATIENCE = 0.5
"""Seconds after which an observer that did not return has held up the event loop too long."""
FIRST_PAUSE = 1.0
"""Seconds for which an observer is told less after it has held up the event loop; twice as long each time."""
LONGEST_PAUSE = 600.0
_LOOKS = 4
"""Looks of the watchdog at the least: where the machine or the collector keeps that too, no observer is blamed."""


class Observers(NamedTuple):
    """The observers that somebody has set up together."""

    calls: tuple[Observer, ...] = ()
    runs: tuple[RunObserver, ...] = ()
    actors: tuple[ActorObserver, ...] = ()
    mark: Callable[[], str | None] | None = None
    """What to leave where a call or a run may stop, so that who goes on with it knows where it was."""
    kinds: frozenset[str] = frozenset()
    """What they make, where there should be one of it only: "spans", "metrics", "logs"."""


_NOBODY = Observers()
_BOUNDS = ("begun", "ended", "started", "restarted", "died", "stopped")
"""The phases between which an observer knows of a call, an ask, a run or a life; of some, one is none."""
_here: ContextVar[tuple[Observers, ...]] = ContextVar("callboard_observers", default=())
_everywhere: list[Observers] = []
current_run: ContextVar[RunInfo | None] = ContextVar("callboard_run", default=None)

numbers = count(1)
"""Of calls, batches and runs."""


@contextmanager
def observe(
    observer: Observer, *, runs: RunObserver | None = None, actors: ActorObserver | None = None
) -> Generator[None]:
    """Tell `observer` every `CallEvent` of the calls that are started inside the block.

    Args:
        observer: called in the event loop's thread for each event; an exception it raises is logged
            once, without its text, and otherwise ignored, because watching a call must not change it. One that
            holds up the loop for longer than half a second is logged, and for a while, longer each time, told only
            the ends of what it knows.
        runs: the same for each `RunEvent` of the agents that run inside the block.
        actors: the same for each `AskEvent` of what is asked inside the block, and each `ActorEvent` of the actors
            that are made in it.

    Raises:
        TypeError: for an observer that cannot be called.
    """
    for name, one in (("observer", observer), ("runs", runs), ("actors", actors)):
        if one is not None and not callable(one):
            raise TypeError(f"observe({name}=...) is called with each event; {one!r} cannot be called")
    with observed_by(careful_observers(observer, runs, actors)):
        yield


def careful_observers(
    calls: Observer,
    runs: RunObserver | None = None,
    actors: ActorObserver | None = None,
    mark: Callable[[], str | None] | None = None,
    kind: str | None = None,
) -> Observers:
    """Observers that can do no harm."""
    return Observers(
        (CarefulObserver(calls),),
        () if runs is None else (CarefulObserver(runs),),
        () if actors is None else (CarefulObserver(actors),),
        mark,
        frozenset() if kind is None else frozenset((kind,)),
    )


@contextmanager
def observed_by(one: Observers) -> Generator[None]:
    """Tell these observers of what is started inside the block."""
    token = _here.set((*_here.get(), one))
    try:
        yield
    finally:
        _here.reset(token)


def observe_everywhere(one: Observers) -> Callable[[], None]:
    """Tell these observers of the whole process; returns what ends that."""
    _everywhere.append(one)

    def end() -> None:
        if one in _everywhere:
            _everywhere.remove(one)

    return end


def _nobody(_: frozenset[str]) -> Observers:
    return _NOBODY


_unasked: Callable[[frozenset[str]], Observers] = _nobody


def observe_unasked(find: Callable[[frozenset[str]], Observers] = _nobody) -> Callable[[frozenset[str]], Observers]:
    """Register who finds observers where nobody called `observe`; telemetry does, where an application has set it up.

    Args:
        find: from the kinds that others make already to the observers beside them; by default nobody.

    Returns:
        What was registered before.
    """
    global _unasked
    before, _unasked = _unasked, find
    return before


def current_observers() -> Observers:
    """The observers of what is started here; of several of one kind, the innermost."""
    here = _here.get()
    if not here and not _everywhere:
        return _unasked(_NOBODY.kinds)
    found = _NOBODY
    for one in reversed((*_everywhere, *here)):
        if found.kinds.isdisjoint(one.kinds):
            found = joined(one, found)
    return joined(_unasked(found.kinds), found)


def current_mark() -> str | None:
    """What to leave where the call or the run that is going on here may stop."""
    mark = current_observers().mark
    return None if mark is None else mark()


def joined(first: Observers, second: Observers) -> Observers:
    if not first.calls and not first.runs and not first.actors:
        return second
    if not second.calls and not second.runs and not second.actors:
        return first
    if "spans" in second.kinds:
        first, second = second, first  # what others say of a call has its span's ids
    return Observers(
        first.calls + second.calls,
        first.runs + second.runs,
        first.actors + second.actors,
        first.mark or second.mark,
        first.kinds | second.kinds,
    )


class CarefulObserver(Generic[E]):
    """An observer that can do no harm.

    Args:
        observer: what it calls.
        clock: seconds of real time.
        looks: how often the watchdog has looked at the event loops so far; `None` if it does not look now.
    """

    def __init__(
        self,
        observer: Callable[[E], None],
        clock: Callable[[], float] = perf_counter,
        looks: Callable[[], int | None] = watchdog_looks,
    ) -> None:
        self._observer: Callable[[E], None] = observer
        self._clock = clock
        self._looks = looks
        self._failed = False
        self._known: set[int] = set()
        """What has begun and not ended. Its end is told in any case, for there may be something to undo."""
        self._missed: set[int] = set()
        """What has begun in a pause and not ended; nothing of it is told."""
        self._pause = 0.0
        self._paused_until: float | None = None
        self._pause_ends = 0.0

    @property
    def name(self) -> str:
        return _name(self._observer)

    def __call__(self, event: E) -> None:
        is_careful = self._missed or self._paused_until is not None or event.phase in _BOUNDS
        if is_careful and not self._hears(event):
            return
        looks, since = self._looks(), self._clock()
        self.tell(event)
        if (seconds := self._clock() - since) > PATIENCE and self._paused_until is None and self._is_to_blame(looks):
            self._take_a_pause(seconds)

    def _hears(self, event: E) -> bool:
        begins, ends = _bounds_of(event)
        number, is_paused = _number(event), self._is_paused()
        if event.phase in begins:
            (self._missed if is_paused else self._known).add(number)
            return not is_paused
        if event.phase in ends:
            if number in self._known:
                self._known.remove(number)
                return True
            if number in self._missed:
                self._missed.remove(number)
                return False
        return not is_paused and number not in self._missed

    def _is_paused(self) -> bool:
        if self._paused_until is not None and self._clock() >= self._paused_until:
            self._paused_until = None
        return self._paused_until is not None

    def _is_to_blame(self, looks_before: int | None) -> bool:
        """Return whether other threads had their turns meanwhile: else the whole process stood still."""
        looks = self._looks()
        return looks_before is None or looks is None or looks - looks_before >= _LOOKS

    def tell(self, event: E) -> None:
        """Run the observer, whatever comes of it."""
        try:
            self._observer(event)
        except KeyboardInterrupt:
            raise  # somebody's, and not the observer's
        except BaseException as error:
            if not self._failed:
                self._failed = True
                _report_failure(self.name, error)

    def _take_a_pause(self, seconds: float) -> None:
        now = self._clock()
        if now - self._pause_ends > LONGEST_PAUSE:
            self._pause = 0.0  # it has behaved for long
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
        self._paused_until = self._pause_ends = now + self._pause
        _log.warning(
            "the observer %s held up the event loop for %.1f s, more than %s s; for the next %g s it is told no more "
            "than the end of what it knows. Let a thread do what takes long",
            self.name,
            seconds,
            PATIENCE,
            self._pause,
        )


_OF_LIVES = (("started", "restarted"), ("died", "stopped"))
_OF_OTHERS = (("begun",), ("ended",))


def _bounds_of(event: CallEvent | RunEvent | AskEvent | ActorEvent) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return _OF_LIVES if isinstance(event, ActorEvent) else _OF_OTHERS


def _number(event: CallEvent | RunEvent | AskEvent | ActorEvent) -> int:
    return event.run.number if isinstance(event, RunEvent) else event.number


def _report_failure(observer: str, error: BaseException) -> None:
    """Where it failed and with what kind of error: in its text there may be what the observer was told."""
    frames = "".join(format_tb(error.__traceback__)).rstrip()
    _log.error("the observer %s failed with %s; this is reported once\n%s", observer, type(error).__qualname__, frames)


def _name(observer: object) -> str:
    """What to call it; its `repr` may have in it what it was told."""
    found = getattr(observer, "__qualname__", None)
    return found if isinstance(found, str) else type(observer).__qualname__


def _of_observer(variables: Mapping[str, Any]) -> Holder:
    name = f"the observer {variables['self'].name}"
    return Holder(name, name, "an observer has to return at once: let a thread do what takes long")


marks[CarefulObserver.tell.__code__] = _of_observer
