"""Batch of supervised calls that run together and end together."""

import asyncio
import math
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, NoReturn, TypeVar
from weakref import ref

from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from callboard._calls._attempt import Attempt
from callboard._calls._call import SupervisedCall
from callboard._calls._draining import operations
from callboard._calls._progress import reporter
from callboard._loops._current import current_loop
from callboard._loops._left_tasks import BatchMark, current_batch_mark, find_left_tasks
from callboard._loops._protocol import ChildFn, ChildScope, Nursery
from callboard._loops._watchdog import mark
from callboard._records._policies import OnError
from callboard.exceptions import AbandonedTaskWarning, CallCancelledError, CallError

T = TypeVar("T")

PORTION = 32
"""Number of calls that a batch starts before it lets other tasks run, so that it does not block the event loop."""


@dataclass(eq=False, repr=False)
class Batch(Generic[T]):
    """Supervised calls that run together; when `run()` returns, all of them have ended."""

    calls: Sequence[SupervisedCall[T]]
    _: KW_ONLY
    on_error: OnError
    is_signal: Callable[[BaseException], bool] = lambda _: False
    live: "set[Batch[Any]]" = field(default_factory=set["Batch[Any]"])
    """Set of the running batches of one object, to which this batch belongs while it runs."""
    _has_ended: bool = field(default=False, init=False)
    _nursery: Nursery | None = field(default=None, init=False)
    _failed: list[SupervisedCall[T]] = field(default_factory=list["SupervisedCall[T]"], init=False)
    _unstarted_calls: deque[SupervisedCall[T]] = field(init=False)
    """Calls that have not begun."""
    _make_stop_error: Callable[[], Exception] | None = field(default=None, init=False)
    """Function that makes the error of a batch that was stopped; `None` for any other batch."""

    def __post_init__(self) -> None:
        self._unstarted_calls = deque(self.calls)

    @property
    def closed(self) -> bool:
        """True if the batch has ended or was cancelled, so that it starts no further call or attempt."""
        # Also true in a shielded block, which does not notice the cancellation.
        return self._has_ended or (self._nursery is not None and self._nursery.cancel_called)

    async def run(self) -> None:
        """Run all calls until they end; then raise the error of a failed call, or the error given to `stop`, if any."""
        count = len(self.calls)
        loop = self.calls[0].loop if count else current_loop()
        # A cancelled caller starts no call. Its deadline was read when the calls were made, just before; a cancellation
        # since then reaches their tasks.
        if not count or self.calls[0].time_limits.until == -math.inf:
            await checkpoint_if_cancelled()
        batch_mark = BatchMark() if loop.name == "asyncio" else None  # on trio every task has a nursery
        self._monitor = loop.monitor
        self._monitor.enter_batch()
        # A drain reads these sets to find the calls whose outcome is unknown when it ends them.
        enclosing = operations.get()
        self.live.add(self)
        for operation in enclosing:
            operation.batches.add(self)
        try:
            async with loop.nursery() as nursery:
                self._nursery = nursery
                outer_mark = current_batch_mark.get()
                if batch_mark is not None:
                    current_batch_mark.set(batch_mark)  # for the tasks of the calls, which copy the context
                try:
                    await self._start_calls(nursery)
                finally:
                    current_batch_mark.set(outer_mark)  # not by a token, which would refer to the mark
            for call in (
                () if nursery.cancel_called else self._unstarted_calls
            ):  # other code cancelled its task before it began
                call.error, call.ended = CallCancelledError(call.name, call.id), True
                self._failed.append(call)
        except loop.cancelled_class:
            if not self._failed:
                raise  # otherwise the error of the call replaces the cancellation, as in any `finally`
        finally:
            self._has_ended = True
            self.live.discard(self)
            for operation in enclosing:
                operation.batches.discard(self)
            self._monitor.leave_batch()
            for call in self._unstarted_calls:
                call.record_task_end()
            self.calls = ()  # the calls refer to their batch: a reference cycle
            self._unstarted_calls.clear()
            mark_ref, batch_mark = (
                None if batch_mark is None else ref(batch_mark),
                None,
            )  # from now on, only contexts refer to it
        if self._failed:
            self._raise_failures(count)
        if self._make_stop_error is not None:
            raise self._make_stop_error()
        if mark_ref is not None and (mark_in_use := mark_ref()) is not None:
            for task, context in find_left_tasks(mark_in_use):
                _warn_about_left_task(task, context)

    async def _start_calls(self, nursery: Nursery) -> None:
        """Start a task for each call; pause after each portion of many calls, so that other tasks can run."""
        for number, call in enumerate(self.calls, 1):
            if nursery.cancel_called:
                return
            nursery.start(self._run_next_call, grace=call.time_limits.grace)
            if number % PORTION == 0:
                await checkpoint()  # may be cancelled: the nursery ends the calls that were started

    def stop(self, error: Callable[[], Exception]) -> None:
        """Cancel all calls, each with its grace, and let `run()` raise `error()`; do nothing if the batch has ended."""
        if self._nursery is not None and not self._has_ended:
            self._make_stop_error = error
            self._nursery.cancel()

    def start_beside(self, child: ChildFn, grace: float) -> None:
        """Start a task beside the calls, unless the batch is closed; the batch also waits for this task."""
        if self._nursery is not None and not self.closed:
            self._nursery.start(child, grace)

    async def _run_next_call(self, scope: ChildScope) -> None:
        failed: SupervisedCall[T] | None = None
        with scope:
            # trio begins children in any order. Each child takes the next call when it begins, so calls start in order.
            call = self._unstarted_calls.popleft()
            call.begin_task(self, scope)
            try:
                call.end_with_result(await call.run())
            except BaseException as error:
                if not call.end_with_error(error):
                    raise  # a requested cancellation: `scope`, or the nursery, swallows it
                if call.error is not None and not self.is_signal(call.error):
                    failed = call
            finally:
                call.record_task_end()
            if self._monitor.unreported:
                self._monitor.warn()
        # After the scope was left: this cancels every child, and a child must not cancel itself while it ends.
        if failed is not None:
            self._failed.append(failed)
            if self.on_error == "cancel" or not isinstance(failed.error, Exception):
                assert self._nursery is not None
                self._nursery.cancel()

    def _raise_failures(self, count: int) -> NoReturn:
        failed, self._failed = self._failed, []
        errors = [call.error for call in failed if call.error is not None]
        notes = [f"Tool {call.name!r} (call {call.id!r}) failed too: {call.error!r}" for call in failed[1:]]
        for call in failed:
            if isinstance(call.error, Exception) and not isinstance(call.error, CallError):
                name, call_id = repr(call.name), repr(call.id)
                # A tool may raise the same error object twice: it has this note then.
                if not any(name in note and call_id in note for note in getattr(call.error, "__notes__", ())):
                    call.error.add_note(f"In tool {name} (call {call_id}).")
        # The traceback refers to this frame and its callers. No object that they hold may refer back to the error.
        for call in failed:
            call.error = None
        try:
            if notes and self.on_error == "finish":
                raise BaseExceptionGroup(
                    f"{len(errors)} of {count} tool calls failed", [*errors]
                )  # a group keeps the list
            for note in notes:
                errors[0].add_note(note)
            raise errors[0]
        finally:
            errors.clear()


