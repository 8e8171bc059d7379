"""Event loop interface that supervision uses, with one implementation for asyncio and one for trio.

The two loops differ in one important point: asyncio raises a cancellation in a task once, trio raises it at every
checkpoint of a cancelled scope. Each implementation keeps the behaviour of its loop, because users' clean-up code was
written for it. Both bound the clean-up by a grace. This layer knows nothing of tool calls.
"""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from contextvars import Context
from typing import Any, Protocol, Self, TypeVar

from anyio import CancelScope

from callboard._loops._watchdog import LoopMonitor

T = TypeVar("T")

ChildFn = Callable[["ChildScope"], Coroutine[Any, Any, None]]
"""Async function of a child task.

It must enter the scope that it receives before it does anything else, and await nothing after it has left the scope.
"""


class Scope(Protocol):
    """Cancel scope with a deadline. At the end of its block, it swallows a cancellation that it caused itself."""

    @property
    def cancel_called(self) -> bool:
        """True if the deadline passed, or `cancel()` was called, while the block ran."""
        ...

    def move(self, deadline: float, *, grace: float | None = None) -> None:
        """Change the block's deadline (loop time), and the time for clean-up if given; call it in the loop's thread."""
        ...

    def cancel(self) -> None:
        """Cancel the block if it runs now; call this only in the event loop's thread."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool: ...


class ChildScope(Scope, Protocol):
    """Scope of a nursery's child, which the nursery cancels together with the other children, or other code alone."""

    def cancel_alone(self) -> None:
        """Cancel this child, with its grace, but no other one; call this only in the event loop's thread."""
        ...

    def end_cancellation(self, error: BaseException | None) -> bool:
        """End a cancellation by `cancel_alone()`, so that the child goes on; return whether it has raised `error`.

        Call this in the child, in which `error` was raised or `None` if none was. On trio, this may raise the other
        errors of an exception group.
        """
        ...


class Nursery(Protocol):
    """Group of child tasks; the `async with` block is left only after all children have ended."""

    @property
    def cancel_called(self) -> bool:
        """True if the children were cancelled, by `cancel()` or because the owning task was cancelled."""
        ...

    def start(self, child: ChildFn, grace: float) -> None:
        """Start a child with `grace` seconds of clean-up. asyncio begins children in order, trio in any order."""
        ...

    def cancel(self) -> None:
        """Cancel every child, with its grace for clean-up. Children that have not begun never run."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool: ...


class Wakeup(Protocol):
    """Single-use event for a waiting task; `set()` may be called from any thread."""

    def set(self) -> None: ...

    def wait(self) -> Awaitable[None]: ...


class Spawned(Protocol):
    """Task that does not belong to a nursery; the code that started it has to wait for its end."""

    def cancel(self) -> None:
        """Cancel the task, with its grace for clean-up. A task that has not begun never runs."""
        ...

    async def wait(self) -> None:
        """Wait for the end of the task, even if the caller is cancelled: the task must not outlive the caller."""
        ...
        # Without a limit: a task that is cancelled bounds its clean-up by its own grace.


class EventLoop(Protocol):
    """Interface of a running event loop; the object stays the same as long as the loop runs."""

    name: str
    cancelled_class: type[BaseException]
    """Exception class that this loop raises in a cancelled task."""
    offset: float
    """Seconds to add to `now()` to get `time.monotonic()`, the clock that all loops of the process share."""
    monitor: LoopMonitor
    """Watchdog state of the loop, which tells whether sync code blocks the loop."""

    def now(self) -> float:
        """Return the loop time in seconds; may be called from any thread."""
        ...

    def is_here(self) -> bool:
        """Return whether the calling thread is the loop's thread."""
        ...

    def is_current(self) -> bool:
        """Return whether the caller runs in a task of this loop, and not of another loop in the same thread."""
        ...

    def deadline(self) -> float:
        """Return the earliest deadline of the calling task's cancel scopes; `-inf` if the task is cancelled."""
        ...

    def task(self) -> int:
        """Return the number of the running task; two living tasks never have the same number."""
        ...

    def post(self, fn: Callable[[], object]) -> bool:
        """Schedule `fn` in the loop's thread; return `False` if the loop has ended. May be called from any thread."""
        ...

    def adopt(self, context: Context) -> None:
        """Store the cancel scopes of the calling task in `context`, a copy of another task's context."""
        ...
        # Without this, clean-up code that runs in `context` would shield the other task instead of this one.

    def nursery(self) -> Nursery: ...

    def scope(self, deadline: float, grace: float) -> Scope: ...

    def shield(self, deadline: float) -> AbstractContextManager[object]:
        """Return a context manager whose block receives no cancellation before the deadline (loop time)."""
        ...

    async def outlast(self, fn: Callable[[], Awaitable[object]]) -> None:
        """Await `fn()` to its end even if the caller is cancelled meanwhile, however often.

        asyncio calls `fn` again after each cancellation, and raises the last one at the end; trio raises it later.
        """
        ...

    def wakeup(self) -> Wakeup: ...

    def spawn(self, child: ChildFn, grace: float) -> Spawned:
        """Start a task outside of any nursery; the caller waits for the end of the task, which must not raise."""
        ...
        # For async generators: on trio, a generator must not yield inside a nursery.

    async def run_in_daemon(self, fn: Callable[[], T], scope: CancelScope) -> T:
        """Run `fn` in a daemon thread with the caller's context variables; a cancelled caller returns at once."""
        ...
        # `anyio.from_thread` works inside `fn`; on asyncio, its `check_cancelled()` raises if `scope` is cancelled.

    def is_cancelled(self) -> bool:
        """Return whether the calling task was cancelled and still runs, because its code caught the cancellation."""
        ...

    async def raise_cancelled(self) -> None:
        """Raise the pending cancellation of the calling task; asyncio always raises, trio only if one is pending."""
        ...

    def has_cancelled_itself(self, exc: BaseException) -> bool:
        """Return whether a tool's function raised the cancellation `exc` although nothing had cancelled its task."""
        ...

    def uncancel_foreign(self, exc: BaseException) -> bool:
        """Return whether `exc` is a cancellation that callboard did not request; if so, uncancel the task."""
        ...
        # Only at the end of a call: inside, a middleware's own scope or timeout may have requested it.
