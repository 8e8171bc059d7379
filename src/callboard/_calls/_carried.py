"""What of a call goes with its body to an engine, and what comes back from there before the result.

All of it is data that JSON can carry: a confined worker is not believed, and its words are never unpickled.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, Final, cast

from callboard._calls._idempotency import current_key
from callboard._calls._progress import Progress, check_progress, progress, reporter
from callboard._loops._deadline import DEFAULT_GRACE, Timed, current_timed, remaining
from callboard._loops._protocol import EventLoop

Carried = dict[str, Any]
"""Of the context of a call, what has a meaning elsewhere."""
Told = dict[str, Any]
"""A word of a body: `{"progress": [...]}` or `{"log": [...]}`."""
Tell = Callable[[Told], None]
"""Sends a word to whoever waits for the body; from any thread."""

_LONGEST_TEXT = 16_384
"""Characters of one message, be it of progress or for a log."""
_LONGEST_NAME = 200
"""Characters of the name of a logger."""
_PLAIN = (str, int, float, bool)


def carried() -> Carried:
    """What goes along with a body; to be asked in the task that waits for it.

    Its deadline, its grace, its idempotency key, the trace, and what is bound by `structlog.contextvars`; of the latter
    only texts and numbers.
    """
    if (relay := _relay.get()) is not None:
        return relay.carried()
    left, timed = remaining(), current_timed.get()
    found: Carried = {"levels": _levels()}
    if left < math.inf:
        found["left"] = left
    with suppress(ValueError):  # of arguments that no JSON can say
        if (key := current_key()) is not None:
            found["key"] = key
    if timed is not None:
        found["grace"] = timed.grace
    if "opentelemetry.context" in sys.modules and (trace := _trace()):
        found["trace"] = trace
    if (structlog := sys.modules.get("structlog.contextvars")) is not None:
        bound = structlog.get_contextvars()
        found["bound"] = {name: value for name, value in bound.items() if isinstance(value, _PLAIN)}
    return found


_probe = logging.getLogger("callboard.levels")
_known_levels: dict[str, int] = {}


def _levels() -> dict[str, int]:
    """The levels that loggers have of their own, by name; the root's is that of ""."""
    global _known_levels
    # Whoever sets a level has all loggers forget what they have worked out: this one too, then.
    worked_out: dict[int, bool] = _probe.__dict__.get("_cache", {})
    if -1 not in worked_out:
        loggers = list(logging.root.manager.loggerDict.items())
        levels = {name: one.level for name, one in loggers if isinstance(one, logging.Logger) and one.level}
        _known_levels = {**levels, "": logging.root.level}
        worked_out[-1] = True
    return _known_levels


def _trace() -> dict[str, str]:
    from opentelemetry.context import get_current
    from opentelemetry.propagate import inject

    trace: dict[str, str] = {}
    if get_current():
        inject(trace)
    return trace


def arrived(given: Carried, tell: Tell, *, logs: bool = True) -> AbstractContextManager[None]:
    """Run a block, in a worker, as what a body works for: with its deadline, its trace, its progress and its log.

    Args:
        given: what went along with the body.
        tell: sends a word back.
        logs: whether this process logs for nobody but those who wait for bodies; without it, it keeps its own log.
    """
    return _Arrival(given, tell, logs=logs)