mark(Batch._run_next_call, SupervisedCall)

# Tasks that a tool has created and that outlive its batch; only on asyncio

_warned: set[tuple[str, str]] = set()
"""Pairs (tool name, coroutine function name) for which the warning about a left-over task was already issued."""


def _warn_about_left_task(task: "asyncio.Task[object]", context: Context) -> None:
    """Warn about an asyncio task that a tool left running, once for each pair of tool and coroutine function."""
    # The task has a copy of the context in which it was created, and so the attempt that created it.
    owner = context.get(reporter)
    tool = owner.tool if isinstance(owner, Attempt) else str(getattr(owner, "name", "a middleware"))
    call_id = owner.owner.id if isinstance(owner, Attempt) else getattr(owner, "id", None)
    function = getattr(task.get_coro(), "__qualname__", "")
    if not function or (tool, function) in _warned:
        return
    _warned.add((tool, function))
    stack = task.get_stack(limit=1)
    location = f" at {stack[0].f_code.co_filename}:{stack[0].f_lineno}" if stack else ""
    warnings.warn(
        f"tool {tool!r} (call {call_id!r}) left a task behind that outlives its batch: {task.get_name()!r}, "
        f"{function}(){location}. It is neither cancelled nor awaited; await it in the tool, such as in an "
        "asyncio.TaskGroup, or start it in an actor, which may outlive calls",
        AbandonedTaskWarning,
        stacklevel=2,
    )
