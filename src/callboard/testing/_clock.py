"""Virtual clocks and the backends that use them: an hour passes at once, in the right order.

`backend()` gives what anyio wants to know about a backend, for its pytest plugin or for `anyio.run`. The
virtual ones jump to the next deadline whenever every task waits. So a test that would hang fails at once in
its `fail_after`, and `await anyio.sleep(0.001)` means "until everything else is blocked".
(`anyio.wait_all_tasks_blocked` does the same, but may take 0.1 virtual seconds for it on asyncio.)

A virtual clock does not see worker threads: it jumps while they are busy. Test those with `real_clock=True`.
"""

import asyncio
import importlib.util
import selectors
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

Backend: TypeAlias = tuple[str, dict[str, Any]]
"""A backend's name and options, as the `anyio_backend` fixture wants them."""

_LoopT = TypeVar("_LoopT", bound=asyncio.AbstractEventLoop)


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that moves a clock where others wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Real events come first: the loop's self-pipe is one, and it is how threads wake the loop.
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            # Without a timer only the world outside can go on: wait for it, do not spin.
            return super().select(None)
        self.now += max(timeout, 0.0)
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose clock starts at 0 and jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # asyncio's is a nanosecond, which is lost in the rounding after some months: a due timer would never be ready.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """The virtual time, in seconds since the loop was made."""
        return self._jumping.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the executor's threads as long as they take.

        `asyncio.Runner` sets a timeout here, which would be over before the threads have a chance.
        """
        await super().shutdown_default_executor()


def virtual_clock_loop() -> VirtualClockLoop:
    """Make a virtual loop; to be given as `loop_factory`."""
    return VirtualClockLoop()


def eager_virtual_clock_loop() -> VirtualClockLoop:
    """Make a virtual loop with eager tasks (Python 3.12 and later); to be given as `loop_factory`."""
    return _eager(VirtualClockLoop)


VIRTUAL_ASYNCIO: Backend = ("asyncio", {"loop_factory": virtual_clock_loop})
"""asyncio on a virtual clock; each run makes a loop of its own."""


def virtual_trio() -> Backend:
    """Trio on a virtual clock; a clock is for one run, so ask again for the next."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


def backend_names(*, real_clock: bool = False) -> tuple[str, ...]:
    """The names of the backends that this interpreter can run, to parametrise a fixture.

    Args:
        real_clock: The backends on a real clock; uvloop is among them if it is installed.
    """
    return tuple(_REAL if real_clock else _VIRTUAL)


def backend(name: str, *, real_clock: bool = False) -> Backend:
    """A fresh backend by its name in `backend_names()`.

    Args:
        name: `asyncio`, `asyncio-eager`, `trio` or, on the real clock, `asyncio-uvloop`.
        real_clock: Let time pass as it does; for tests with threads, processes and sockets.
    """
    return (_REAL if real_clock else _VIRTUAL)[name]()


def _eager(make: Callable[[], _LoopT]) -> _LoopT:
    factory = getattr(asyncio, "eager_task_factory", None)
    if factory is None:
        raise RuntimeError("eager tasks need Python 3.12 or later")
    loop = make()
    loop.set_task_factory(factory)
    return loop


def _eager_loop() -> asyncio.AbstractEventLoop:
    return _eager(asyncio.new_event_loop)


def _table(*rows: tuple[str, bool, Callable[[], Backend]]) -> dict[str, Callable[[], Backend]]:
    return {name: make for name, available, make in rows if available}


_HAS_EAGER = sys.version_info >= (3, 12)
_HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None

_VIRTUAL = _table(
    ("asyncio", True, lambda: VIRTUAL_ASYNCIO),
    ("asyncio-eager", _HAS_EAGER, lambda: ("asyncio", {"loop_factory": eager_virtual_clock_loop})),
    ("trio", True, virtual_trio),
)
_REAL = _table(
    ("asyncio", True, lambda: ("asyncio", {})),
    ("asyncio-eager", _HAS_EAGER, lambda: ("asyncio", {"loop_factory": _eager_loop})),
    ("asyncio-uvloop", _HAS_UVLOOP, lambda: ("asyncio", {"use_uvloop": True})),
    ("trio", True, lambda: ("trio", {})),
)
