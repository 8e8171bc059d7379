"""Which event loop runs here."""

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


def _open_loop(library: str) -> EventLoop:
    # Only the implementation that runs is imported: trio costs an asyncio program nothing.
    if library == "trio":
        from callboard._loops._trio import TrioLoop

        return TrioLoop()
    if library == "asyncio":
        from callboard._loops._asyncio import AsyncioLoop

        return AsyncioLoop()
    raise RuntimeError(f"callboard runs on asyncio and trio, not on {library!r}")
