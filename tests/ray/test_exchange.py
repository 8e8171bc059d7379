"""Calls of a Ray actor over a connection that delays and reorders requests and answers; without a cluster.

The code of the Ray actor runs in the event loop of a thread of this process.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, ClassVar

import anyio
import pytest

from callboard import ActorStartError
from callboard_actors.ray import _engine
from callboard_actors.ray._options import RayOptions

pytest.importorskip("ray")

from ray.exceptions import ActorDiedError

import callboard
from callboard.extend import Body, EngineError
from callboard_actors.ray import _host_proxy
from callboard_actors.ray._host import MAX_BATCH_BYTES, Host
from callboard_actors.ray._host_proxy import HostProxy

pytestmark = [pytest.mark.real_clock, pytest.mark.backends("asyncio", "trio"), pytest.mark.hangs_after(60)]

WAIT = 60


class _Ref:
    """Object reference of a result that arrives late."""

    def __init__(self) -> None:
        self.result: Future[Any] = Future()

    def future(self) -> Future[Any]:
        return self.result


class _Method:
    def __init__(self, actor: "_FakeActor", method: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._actor = actor
        self._method = method

    def remote(self, *args: Any) -> _Ref:
        return self._actor.call(self._method, args)


class _FakeActor:
    """Handle of a Ray actor whose code runs in another thread, with random delays in both directions."""

    def __init__(self, seed: int) -> None:
        self.requests = 0
        self.is_held = False
        """`True` while no request reaches the Ray actor, as if a body held its event loop."""
        self._chance = random.Random(seed)
        self._refs: list[_Ref] = []
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        started: Future[tuple[asyncio.AbstractEventLoop, Host]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        self._loop, self._host = started.result()
        self.report_versions, self.exchange = (
            _Method(self, self._host.report_versions),
            _Method(self, self._host.exchange),
        )

    async def _serve(self, started: "Future[tuple[asyncio.AbstractEventLoop, Host]]") -> None:
        started.set_result((asyncio.get_running_loop(), Host(max_result=10**7)))
        await self._stop.wait()

    def call(self, method: Callable[..., Coroutine[Any, Any, Any]], args: tuple[Any, ...]) -> _Ref:
        self.requests += 1
        self._refs.append(ref := _Ref())
        delays = [self._chance.choice([0.0, 0.0, 0.001, 0.004]) for _ in range(2)]

        async def deliver() -> None:
            while self.is_held:
                await asyncio.sleep(0.001)
            await asyncio.sleep(delays[0])
            value = await method(*args)
            await asyncio.sleep(delays[1])
            if not ref.result.done():
                ref.result.set_result(value)

        def start() -> None:
            self._tasks.add(task := self._loop.create_task(deliver()))
            task.add_done_callback(self._tasks.discard)

        self._loop.call_soon_threadsafe(start)
        return ref

    def die(self) -> None:
        """Fail all requests that are on their way, as Ray does when the process has ended."""
        for ref in self._refs:
            if not ref.result.done():
                ref.result.set_exception(ActorDiedError())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@pytest.fixture(params=range(3))
def actor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[_FakeActor]:
    fake = _FakeActor(request.param)
    monkeypatch.setattr(_host_proxy.ray, "kill", lambda actor, no_restart: actor.die())
    monkeypatch.setattr(_host_proxy.ray, "is_initialized", lambda: True)
    try:
        yield fake
    finally:
        fake.close()


@pytest.fixture
async def proxy(actor: _FakeActor, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HostProxy]:
    class Make:
        def options(self, **_: Any) -> "Make":
            return self

        def remote(self, max_result: int) -> _FakeActor:
            return actor

    monkeypatch.setattr(_host_proxy.ray, "remote", lambda _: Make())
    options = RayOptions(
        workers=1, concurrency=100, cpus=1, gpus=0, memory=None, grace=5.0,
        max_result=10**7, start_timeout=10, patience=10,
    )  # fmt: skip
    proxy = HostProxy("a test", options)
    await proxy.start()
    yield proxy
    await proxy.end("the test is over")


async def echo(number: int, seconds: float) -> int:
    """Return the number after some progress."""
    callboard.progress("one", done=number)
    await asyncio.sleep(seconds)
    callboard.progress("two", done=number)
    return number


def large(size: int) -> bytes:
    return b"x" * size


async def stubborn() -> None:
    """Ignore the first cancellation."""
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.01)


async def test_each_of_many_calls_has_its_own_result_and_its_events_in_order(
    proxy: HostProxy, actor: _FakeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests and answers overtake each other, and many calls share them."""
    results: dict[int, int] = {}
    events: dict[int, list[str]] = {number: [] for number in range(100)}

    def record(event: dict[str, Any]) -> None:
        text, number, _ = event["progress"]
        events[number].append(text)

    monkeypatch.setattr(_host_proxy, "dispatch_event", record)
    chance = random.Random(1)

    async def run(number: int) -> None:
        seconds = chance.choice([0.0, 0.002, 0.02])
        results[number] = await proxy.run_body(Body(fn=echo, args=(number, seconds), title="echo"))

    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(run, number)
            if number % 7 == 0:
                await anyio.sleep(0)
    assert results == {number: number for number in range(100)}
    assert all(texts == ["one", "two"] for texts in events.values())
    assert actor.requests < 100, "calls share requests"


