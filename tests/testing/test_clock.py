"""The virtual clocks: `callboard.testing.backend` and its loops."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
import trio

from callboard import RunDeadlineExceededError, create_react_agent
from callboard.testing import Recorder, ScriptedModel, VirtualClockLoop, backend, backend_names, calls


@pytest.mark.parametrize("seconds", [3600, 10 * 86_400, 5e7])
async def test_an_hour_days_and_months_pass_at_once(seconds: float) -> None:
    """asyncio waits for a day at most, and time is coarse after months: a timer that is due must still count as ready.

    A test finds a body that hangs without waiting for it.
    """
    start = anyio.current_time()
    await anyio.sleep(seconds)
    assert anyio.current_time() - start == pytest.approx(seconds)
    with pytest.raises(TimeoutError):
        with anyio.fail_after(seconds):
            await anyio.sleep_forever()
    assert anyio.current_time() - start == pytest.approx(2 * seconds)


async def test_the_clock_stands_still_while_a_task_is_busy() -> None:
    """Virtual time passes only while every task waits."""
    start = anyio.current_time()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert anyio.current_time() == start


async def test_waiting_until_all_tasks_are_blocked_works() -> None:
    reached: list[str] = []

    async def waiter() -> None:
        reached.append("blocked")
        await anyio.sleep(3600)
        reached.append("awake")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            assert reached == ["blocked"]
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("_again", [1, 2])
@pytest.mark.backends("trio")
async def test_each_test_has_a_clock_of_its_own(_again: int) -> None:
    assert anyio.current_time() == pytest.approx(0, abs=1)
    await anyio.sleep(1000)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("jumps", [False, True], ids=["no timer", "a loop that jumps"])
async def test_a_thread_wakes_a_virtual_loop(jumps: bool) -> None:
    """Without a timer the loop waits for other threads instead of jumping."""
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    thread = threading.Timer(0.05, loop.call_soon_threadsafe, [woken.set])
    thread.start()
    while jumps and not woken.is_set():
        await asyncio.sleep(1)
    await woken.wait()
    thread.join()
    assert (loop.time() >= 1) is jumps


@pytest.mark.backends("asyncio")
async def test_the_clock_waits_a_moment_for_a_thread_of_the_executor() -> None:
    """LangChain prepares a request that a middleware wraps in such threads: no timeout may come meanwhile."""
    with anyio.fail_after(10):
        await asyncio.to_thread(time.sleep, 0.05)


@pytest.mark.backends("asyncio")
async def test_a_thread_of_the_executor_that_hangs_reaches_its_timeout() -> None:
    released = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.to_thread(released.wait)
    finally:
        released.set()
    start = time.perf_counter()
    await asyncio.sleep(3600)  # the loop waits for the thread no longer
    assert time.perf_counter() - start < 0.2


@pytest.mark.filterwarnings("error")
def test_a_virtual_loop_waits_for_its_executor_when_it_is_closed() -> None:
    """On a virtual clock, the timeout for the executor's shutdown would end at once."""
    done = threading.Event()

    def work() -> None:
        time.sleep(0.05)
        done.set()

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, work)

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(main())
    assert done.is_set()


def test_trio_gets_a_fresh_clock_each_time() -> None:
    """A trio clock is for one run only."""
    assert backend("trio")[1]["clock"] is not backend("trio")[1]["clock"]


def test_the_eager_backends_are_offered_where_the_interpreter_has_them() -> None:
    """Eager tasks exist only in newer Python versions."""
    has_eager = sys.version_info >= (3, 12)
    assert ("asyncio-eager" in backend_names()) is has_eager
    assert ("asyncio-eager" in backend_names(real_clock=True)) is has_eager


async def starts_at_once() -> bool:
    """Return whether a task runs before its creator waits."""
    started: list[bool] = []

    async def child() -> None:
        started.append(True)

    task = asyncio.create_task(child())
    at_once = bool(started)
    await task
    return at_once


