"""Exchange between a call and the worker that runs it: context to the worker, progress and log records back.

The context and the events (progress and log records) are plain JSON data: a worker may be confined and untrusted, so
its events are validated and never unpickled. Errors that the called function itself raised are marked, to distinguish
them from errors of the engine.
"""

import logging
import math
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast

from callboard._calls._call_keys import KeyParts, current_key, current_key_parts
from callboard._calls._progress import Progress, check_progress, progress, reporter
from callboard._loops._deadline import DEFAULT_GRACE, TimeLimits, active_time_limits, remaining
from callboard._loops._protocol import EventLoop
from callboard.exceptions import CallError

Carried = dict[str, Any]
"""Context of a call as plain JSON data, to be sent to another process."""
BodyEvent = dict[str, Any]
"""Event that a running body sends: `{"progress": [...]}` or `{"log": [...]}`."""
Tell = Callable[[BodyEvent], None]
"""Function that sends an event to the process that waits for the body; may be called from any thread."""

_LONGEST_TEXT = 16_384
"""Maximum length of a progress or log message, in characters."""
_LONGEST_NAME = 200
"""Maximum length of the name of a logger or a function, in characters."""
_LONGEST_PATH = 1000
"""Maximum length of the path of a log record's code, in characters; a longer one is cut at its beginning."""
_PLAIN = (str, int, float, bool)


_probe = logging.getLogger("callboard.levels")
_known_levels: dict[str, int] = {}
"""Log levels that were set explicitly, by name of the logger; the root logger has an empty name."""


def inject_context() -> Carried:
    """Return the context of the running call, such as its deadline, as data to send to a worker.

    The context has the seconds until the deadline, the grace, the idempotency key, the OpenTelemetry trace and the
    levels of loggers. It also has the strings, numbers and booleans that are bound with `structlog.contextvars`.
    Call this in the task that waits for the worker.
    """
    global _known_levels
    # `Logger.setLevel` clears the caches of all loggers. So a mark in the cache of a private logger tells whether any
    # level has changed since the last call; reading all loggers for each call would take too long.
    marks: dict[int, bool] = _probe.__dict__.get("_cache", {})
    if -1 not in marks:
        loggers = list(logging.root.manager.loggerDict.items())
        levels = {name: log.level for name, log in loggers if isinstance(log, logging.Logger) and log.level}
        _known_levels = {**levels, "": logging.root.level}
        marks[-1] = True
    seconds_left, limits = remaining(), active_time_limits.get()
    context: Carried = {"levels": _known_levels}
    if seconds_left < math.inf:
        context["left"] = seconds_left
    with suppress(ValueError):  # JSON cannot express the arguments: the body has no key, and may not need one
        if (key := current_key()) is not None:
            context["key"] = key
    if (key_parts := current_key_parts()) is not None:
        context["key_parts"] = [*key_parts]
    if limits is not None:
        context["grace"] = limits.grace
    # Optional packages are looked up in `sys.modules`: if the application has not imported them, they have no context.
    if "opentelemetry.context" in sys.modules:
        from opentelemetry.context import get_current
        from opentelemetry.propagate import inject

        trace: dict[str, str] = {}
        if get_current():
            inject(trace)
        if trace:
            context["trace"] = trace
    if (structlog := sys.modules.get("structlog.contextvars")) is not None:
        bound = structlog.get_contextvars()
        context["bound"] = {name: value for name, value in bound.items() if isinstance(value, _PLAIN)}
    return context


@contextmanager
def attach_context(context: Carried, tell: Tell, *, logs: bool = True) -> Generator[None]:
    """Set the context of a call, such as its deadline, during a `with` block in the worker that runs the call.

    Args:
        context: the context that `inject_context()` returned.
        tell: sends progress and log events back.
        logs: forward log records of this process, and set the levels of its loggers; `False` if the process has a log
            of its own.
    """
    global _applied_levels
    # Seconds are carried, not a time: the clocks of two processes or machines cannot be compared.
    until = time.monotonic() + context.get("left", math.inf)
    with ExitStack() as stack:
        if trace := context.get("trace"):
            from opentelemetry.context import attach, detach
            from opentelemetry.propagate import extract

            stack.callback(detach, attach(extract(trace)))
        if bound := context.get("bound"):
            from structlog.contextvars import bound_contextvars

            stack.enter_context(bound_contextvars(**bound))
        limits = TimeLimits(_MONOTONIC, until, context.get("grace", DEFAULT_GRACE))
        stack.callback(active_time_limits.reset, active_time_limits.set(limits))
        stack.callback(reporter.reset, reporter.set(_Reports(tell, context.get("key"), context.get("key_parts"))))
        stack.callback(_tell.reset, _tell.set(tell if logs else None))
        if logs:
            root, levels = logging.getLogger(), context["levels"]
            if _forwarding not in root.handlers:
                root.addHandler(_forwarding)
            if levels != _applied_levels:
                for name in _applied_levels.keys() - levels.keys():
                    logging.getLogger(name).setLevel(logging.NOTSET)
                for name, level in levels.items():
                    logging.getLogger(name).setLevel(level)
                _applied_levels = dict(levels)
            _running_senders.append(tell)
            stack.callback(_running_senders.remove, tell)
        yield