async def test_cancelled_calls_end_before_their_callers_and_the_others_go_on(
    proxy: HostProxy, actor: _FakeActor
) -> None:
    """A storm of cancellations, before and after the calls were sent, leaves nothing behind in the Ray actor."""
    ended: list[int] = []
    results: list[int] = []
    chance = random.Random(2)

    async def run_and_cancel(number: int) -> None:
        with anyio.move_on_after(chance.choice([0.0, 0.001, 0.01, 0.03])):
            await proxy.run_body(Body(fn=stubborn, title="stubborn"), lambda: ended.append(number))
            raise AssertionError("it sleeps")

    async def run(number: int) -> None:
        results.append(await proxy.run_body(Body(fn=echo, args=(number, 0.01), title="echo")))

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(run_and_cancel, number)
            group.start_soon(run, number)
            if number % 5 == 0:
                await anyio.sleep(0.001)
    assert proxy._calls == {}
    host: Any = actor._host
    assert host._calls == {}
    assert proxy.is_alive
    assert sorted(ended) == list(range(60))
    assert sorted(results) == list(range(60))


async def test_a_function_is_sent_once_and_again_after_it_was_forgotten(
    proxy: HostProxy, actor: _FakeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ray actor that kept each function of a notebook, whose cells are run again and again, would grow for ever."""
    function_counts: list[int] = []

    def make(number: int) -> Callable[[], Any]:
        async def fresh() -> int:
            return number

        return fresh

    functions = [make(number) for number in range(_host_proxy._MAX_FUNCTIONS + 10)]
    exchange = actor.exchange.remote

    def count(batch: Any) -> _Ref:
        function_counts.append(len(batch.function_pickles))
        return exchange(batch)

    monkeypatch.setattr(actor.exchange, "remote", count)
    for number in [*range(len(functions)), 5, 5, len(functions) - 1]:
        assert await proxy.run_body(Body(fn=functions[number], title="fresh")) == number
    host: Any = actor._host
    assert len(host._functions._pickles_by_digest) <= _host_proxy._MAX_FUNCTIONS
    assert sum(function_counts) == len(functions) + 1, "function 5 was forgotten, and is sent once more"


def first_of_none() -> int:
    """Ask an empty iterator for its first value."""
    return next(iter(()))


async def test_a_body_that_raises_stop_iteration_ends_with_an_error(proxy: HostProxy) -> None:
    """No future takes a StopIteration, so the call would never end."""
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await proxy.run_body(Body(fn=first_of_none, title="first_of_none"))


async def test_large_results_do_not_share_an_answer(
    proxy: HostProxy, actor: _FakeActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an answer could have the size of all results of a Ray actor together."""
    sizes: list[int] = []
    receive = HostProxy._receive_answer

    def weigh(self: HostProxy, future: Future[Any]) -> None:
        if future.exception() is None:
            sizes.append(sum(len(reply[1]) for _, _, reply in future.result().news if reply is not None))
        receive(self, future)

    monkeypatch.setattr(HostProxy, "_receive_answer", weigh)

    async def run() -> None:
        assert len(await proxy.run_body(Body(fn=large, args=(MAX_BATCH_BYTES,), title="large"))) == MAX_BATCH_BYTES

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(run)
    assert max(sizes) < 2 * MAX_BATCH_BYTES


async def test_calls_that_were_not_sent_have_not_begun_when_the_ray_actor_is_lost(
    proxy: HostProxy, actor: _FakeActor
) -> None:
    """Of calls that were sent, nobody knows; the others wait behind a busy connection and may run elsewhere."""
    ended: list[str] = []
    begun: list[int] = []
    actor.is_held = True

    async def run(number: int) -> None:
        body = Body(fn=echo, args=(number, 0.0), title="echo", on_begin=lambda: begun.append(number))
        with pytest.raises(EngineError) as caught:
            await proxy.run_body(body)
        ended.append(caught.value.ended)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(run, number)
            await anyio.wait_all_tasks_blocked()
        actor.die()
    assert ended.count("unknown") == len(begun) == _host_proxy._MAX_REQUESTS - 1, "one request was on its way before"
    assert ended.count("unavailable") == 8 - len(begun)


# Ray actors that are lost at the start.


class _FakeHost:
    """Fake Ray actor that starts unless a failure is planned, and lives until it is lost."""

    failures: ClassVar[list[ActorStartError]] = []

    def __init__(self, title: str, options: RayOptions) -> None:
        self.has_started = False
        self.lost = anyio.Event()

    @property
    def is_alive(self) -> bool:
        return not self.lost.is_set()

    @property
    def is_expected(self) -> bool:
        return self.is_alive

    async def start(self) -> None:
        if _FakeHost.failures:
            raise _FakeHost.failures.pop()
        self.has_started = True

    async def until_ended(self) -> str:
        await self.lost.wait()
        return "it is lost"

    async def end(self, reason: str) -> None:
        self.lost.set()


def _crew_of(monkeypatch: pytest.MonkeyPatch) -> _engine.Crew:
    monkeypatch.setattr(_engine, "HostProxy", _FakeHost)
    monkeypatch.setattr(_engine, "disconnect", lambda: None)
    options = RayOptions(
        workers=1, concurrency=1, cpus=1, gpus=0, memory=None, grace=1, max_result=1,
        start_timeout=10, patience=10,
    )  # fmt: skip
    return _engine.Crew(options, lambda: None)


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("failures", "remaining_failures"),
    [
        pytest.param([ActorStartError("RayEngine", "its process died")] * 2, None, id="two-lost"),
        pytest.param([ActorStartError("RayEngine", "its process died")] * 4, 1, id="always-lost"),
        pytest.param([ActorStartError("RayEngine", "it has Python 3.9", is_permanent=True)] * 2, 1, id="never"),
    ],
)
async def test_a_ray_actor_that_is_lost_at_the_start_is_started_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, failures: list[ActorStartError], remaining_failures: int | None
) -> None:
    """On a busy machine Ray may lose a process while it starts; other versions, however, stay other versions."""
    crew = _crew_of(monkeypatch)
    monkeypatch.setattr(_engine, "_PAUSE", 0.0)
    monkeypatch.setattr(_FakeHost, "failures", list(failures))
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(crew.run_until_dismissed)
            await crew.until_ready()
            assert (crew.failure is None) == (remaining_failures is None)
            assert len(_FakeHost.failures) == (remaining_failures or 0)
            await crew.dismiss()
