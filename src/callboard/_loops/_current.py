"""Lookup of the running event loop."""

import threading
from collections.abc import Callable

import sniffio

from callboard._loops._protocol import EventLoop, Wakeup


class _Last(threading.local):
    """Event loop that was found by the last look-up in a thread."""

    loop: EventLoop | None = None


_last = _Last()


def current_loop() -> EventLoop:
    """Return the event loop that runs the calling task; raise `RuntimeError` outside of a loop."""
    # Nearly every thread runs one loop only.
    if (loop := _last.loop) is not None and loop.is_current():
        return loop
    library = sniffio.current_async_library()
    # Only the implementation that runs is imported: trio costs an asyncio program nothing.
    if library == "trio":
        from callboard._loops._trio import running_loop as running_trio_loop

        loop = running_trio_loop()
    elif library == "asyncio":
        from callboard._loops._asyncio import running_loop as running_asyncio_loop

        loop = running_asyncio_loop()
    else:
        raise RuntimeError(f"callboard runs on asyncio and trio, not on {library!r}")
    _last.loop = loop
    return loop


def is_on_asyncio() -> bool:
    """Return whether the calling task runs on asyncio; faster than `current_loop()`."""
    return sniffio.current_async_library() == "asyncio"


def wakeup() -> Wakeup:
    """Return a single-use event for the calling task; the task awaits the event, and any thread may set it."""
    return current_loop().wakeup()


def common_time() -> float:
    """Return the seconds on the clock that all event loops of a process share; call it in an event loop."""
    loop = current_loop()
    return loop.now() + loop.offset


def run_there(loop: EventLoop, fn: Callable[[], object]) -> bool:
    """Call `fn` in a loop's thread, at once if this is that thread; return `False` if the loop has ended."""
    try:
        is_running_here = loop.is_here() and current_loop() is loop
    except RuntimeError:  # no loop runs, or this is a callback between two tasks
        is_running_here = False
    if not is_running_here:
        return loop.post(fn)
    fn()
    return True


def is_over(loop: EventLoop) -> bool:
    """Return whether an event loop has ended, so that none of its tasks will ever continue."""
    return not loop.post(lambda: None)
