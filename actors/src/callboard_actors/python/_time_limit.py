"""Time limit of a cell: it is interrupted first, which keeps its names; if it ignores that, its process is killed."""

import ctypes
import signal
import threading
from types import TracebackType


class CellTimeoutError(BaseException):
    """Raised within a cell when its time is over; a BaseException, so that `except Exception` does not catch it."""

    __module__ = "builtins"  # the traceback is for a model, which knows no module of this package


class TimeLimit:
    """Block that is interrupted after a time; its process is killed after a grace.

    The kernel kills it by SIGALRM, which works even if no Python code can run any more.
    """

    def __init__(self, seconds: float | None, grace: float | None) -> None:
        self._seconds = seconds
        self._grace = grace
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt another one that holds it
        self._is_over = True
        self._is_interrupted = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        self._is_over = False
        if self._seconds is None:
            return
        # A thread and not a signal: SIGALRM is kept for the kill, and must have no handler in Python.
        self._timer = threading.Timer(self._seconds, self.interrupt, [CellTimeoutError])
        self._timer.daemon = True
        self._timer.start()
        if self._grace is not None:
            signal.setitimer(signal.ITIMER_REAL, self._seconds + self._grace)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the block; may be called again if the first call was interrupted."""
        with self._lock:
            self._is_over = True
            interrupted, self._is_interrupted = self._is_interrupted, False
        if interrupted:
            self._take_away()
        if self._timer is None:
            return
        self._timer.cancel()
        if self._grace is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _take_away(self) -> None:
        """Remove an error that has not arrived yet, so that it cannot hit later code."""
        # It is replaced by an error of this class. Clearing it instead would leave the interpreter looking for it for
        # ever, which in CPython 3.11 hangs code that sets a profile function.
        try:
            _raise_in(self._thread, _NothingError)
            while True:
                pass
        except _NothingError:
            pass

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an error within the block unless it is over; called from another thread or a signal handler."""
        with self._lock:
            if not self._is_over:
                self._is_interrupted = True
                _raise_in(self._thread, error)


class _NothingError(BaseException):
    """Replacement for an error that comes too late."""


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
