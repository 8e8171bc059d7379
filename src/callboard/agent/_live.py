"""Live runs of an agent: they take messages, and runs that were started have numbered chunks and belong to a block."""

import logging
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from contextvars import copy_context
from typing import Any, TypeVar

from langchain_core.messages import HumanMessage

from callboard._calls._draining import InFlight
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._forks import forget_tasks_after_fork
from callboard._loops._protocol import EventLoop, Scope, Spawned
from callboard._loops._shared_event import SharedEvent
from callboard.agent._chunk_log import ChunkLog
from callboard.agent._inbox import Inbox, Letter
from callboard.exceptions import DrainingError, RunCancelledError, RunNotFoundError, ThreadBusyError

T = TypeVar("T")

_log = logging.getLogger("callboard")

BUFFER = 10_000
"""Default number of chunks that a thread of conversation keeps for readers."""

_ENDED_RUNS = 100
"""Number of ended runs that an agent keeps, with their chunks, for readers that come late: the last ones."""


Perform = Callable[[ChunkLog, Inbox], Awaitable[Any]]
"""Function that runs an agent with a log for its chunks and an inbox, and returns what `ainvoke` returns."""


class LiveRun:
    """Run of an agent that takes messages; `start`, `say` and `live` of an agent return it.

    Only a run that `start` or `say` has started has a result, chunks and `cancel`; another one belongs to its caller.
    """

    def __init__(self, thread_id: str, log: ChunkLog | None = None) -> None:
        self.thread_id = thread_id
        """Id of the thread of conversation."""
        self._inbox = Inbox()
        self._log = log
        self._start = 0 if log is None else log.last
        """Number of the last chunk before this run."""
        self._loop = current_loop()
        self._earlier_run: LiveRun | None = None
        """Last run of the thread before this one, until this one ends: it stays the last if the start fails."""
        self._task: Spawned | None = None
        self._has_task_begun = False
        self._is_cancelled = False
        self._is_update = False
        """`True` for an update of the thread, for whose end a run waits."""
        self._end = SharedEvent()
        """Set at the end of the run, for tasks that get its error."""
        self._release = SharedEvent()
        """Set at the same time, for tasks that only wait for the end."""
        self._last_number: int | None = None
        """Number of the last chunk of this run; `None` while it goes on, or if it has no chunks."""
        self._output: Any = None
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<LiveRun of the thread {self.thread_id!r}, {'over' if self.is_over else 'live'}>"

    @property
    def is_over(self) -> bool:
        """`True` once the run has ended: it takes no more messages."""
        return self._end.is_set

    async def result(self) -> Any:
        """Wait until the run has ended, and return what `ainvoke` returns.

        Raises:
            RunCancelledError: if `cancel` ended the run.
            RuntimeError: if `ainvoke` or another method runs it, whose caller gets the result.
            BaseException: the error of the run.
        """
        self._require_log()
        await self._end.wait()
        if self._error is not None:
            raise self._error
        return self._output

    async def stream(self, after: int | None = None) -> AsyncGenerator[tuple[int, Any]]:
        """Yield the chunks of the run, each with its number, until the run has ended; then raise the run's error.

        Any number of readers may read a run. It does not wait for them, and goes on when they leave.

        Args:
            after: number of the last chunk that the reader has got, of this run or of an earlier one of the thread. By
                default, the reader gets all chunks of this run.

        Raises:
            ChunksDroppedError: if the buffer does not have the next chunk any more.
            TypeError: if `after` is not an integer.
            RuntimeError: if `ainvoke` or another method runs it, whose caller gets the chunks.
            BaseException: the error of the run.
        """
        log = self._require_log()
        if after is not None and type(after) is not int:
            raise TypeError(f"stream(after=...) takes the number of a chunk, got {after!r}")
        numbered_chunks = log.read(self._start if after is None else after, lambda: self._last_number)
        async with aclosing(numbered_chunks):
            async for numbered_chunk in numbered_chunks:
                yield numbered_chunk
        if self._error is not None:
            raise self._error

    async def cancel(self) -> None:
        """Cancel the run, with the grace of its calls for clean-up, and wait for its end.

        The thread is kept, and can be resumed with the input `None`. If the run has ended, nothing happens.

        Raises:
            RuntimeError: if `ainvoke` or another method runs it, or if it belongs to another event loop.
        """
        self._require_log()
        if not self._loop.is_here():
            raise RuntimeError(f"{self!r} belongs to another event loop: cancel it there")
        if not self.is_over:
            self._is_cancelled = True
            # A task that is cancelled before it begins would never report its end.
            if self._task is not None and self._has_task_begun:
                self._task.cancel()
        await self._release.wait()

    def _require_log(self) -> ChunkLog:
        """Return the log of the run's chunks; raise `RuntimeError` for a run that nobody started in the background."""
        if self._log is None:
            raise RuntimeError(
                f"the run of the thread {self.thread_id!r} was not started by start() or say(start=True): whoever runs "
                "it reads its chunks, gets its result, and can cancel it"
            )
        return self._log

    async def _perform(self, run: Perform) -> None:
        """Perform a started run, and keep its output."""
        self._has_task_begun = True
        if self._is_cancelled:
            raise RunCancelledError(self.thread_id)
        assert self._log is not None
        self._output = await run(self._log, self._inbox)

    def _report_end(self) -> None:
        error, has_readers = self._error, self._log is not None and self._log.has_waiting_reader
        is_expected = error is None or isinstance(error, (RunCancelledError, DrainingError))
        # Somebody waits for the run, or for its start, and gets the error.
        is_awaited = has_readers or self._end.has_waiters or self._inbox.opened.has_waiters
        if not is_expected and not is_awaited:
            _log.error("The run of the thread %r ended with an error", self.thread_id, exc_info=error)
        self._inbox.close()
        if self._log is not None:
            self._last_number = self._log.last
        for event in (self._end, self._release, self._inbox.opened):
            event.set()
        if self._log is not None:
            self._log.wake_readers()


