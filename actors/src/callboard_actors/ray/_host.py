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
from callboard_actors._engine._frames import Kind, encode_loss, versions
from callboard_actors._engine._open_call import MAX_EVENTS
from callboard_actors._engine._replies import Reply, encode_error, encode_result, limit_reply
from callboard_actors.ray._transfer import Functions, dumps

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
    functions: dict[bytes, bytes]
    """Pickles of functions that the Ray actor does not have yet, by digest."""
    calls: list[SentCall]
    cancelled: list[int]
    """Numbers of calls to cancel."""
    forgotten: list[bytes]
    """Digests of functions that later requests will send again before they are called."""


class News(NamedTuple):
    """Events of a call, and its reply if the call has ended."""

    number: int
    events: list[Event]
    reply: Reply | None


class Answer(NamedTuple):
    """Answer of a Ray actor to a request."""

    position: int
    """Position of the answer in the order of all answers of this Ray actor, from 0."""
    news: list[News]


_THREADS = 64
"""Number of threads for sync functions; a dedicated Ray actor may run several calls at once."""
_WAITING_REQUESTS = 2
"""Number of requests that wait for news. An older one is answered without news."""
_MANY_CALLS = 20
"""Number of running calls from which an answer waits for further news."""
_PAUSE_OF_MANY = 0.005
"""Seconds that an answer waits while many calls run."""
LONGEST_BATCH = 1024 * 1024
"""Number of bytes of calls or replies after which no further one is put into the same request or answer."""


class Host:
    """Ray actor that runs function calls, each identified by a number, until the Ray actor is killed.

    The engine always has a request on its way. A Ray actor answers the oldest one as soon as it has news of any call:
    so a call that is alone costs one request, and many calls at once share requests and answers.
    """

    def __init__(self, max_result: int) -> None:
        self._max_result = max_result
        self._functions = Functions()
        self._calls: dict[int, _Call] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "callboard")
        # Ray may start async methods in another order than they were called in.
        self._next_position = 0
        self._early: dict[int, asyncio.Event] = {}
        self._requests = deque[asyncio.Future[Answer]]()
        self._answers = 0
        self._with_news = dict[int, _Call]()
        """Calls with events or replies that no answer has had yet, in their order."""
        self._will_respond = False

    async def hello(self) -> dict[str, str]:
        """Return the versions of callboard and Python; the answer also shows that the Ray actor has started."""
        return versions()

    async def leave(self) -> None:
        """End this process at once, with every function call that runs in it."""
        os._exit(0)

    async def exchange(self, batch: SentBatch) -> Answer:
        """Start and cancel calls, then wait for news of any call; the end of the process fails the request."""
        if batch.position != self._next_position:
            turn = self._early[batch.position] = asyncio.Event()
            await turn.wait()
        self._next_position += 1
        if self._next_position in self._early:
            self._early.pop(self._next_position).set()
        self._functions.add(batch.functions)
        for sent_call in batch.calls:
            call = self._calls[sent_call.number] = _Call(sent_call, self._threads, self._max_result, self._add_news)
            call.start(self._functions)
        for number in batch.cancelled:
            if (cancelled := self._calls.get(number)) is not None:
                cancelled.cancel()
        self._functions.forget(batch.forgotten)
        request: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._requests.append(request)
        if len(self._requests) > _WAITING_REQUESTS:
            self._respond()
        elif self._with_news:
            self._respond_soon()
        return await request

    def _add_news(self, call: "_Call") -> None:
        self._with_news[call.number] = call
        if self._requests:
            self._respond_soon()

    def _respond_soon(self) -> None:
        if self._will_respond:
            return
        self._will_respond = True
        # What several calls have to say shares an answer, which costs more than all of them. While many calls run, the
        # answer waits for more; otherwise only until the end of this step of the event loop.
        pause = _PAUSE_OF_MANY if len(self._calls) >= _MANY_CALLS else 0.0
        asyncio.get_running_loop().call_later(pause, self._respond)

    def _respond(self) -> None:
        self._will_respond = False
        while self._requests and (self._with_news or len(self._requests) > _WAITING_REQUESTS):
            news: list[News] = []
            size = 0
            while self._with_news and size < LONGEST_BATCH:
                call = self._with_news.pop(next(iter(self._with_news)))
                news.append(News(call.number, list(call.events), call.reply))
                call.events.clear()
                if call.reply is not None:
                    size += len(call.reply[1])
                    del self._calls[call.number]
            self._requests.popleft().set_result(Answer(self._answers, news))
            self._answers += 1


class _Call:
    """Function call that runs in this Ray actor: its task, its events and its reply."""

    def __init__(
        self, sent_call: SentCall, threads: ThreadPoolExecutor, max_result: int, on_news: "Callable[[_Call], None]"
    ) -> None:
        self.number = sent_call.number
        self.reply: Reply | None = None
        self._sent_call = sent_call
        self._threads = threads
        self._max_result = max_result
        self._on_news = on_news
        self._loop = asyncio.get_running_loop()
        self.events = deque[Event](maxlen=MAX_EVENTS)
        """Events that were not sent yet."""
        self._task: asyncio.Task[None] | None = None
        # While true, cancelling the task would abandon the thread, and report an end that has not happened.
        self._is_in_thread = False

    def start(self, functions: Functions) -> None:
        """Start the call in a task of its own; a function or argument that cannot be loaded is the end of the call."""
        try:
            # Here, in the order of requests: a later request may make the Ray actor forget the function.
            function, args, kwargs = functions.load_call(self._sent_call.data)
        except Exception as error:
            self._end((Kind.REFUSE, f"{type(error).__name__}: {error}".encode(errors="replace")))
            return
        self._task = self._loop.create_task(self._run(function, args, kwargs))

    def cancel(self) -> None:
        """Cancel the function, unless it runs in a thread."""
        if self._task is not None and not self._is_in_thread:
            # After the task's first step, which is already scheduled: a task that is cancelled before its first step
            # never runs.
            self._loop.call_soon(self._task.cancel)

    def _end(self, reply: Reply) -> None:
        self.reply = limit_reply(*reply, self._max_result)
        self._on_news(self)

    async def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            with attach_context(self._sent_call.context, self._send_event):
                if iscoroutinefunction(function):
                    value = await function(*args, **kwargs)
                else:
                    self._is_in_thread = True
                    call = partial(_call_in_thread, partial(function, *args, **kwargs))
                    value = await self._loop.run_in_executor(self._threads, copy_context().run, call)
                    self._is_in_thread = False
                    if isinstance(value, Coroutine):
                        value = await value
            reply = encode_result(value, dumps)
        except Exception as error:
            reply = encode_error(error, "Ray's worker process", dumps)
        except asyncio.CancelledError:
            self._loop.call_soon(self._end, (Kind.LOST, b"it was cancelled"))
            raise
        except BaseException as error:  # an exit ends the call, and not the process with the calls of others
            reply = Kind.LOST, encode_loss(f"it raised {type(error).__name__}")
        # After the events that the function has sent last, which are scheduled in the same way.
        self._loop.call_soon(self._end, reply)

    def _send_event(self, event: Event) -> None:
        # From any thread of the body; only the event loop touches the queue.
        self._loop.call_soon_threadsafe(self._add_event, event)

    def _add_event(self, event: Event) -> None:
        if self.reply is None:
            self.events.append(event)
            self._on_news(self)


def _call_in_thread(fn: Callable[[], Any]) -> Any:
    try:
        return fn()
    except StopIteration as error:
        # No future takes a StopIteration: the call would never end.
        raise RuntimeError("the function raised StopIteration") from error
