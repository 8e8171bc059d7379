"""Observers of calls, runs and actors: registration and lookup, and protection of calls against faulty observers."""

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from traceback import format_tb
from typing import Generic, NamedTuple, TypeVar

from callboard._calls._blocks import has_to_be_entered
from callboard._loops._watchdog import LoopHolder, mark
from callboard._records._events import (
    ActorEvent,
    ActorObserver,
    AskEvent,
    CallEvent,
    Observer,
    RunEvent,
    RunInfo,
    RunObserver,
)
from callboard._util._callers import check_plain_function

E = TypeVar("E", CallEvent, RunEvent, AskEvent | ActorEvent)

_log = logging.getLogger("callboard")

LOGGER = "callboard.calls"
"""Name of the logger for lines about calls; silent until its level, or the level of "callboard", is set."""


class Observers(NamedTuple):
    """Set of observers, registered together, for calls, runs and actors."""

    calls: tuple[Observer, ...] = ()
    runs: tuple[RunObserver, ...] = ()
    actors: tuple[ActorObserver, ...] = ()
    mark: Callable[[], str | None] | None = None
    """Function that returns a mark (such as a trace id) of the running call or run, for the run that continues it."""
    kinds: frozenset[str] = frozenset()
    """Kinds of output ("spans", "metrics", "logs") that only one observer in a process should produce."""


_NO_OBSERVERS = Observers()
_context_observers: ContextVar[tuple[Observers, ...]] = ContextVar("callboard_observers", default=())
_process_observers: list[Observers] = []
current_run: ContextVar[RunInfo | None] = ContextVar("callboard_run", default=None)
note_of_run: ContextVar[Callable[[str, Mapping[str, object]], None] | None] = ContextVar(
    "callboard_note_of_run", default=None
)
"""Function that reports a decision about the current model request, and its details, to the observers of its run."""

numbers = count(1)
"""Source of numbers for calls, batches and runs, unique within the process."""


@has_to_be_entered("with callboard.observe(...):")
@contextmanager
def observe(
    observer: Observer,
    *,
    runs: RunObserver | None = None,
    actors: ActorObserver | None = None,
    everywhere: bool = False,
) -> Generator[None]:
    """Call `observer` with every `CallEvent` of the calls that start inside the `with` block.

    An exception of an observer is logged once, without its text, and otherwise ignored. An observer that blocks the
    event loop is named once in a `LoopBlockedWarning`.

    Args:
        observer: called in the event loop's thread with each event.
        runs: called with each `RunEvent` of the agents that run inside the block.
        actors: called with each `AskEvent` of messages sent inside the block, and each `ActorEvent` of actors created
            in it.
        everywhere: observe what starts in any thread and task of the process while the block runs, and not only in the
            block itself and in the tasks that it starts.

    Raises:
        TypeError: if an observer is no plain function.
    """
    check_plain_function("observe(observer=...)", observer, "an event")
    for name, function in (("runs", runs), ("actors", actors)):
        if function is not None:
            check_plain_function(f"observe({name}=...)", function, "an event")
    with observe_within(careful_observers(observer, runs, actors), everywhere=everywhere):
        yield


def careful_observers(
    calls: Observer,
    runs: RunObserver | None = None,
    actors: ActorObserver | None = None,
    mark: Callable[[], str | None] | None = None,
    kind: str | None = None,
) -> Observers:
    """Return an `Observers` that catches errors of the given observers."""
    return Observers(
        (CarefulObserver(calls),),
        () if runs is None else (CarefulObserver(runs),),
        () if actors is None else (CarefulObserver(actors),),
        mark,
        frozenset() if kind is None else frozenset((kind,)),
    )


@contextmanager
def observe_in_context(observers: Observers) -> Generator[None]:
    """Register observers for all calls, runs and actors that start inside the `with` block."""
    token = _context_observers.set((*_context_observers.get(), observers))
    try:
        yield
    finally:
        _context_observers.reset(token)


