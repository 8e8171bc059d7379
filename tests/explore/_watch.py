"""Execution of one plan: its backend, its time limit, and the warnings and logs that it must not cause."""

import gc
import logging
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NamedTuple

import anyio

from callboard import CallboardWarning
from callboard.testing import backend

PATIENCE = 20.0
"""Seconds of real time for one plan."""
FOR_EVER = 1e7
"""Virtual seconds, more than any plan takes."""


class Complaint(NamedTuple):
    """A promise that was broken."""

    promise: str
    """The name of the function that found the violation."""
    detail: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.detail}"


class StuckError(BaseException):
    """A plan took too long. It is no Exception, because tools and middleware catch those."""


def run_on(name: str, main: Callable[[], Awaitable[list[Complaint]]], *, real_clock: bool = False) -> list[Complaint]:
    """Run a function on a new event loop; return the complaints."""
    backend_name, options = backend(name, real_clock=real_clock)

    async def within() -> list[Complaint]:
        with anyio.fail_after(PATIENCE / 2 if real_clock else FOR_EVER):
            return await main()

    with listening() as texts:
        try:
            with within_patience():
                complaints = anyio.run(within, backend=backend_name, backend_options=options)
        except StuckError as error:
            complaints = [Complaint("it_ends", f"after {PATIENCE:g} s at {_where(error)}")]
        except TimeoutError as error:
            complaints = [Complaint("it_ends", f"everything waits, for ever: {_where(error)}")]
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            complaints = [Complaint("nothing_else_is_raised", _describe(error))]
    return complaints + [Complaint("nothing_is_said_afterwards", text) for text in texts]


@contextmanager
def within_patience() -> Iterator[None]:
    """Interrupt a plan that blocks the main thread for too long; other threads cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise StuckError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def listening() -> Iterator[list[str]]:
    """Collect reports of event loops, garbage collector and interpreter about errors that no code awaited or caught."""
    texts: list[str] = []
    ear = _Ear(texts)
    before = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: texts.append(f"{unraisable.err_msg}: {unraisable.exc_value!r}")
    logging.getLogger("asyncio").addHandler(ear)
    logging.getLogger("asyncio").propagate = False
    logging.getLogger("callboard").addHandler(_SILENCE)  # warnings about ignored cancellations
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield texts
            gc.collect()
        texts += [str(warning.message) for warning in warned if not issubclass(warning.category, CallboardWarning)]
    finally:
        logging.getLogger("asyncio").propagate = True
        logging.getLogger("callboard").removeHandler(_SILENCE)
        logging.getLogger("asyncio").removeHandler(ear)
        sys.unraisablehook = before


_SILENCE = logging.NullHandler()


class _Ear(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return ", ".join(f"{frame.name} ({frame.filename.rpartition('/')[2]}:{frame.lineno})" for frame in frames[-3:])


def _describe(error: BaseException) -> str:
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
    return f"{error!r} at {_where(inner)}"
