"""Which event loop runs here."""

from collections.abc import Callable

import sniffio
from anyio.lowlevel import RunVar

from callboard._loops._protocol import EventLoop

_current: RunVar[EventLoop] = RunVar("callboard_event_loop")


def current_loop() -> EventLoop:
    """The event loop that runs the calling task.

    Raises:
        RuntimeError: if none does.
    """
    try:
        return _current.get()
    except LookupError:
        loop = _open_loop(sniffio.current_async_library())
        _current.set(loop)
        return loop


def run_there(loop: EventLoop, fn: Callable[[], object]) -> bool:
    """Run a plain function in a loop's thread: at once, if this is it. False if the loop is over, and never will."""
    if loop.is_here() and _runs(loop):
        fn()
        return True
    return loop.post(fn)


def is_over(loop: EventLoop) -> bool:
    """Whether a loop has ended, so that nothing in it will ever go on."""
    return not loop.post(_nothing)


def _nothing() -> None: ...


def _runs(loop: EventLoop) -> bool:
    """Whether a loop of this thread is the one that runs now, and not one that ended before it."""
    try:
        return current_loop() is loop
    except RuntimeError:
        return False  # neither does, or this is between its tasks


def _open_loop(library: str) -> EventLoop:
    # Only the implementation that runs is imported: trio costs an asyncio program nothing.
    if library == "trio":
        from callboard._loops._trio import TrioLoop

        return TrioLoop()
    if library == "asyncio":
        from callboard._loops._asyncio import AsyncioLoop

        return AsyncioLoop()
    raise RuntimeError(f"callboard runs on asyncio and trio, not on {library!r}")