@contextmanager
def observe_within(observers: Observers, *, everywhere: bool) -> Generator[None]:
    """Register observers for the `with` block, for its context only or for the whole process."""
    if not everywhere:
        with observe_in_context(observers):
            yield
        return
    stop_observing = observe_everywhere(observers)
    try:
        yield
    finally:
        stop_observing()


def observe_everywhere(observers: Observers) -> Callable[[], None]:
    """Register observers for the whole process; return a function that removes them."""
    _process_observers.append(observers)

    def stop_observing() -> None:
        if observers in _process_observers:
            _process_observers.remove(observers)

    return stop_observing


def _no_observers(_: frozenset[str]) -> Observers:
    return _NO_OBSERVERS


_default_observers: Callable[[frozenset[str]], Observers] = _no_observers


def observe_by_default(
    find_observers: Callable[[frozenset[str]], Observers] = _no_observers,
) -> Callable[[frozenset[str]], Observers]:
    """Register a function that provides default observers; return the function that was registered before.

    Telemetry uses it, so that an application that has set up OpenTelemetry needs no call of `observe`. `find_observers`
    takes the kinds that other observers produce already.
    """
    global _default_observers
    previous, _default_observers = _default_observers, find_observers
    return previous


def current_observers() -> Observers:
    """Return the observers of all calls, runs and actors that start in the current context."""
    in_context = _context_observers.get()
    if not in_context and not _process_observers:
        return _default_observers(_NO_OBSERVERS.kinds)
    observers = _NO_OBSERVERS
    for registered in reversed((*_process_observers, *in_context)):
        if observers.kinds.isdisjoint(registered.kinds):
            observers = join_observers(registered, observers)
    return join_observers(_default_observers(observers.kinds), observers)


def current_mark() -> str | None:
    """Return a trace id or other mark of the running call or run, to link a later run to it; `None` without a mark."""
    mark = current_observers().mark
    return None if mark is None else mark()


def join_observers(first: Observers, second: Observers) -> Observers:
    if not first.calls and not first.runs and not first.actors:
        return second
    if not second.calls and not second.runs and not second.actors:
        return first
    if "spans" in second.kinds:
        first, second = second, first  # spans first: log lines of other observers then have the ids of the call's span
    return Observers(
        first.calls + second.calls,
        first.runs + second.runs,
        first.actors + second.actors,
        first.mark or second.mark,
        first.kinds | second.kinds,
    )


class CarefulObserver(Generic[E]):
    """Wrapper that catches the errors of an observer."""

    def __init__(self, observer: Callable[[E], None]) -> None:
        self._observer: Callable[[E], None] = observer
        self._failed = False

    @property
    def name(self) -> str:
        """Name of the observer for logs; not its `repr`, which may contain confidential data of events."""
        name = getattr(self._observer, "__qualname__", None)
        return name if isinstance(name, str) else type(self._observer).__qualname__

    @property
    def loop_holder(self) -> LoopHolder:
        """Description of the observer for the warning about a blocked event loop."""
        name = f"the observer {self.name}"
        return LoopHolder(name, name, "an observer has to return at once: let a thread do what takes long")

    def __call__(self, event: E) -> None:
        """Call the observer with an event, and log its first error."""
        try:
            self._observer(event)
        except KeyboardInterrupt:
            raise  # Ctrl-C of the user, not an error of the observer
        except BaseException as error:  # `SystemExit`, too: an observer must not change the call
            if not self._failed:
                self._failed = True
                log_failure(logging.ERROR, f"the observer {self.name} failed, which is reported once", error)


def log_failure(level: int, text: str, error: BaseException, *, shows_text: bool = False) -> None:
    """Log a text with the type and the frames of an error, at the logging level `level`.

    The error's own text may contain confidential arguments. With `shows_text`, it is logged too, at the level DEBUG.
    """
    if not _log.isEnabledFor(level):
        return
    frames = "".join(format_tb(error.__traceback__)).rstrip()
    full = error if shows_text and _log.isEnabledFor(logging.DEBUG) else None
    _log.log(level, "%s: %s\n%s", text, type(error).__qualname__, frames, exc_info=full)


mark(CarefulObserver.__call__, CarefulObserver)