class NonsenseError(ValueError):
    """Raised for data from a worker that is neither a valid progress report nor a valid log record."""


def dispatch_event(event: BodyEvent) -> None:
    """Report the progress or the log record that a worker has sent; call this in the task that waits for the worker.

    Args:
        event: the event, as a worker sent it; it is validated.

    Raises:
        NonsenseError: if the data is no valid event.
    """
    try:
        deliver_event = _parse_event(event)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise NonsenseError(f"{event!r:.200} says nothing that a body may say") from error
    token = _delivering.set(True)
    try:
        deliver_event()  # outside of the `try` above: an error of an observer or log handler is no fault of the worker
    finally:
        _delivering.reset(token)


def _parse_event(event: BodyEvent) -> Callable[[], None]:
    # Untrusted input: each wrong shape, type or length has to raise here, before anything is reported or logged.
    ((kind, content),) = event.items()
    if kind == "progress":
        message, done, total = content
        check_progress(message, done, total)
        return partial(progress, message[:_LONGEST_TEXT], done=done, total=total)
    if kind != "log":
        raise ValueError(kind)
    name, level, message, created, process, origin = content
    if not isinstance(name, str) or not isinstance(message, str):
        raise TypeError(f"{name!r:.80} and {message!r:.80} are no texts")
    name = name[:_LONGEST_NAME]  # before the lookup: a hostile name with 60,000 dots has as many parent loggers
    # The existing logger with this name, or its nearest existing parent: a worker must not make new loggers here.
    existing = name
    while existing and not isinstance(logging.Logger.manager.loggerDict.get(existing), logging.Logger):
        existing = existing.rpartition(".")[0]
    logger = logging.getLogger(existing)
    pathname, lineno, function = origin
    record = logger.makeRecord(
        name, int(level), str(pathname), int(lineno), message[-_LONGEST_TEXT:], (), None, str(function)
    )
    record.created, record.process = float(created), int(process)
    record.processName = "worker"
    return partial(logger.handle, record) if logger.isEnabledFor(record.levelno) else lambda: None


class _Monotonic:
    """Clock that replaces the event loop's clock in workers in which no event loop runs."""

    def now(self) -> float:
        return time.monotonic()


_MONOTONIC: Final = cast("EventLoop", _Monotonic())


class _Reports:
    """Progress reporter of the call that a worker runs, with the idempotency key of the call."""

    def __init__(self, tell: Tell, key: str | None, key_parts: Sequence[Any] | None) -> None:
        self._tell = tell
        self.idempotency_key = key
        self.key_parts = None if key_parts is None else KeyParts(*key_parts)

    def report(self, progress: Progress) -> None:
        self._tell({"progress": [progress.message[:_LONGEST_TEXT], progress.done, progress.total]})


_tell: ContextVar[Tell | None] = ContextVar("callboard_tell", default=None)
_delivering: ContextVar[bool] = ContextVar("callboard_delivering", default=False)
_running_senders: list[Tell] = []
"""Event senders of the running bodies, newest last; for threads that a body started without its context variables."""


class _Forwarding(logging.Handler):
    """Log handler of a worker, which sends log records to the process that made the call."""

    def emit(self, record: logging.LogRecord) -> None:
        # A record that is being delivered comes from another worker. Without a caller of its own it must not be sent to
        # the caller of an unrelated body.
        tell = _tell.get() or (_running_senders[-1] if _running_senders and not _delivering.get() else None)
        if tell is None:
            if logging.lastResort is not None:
                logging.lastResort.handle(record)  # no call runs: as in a process without logging handlers
            return
        # Text only: arguments and exceptions of the record are not JSON, and would have to be unpickled.
        try:
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            # Code that a program compiles may have any name, such as its own text.
            origin = [record.pathname[-_LONGEST_PATH:], record.lineno, str(record.funcName)[-_LONGEST_NAME:]]
            tell({"log": [record.name, record.levelno, text[-_LONGEST_TEXT:], record.created, record.process, origin]})
        except Exception:
            self.handleError(record)


_forwarding = _Forwarding()


_applied_levels: dict[str, int] = {}
"""Log levels that this worker has copied from the calling process, by name of the logger."""


class BodyRaisedError(Exception):
    """Wrapper of a `CallError` that the called function raised, to distinguish it from errors of the engine."""

    def __init__(self, error: CallError) -> None:
        self.error = error
        super().__init__(error)


@contextmanager
def wrap_call_errors() -> Generator[None]:
    """Wrap each `CallError` that is raised in the `with` block, to distinguish it from errors of the engine."""
    # For example, a body that uses an engine of its own may raise that engine's `EngineError`.
    try:
        yield
    except CallError as error:
        raise BodyRaisedError(error) from error