class _Arrival:
    """A body's block; by hand, because generators would take twice as long, in every call."""

    __slots__ = ("_around", "_given", "_logs", "_relay", "_reporter", "_tell", "_timed", "_told")

    def __init__(self, given: Carried, tell: Tell, *, logs: bool) -> None:
        self._given = given
        self._logs = logs
        self._tell = tell
        self._around: ExitStack | None = None

    def __enter__(self) -> None:
        given, tell = self._given, self._tell
        until = time.monotonic() + given.get("left", math.inf)
        if self._logs:
            _forward_logs(given["levels"])
            _newest.append(tell)
        if given.get("trace") or given.get("bound"):
            self._around = ExitStack()
            self._around.enter_context(_in_trace(given.get("trace")))
            self._around.enter_context(_bound(given.get("bound")))
        self._timed = current_timed.set(Timed(_MONOTONIC, until, given.get("grace", DEFAULT_GRACE)))
        self._reporter = reporter.set(_Reports(tell, given.get("key")))
        self._told = _tell.set(tell if self._logs else None)
        self._relay = _relay.set(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._logs:
            _newest.remove(self._tell)
        _relay.reset(self._relay)
        _tell.reset(self._told)
        reporter.reset(self._reporter)
        current_timed.reset(self._timed)
        if self._around is not None:
            self._around.__exit__(kind, error, traceback)


class NonsenseError(ValueError):
    """What is no word of a body."""


def deliver(told: Told) -> None:
    """Do here what a body has said there; to be called in the task that waits for it.

    Raises:
        NonsenseError: for what is no such word.
    """
    try:
        act = _understood(told)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NonsenseError(f"{told!r:.200} says nothing that a body may say") from error
    if (relay := _relay.get()) is not None:
        relay.tell(told)
        return
    token = _delivering.set(True)
    try:
        act()  # what observers and log handlers raise is theirs
    finally:
        _delivering.reset(token)


def _understood(told: Told) -> Callable[[], None]:
    ((kind, said),) = told.items()
    if kind == "progress":
        message, done, total = said
        check_progress(message, done, total)
        return partial(progress, message[:_LONGEST_TEXT], done=done, total=total)
    if kind == "log":
        logger, record = _record(said)
        return partial(logger.handle, record) if logger.isEnabledFor(record.levelno) else _nothing
    raise ValueError(kind)


def _nothing() -> None:
    pass


class _Relay:
    """What is carried here came from elsewhere, and what is delivered goes there."""

    def __init__(self, given: Carried, tell: Tell) -> None:
        self._given = given
        self._since = time.monotonic()
        self.tell = tell

    def carried(self) -> Carried:
        if "left" not in self._given:
            return self._given
        return {**self._given, "left": max(0.0, self._given["left"] - (time.monotonic() - self._since))}


_relay: ContextVar[_Relay | None] = ContextVar("callboard_relay", default=None)


@contextmanager
def relayed(given: Carried, tell: Tell) -> Generator[None]:
    """Run a block as one who passes a body on to an engine.

    `carried` gives what came along with the body, with the time that is left of it; what is to be delivered here goes
    back by `tell`.
    """
    token = _relay.set(_Relay(given, tell))
    try:
        yield
    finally:
        _relay.reset(token)


class _Monotonic:
    """The clock of a process, where no event loop may be running."""

    def now(self) -> float:
        return time.monotonic()


_MONOTONIC: Final = cast("EventLoop", _Monotonic())


class _Reports:
    """What `progress` and `idempotency_key` find in a worker."""

    def __init__(self, tell: Tell, key: str | None) -> None:
        self._tell = tell
        self.idempotency_key = key

    def report(self, progress: Progress) -> None:
        self._tell({"progress": [progress.message[:_LONGEST_TEXT], progress.done, progress.total]})


@contextmanager
def _in_trace(trace: Mapping[str, str] | None) -> Generator[None]:
    if not trace:
        yield
        return
    from opentelemetry.context import attach, detach
    from opentelemetry.propagate import extract

    token = attach(extract(trace))
    try:
        yield
    finally:
        detach(token)


@contextmanager
def _bound(values: Mapping[str, Any] | None) -> Generator[None]:
    if not values:
        yield
        return
    from structlog.contextvars import bound_contextvars

    with bound_contextvars(**values):
        yield


_tell: ContextVar[Tell | None] = ContextVar("callboard_tell", default=None)
_delivering: ContextVar[bool] = ContextVar("callboard_delivering", default=False)
_newest: list[Tell] = []
"""Of the bodies that run here, the newest last: a thread that one has started does not have its variables."""


class _Forwarding(logging.Handler):
    """Sends log records to where the call was made."""

    def emit(self, record: logging.LogRecord) -> None:
        # What is delivered here was said elsewhere, and goes on only to whoever waits for this body.
        tell = _tell.get() or (_newest[-1] if _newest and not _delivering.get() else None)
        if tell is None:
            if logging.lastResort is not None:
                logging.lastResort.handle(record)  # of a thread that works for no call
            return
        try:
            said = record.getMessage()
            if record.exc_info:
                said += "\n" + logging.Formatter().formatException(record.exc_info)
            place = [record.pathname, record.lineno, record.funcName]
            tell({"log": [record.name, record.levelno, said[-_LONGEST_TEXT:], record.created, record.process, place]})
        except Exception:
            self.handleError(record)


_forwarding = _Forwarding()


_applied: dict[str, int] = {}
"""The levels that loggers have here because they have them where the calls are made."""


def _forward_logs(levels: Mapping[str, int]) -> None:
    global _applied
    root = logging.getLogger()
    if _forwarding not in root.handlers:
        root.addHandler(_forwarding)
    if levels == _applied:
        return
    for name in _applied.keys() - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    _applied = dict(levels)


def _record(said: list[Any]) -> tuple[logging.Logger, logging.LogRecord]:
    """Make a record of a worker into one of ours, for the logger of its name, as if it had been made here."""
    name, level, message, created, process, place = said
    if not isinstance(name, str) or not isinstance(message, str):
        raise TypeError(f"{name!r:.80} and {message!r:.80} are no texts")
    name = name[:_LONGEST_NAME]  # first: a name of 60,000 dots has as many loggers above it
    logger = _nearest_logger(name)
    pathname, lineno, function = place
    record = logger.makeRecord(
        name, int(level), str(pathname), int(lineno), message[-_LONGEST_TEXT:], (), None, str(function)
    )
    record.created, record.process = float(created), int(process)
    record.processName = "worker"
    return logger, record


def _nearest_logger(name: str) -> logging.Logger:
    """The logger of a name, or the one that it would ask; none is made, for it would stay for ever."""
    known = logging.Logger.manager.loggerDict
    while name and not isinstance(known.get(name), logging.Logger):
        name = name.rpartition(".")[0]
    return logging.getLogger(name)
