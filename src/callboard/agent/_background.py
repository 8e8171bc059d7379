"""Background calls of an agent: they outlive their step, and belong to the agent's block, or without one to their run.

A result goes to the live run of the thread. Without a live run, it is stored in the thread, and the next run reads it.
"""

import logging
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count

from anyio import sleep
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from callboard._calls._draining import InFlight, Operation, operations
from callboard._calls._progress import reporter
from callboard._langchain._errors import unstorable_text
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE, TimeLimits, active_time_limits, cap_grace
from callboard._loops._forks import forget_tasks_after_fork
from callboard._loops._protocol import EventLoop, Scope, Spawned
from callboard._loops._shared_event import SharedEvent
from callboard._loops._side_tasks import CutOffError, shielded
from callboard.agent._inbox import Inbox
from callboard.agent._live import LiveRuns
from callboard.exceptions import StorageError, ThreadBusyError
from callboard.tools._background import BackgroundCall, handle_in, open_handles

_log = logging.getLogger("callboard")

_PAUSE = 1.0
"""Seconds between two attempts to store a result in a thread that another process uses, or in a database that fails."""

_MAX_FAILURES = 2
"""Number of times that a database may fail to store a result; then an error message takes the place of the result."""

Store = Callable[[HumanMessage], Awaitable[None]]
"""Function that stores a message in a thread of conversation without a live run."""

DescribeUnstorable = Callable[[HumanMessage], str | None]
"""Function that returns a text about the part of a message that the database cannot store; `None` without one."""


@dataclass(eq=False, slots=True)
class _OpenCall:
    """Background call that has not ended, or whose result is not stored yet."""

    call: BackgroundCall
    thread_id: str
    loop: EventLoop
    store: Store
    unstorable: DescribeUnstorable
    task: Spawned | None = None
    over: SharedEvent = field(default_factory=SharedEvent)


async def _wait_for(open_calls: Iterable[_OpenCall]) -> None:
    """Wait until calls have ended, and their results are stored."""
    for open_call in open_calls:
        await open_call.over.wait()


def _whole_grace(call: BackgroundCall) -> float:
    """Return the seconds after which the task of a cancelled call is cancelled again: the call's own end comes before.

    The call has its grace, and so has the delivery of its result, which then ends its writes.
    """
    return 2 * call.time_limits.grace + DEFAULT_GRACE


