"""Handling of SIGINT and SIGTERM in the main thread, while the event loop runs in another thread."""

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

T = TypeVar("T")

_SIGNAL_CHECK = 0.1
"""Seconds between two interruptions of a wait. At each interruption, Python runs pending signal handlers.

A signal that arrived just before the wait is handled at the next interruption.
"""


class Stopped(KeyboardInterrupt):
    """Exception that the first SIGINT or SIGTERM raises in the main thread."""

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        super().__init__(self.number.name)

    @property
    def exit_code(self) -> int:
        """Exit code of a process that a signal has stopped: 128 plus the number of the signal, as in shells."""
        return 128 + self.number


@contextmanager
def stoppable() -> Generator[None]:
    """Raise `Stopped` in the main thread at the first SIGINT or SIGTERM inside the `with` block; exit at the second."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    stopping = False

    def stop(number: int, _: object) -> None:
        nonlocal stopping
        if stopping:
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
            # Not `print` and `sys.exit`: the handler may have interrupted a print, and no clean-up may delay the end.
            os.write(2, f"{show_cursor}\nStopped at once; what the calls were doing is unknown.\n".encode())
            os._exit(128 + number)
        stopping = True
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible_input() -> Generator[None]:
    """Let signals interrupt a function that waits for input inside the `with` block."""
    # This includes a signal that arrives just before the wait.
    # Python runs signal handlers between two bytecode instructions. A signal during a wait in C code, such as readline,
    # interrupts the wait, and the handler runs. A signal just before the wait does not: the handler would run only
    # after the next key. So a timer interrupts the wait again and again. Windows has no such timer, and needs none.
    if sys.platform == "win32":
        yield
    elif threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield  # not the main thread, which alone gets signals; or the process's only timer is in use
    else:
        handler = signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, _SIGNAL_CHECK, _SIGNAL_CHECK)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)


def wait_for(
    portal: BlockingPortal, task: Callable[[], Awaitable[T]], cancel: Callable[[], object], say: Callable[[str], Any]
) -> T:
    """Run `task` in an anyio portal, return its result; at SIGINT or SIGTERM, run `cancel`, wait, raise `Stopped`."""
    future = portal.start_task_soon(task)
    try:
        _wait(future)
    except Stopped as stopped:
        say(f"Stopping by {stopped.number.name}: calls are cancelled, and have time to clean up. Again: stop at once.")
        portal.start_task_soon(cancel)  # not waited for: a tool that blocks the loop would delay it
        _wait(future)
        raise
    return future.result()


def _wait(future: "Future[Any]") -> None:
    """Wait until a future is done, in short steps, so that signals are handled; see `interruptible_input()`."""
    # In pieces: in the main thread, Python runs handlers of signals between them.
    while not wait([future], _SIGNAL_CHECK).done:
        pass
