"""Draining: an object refuses new work, waits for its running operations, and cancels those that take too long.

`InFlight` has the operations of any object, such as a node. `EngineOperations` has the bodies that an engine runs.
"""

import logging
import math
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from anyio.lowlevel import checkpoint

from callboard._calls._call import SupervisedCall
from callboard._loops._bridge import stands_still
from callboard._loops._current import current_loop, run_there
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import EventLoop, Wakeup
from callboard._records._policies import Body, check_duration
from callboard._records._reports import Drained, UnknownCall
from callboard.exceptions import CallError, DrainingError, EngineError

T = TypeVar("T")

_log = logging.getLogger("callboard")

PATIENCE = 30.0
"""Default seconds that a drain waits for running operations."""


class Stoppable(Protocol):
    """Protocol of a batch, with what a drain needs."""

    calls: Sequence[SupervisedCall[Any]]

    def stop(self, error: Callable[[], Exception]) -> None: ...


@dataclass(eq=False, repr=False)
class Operation:
    """Operation in progress: a `with` block in one task; a drain may cancel the block.

    Entering the block during a drain raises `DrainingError`. `grace` is `None` for a block that only runs one batch:
    a drain stops the batch, and the block needs no cancel scope.
    """

    in_flight: "InFlight"
    loop: EventLoop = field(default_factory=current_loop)
    _: KW_ONLY
    grace: InitVar[float | None] = DEFAULT_GRACE
    thread_id: str | None = None
    batches: set[Stoppable] = field(default_factory=set[Stoppable], init=False)
    """Batches that run within the operation."""
    has_entered: bool = field(default=False, init=False)
    """True once the object has admitted the operation."""
    is_over: bool = field(default=False, init=False)
    """True once the operation has ended."""
    batch: Stoppable | None = field(default=None, init=False)
    """Only batch of a block without a cancel scope, which a drain stops."""
    is_stopped: bool = field(default=False, init=False)
    """True once a drain has cancelled the operation. A block sees it before it starts its batch."""
    _body: UnknownCall | None = field(default=None, init=False)
    _calls_at_cancel: list[SupervisedCall[Any]] = field(default_factory=list["SupervisedCall[Any]"], init=False)
    """Calls that ran when a drain cancelled the operation."""

    def __post_init__(self, grace: float | None) -> None:
        self._scope = None if grace is None else self.loop.scope(math.inf, grace)

    def __enter__(self) -> Self:
        enclosing = operations.get()
        self.in_flight.admit(self, enclosing)  # may raise: before any state that `__exit__` would have to undo
        self.has_entered = True
        self._token = operations.set((*enclosing, self))
        if self._scope is not None:
            self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        swallowed = False
        try:
            if self._scope is not None:
                # trio's scope also returns True for a block that ended normally after a cancellation.
                swallowed = self._scope.__exit__(kind, error, traceback) and error is not None
        finally:
            operations.reset(self._token)
            was_ended = swallowed or (self.is_stopped and error is not None and self._was_ended(error))
            self.in_flight.remove(self, was_ended=was_ended)
        return swallowed

    def _was_ended(self, error: BaseException) -> bool:
        """Return whether an operation that a drain has cancelled was ended by it, and did not fail by itself."""
        if isinstance(error, DrainingError) or (isinstance(error, CallError) and error.ended == "unknown"):
            return True
        # The error of a function is a known outcome, but other calls of the batch may have been cancelled.
        return bool(self._calls_without_result() if isinstance(error, Exception) else self.unknown())

    def drain_error(self) -> DrainingError:
        """Return the error to raise after a `with` block that a drain has cancelled."""
        return DrainingError(self.in_flight.title, begun=True)

    def begin(self, tool: str, call_id: str | None) -> None:
        """Record that the operation's function begins: a later cancellation leaves its outcome unknown."""
        self._body = UnknownCall(tool=tool, call_id=call_id, thread_id=self.thread_id)

    @property
    def has_begun(self) -> bool:
        """True once the function of the operation has begun, and may have had effects."""
        return self._body is not None

    def end(self) -> None:
        """Cancel the operation, with its time for clean-up; call this in the thread of the operation's event loop."""
        # Once: at a second drain, calls that have ended their clean-up no longer run, and would not be reported.
        if not self.is_over and not self.is_stopped:
            # Collected before the cancellation: afterwards the batches no longer list their calls. An idempotent call
            # is not at stake, because it can be repeated.
            live = [call for batch in self.batches for call in batch.calls]
            self._calls_at_cancel = [call for call in live if call.running and not call.policy.idempotent]
            self.is_stopped = True
            if self._scope is not None:
                self._scope.cancel()
            elif self.batch is not None:
                self.batch.stop(self.drain_error)

    def unknown(self) -> list[UnknownCall]:
        """Return the calls whose outcome is unknown after a cancellation of the operation."""
        unknown_calls = [
            UnknownCall(tool=call.name, call_id=call.id, thread_id=self.thread_id)
            for call in self._calls_without_result()
        ]
        return unknown_calls if self._body is None else [*unknown_calls, self._body]

    def _calls_without_result(self) -> list[SupervisedCall[Any]]:
        """Return the calls that the cancellation of the operation ended before they had a result."""
        return [call for call in self._calls_at_cancel if not call.ended]


