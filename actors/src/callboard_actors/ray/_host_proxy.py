"""Engine's object for a Ray actor: `HostProxy`.

Ray's object references support asyncio only. `LoopHandle` brings their results into a loop of trio, too.
"""

import itertools
import math
import re
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import ray
import sniffio
from anyio.lowlevel import current_token
from anyio.to_thread import run_sync
from ray.exceptions import RayError

from callboard import ActorStartError
from callboard.extend import Body, EngineError, dispatch_event, inject_context
from callboard_actors._engine._frames import current_versions
from callboard_actors._engine._open_call import OpenCall
from callboard_actors._util._own_task import run_to_end
from callboard_actors.ray._connection import missing_resources
from callboard_actors.ray._host import MAX_BATCH_BYTES, Event, Host, HostAnswer, SentBatch, SentCall
from callboard_actors.ray._options import RayOptions
from callboard_actors.ray._transfer import PickledBody, decode_reply, pickle_body

# Object references.


class LoopHandle:
    """Handle of the running event loop, by which Ray's threads call functions in it."""

    def __init__(self) -> None:
        self._loop: Any = current_token().native_token
        self._is_trio = sniffio.current_async_library() == "trio"

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call a function in a later step of this event loop; called in the event loop."""
        (self._loop.run_sync_soon if self._is_trio else self._loop.call_soon)(callback)

    def call_when_done(self, object_ref: Any, callback: Callable[[Future[Any]], object]) -> None:
        """Call `callback` in the event loop as soon as Ray has resolved an object reference."""

        def post_to_loop(future: Future[Any]) -> None:
            # In a thread of Ray, so it must not block.
            with suppress(RuntimeError):  # the loop is closed, so no task waits
                (self._loop.run_sync_soon if self._is_trio else self._loop.call_soon_threadsafe)(
                    partial(callback, future)
                )

        object_ref.future().add_done_callback(post_to_loop)


# The Ray actor.

_ROOM_CHECKS = 10
"""Number of checks for free resources in the cluster before the start of a Ray actor is given up."""
_EXIT_TIMEOUT = 0.5
"""Seconds that a Ray actor has to end by itself; then it is killed, for instance if a call blocks its event loop."""
_KILL_TIMEOUT = 10.0
"""Maximum seconds to wait until Ray reports the end of a killed Ray actor."""
_MAX_CONCURRENCY = 100
"""Maximum number of concurrent method calls of a Ray actor; `_MAX_REQUESTS` and a few large ones are used."""
_MAX_REQUESTS = 4
"""Number of requests on their way to a Ray actor beyond which a call waits, and is then sent together with others."""
_MAX_FUNCTIONS = 256
"""Number of functions that a Ray actor keeps; the one that was called longest ago is forgotten."""
_MISSING_MODULE = re.compile(r"No module named '([^']+)'")


class NoRoomError(Exception):
    """Raised if the cluster lacks free resources for a Ray actor; the text names these resources."""


class NotBegunError(EngineError):
    """Raised for a body of which nothing was sent, before its `on_begin` was called: another Ray actor may run it."""


class HostProxy:
    """Engine's object for one Ray actor: starts it, runs function calls in it, and ends it; used in one event loop."""

    def __init__(self, title: str, options: RayOptions) -> None:
        self._title = title
        self._options = options
        self._loop = LoopHandle()
        self._numbers = itertools.count(1)
        # Why it has ended or is being ended; set once, and never cleared.
        self._end_reason: str | None = None
        self._actor: Any = None
        self._start_requested_at = -math.inf
        """Time of the event loop at which the start of the Ray actor was requested."""
        self._calls: dict[int, OpenCall[Event]] = {}
        self._digests_by_last_call: dict[bytes, None] = {}
        """Digests of the functions that the Ray actor has, in the order of their last calls."""
        # What the next request will send.
        self._unsent_calls = deque[tuple[OpenCall[Event], SentCall, PickledBody]]()
        self._cancelled_numbers: list[int] = []
        self._will_send = False
        # While the Ray actor lives, a request is always on its way: Ray fails it when the process ends.
        self._positions = itertools.count()
        self._open_request_count = 0
        self._early_answers: dict[int, HostAnswer] = {}
        self._next_answer_position = 0
        self._has_answered = anyio.Event()
        self._has_ended = anyio.Event()
        """Set when Ray has reported the end of the Ray actor."""
        self.has_started = False

    async def start(self, patience: float | None = None) -> None:
        """Let Ray start the Ray actor, and wait until it answers; raise `NoRoomError` if the cluster has no room."""
        lacks_resources = patience is not None and await run_sync(missing_resources, self._options) is not None
        self._start_requested_at = anyio.current_time()
        try:
            # Without Ray's retries: it cannot know whether a body may run twice.
            host_class = ray.remote(Host).options(
                max_restarts=0, max_task_retries=0, max_concurrency=_MAX_CONCURRENCY, **self._options.ray_options()
            )
            self._actor = await run_sync(host_class.remote, self._options.max_result)
        except (TypeError, ValueError) as error:
            raise ActorStartError(self._title, f"Ray refuses an option: {error}", is_permanent=True) from error
        try:
            start_replies: list[Future[dict[str, str]]] = []
            has_answer = anyio.Event()

            def record_start_reply(future: Future[dict[str, str]]) -> None:
                start_replies.append(future)
                has_answer.set()

            self._loop.call_when_done(self._actor.report_versions.remote(), record_start_reply)
            started_at = anyio.current_time()
            # `None` once room was seen: whether this actor or another one took it is unknown.
            room_patience = patience if lacks_resources else None
            while not has_answer.is_set():
                with anyio.move_on_after(math.inf if room_patience is None else room_patience / _ROOM_CHECKS):
                    await has_answer.wait()
                if room_patience is None or has_answer.is_set():
                    continue
                if (missing_resource := await run_sync(missing_resources, self._options)) is None:
                    room_patience = None
                elif anyio.current_time() - started_at >= room_patience:
                    raise NoRoomError(missing_resource)
            cluster_versions = start_replies[0].result()
            for name, version in current_versions().items():
                if version != cluster_versions[name]:
                    raise ActorStartError(
                        self._title,
                        f"the cluster has {name} {cluster_versions[name]}, and here it is {version}; "
                        "both have to be equal",
                        is_permanent=True,
                    )
        except RayError as error:
            if (missing_module := _MISSING_MODULE.search(str(error))) is None:
                raise ActorStartError(self._title, f"Ray cannot start its actor: {one_line_text(error)}") from error
            raise ActorStartError(
                self._title,
                f"a node of the cluster has no module {missing_module[1]!r}: install callboard-actors "
                f"{current_versions()['callboard']} there, with its extra `ray`, or have Ray do so by "
                "RayEngine(runtime_env={'pip': [...]})",
                is_permanent=True,
            ) from error
        except BaseException:
            self.kill()
            raise
        # Before any body: a Ray actor in use always has a request on its way.
        self._send_requests()
        self.has_started = True

    @property
    def is_alive(self) -> bool:
        """`True` if the Ray actor has not ended, is not being ended and was not lost, as far as the engine knows."""
        return self._end_reason is None

    @property
    def is_expected(self) -> bool:
        """`True` if the Ray actor lives and has started, or may still start within `start_timeout`."""
        is_starting = anyio.current_time() - self._start_requested_at < self._options.start_timeout
        return self.is_alive and (self.has_started or is_starting)

    # Calls.

    async def run_body(self, body: Body, /, on_end: Callable[[], object] = lambda: None) -> Any:
        """Run a function call in the Ray actor; see `callboard.extend.Seat`.

        Args:
            body: the function call.
            on_end: called once, when the function runs no more; after a cancellation this may be later than the end of
                this method.
        """
        call: OpenCall[Event] | None = None
        number = next(self._numbers)
        try:
            pickled_body = pickle_body(body)
            while self._open_request_count >= _MAX_REQUESTS and self._end_reason is None:
                await self._has_answered.wait()
            if self._end_reason is not None:
                raise NotBegunError(body.title, body.call_id, self._end_reason, ended="unavailable")
            if body.on_begin is not None:
                body.on_begin()  # first: it starts the deadline that `inject_context()` sends along
            call = OpenCall()
            self._unsent_calls.append((call, SentCall(number, inject_context(), pickled_body.data), pickled_body))
            self._calls[number] = call
            self._send_requests_soon()
            await call.deliver_events_until_over(dispatch_event)
        except BaseException:
            if call is None:
                on_end()
            else:
                # In a task of its own: the body is ended even if this task is cancelled by force.
                await run_to_end(partial(self._cancel_call, number, call, body, on_end), "callboard_actors.ray ending")
            raise
        on_end()
        if call.reply is None:
            # Of a call that was sent, Ray does not say whether the Ray actor has received it.
            raise EngineError(
                body.title, body.call_id, str(call.loss_reason), ended="unknown" if call.is_sent else "unavailable"
            )
        return decode_reply(*call.reply, body)

    async def _cancel_call(self, number: int, call: OpenCall[Event], body: Body, on_end: Callable[[], object]) -> None:
        """Cancel a function call; if the call does not end within its grace, end the Ray actor. Never raises."""
        grace = self._options.grace if body.grace is None else min(body.grace, self._options.grace)
        try:
            if not call.is_sent:
                self._calls.pop(number, None)
                self._unsent_calls = deque(queued for queued in self._unsent_calls if queued[0] is not call)
                return
            if not call.is_over:
                self._cancelled_numbers.append(number)
                self._send_requests_soon()
            with anyio.move_on_after(grace):
                await call.until_over()
            if not call.is_over:
                await self.end(
                    f"its Ray actor was ended: {body.title!r} had been cancelled there and did not end within its grace"
                )
        finally:
            on_end()  # on every path, or the place of the call would never be offered again

    # Requests.

    def _send_requests_soon(self) -> None:
        if not self._will_send:
            self._will_send = True
            # In the next step of the event loop: calls that begin in this one share a request.
            self._loop.call_soon(self._send_requests)

    def _send_requests(self) -> None:
        """Send all due calls and cancellations, in requests of bounded size; always keep a request on its way."""
        self._will_send = False
        while self._end_reason is None:
            if self._open_request_count and not self._unsent_calls and not self._cancelled_numbers:
                return
            batch = SentBatch(
                next(self._positions),
                function_pickles={},
                calls=[],
                cancelled_numbers=self._cancelled_numbers,
                forgotten_digests=[],
            )
            self._cancelled_numbers = []
            byte_count = 0
            while self._unsent_calls and byte_count < MAX_BATCH_BYTES:
                call, sent_call, pickled_body = self._unsent_calls.popleft()
                call.is_sent = True
                batch.calls.append(sent_call)
                byte_count += len(sent_call.data)
                for pickled_function in pickled_body.functions:
                    digest = pickled_function.digest
                    if digest in self._digests_by_last_call:
                        del self._digests_by_last_call[digest]
                    else:
                        batch.function_pickles[digest] = pickled_function.data
                        byte_count += len(pickled_function.data)
                    # At the end, in either case: the first digest is that of the function that was called longest ago.
                    self._digests_by_last_call[digest] = None
            while len(self._digests_by_last_call) > _MAX_FUNCTIONS:
                oldest_digest = next(iter(self._digests_by_last_call))
                del self._digests_by_last_call[oldest_digest]
                batch.forgotten_digests.append(oldest_digest)
            self._open_request_count += 1
            try:
                self._loop.call_when_done(self._actor.exchange.remote(batch), self._receive_answer)
            except Exception as error:  # such as a connection that the program itself has closed
                self.kill(f"its Ray actor cannot be reached: {one_line_text(error)}")

    def _receive_answer(self, future: Future[Any]) -> None:
        """Process the answer to a request, or the end of the Ray actor, in the event loop."""
        self._open_request_count -= 1
        try:
            record_start_reply: HostAnswer = future.result()
        except Exception as error:
            # After the loss of a connection the process may live on, and its bodies with it: so it is killed.
            self.kill(f"its Ray actor is lost: {one_line_text(error)}")
            self._has_ended.set()
            return
        self._early_answers[record_start_reply.position] = record_start_reply
        # Large answers take longer on their way, and may be overtaken.
        while (answer_in_turn := self._early_answers.pop(self._next_answer_position, None)) is not None:
            self._next_answer_position += 1
            for number, events, reply in answer_in_turn.news:
                # `None` after the loss of the Ray actor: its calls have ended already.
                if (call := self._calls.get(number)) is not None:
                    for event in events:
                        call.add_event(event)
                    if reply is not None:
                        call.end(reply)
                        del self._calls[number]
        self._has_answered.set()
        self._has_answered = anyio.Event()
        if not self._open_request_count:
            self._send_requests_soon()

    # End.

    async def until_ended(self) -> str:
        """Wait until the Ray actor has ended, was killed, or cannot be reached; return the reason."""
        await self._has_ended.wait()
        assert self._end_reason is not None, "it is lost with its last request"
        return self._end_reason

    def _lose_calls(self, reason: str) -> None:
        if self._end_reason is not None:
            return
        self._end_reason = reason
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.lose(reason)
        self._unsent_calls.clear()
        self._has_answered.set()

    async def end(self, reason: str) -> None:
        """End the Ray actor and wait until it has ended, also if the caller is cancelled."""
        self._lose_calls(reason)
        if not self.has_started:
            self.kill()
        else:
            await run_to_end(self._exit_or_kill, "callboard_actors.ray leaving")

    async def _exit_or_kill(self) -> None:
        try:
            # First ask it to exit: Ray reports an actor as killed before its process has ended, so its body could go
            # on.
            if ray.is_initialized():
                with suppress(Exception):  # Ray cannot reach it: `kill` below ends it
                    self._actor.exit_process.remote()
            with anyio.move_on_after(_EXIT_TIMEOUT):
                await self.until_ended()
        finally:
            self.kill()
        # Bounded: of a node that cannot be reached, Ray may not report the end for minutes.
        with anyio.move_on_after(_KILL_TIMEOUT):
            await self.until_ended()

    def kill(self, reason: str = "it was ended") -> None:
        """Kill the Ray actor at once, without restart."""
        self._lose_calls(reason)
        if self._actor is not None and ray.is_initialized():
            with suppress(Exception):  # an actor that is unknown to Ray has ended
                ray.kill(self._actor, no_restart=True)


def one_line_text(error: Exception) -> str:
    """Return the text of an error of Ray as one line of at most 400 characters, because Ray's own texts are long."""
    lines = [text_line.strip() for text_line in str(error).splitlines() if text_line.strip()]
    return " ".join([type(error).__name__ + ":", *lines])[:400]
