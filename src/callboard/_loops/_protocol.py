"""What supervision needs of an event loop.

The two loops differ in one thing that matters: asyncio delivers a cancellation once, trio as a level that
stays. Each implementation keeps its own loop's custom, because the clean-up code in the wild was written
for it; both bound what comes after by a grace. Knows no calls.
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import Context
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from anyio import CancelScope

from callboard._loops._watchdog import Pulse

T = TypeVar("T")

ChildFn = Callable[["Scope"], Coroutine[Any, Any, None]]
"""What a child task runs; it enters the scope that it is given before it does anything else."""


class Scope(Protocol):
    """A block that ends at a deadline; swallows the cancellation it causes itself."""

    @property
    def cancel_called(self) -> bool:
        """Whether the deadline passed, or somebody called `cancel`, while the block ran."""
        ...

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Have the block end then; from within the loop's thread, while it runs.

        Args:
            deadline: on the loop's clock.
            grace: seconds between the cancellation and those that repeat it; as before by default.
        """
        ...

    def cancel(self) -> None:
        """Have the block end now; from within the loop's thread, while it runs."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool: ...


class Nursery(Protocol):
    """Child tasks that have all ended when the `async with` block is left."""

    @property
    def cancel_called(self) -> bool:
        """Whether its children have been cancelled: by `cancel`, or because its owner was."""
        ...

    def start(self, child: ChildFn, grace: float) -> None:
        """Start a child with so many seconds of clean-up; asyncio begins children in order, trio in any."""
        ...

    def cancel(self) -> None:
        """Cancel every child and give it its grace; those that have not begun never do."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> bool: ...


class Wakeup(Protocol):
    """One wait of one task, ended once and from any thread."""

    def set(self) -> None: ...

    def wait(self) -> Awaitable[None]: ...


class Spawned(Protocol):
    """A task that no nursery owns."""

    def cancel(self) -> None:
        """Cancel it, and give it its grace; if it has not begun it never does."""
        ...

    def wait(self) -> Awaitable[None]:
        """Wait until it has ended; once."""
        ...


class EventLoop(Protocol):
    """The running event loop; the same object for as long as the loop runs."""

    name: str
    cancelled_class: type[BaseException]
    """What a cancelled task raises here."""
    offset: float
    """Seconds to add to `now()` for the time that all loops of the process share."""
    pulse: Pulse
    """Whether the loop still turns."""

    def now(self) -> float:
        """The loop's clock in seconds; may be read from any thread."""
        ...

    def is_here(self) -> bool:
        """Whether the calling thread is the loop's own."""
        ...

    def task(self) -> int:
        """Which task runs; no other one that lives has the same number."""
        ...

    def post(self, fn: Callable[[], object]) -> bool:
        """Have `fn` called soon, in the loop's thread; from any thread. False if the loop is over, and never will."""
        ...

    def adopt(self, context: Context) -> None:
        """Have code that the calling task will run in `context`, copied from another task, know the scopes of this one.

        Otherwise its clean-up would shield the task that the copy came from.
        """
        ...

    def nursery(self) -> Nursery: ...

    def scope(self, deadline: float, grace: float) -> Scope: ...

    def shield(self, deadline: float) -> AbstractContextManager[object]:
        """A block that no cancellation enters before the deadline."""
        ...

    def wakeup(self) -> Wakeup: ...

    def spawn(self, child: ChildFn, grace: float) -> Spawned:
        """Start a task that no nursery owns; whoever starts it waits for its end.

        For what an async generator runs beside itself: on trio it cannot hold a nursery open while it yields.
        The child raises nothing.
        """
        ...

    async def run_in_daemon(self, fn: Callable[[], T], scope: CancelScope) -> T:
        """Run `fn` in a thread that no process waits for at its end, with the caller's context variables.

        A cancelled caller goes at once, and the result is dropped. There is no bound on how many run.

        Args:
            fn: what to run; within it, `anyio.from_thread` leads back here.
            scope: the one around this, at which `anyio.from_thread.check_cancelled()` looks on asyncio.
        """
        ...

    def is_cancelled(self) -> bool:
        """Whether the calling task has been cancelled, and only runs because somebody caught that."""
        ...

    def heeding(self, grace: float) -> AbstractContextManager[object]:
        """A block of foreign code that ends cancelled if its task is cancelled, even if the code lets that fall.

        `asyncio.wait_for` does so before Python 3.12, and with it a client that has a timeout for each chunk.

        Args:
            grace: seconds; if the code goes on for longer after a cancellation, it is cancelled until it ends.
        """
        ...

    async def raise_cancelled(self) -> None:
        """Raise the cancellation that has been asked for here, if any."""
        ...

    def cancelled_itself(self, exc: BaseException) -> bool:
        """Whether a body raised the cancellation `exc` without anybody asking."""
        ...

    def cancelled_by_stranger(self, exc: BaseException) -> bool:
        """Whether it was not callboard that asked for the cancellation `exc` of a call; takes its traces back.

        To be asked where a call ends: within it, a middleware may have a scope or a timeout of its own.
        """
        ...
