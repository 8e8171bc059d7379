"""Tickets by which worker threads begin their functions in the order in which these were submitted."""

import threading

_PATIENCE = 1.0
"""Seconds that a thread waits at most for its predecessor to begin; the system may start a new thread late."""


class Ticket:
    """Position of one function in the order."""

    __slots__ = ("_before", "_lock")

    def __init__(self, before: "Ticket | None") -> None:
        self._before = before
        self._lock = threading.Lock()
        self._lock.acquire()  # released exactly once, by `pass_on`: a second release would raise

    def wait(self) -> None:
        """Wait in the worker thread until the previous function has begun, or will never begin."""
        before, self._before = self._before, None  # or each ticket would keep all its predecessors alive
        if before is not None:
            # Only this ticket waits for that lock. After the timeout the function begins out of order: a late start
            # is better than a call that hangs behind a thread that the system does not run.
            before._lock.acquire(timeout=_PATIENCE)

    def pass_on(self) -> None:
        """Let the next function begin, when this one begins or will never begin; exactly once."""
        # The next thread needs the GIL, which this thread still has: so this function begins first.
        self._before = None
        self._lock.release()


class StartOrder:
    """Source of tickets; may be used from any thread."""

    __slots__ = ("_last", "_lock")

    def __init__(self) -> None:
        self._last: Ticket | None = None
        self._lock = threading.Lock()

    def ticket(self) -> Ticket:
        """Return the next ticket."""
        with self._lock:
            ticket = self._last = Ticket(self._last)
            return ticket
