"""Order in which worker threads begin their functions: the order in which the functions were given to them."""

import threading

_PATIENCE = 1.0
"""Seconds that a thread waits for the one before it; the system may be slow to run a new thread."""


class Ticket:
    """Place of one function in the order; passed on once, when the function begins or will never begin."""

    __slots__ = ("_before", "_lock")

    def __init__(self, before: "Ticket | None") -> None:
        self._before = before
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        """Wait in the thread until the function before this one has begun, or never will."""
        before, self._before = self._before, None  # or each ticket would keep all those before it
        if before is not None:
            before._lock.acquire(timeout=_PATIENCE)  # nobody else acquires it

    def pass_on(self) -> None:
        """Let the next function begin. Its thread needs the interpreter's lock, which the caller still has."""
        self._before = None
        self._lock.release()


class StartOrder:
    """Gives out tickets; from any thread."""

    __slots__ = ("_last", "_lock")

    def __init__(self) -> None:
        self._last: Ticket | None = None
        self._lock = threading.Lock()

    def ticket(self) -> Ticket:
        """Return the next ticket."""
        with self._lock:
            ticket = self._last = Ticket(self._last)
            return ticket