class BackgroundCalls:
    """Background calls of an agent, in all event loops; also those that their step still waits for."""

    def __init__(self, in_flight: InFlight, live_runs: LiveRuns) -> None:
        self._in_flight = in_flight
        self._live_runs = live_runs
        self.forget_tasks()
        forget_tasks_after_fork(self)

    def forget_tasks(self) -> None:
        """Forget all calls: a forked child process has the objects, but no event loop that runs them."""
        self._lock = threading.Lock()  # guards the next fields
        self._open_calls: dict[str, dict[_OpenCall, None]] = {}
        """Open calls by thread of conversation, in their order: there may be very many."""
        self._fatal_errors: dict[str, BaseException] = {}
        """Errors such as KeyboardInterrupt of calls, by thread of conversation, until they are raised."""

    def __reduce__(self) -> tuple[object, ...]:
        return BackgroundCalls, (self._in_flight, self._live_runs)  # a copy has no calls, and runs of its own

    def of_thread(self, thread_id: str) -> list[_OpenCall]:
        """Return the open calls of a thread."""
        with self._lock:
            return list(self._open_calls.get(thread_id, ()))

    def has_calls(self, thread_id: str) -> bool:
        """Return whether a thread has open calls."""
        return thread_id in self._open_calls

    def start(self, thread_id: str, store: Store, unstorable: DescribeUnstorable, call: BackgroundCall) -> Spawned:
        """Start the task of a call of a thread; the task also delivers the result of a call that was handed over."""
        loop = current_loop()
        open_call = _OpenCall(call, thread_id, loop, store, unstorable)
        with self._lock:
            self._open_calls.setdefault(thread_id, {})[open_call] = None

        async def child(scope: Scope) -> None:
            try:
                with scope:
                    await self._perform(open_call)
            except Exception as error:
                if not call.admitted.is_set:
                    call.refuse(error)
                else:
                    # The conversation has the call without its result: the next run tells the model that it is lost.
                    _log.exception("The result of the background call %r could not be stored", call.handle)
            finally:
                for event in (call.admitted, call.begun, call.done):
                    event.set()
                with self._lock:
                    del self._open_calls[thread_id][open_call]
                    if not self._open_calls[thread_id]:
                        del self._open_calls[thread_id]
                open_call.over.set()
                self._live_runs.report_background_end(thread_id)

        open_call.task = loop.spawn(child, _whole_grace(call))
        return open_call.task

    async def _perform(self, open_call: _OpenCall) -> None:
        """Run a call in its own task, and deliver its result if the call was handed over."""
        call, thread_id = open_call.call, open_call.thread_id
        # The call may outlive the run and the calls around it: it has neither their time nor their permits.
        reporter.set(None)
        active_time_limits.set(None)
        operations.set(())
        grace = call.time_limits.grace
        operation = Operation(self._in_flight, open_call.loop, grace=_whole_grace(call), thread_id=thread_id)
        # A call that was cancelled before it began runs nothing that a drain could refuse, and ends as it was reported.
        with operation if call.cancel_reason is None else nullcontext():
            call.admitted.set()
            is_cancelled = True
            try:
                await call.perform(thread_id)
                is_cancelled = False
            finally:
                # A call that is cancelled at its end, such as by a drain, has a result that must not count as unknown.
                if call.handle is not None and (call.ended or not is_cancelled):
                    if call.fatal_error is not None:
                        self._fatal_errors[thread_id] = call.fatal_error
                    # As for the write of a call in the foreground, the grace counts from a cancellation on.
                    active_time_limits.set(TimeLimits(open_call.loop, math.inf, grace))
                    try:
                        await shielded(partial(self._deliver, open_call))
                    except CutOffError:
                        text = "The background call %r was cancelled: its result was not stored in its grace of %g s"
                        _log.warning(text, call.handle, grace)
                        await open_call.loop.raise_cancelled()

    async def _deliver(self, open_call: _OpenCall) -> None:
        """Deliver the result of a call, in a task that is cancelled where the grace of the call is over."""
        cap_grace(open_call.loop, 0.0)  # that grace is also the one of the writes
        thread_id, call = open_call.thread_id, open_call.call
        message, failures = call.notification(), 0
        if (reason := open_call.unstorable(message)) is not None:
            message = call.notification_about(unstorable_text(reason))
        while True:
            try:
                run = self._live_runs.find(thread_id)
                if run is None:
                    await open_call.store(message)
                    return
                if await self._live_runs.send(run, message):
                    return
                await self._live_runs.wait_until_over(run)
            except ThreadBusyError:
                await sleep(_PAUSE)
            except StorageError as error:
                failures += 1
                if failures > _MAX_FAILURES:
                    raise
                if failures == _MAX_FAILURES:  # such as a result that is too large for the database
                    message = call.notification_about(unstorable_text(error.reason))
                else:
                    await sleep(_PAUSE)  # the database may be away for a moment

    def raise_fatal_error(self, thread_id: str) -> None:
        """Raise the error of a call of a thread that is for the program, such as KeyboardInterrupt."""
        with self._lock:
            error = self._fatal_errors.pop(thread_id, None)
        if error is not None:
            raise error

    @asynccontextmanager
    async def belonging_to_run(self, thread_id: str, inbox: Inbox) -> AsyncGenerator[None]:
        """Wait for the thread's calls at the end of a `with` block that runs the agent, unless the agent has a block.

        If the `with` block fails, the calls are cancelled.
        """
        try:
            yield
        except BaseException:
            if not self._live_runs.has_block:
                await self._end(thread_id)
            raise
        if not self._live_runs.has_block:
            try:
                await self._wait_for_calls(thread_id, inbox)
            except BaseException:
                await self._end(thread_id)
                raise
            self.raise_fatal_error(thread_id)

    async def _wait_for_calls(self, thread_id: str, inbox: Inbox) -> None:
        """Wait for the calls of a thread at the end of its run, whose inbox takes their results."""
        for open_call in self.of_thread(thread_id):
            while not open_call.over.is_set:
                change = inbox.change
                if inbox.has_unconfirmed_results():
                    await sleep(_PAUSE)  # the database may be away for a moment
                    # The calls must not wait for the end of the run, which waits for the calls.
                    inbox.leave_results_to_end_of_run()
                await change.wait()

    async def _end(self, thread_id: str) -> None:
        """Cancel the calls of a thread, and wait for their ends."""
        open_calls = self.of_thread(thread_id)
        for open_call in open_calls:
            assert open_call.task is not None
            open_call.task.cancel()
        await current_loop().outlast(partial(_wait_for, open_calls))

    async def leave_block(self) -> None:
        """Wait for all calls of this event loop; called after all runs of the agent are drained.

        An error such as KeyboardInterrupt is raised here, if no run has raised it.
        """
        loop = current_loop()
        with self._lock:
            open_calls = [call for calls in self._open_calls.values() for call in calls if call.loop is loop]
        await loop.outlast(partial(_wait_for, open_calls))
        for thread_id in list(self._fatal_errors):
            self.raise_fatal_error(thread_id)


@dataclass(frozen=True, slots=True)
class ThreadBackground:
    """Background calls of one thread of conversation, for a run on it."""

    calls: BackgroundCalls
    thread_id: str
    store: Store
    unstorable: DescribeUnstorable
    takes_calls: bool
    """`False` for a run that began during a drain: its own calls end with their step."""
    handles: set[str] = field(default_factory=set)
    """Names of the thread's background calls, once one of this run needs a name."""

    def new_handle(self, call_id: str, messages: Iterable[BaseMessage]) -> str:
        if not self.handles:  # once for each run: it may have very many calls
            open_calls = self.calls.of_thread(self.thread_id)
            handles = chain(map(handle_in, messages), (open_call.call.handle for open_call in open_calls))
            self.handles.update(handle for handle in handles if handle is not None)
        # Models reuse the ids of calls. A replay gives the same names.
        names = chain([f"bg-{call_id}"], (f"bg-{call_id}-{number}" for number in count(2)))
        handle = next(name for name in names if name not in self.handles)
        self.handles.add(handle)
        return handle

    def start(self, call: BackgroundCall) -> Spawned:
        return self.calls.start(self.thread_id, self.store, self.unstorable, call)

    def raise_fatal_error(self) -> None:
        """Raise the error of a background call of the thread that is for the program, such as KeyboardInterrupt."""
        self.calls.raise_fatal_error(self.thread_id)

    def has_open_calls(self) -> bool:
        """Return whether the thread has background calls whose results the thread has not received."""
        return self.calls.has_calls(self.thread_id)

    def lost_calls(self, messages: Sequence[BaseMessage], unread: Sequence[BaseMessage]) -> Mapping[str, ToolMessage]:
        """Return the messages of background calls in a conversation whose process has ended, by handle."""
        handles = open_handles(messages)
        if not handles:
            return handles
        known_handles = {open_call.call.handle for open_call in self.calls.of_thread(self.thread_id)}
        known_handles |= {message.id for message in unread}
        return {handle: message for handle, message in handles.items() if handle not in known_handles}