class _Drain:
    """State of one drain: the operations that have not ended, and the report. Guarded by the lock of `InFlight`."""

    def __init__(self, operations: set[Operation]) -> None:
        self.operations = operations
        self.wakeup: Wakeup | None = None
        self.report = Drained()

    def count_end(self, operation: Operation, *, was_ended: bool) -> None:
        if operation not in self.operations:  # nested in another operation, or the caller's own, or already counted
            return
        self.operations.remove(operation)
        ended = Drained(ended=1, unknown=tuple(operation.unknown())) if was_ended else Drained(finished=1)
        self.report += ended
        if not self.operations and self.wakeup is not None:
            self.wakeup.set()


class InFlight:
    """Thread-safe registry of the running operations of one object, in all event loops, for the object's drain.

    An operation that begins within a running operation of the same object belongs to that one. It is admitted during a
    drain, too: otherwise the outer operation could not finish.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.is_draining = False
        # Guards the fields below and each `_Drain`: operations of several loops begin and end while one of them drains.
        self._lock = threading.Lock()
        self._operations: set[Operation] = set()
        self._drains: list[_Drain] = []

    def __deepcopy__(self, memo: object) -> "InFlight":
        return InFlight(self.title)  # the copy has no operations in progress

    def __reduce__(self) -> tuple[object, ...]:
        return InFlight, (self.title,)

    def admit(self, operation: Operation, enclosing: tuple[Operation, ...]) -> None:
        """Register an operation, so that a drain waits for it; raise `DrainingError` during a drain."""
        # An operation within a running operation of the same object is always admitted, and needs no registration.
        is_nested = False
        for outer in enclosing:
            is_nested |= outer.in_flight is self and not outer.is_over
        # Check and registration under one lock: otherwise a drain could start in between and miss the operation.
        with self._lock:
            if self.is_draining and not is_nested:
                raise DrainingError(self.title)
            if not is_nested:
                self._operations.add(operation)

    def has_enclosing(self, thread_id: str) -> bool:
        """Return whether the caller runs within an operation of this object on a thread of conversation."""
        return any(
            operation.in_flight is self and not operation.is_over and str(operation.thread_id) == thread_id
            for operation in operations.get()
        )

    def remove(self, operation: Operation, *, was_ended: bool) -> None:
        """Unregister an operation that has ended, and count it in every running drain."""
        with self._lock:
            operation.is_over = True
            self._operations.discard(operation)
            for drain in self._drains:
                drain.count_end(operation, was_ended=was_ended)

    async def drain(self, timeout: float) -> Drained:
        """Refuse new operations until `reopen()`; wait for running ones, and cancel them after `timeout` seconds."""
        check_duration("drain(timeout=...)", timeout)
        loop = current_loop()
        with self._lock:
            running = self._operations.difference(
                operations.get()
            )  # without the caller's own operations: they cannot end first
            # Such a loop could neither finish nor cancel its operations: refuse before anything has changed.
            if any(stands_still(operation.loop) for operation in running):
                raise RuntimeError(
                    f"{self.title} has something under way in the event loop that waits for this: await it there, or "
                    "call it in a thread"
                )
            self.is_draining = True
            self._drains.append(drain := _Drain(running))
        try:
            await checkpoint()
            with loop.scope(loop.now() + timeout, 0.0):
                await self._until_over(drain)
        finally:
            # Reached at the timeout, at a cancellation of the caller, and after a normal end with nothing left.
            try:
                await self._end_operations(drain)
            finally:
                with self._lock:
                    self._drains.remove(drain)
        report_drain(self.title, drain.report)
        return drain.report

    async def _end_operations(self, drain: _Drain) -> None:
        """Cancel the operations of a drain that have not ended, and wait for their ends."""
        for operation in list(drain.operations):
            if not run_there(operation.loop, operation.end):
                # Its event loop has ended, and will never report its end.
                self.remove(operation, was_ended=True)
        if drain.operations:
            # Without a limit: each operation ends within its grace.
            await current_loop().outlast(partial(self._until_over, drain))

    def reopen(self) -> None:
        """Accept new operations again after a drain."""
        self.is_draining = False

    @contextmanager
    def preserve_state(self) -> Generator[None]:
        """Run a `with` block that may drain the object; then accept or refuse new operations as before the block."""
        was_draining = self.is_draining
        try:
            yield
        finally:
            self.is_draining = was_draining

    async def _until_over(self, drain: _Drain) -> None:
        # Check and wakeup under one lock, or the last operation could end in between and wake nothing.
        with self._lock:
            if not drain.operations:
                return
            wakeup = drain.wakeup = current_loop().wakeup()
        await wakeup.wait()


def report_drain(title: str, report: Drained) -> None:
    """Log the report of a drain, unless it is empty."""
    if report != Drained():
        _log.log(logging.WARNING if report.ended else logging.INFO, "%s was drained: %s", title, report)


operations: ContextVar[tuple[Operation, ...]] = ContextVar("callboard_under_way", default=())
"""Operations that the running code belongs to, the outermost first."""


def is_draining_here() -> bool:
    """Return whether an operation that the running code belongs to is being drained."""
    return any(operation.in_flight.is_draining for operation in operations.get())


class EngineOperations:
    """Function calls that an engine runs, from all event loops; a drain waits for them or cancels them.

    Args:
        noun: name of the engine in errors, after the word "its".
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._in_flight = InFlight(f"the {noun}")

    @contextmanager
    def running(self, body: Body, *, grace: float) -> Generator[Body]:
        """Register an engine's function call during a `with` block, so that a drain waits for the block or cancels it.

        Yields the body that the block has to run: it also records its start, for the report of a drain.

        Args:
            body: the body as the engine received it.
            grace: seconds of clean-up for a body without a grace of its own.

        Raises:
            EngineError: if the engine is being drained, or a drain ended the body.
        """
        # More than the grace: the engine ends the body within its grace, and then needs time for its own clean-up.
        operation = Operation(self._in_flight, grace=grace + DEFAULT_GRACE)

        def begin() -> None:
            operation.begin(body.title, body.call_id)
            if body.on_begin is not None:
                body.on_begin()

        try:
            with operation:
                yield replace(body, on_begin=begin)
                return
        except DrainingError as error:
            if error.begun or operation.has_entered:
                raise  # raised inside the block, by another object that is being drained
            raise self._refusal(body.title, body.call_id) from None
        # Reached only if a drain cancelled the block. A body that had begun may have had effects: "unknown".
        reason = f"its {self._noun} was drained"
        raise EngineError(body.title, body.call_id, reason, ended="unknown" if operation.has_begun else "unavailable")

    def check_open(self, title: str) -> None:
        """Raise `EngineError` if the engine is being drained; called before a dedicated worker is reserved.

        Args:
            title: the tool or actor, for the error.

        Raises:
            EngineError: if the engine is being drained.
        """
        if self._in_flight.is_draining:
            raise self._refusal(title, None)

    def _refusal(self, title: str, call_id: str | None) -> EngineError:
        return EngineError(title, call_id, f"its {self._noun} is being drained", ended="unavailable")

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new function calls until `reopen()`; wait for running ones, and cancel them after `timeout` seconds.

        Args:
            timeout: seconds for the running bodies to finish.
        """
        return await self._in_flight.drain(timeout)

    def reopen(self) -> None:
        """Accept function calls again after a drain."""
        self._in_flight.reopen()