@pytest.mark.parametrize("name", [name for name in backend_names() if name.startswith("asyncio")])
@pytest.mark.parametrize("real_clock", [False, True], ids=["virtual clock", "real clock"])
def test_only_the_eager_variant_starts_tasks_at_once(name: str, real_clock: bool) -> None:
    library, options = backend(name, real_clock=real_clock)
    assert anyio.run(starts_at_once, backend=library, backend_options=options) is (name == "asyncio-eager")


@pytest.mark.real_clock
async def test_a_deadline_around_a_thread_holds_on_a_real_clock() -> None:
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(time.sleep, 0.05)


@pytest.fixture
async def opened() -> AsyncIterator[float]:
    """Async fixture."""
    await anyio.sleep(3600)
    yield anyio.current_time()
    await anyio.sleep(3600)


async def test_async_fixtures_share_the_clock_of_their_test(opened: float) -> None:
    assert anyio.current_time() == opened


@pytest.mark.trio
async def test_a_test_of_pytest_trio_is_left_to_it(autojump_clock: object) -> None:
    await trio.sleep(3600)
    assert trio.current_time() == 3600


# Schedules of a seed. The tests start event loops of their own.

seeded = pytest.mark.parametrize("name", ["asyncio", "trio"])


def steps(name: str, seed: int) -> list[tuple[int, float]]:
    """Return the order of the steps of four tasks, each with the virtual time."""
    turns: list[tuple[int, float]] = []

    async def task(number: int) -> None:
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
            turns.append((number, anyio.current_time()))
        await anyio.sleep(number)
        turns.append((number, anyio.current_time()))

    async def main() -> None:
        with anyio.fail_after(100):
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(task, number)

    library, options = backend(name, seed=seed)
    anyio.run(main, backend=library, backend_options=options)
    return turns


@seeded
def test_a_seed_always_makes_the_same_schedule_and_others_differ(name: str) -> None:
    schedules = [steps(name, seed) for seed in range(20)]

    assert schedules == [steps(name, seed) for seed in range(20)]
    assert len({str(schedule) for schedule in schedules}) == 20


@seeded
def test_a_task_that_waits_for_its_turn_does_not_let_the_clock_jump(name: str) -> None:
    for seed in range(20):
        turns = steps(name, seed)
        assert {time for _, time in turns[:20]} == {turns[0][1]}
        assert [round(time - turns[0][1]) for _, time in turns[20:]] == [0, 1, 2, 3]


def test_a_run_under_a_schedule_leaves_trio_as_it_was() -> None:
    before = (trio._core._run._r, trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING)
    steps("trio", 1)

    assert (trio._core._run._r, trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING) == before


@pytest.mark.parametrize(("name", "real_clock"), [("asyncio", True), ("trio", True), ("asyncio-eager", False)])
def test_a_schedule_needs_a_virtual_clock(name: str, real_clock: bool) -> None:
    with pytest.raises(ValueError, match=r"backend\(seed=...\) is for 'asyncio' and 'trio' on a virtual clock"):
        backend(name, real_clock=real_clock, seed=1)


@pytest.mark.parametrize("real_clock", [False, True])
def test_an_unknown_backend_is_refused_with_the_known_ones(real_clock: bool) -> None:
    with pytest.raises(ValueError, match=r"backend\(...\) is one of asyncio.*trio.*; got 'curio'"):
        backend("curio", real_clock=real_clock)


async def test_the_clock_gives_the_reply_of_a_model_time_to_arrive() -> None:
    """On trio a model replies on asyncio, in another thread. A budget must not be spent before the reply is there."""
    agent = create_react_agent(ScriptedModel([calls("report"), "Done."]), [Recorder().tool("report", seconds=30)])

    start = anyio.current_time()
    with anyio.fail_after(60):
        state = await agent.ainvoke({"messages": [("user", "Go.")]}, budget=60)
    assert state["messages"][-1].text == "Done."
    assert anyio.current_time() - start == pytest.approx(30)


async def test_the_clock_does_not_wait_for_a_model_that_hangs() -> None:
    agent = create_react_agent(ScriptedModel(["Late."], delay=3600), [])

    with pytest.raises(RunDeadlineExceededError):
        await agent.ainvoke({"messages": [("user", "Go.")]}, budget=60)