class _Block:
    """Block of `async with agent` in one event loop, with the runs that were started in it."""

    def __init__(self) -> None:
        self.context = copy_context()
        """Context variables of the block: runs belong to it, and not to the request that has started them."""
        self.entries = 0
        """Number of blocks of the agent that the event loop is in."""
        self.runs: set[LiveRun] = set()

    async def wait_for_runs(self) -> None:
        """Wait until the runs of the block have ended."""
        for run in list(self.runs):
            assert run._task is not None
            await run._task.wait()


class LiveRuns:
    """Live runs of an agent, by the thread of conversation, in all event loops; and the last runs that have ended.

    A thread has at most one live run.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self.forget_tasks()
        forget_tasks_after_fork(self)

    def forget_tasks(self) -> None:
        """Forget all runs and blocks: a forked child process has the objects, but no event loop that runs them."""
        self._lock = threading.Lock()  # guards the fields below
        self._live: dict[str, LiveRun] = {}
        self._ended: OrderedDict[str, LiveRun] = OrderedDict()
        """Last started run of each thread without a live run, in the order of their ends."""
        self._blocks: dict[EventLoop, _Block] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return LiveRuns, (self._in_flight,)  # a copy has no runs

    def find(self, thread_id: str) -> LiveRun | None:
        """Return the live run of a thread, or `None`."""
        return self._live.get(thread_id)

    async def say(
        self,
        thread_id: str,
        message: HumanMessage,
        start_run: Callable[[], LiveRun | None] | None,
        refuse_if_held: Callable[[], Awaitable[None]],
    ) -> LiveRun | None:
        """Store a message for the live run of a thread; without a live run, start a run with the message.

        Args:
            thread_id: thread of conversation.
            message: message with an id.
            start_run: function that starts a run with the message, as `start` does; `None` to start no run.
            refuse_if_held: function that raises `ThreadBusyError` if another process uses the thread.
        """
        while True:
            while (run := self.find(thread_id)) is not None:
                if not run._is_update and await self.send(run, message):
                    return run
                # Code of the run itself, such as a callback handler at its end, must not wait for its end.
                if not run._is_update and self._in_flight.has_enclosing(thread_id):
                    if start_run is None:
                        return None
                    raise RuntimeError(
                        f"the run of the thread {thread_id!r} reads no more messages, and this code is part of it: "
                        "start another run when it has ended"
                    )
                await self.wait_until_over(run)
            try:
                if start_run is None:
                    await refuse_if_held()
                    return None
                if (run := start_run()) is not None:
                    await self.wait_until_started(run)
                    return run
            except ThreadBusyError:
                # Unless another run of this agent has taken the thread at the same time.
                if self.find(thread_id) is None:
                    raise

    async def start_alone(self, thread_id: str, start_run: Callable[[], LiveRun | None]) -> LiveRun:
        """Start a run, and return it once its input is stored; raise `ThreadBusyError` if the thread has a live run.

        A run that has not stored its input may be refused, so its start is waited for.
        """
        while (run := start_run()) is None:
            other = self.find(thread_id)
            if other is None:
                continue
            if not self._in_flight.has_enclosing(thread_id):
                await other._inbox.opened.wait()
            if not other.is_over:
                raise ThreadBusyError(thread_id, "another run of this agent")
        await self.wait_until_started(run)
        return run

    async def send(self, run: LiveRun, message: HumanMessage) -> bool:
        """Store a message for a run; return `False` if the run has ended, or ends, without the message."""
        letter = Letter(message)
        return run._inbox.put(letter) and await letter.wait()

    async def wait_until_started(self, run: LiveRun) -> None:
        """Wait until the input of a run is stored; raise the error of a run that has ended before."""
        await run._inbox.opened.wait()
        if run._error is not None and not run._inbox.is_open:
            raise run._error

    async def wait_until_over(self, run: LiveRun) -> None:
        """Wait until a run has ended, and another run can use its thread."""
        await run._release.wait()

    def report_background_end(self, thread_id: str) -> None:
        """Let the live run of a thread, if it waits for background calls, look whether there are any left."""
        if (run := self.find(thread_id)) is not None:
            run._inbox.report_background_end()

    def latest(self, thread_id: str) -> LiveRun:
        """Return the live run of a thread, or else its last started run; raise `RunNotFoundError` without one."""
        with self._lock:
            live_run = self._live.get(thread_id)
            # An update of the thread, with the result of a background call, is no run.
            run = self._ended.get(thread_id) if live_run is None or live_run._is_update else live_run
        if run is None:
            raise RunNotFoundError(thread_id)
        return run

    @contextmanager
    def admit(self, thread_id: str) -> Generator[Inbox]:
        """Register a run that was not started here during a `with` block, and yield its inbox."""
        run = LiveRun(thread_id)

        def register() -> None:
            with self._lock:
                self._live[thread_id] = run

        # If the thread has a live run, it is busy, unless that run ends at this moment and has stored its end: then the
        # new run can take the thread, and takes its messages from there on.
        run._inbox.on_open = register
        with self._lock:
            self._live.setdefault(thread_id, run)
        try:
            yield run._inbox
        finally:
            self._remove(run)
            run._report_end()

    async def wait_for_update(self, thread_id: str) -> None:
        """Wait while the thread is updated with the result of a background call."""
        while (run := self.find(thread_id)) is not None and run._is_update:
            await run._release.wait()

    @contextmanager
    def update(self, thread_id: str) -> Generator[Inbox]:
        """Register an update of a thread during a `with` block, and yield the inbox for results of background calls.

        Raises `ThreadBusyError` if there is a live run. An error of the block is also that of each letter in the inbox.
        """
        update = LiveRun(thread_id)
        update._is_update = True
        with self._lock:
            if thread_id in self._live:
                raise ThreadBusyError(thread_id, "another run of this agent")
            self._live[thread_id] = update
        try:
            yield update._inbox
        except Exception as error:
            update._inbox.close(error)
            raise
        finally:
            self._remove(update)
            update._report_end()

    @property
    def has_block(self) -> bool:
        """`True` if this event loop is in a block of the agent."""
        return current_loop() in self._blocks

    def run_in_block(self, fn: Callable[[], T]) -> T:
        """Call a function in the context of this event loop's block; raise `RuntimeError` outside of a block."""
        return self._block().context.copy().run(fn)

    def _block(self) -> _Block:
        block = self._blocks.get(current_loop())
        if block is None:
            raise RuntimeError(
                "a run is started within `async with agent:`, or between `await agent.open()` and `await "
                "agent.aclose()`, in the same event loop: it belongs to this block, which waits for its end"
            )
        return block

    def enter_block(self) -> None:
        """Record that a block of the agent begins in this event loop."""
        with self._lock:
            self._blocks.setdefault(current_loop(), _Block()).entries += 1

    async def leave_block(self) -> None:
        """Leave a block; wait until the runs of this event loop's last block have ended.

        Called after all runs of the agent are drained.
        """
        loop = current_loop()
        with self._lock:
            block = self._blocks.get(loop)
            if block is None:
                return
            block.entries -= 1
            if block.entries:
                return
            del self._blocks[loop]
        await loop.outlast(block.wait_for_runs)

    def start(self, thread_id: str, perform: Perform, buffer: int) -> LiveRun | None:
        """Start a run in a task of this event loop's block; return `None` if the thread has a live run."""
        loop, block = current_loop(), self._block()
        with self._lock:
            if thread_id in self._live:
                return None
            # The chunks of the thread's runs have numbers in one sequence: a reader can miss the end of a run.
            earlier = self._ended.pop(thread_id, None)
            log = ChunkLog(thread_id, buffer) if earlier is None or earlier._log is None else earlier._log
            log.resize(buffer)
            run = self._live[thread_id] = LiveRun(thread_id, log)
            run._earlier_run = earlier
            block.runs.add(run)

        async def child(scope: Scope) -> None:
            try:
                with scope:
                    await run._perform(perform)
                    return
                raise RunCancelledError(thread_id)  # the scope was cancelled, and has ended the run
            except BaseException as error:
                is_cancelled = isinstance(error, loop.cancelled_class)
                run._error = RunCancelledError(thread_id) if is_cancelled else error
                if is_cancelled:
                    raise
            finally:
                block.runs.discard(run)
                self._remove(run)
                run._report_end()

        # A copy: a context cannot be entered twice, and an eager task begins here.
        run._task = block.context.copy().run(loop.spawn, child, DEFAULT_GRACE)
        return run

    def _remove(self, run: LiveRun) -> None:
        with self._lock:
            if self._live.get(run.thread_id) is run:
                del self._live[run.thread_id]
            last_run = run if run._inbox.is_open else run._earlier_run
            run._earlier_run = None  # or each run would keep all runs before it
            if run._log is not None and last_run is not None:
                self._ended[run.thread_id] = last_run
                while len(self._ended) > _ENDED_RUNS:
                    self._ended.popitem(last=False)
