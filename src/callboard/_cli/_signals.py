"""Ctrl-C and SIGTERM while an event loop runs in another thread."""

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class Stopped(KeyboardInterrupt):
    """Somebody wants the process to end."""

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
        return future.result()
    except Stopped as stopped:
        say(f"Stopping by {stopped.number.name}: calls are cancelled, and have time to clean up. Again: stop at once.")
        portal.start_task_soon(cancel)  # it waits for the loop, which a tool may keep for itself
        future.exception()
        raise
