"""Ctrl-C and SIGTERM while an event loop runs in another thread, or a person is asked."""

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from anyio.from_thread import BlockingPortal

T = TypeVar("T")

_LOOK_UP = 0.1
"""Seconds after which this thread looks whether a signal came just before it began to wait."""


class Stopped(KeyboardInterrupt):
    """SIGINT or SIGTERM has come: somebody wants the process to end."""

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        super().__init__(self.number.name)

    @property
    def exit_code(self) -> int:
        """The status with which a shell reports the signal: 128 and its number."""
        return 128 + self.number


@contextmanager
def stoppable() -> Generator[None]:
    """Raise `Stopped` in this thread, the main one, for the first SIGINT or SIGTERM; the second ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopping = False

    def stop(number: int, _: object) -> None:
        nonlocal stopping
        if stopping:
            _end_now(number)
        stopping = True
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def attentive() -> Generator[None]:
    """See every signal while the block waits for input, also one that came a moment before it began to wait.

    Python runs a signal's handler between two of its own instructions. C code that waits, such as readline, is
    woken by a signal that comes while it waits, and then lets Python look; of one that came just before, it knows
    nothing, and waits for the next key. So a timer wakes it again and again. Windows has no such timer, and no need
    of it.
    """
    if sys.platform == "win32":
        yield
    elif threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield  # somebody's alarm runs, and there is one timer only; or signals come to another thread
    else:
        handler = signal.signal(signal.SIGALRM, _do_nothing)
        signal.setitimer(signal.ITIMER_REAL, _LOOK_UP, _LOOK_UP)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)


def _do_nothing(number: int, _: object) -> None:
    """That the wait was interrupted is enough: other handlers have their turn."""


def _end_now(number: int) -> NoReturn:
    show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
    os.write(2, f"{show_cursor}\nStopped at once; what the calls were doing is unknown.\n".encode())
    os._exit(128 + number)


def wait_for(
    portal: BlockingPortal, task: Callable[[], Awaitable[T]], cancel: Callable[[], object], say: Callable[[str], Any]
) -> T:
    """Run something in the event loop; stopped, it is cancelled, and ends in order.

    Args:
        portal: leads to the loop.
        task: what to run.
        cancel: has it end; called in the loop.
        say: tells the person what is going on.

    Raises:
        Stopped: if it was stopped, when it has ended.
    """
    future = portal.start_task_soon(task)
    try:
        _wait(future)
    except Stopped as stopped:
        say(f"Stopping by {stopped.number.name}: calls are cancelled, and have time to clean up. Again: stop at once.")
        portal.start_task_soon(cancel)  # it waits for the loop, which a tool may keep for itself
        _wait(future)
        raise
    return future.result()


def _wait(future: "Future[Any]") -> None:
    """Wait for something, and see every signal meanwhile, for the reason that `attentive` gives."""
    while not wait([future], _LOOK_UP).done:
        pass
