"""Virtual clocks, and anyio backends that use them: a sleep of an hour ends immediately, and timers fire in order.

`backend()` returns the name and options of a backend, for anyio's pytest plugin or for `anyio.run`. A virtual clock
jumps to the next deadline whenever every task waits. So a test that would hang fails at once in its `fail_after`,
and `await anyio.sleep(0.001)` waits until all other tasks are blocked. (`anyio.wait_all_tasks_blocked` does the same,
but may take 0.1 virtual seconds on asyncio.)

A virtual clock does not see worker threads: it jumps while they are busy. Use `real_clock=True` to test code with
threads. Only what a model's reply may need has a moment to end before a jump: asyncio code that runs for a trio task,
and the threads of an asyncio loop's executor, in which LangChain prepares requests.

With a seed, the event loop runs its tasks in an order that the seed decides, and lets some of them wait. Each such
schedule may happen in production, where threads, sockets and other tasks delay a task.
"""

import asyncio
import importlib.util
import selectors
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from random import Random
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

import sniffio

from callboard._loops._bridge import has_bridged_calls

T = TypeVar("T")
Args = TypeVarTuple("Args")

Backend: TypeAlias = tuple[str, dict[str, Any]]
"""Name and options of a backend, as the `anyio_backend` fixture expects them."""

_PATIENCE = 0.25
"""Real seconds for which a virtual clock does not jump while a task waits for a thread that a model may need."""


class _JumpingSelector(selectors.DefaultSelector):
    """Selector for an asyncio loop that advances a virtual clock instead of waiting for a timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.patience = 0.0
        """Real seconds to wait for a real event before the clock jumps."""
        self.open_futures = 0
        """Number of functions in threads of the loop's executor for which the loop waits."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Real events come first. One of them is the loop's self-pipe, by which threads wake the loop.
        patience = max(self.patience, _PATIENCE) if self.open_futures else self.patience
        events = super().select(patience if timeout is None or timeout > 0 else 0)
        if events:
            return events
        if timeout is None:
            # Without a timer only a thread, a socket or a signal can wake the loop: wait, and do not spin.
            return super().select(None)
        self.now += max(timeout, 0.0)
        return []


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Asyncio loop, usable as `loop_factory`, with a virtual clock that starts at 0 and jumps from timer to timer."""

    def __init__(self) -> None:
        self._jumping_selector = _JumpingSelector()
        super().__init__(self._jumping_selector)
        # asyncio's default is 1 ns. After some virtual months, rounding loses it, and a due timer would never be ready.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Return the virtual time, in seconds since the loop was made."""
        return self._jumping_selector.now

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Args], T], *args: *Args) -> asyncio.Future[T]:
        """Run a function in a thread of an executor; the clock gives it a moment to end before it jumps."""
        future = super().run_in_executor(executor, func, *args)
        self._jumping_selector.open_futures += 1
        future.add_done_callback(self._forget_future)
        return future

    def _forget_future(self, _future: object) -> None:
        self._jumping_selector.open_futures -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait, without a timeout, for the end of the default executor's threads."""
        # The timeout of `asyncio.Runner` would pass on the virtual clock at once, while the threads still work.
        await super().shutdown_default_executor()


def set_patience(seconds: float) -> None:
    """Set the real seconds that the virtual clock of the running loop waits for an event before it jumps."""
    if sniffio.current_async_library() == "trio":
        import trio.lowlevel

        clock: Any = trio.lowlevel.current_clock()
        clock.autojump_threshold = seconds
    else:
        loop: Any = asyncio.get_running_loop()
        loop._jumping_selector.patience = seconds


class _Schedule(Random):
    """Order in which an event loop runs its tasks, chosen with the random numbers of a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        # One for the whole run: some races need tasks that are much slower than others, and some need none.
        self._delay = self.choice((0.0, 0.25, 0.75))

    def split(self, tasks: list[T]) -> tuple[list[T], list[T]]:
        """Return two lists of ready tasks: tasks that run in this round, in order, and tasks that run later."""
        shuffled = self.sample(tasks, len(tasks))
        late = [self.random() < self._delay for _ in shuffled]
        if late and all(late):
            late[:1] = [False]  # at least one task runs now
        marked_tasks = list(zip(shuffled, late, strict=True))
        return [task for task, is_late in marked_tasks if not is_late], [
            task for task, is_late in marked_tasks if is_late
        ]


class _SeededLoop(VirtualClockLoop):
    """asyncio event loop on a virtual clock that runs its tasks in the order of a schedule."""

    def __init__(self, schedule: _Schedule) -> None:
        super().__init__()
        self._schedule = schedule

    def _run_once(self) -> None:
        """Run one round of the loop, without the tasks that the schedule delays; other callbacks are not reordered."""
        # The attributes are private, but asyncio's own subclasses outside of CPython rely on them.
        loop: Any = self
        callbacks = [
            (step, isinstance(getattr(step._callback, "__self__", None), asyncio.Task)) for step in loop._ready
        ]
        now, later = self._schedule.split([step for step, is_task in callbacks if is_task])
        turns = iter(now)
        steps = [next(turns, None) if is_task else step for step, is_task in callbacks]
        loop._ready.clear()
        # At least one callback is left, so the clock does not jump.
        loop._ready.extend(step for step in steps if step is not None)
        super()._run_once()  # type: ignore[misc]  # a private method, which typeshed does not list
        loop._ready.extend(later)


def _make_seeded_trio(seed: int) -> Backend:
    import trio._core._run
    from trio.abc import Instrument

    _run: Any = trio._core._run

    class Shuffling(_Schedule):
        """Random number generator by which trio shuffles the tasks of each round, instead of trio's own generator."""

        def shuffle(self, x: Any) -> None:
            x[:], later = self.split(x)
            _run.GLOBAL_RUN_CONTEXT.runner.runq.extend(later)

    class Seeding(Instrument):
        """trio instrument that replaces trio's private random number generator during a run."""

        def before_run(self) -> None:
            self._before = (_run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING)
            _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = Shuffling(seed), True

        def after_run(self) -> None:
            _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING = self._before

    name, options = _make_virtual_trio()
    return name, {**options, "instruments": [*options["instruments"], Seeding()]}


