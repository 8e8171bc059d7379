"""The time that a cell has: first it is interrupted, and keeps its names; what is deaf to that is killed."""

import ctypes
import signal
import threading
from types import TracebackType


class CellTimeoutError(BaseException):
    """Raised within a cell when its time is over; no `except Exception` of the cell's stops it."""

    __module__ = "builtins"  # for its traceback, whose reader knows no module of ours


class TimeLimit:
    """A block that is interrupted after a time, and whose process is killed after a grace.

    The kill is the kernel's own, by SIGALRM: it needs nobody who would still run Python.
    """

    def __init__(self, seconds: float | None, grace: float | None) -> None:
        self._seconds = seconds
        self._grace = grace
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # a signal may come while the handler of another one holds it
        self._is_over = True
        self._is_interrupted = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        self._is_over = False
        if self._seconds is None:
            return
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
        """End it, again if it was interrupted in that."""
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
        """Have an error that has not arrived yet hit nobody else."""
        # By one of our own in its place. To ask for none would leave the interpreter looking for it for ever, which
        # in CPython 3.11 hangs whoever sets a profile function.
        try:
            _raise_in(self._thread, _NothingError)
            while True:
                pass
        except _NothingError:
            pass

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an error within the block, if that is not over; from another thread, or from a handler of signals."""
        with self._lock:
            if not self._is_over:
                self._is_interrupted = True
                _raise_in(self._thread, error)


class _NothingError(BaseException):
    """Takes the place of an error that comes too late."""


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
