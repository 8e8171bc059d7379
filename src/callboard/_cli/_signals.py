"""Handling of SIGINT and SIGTERM in the main thread, while the event loop runs in another thread."""

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import wait
from contextlib import contextmanager
from typing import Any, TypeVar

from anyio.from_thread import BlockingPortal

from callboard._cli._keyboard import restore_terminal, terminal_modes

T = TypeVar("T")

_SIGNAL_CHECK = 0.1
"""Seconds between two interruptions of a wait. At each interruption, Python runs pending signal handlers.

A signal that arrived just before the wait is handled at the next interruption.
"""

_POLL = 0.05
"""Seconds between two calls of the function that reads keys: a person does not notice the delay."""


class Stopped(KeyboardInterrupt):
    """Exception that the first SIGINT or SIGTERM raises in the main thread."""

    def __init__(self, number: int) -> None:
        self.number = signal.Signals(number)
        super().__init__(self.number.name)

    @property
    def exit_code(self) -> int:
        """Exit code of a process that a signal has stopped: 128 plus the number of the signal, as in shells."""
        return 128 + self.number


class _StopSignals:
    """Handler of SIGINT and SIGTERM: the first one stops the command, the second one ends the process at once."""

    def __init__(self, modes: list[Any] | None) -> None:
        self.stopped: Stopped | None = None
        """Exception of the first signal; `None` before it."""
        self.is_deferred = False
        """`True` while the main thread looks at `stopped` by itself, and the first signal raises nothing."""
        self._modes = modes
        """Modes of the terminal before the command; `None` without one."""

    def handle(self, number: int, _: object) -> None:
        """Handle a signal in the main thread."""
        if self.stopped is not None:
            restore_terminal(self._modes)
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
            # Not `print` and `sys.exit`: the handler may have interrupted a print, and no clean-up may delay the end.
            os.write(2, f"{show_cursor}\nStopped at once; what the calls were doing is unknown.\n".encode())
            os._exit(128 + number)
        self.stopped = Stopped(number)
        if not self.is_deferred:
            raise self.stopped


_signals = _StopSignals(None)
"""Handler of the innermost `stoppable` block; outside of such blocks, no signal reaches it."""


@contextmanager
def stoppable() -> Generator[None]:
    """Raise `Stopped` in the main thread at the first SIGINT or SIGTERM inside the `with` block; exit at the second."""
    global _signals
    _signals = signals = _StopSignals(terminal_modes())
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signal handlers
        yield
        return
    before = {number: signal.signal(number, signals.handle) for number in (signal.SIGINT, signal.SIGTERM)}
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
    portal: BlockingPortal,
    task: Callable[[], Awaitable[T]],
    cancel: Callable[[], object],
    say: Callable[[str], Any],
    poll: Callable[[], object] | None = None,
) -> T:
    """Run `task` in an anyio portal, return its result; at SIGINT or SIGTERM, run `cancel`, wait, raise `Stopped`.

    `poll` is called again and again while the task runs; it must not wait.
    """
    signals = _signals
    # The main thread takes locks of futures that the event loop's thread needs. An exception of a signal handler could
    # leave such a lock taken, and the event loop would wait for it for ever.
    signals.is_deferred = True
    try:
        future = portal.start_task_soon(task)
        while not wait([future], _SIGNAL_CHECK if poll is None else _POLL).done and signals.stopped is None:
            if poll is not None:
                poll()
        if signals.stopped is not None:
            say(f"Stopping by {signals.stopped}: calls are cancelled, and have time to clean up. Again: stop at once.")
            portal.start_task_soon(cancel)  # not waited for: a tool that blocks the loop would delay it
            while not wait([future], _SIGNAL_CHECK).done:  # in pieces, so that the handler of a second signal runs
                pass
    finally:
        signals.is_deferred = False
    if signals.stopped is not None:
        raise signals.stopped
    return future.result()
