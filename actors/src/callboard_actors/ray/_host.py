"""Code inside a Ray actor: runs async functions on its event loop, and sync functions in threads.

A function is sent to a Ray actor once, and its calls name it by its digest. Functions, arguments and replies are
transferred by Ray's cloudpickle: functions and classes of importable modules by name, definitions of a script, a
notebook or another function by value.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

from callboard.extend import attach_context
from callboard_actors._engine._frames import Kind, current_versions, encode_loss
from callboard_actors._engine._open_call import MAX_EVENTS
from callboard_actors._engine._replies import Reply, encode_error, encode_result, limit_reply
from callboard_actors.ray._transfer import ReceivedFunctions, dumps

Event = dict[str, Any]


class SentCall(NamedTuple):
    """Call as it is sent to a Ray actor."""

    number: int
    context: dict[str, Any]
    """Context of the call, from `callboard.extend.inject_context`."""
    data: bytes


class SentBatch(NamedTuple):
    """Request to a Ray actor: what the engine has to send to it at one moment."""

    position: int
    """Position of the request in the order of all requests to this Ray actor, from 0."""
    function_pickles: dict[bytes, bytes]
    """Pickles of functions that the Ray actor does not have yet, by digest."""
    calls: list[SentCall]
    cancelled_numbers: list[int]
    """Numbers of calls to cancel."""
    forgotten_digests: list[bytes]
    """Digests of functions that later requests will send again before they are called."""


class CallNews(NamedTuple):
    """Events of a call, and its reply if the call has ended."""

    number: int
    events: list[Event]
    reply: Reply | None


class HostAnswer(NamedTuple):
    """Answer of a Ray actor to a request."""

    position: int
    """Position of the answer in the order of all answers of this Ray actor, from 0."""
    news: list[CallNews]


_MAX_THREADS = 64
"""Number of threads for sync functions; a dedicated Ray actor may run several calls at once."""
_MAX_WAITING_REQUESTS = 2
"""Number of requests that wait for news. An older one is answered without news."""
_MANY_CALLS = 20
"""Number of running calls from which an answer waits for further news."""
_PAUSE_FOR_MANY_CALLS = 0.005
"""Seconds that an answer waits while many calls run."""
MAX_BATCH_BYTES = 1024 * 1024
"""Number of bytes of calls or replies after which no further one is put into the same request or answer."""


class Host:
    """Ray actor that runs function calls, each identified by a number, until the Ray actor is killed.

    The engine always has a request on its way. A Ray actor answers the oldest one as soon as it has news of any call:
    so a call that is alone costs one request, and many calls at once share requests and answers.
    """

    def __init__(self, max_result: int) -> None:
        self._max_result = max_result
        self._functions = ReceivedFunctions()
        self._calls: dict[int, _RunningCall] = {}
        self._thread_pool = ThreadPoolExecutor(_MAX_THREADS, "callboard")
        # Ray may start async methods in another order than they were called in.
        self._next_position = 0
        self._early_turns: dict[int, asyncio.Event] = {}
        self._open_requests = deque[asyncio.Future[HostAnswer]]()
        self._answer_count = 0
        self._calls_with_news = dict[int, _RunningCall]()
        """Calls with events or replies that no answer has had yet, in their order."""
        self._will_answer = False

    async def report_versions(self) -> dict[str, str]:
        """Return the versions of callboard and Python; the answer also shows that the Ray actor has started."""
        return current_versions()

    async def exit_process(self) -> None:
        """End this process at once, with every function call that runs in it."""
        os._exit(0)

    async def exchange(self, batch: SentBatch) -> HostAnswer:
        """Start and cancel calls, then wait for news of any call; the end of the process fails the request."""
        # Requests are processed in the order of their positions, also if Ray starts this method in another order.
        if batch.position != self._next_position:
            has_turn = self._early_turns[batch.position] = asyncio.Event()
            await has_turn.wait()
        self._next_position += 1
        if self._next_position in self._early_turns:
            self._early_turns.pop(self._next_position).set()
        self._functions.add(batch.function_pickles)
        for sent_call in batch.calls:
            call = _RunningCall(sent_call, self._thread_pool, self._max_result, self._note_news)
            self._calls[sent_call.number] = call
            call.start(self._functions)
        for number in batch.cancelled_numbers:
            if (call_to_cancel := self._calls.get(number)) is not None:
                call_to_cancel.cancel()
        self._functions.forget(batch.forgotten_digests)
        request: asyncio.Future[HostAnswer] = asyncio.get_running_loop().create_future()
        self._open_requests.append(request)
        if len(self._open_requests) > _MAX_WAITING_REQUESTS:
            self._answer_requests()
        elif self._calls_with_news:
            self._answer_soon()
        return await request

    def _note_news(self, call: "_RunningCall") -> None:
        self._calls_with_news[call.number] = call
        if self._open_requests:
            self._answer_soon()

    def _answer_soon(self) -> None:
        if self._will_answer:
            return
        self._will_answer = True
        # The news of several calls share an answer, which costs more than all of them. While many calls run, the answer
        # waits for more news; otherwise only until the end of this step of the event loop.
        pause = _PAUSE_FOR_MANY_CALLS if len(self._calls) >= _MANY_CALLS else 0.0
        asyncio.get_running_loop().call_later(pause, self._answer_requests)

    def _answer_requests(self) -> None:
        self._will_answer = False
        while self._open_requests and (self._calls_with_news or len(self._open_requests) > _MAX_WAITING_REQUESTS):
            news: list[CallNews] = []
            byte_count = 0
            while self._calls_with_news and byte_count < MAX_BATCH_BYTES:
                call = self._calls_with_news.pop(next(iter(self._calls_with_news)))
                news.append(CallNews(call.number, list(call.events), call.reply))
                call.events.clear()
                if call.reply is not None:
                    byte_count += len(call.reply[1])
                    del self._calls[call.number]
            self._open_requests.popleft().set_result(HostAnswer(self._answer_count, news))
            self._answer_count += 1


class _RunningCall:
    """Function call that runs in this Ray actor: its task, its events and its reply."""

    def __init__(
        self,
        sent_call: SentCall,
        thread_pool: ThreadPoolExecutor,
        max_result: int,
        on_news: "Callable[[_RunningCall], None]",
    ) -> None:
        self.number = sent_call.number
        self.reply: Reply | None = None
        self._sent_call = sent_call
        self._thread_pool = thread_pool
        self._max_result = max_result
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self.events = deque[Event](maxlen=MAX_EVENTS)
        """Events that were not sent yet."""
        self._task: asyncio.Task[None] | None = None
        # While true, cancelling the task would abandon the thread, and report an end of the call that has not happened.
        self._is_in_thread = False

    def start(self, received_functions: ReceivedFunctions) -> None:
        """Start the call in a task of its own; a function or argument that cannot be loaded is the end of the call."""
        try:
            # Here, in the order of requests: a later request may make the Ray actor forget the function.
            function, args, kwargs = received_functions.load_call(self._sent_call.data)
        except Exception as error:
            self._finish((Kind.REFUSE, f"{type(error).__name__}: {error}".encode(errors="replace")))
            return
        self._task = self._loop.create_task(self._run(function, args, kwargs))

    def cancel(self) -> None:
        """Cancel the function, unless it runs in a thread."""
        if self._task is not None and not self._is_in_thread:
            # After the task's first step, which is already scheduled: a task that is cancelled before its first step
            # never runs.
            self._loop.call_soon(self._task.cancel)

    def _finish(self, reply: Reply) -> None:
        self.reply = limit_reply(*reply, self._max_result)
        self._on_news(self)

    async def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            with attach_context(self._sent_call.context, self._send_event):
                if iscoroutinefunction(function):
                    value = await function(*args, **kwargs)
                else:
                    self._is_in_thread = True
                    run_in_context = partial(_run_in_thread, partial(function, *args, **kwargs))
                    value = await self._loop.run_in_executor(self._thread_pool, copy_context().run, run_in_context)
                    self._is_in_thread = False
                    if isinstance(value, Coroutine):
                        value = await value
            reply = encode_result(value, dumps)
        except Exception as error:
            reply = encode_error(error, "Ray's worker process", dumps)
        except asyncio.CancelledError:
            self._loop.call_soon(self._finish, (Kind.LOST, b"it was cancelled"))
            raise
        except BaseException as error:  # an exit ends the call, and not the process with the calls of others
            reply = Kind.LOST, encode_loss(f"it raised {type(error).__name__}")
        # After the events that the function has sent last, which are scheduled in the same way.
        self._loop.call_soon(self._finish, reply)

    def _send_event(self, event: Event) -> None:
        # From any thread of the body; only the event loop touches the queue.
        self._loop.call_soon_threadsafe(self._add_event, event)

    def _add_event(self, event: Event) -> None:
        if self.reply is None:
            self.events.append(event)
            self._on_news(self)


def _run_in_thread(fn: Callable[[], Any]) -> Any:
    try:
        return fn()
    except StopIteration as error:
        # No future takes a StopIteration: the call would never end.
        raise RuntimeError("the function raised StopIteration") from error