_SEEDED: dict[str, Callable[[int], Backend]] = {
    "asyncio": lambda seed: ("asyncio", {"loop_factory": lambda: _SeededLoop(_Schedule(seed))}),
    "trio": _make_seeded_trio,
}


def backend_names(*, real_clock: bool = False) -> tuple[str, ...]:
    """Return the names of the backends that this interpreter can run, to parametrise a fixture.

    Args:
        real_clock: also name the backends that have no virtual clock, such as uvloop.
    """
    return tuple(_REAL if real_clock else _VIRTUAL)


def backend(name: str, *, real_clock: bool = False, seed: int | None = None) -> Backend:
    """Return an anyio backend, as its name and its options, for one run of an event loop.

    Args:
        name: one of `backend_names()`.
        real_clock: use the machine's clock, as tests with threads, processes and sockets need it.
        seed: run tasks in an order that this number decides: "asyncio" and "trio" on a virtual clock.

    Raises:
        ValueError: for an unknown name, or if `seed` is given with a real clock or for another backend.
    """
    if seed is not None:
        if real_clock or name not in _SEEDED:
            raise ValueError(
                f"backend(seed=...) is for {' and '.join(map(repr, _SEEDED))} on a virtual clock, got {name!r}, "
                f"real_clock={real_clock!r}"
            )
        return _SEEDED[name](seed)
    names = backend_names(real_clock=real_clock)
    if name not in names:
        raise ValueError(f"backend(...) is one of {', '.join(names)}; got {name!r}")
    return (_REAL if real_clock else _VIRTUAL)[name]()


def _with_eager_tasks(make: Callable[[], asyncio.AbstractEventLoop]) -> Callable[[], asyncio.AbstractEventLoop]:
    def make_loop() -> asyncio.AbstractEventLoop:
        loop = make()
        if sys.version_info >= (3, 12):  # `_HAS_EAGER`, in a form that type checkers understand
            loop.set_task_factory(asyncio.eager_task_factory)
        return loop

    return make_loop


def _make_virtual_trio() -> Backend:
    from trio.abc import Instrument
    from trio.testing import MockClock

    clock = MockClock(autojump_threshold=0)

    class Patience(Instrument):
        """trio instrument that gives asyncio code time to end: models, also scripted ones, reply there."""

        # A task that waits for such code has been stepped before the loop waits, and so has the task that wakes it.
        def __init__(self) -> None:
            self._earlier: float | None = None

        def after_task_step(self, task: object) -> None:
            if not has_bridged_calls():
                if self._earlier is not None:
                    clock.autojump_threshold, self._earlier = self._earlier, None
            elif clock.autojump_threshold < _PATIENCE:
                self._earlier, clock.autojump_threshold = clock.autojump_threshold, _PATIENCE

    return "trio", {"clock": clock, "instruments": [Patience()]}


def _table(*rows: tuple[str, bool, Callable[[], Backend]]) -> dict[str, Callable[[], Backend]]:
    return {name: make for name, available, make in rows if available}


_HAS_EAGER = sys.version_info >= (3, 12)
_HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None

_VIRTUAL = _table(
    ("asyncio", True, lambda: ("asyncio", {"loop_factory": VirtualClockLoop})),
    ("asyncio-eager", _HAS_EAGER, lambda: ("asyncio", {"loop_factory": _with_eager_tasks(VirtualClockLoop)})),
    ("trio", True, _make_virtual_trio),
)
_REAL = _table(
    ("asyncio", True, lambda: ("asyncio", {})),
    ("asyncio-eager", _HAS_EAGER, lambda: ("asyncio", {"loop_factory": _with_eager_tasks(asyncio.new_event_loop)})),
    ("asyncio-uvloop", _HAS_UVLOOP, lambda: ("asyncio", {"use_uvloop": True})),
    ("trio", True, lambda: ("trio", {})),
)
