"""Promise 7: limits hold, first in, first out, for a node, a tool and a key, on every path."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langgraph.graph import END, START, MessagesState, StateGraph

from callboard import CallPolicy, Limit, Rate, Statistics, ToolNode
from callboard.testing import Recorder
from callboard.tools import _node, _tool_batch
from tests.helpers import ask, ending_of, make

IDLE = Statistics(running=0, waiting=0, abandoned_threads=0)


def ask_numbered(name: str, count: int) -> list[AIMessage]:
    return ask(*[(name, {"query": str(n)}) for n in range(count)])


def by_query(call: dict[str, dict[str, str]]) -> str:
    return call["args"]["query"]


def assert_rate(times: Sequence[float], rate: Rate, tolerance: float = 1e-6) -> None:
    """No window of `rate.per` seconds has more than `rate.calls` starts."""
    times = sorted(times)
    for first, one_too_many in zip(times, times[rate.calls :], strict=False):
        assert one_too_many - first >= rate.per - tolerance


class Counter:
    """Counts concurrent bodies, from any number of threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running = self.peak = self.total = 0
        self.starts: list[float] = []

    def __enter__(self) -> None:
        with self._lock:
            self.running += 1
            self.total += 1
            self.peak = max(self.peak, self.running)
            self.starts.append(time.monotonic())

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self.running -= 1


@pytest.mark.exhaustive
async def test_ten_thousand_calls_run_sixty_four_at_once_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # All calls are read in the event loop: the virtual clock would jump while a worker thread reads them.
    monkeypatch.setattr(_node, "MANY_CALLS", 10_000)
    monkeypatch.setattr(_tool_batch, "MANY_CALLS", 10_000)
    order: list[int] = []
    running = peak = 0

    async def work(index: int) -> int:
        nonlocal running, peak
        order.append(index)
        running += 1
        peak = max(peak, running)
        await anyio.sleep(1)
        running -= 1
        return index

    node = ToolNode([make(work)], policies={"work": CallPolicy(limit=Limit(concurrency=64, queue=20_000))})
    start = anyio.current_time()
    messages = await node.ainvoke(ask(*[("work", {"index": n}) for n in range(10_000)]))
    assert anyio.current_time() - start == pytest.approx(157)
    assert order == list(range(10_000))
    assert (peak, running) == (64, 0)
    assert [message.content for message in messages] == [str(n) for n in range(10_000)]
    assert node.statistics() == IDLE


async def test_what_does_not_fit_into_the_queue_is_rejected() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("work", seconds=1)], limit=Limit(concurrency=64, queue=100))
    messages = await node.ainvoke(ask(*["work"] * 1_000))
    assert (rec.count("started"), rec.peak) == (164, 64)
    assert [ending_of(message) for message in messages] == [None] * 164 + ["rejected"] * 836
    assert {message.status for message in messages[164:]} == {"error"}
    assert "was not started" in messages[-1].content
    assert "node 'tools' is full: 64 of 64 run, 100 wait" in messages[-1].content
    assert node.statistics() == IDLE


async def test_statistics_tell_who_runs_and_who_waits() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("work", seconds=2)], limit=Limit(concurrency=3))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.ainvoke, ask(*["work"] * 5))
        await anyio.sleep(1)
        assert node.statistics() == Statistics(running=3, waiting=2, abandoned_threads=0)
        await anyio.sleep(2)
        assert node.statistics() == Statistics(running=2, waiting=0, abandoned_threads=0)
    assert node.statistics() == IDLE


async def test_a_limit_by_key_holds_for_each_key() -> None:
    rec = Recorder()
    policy = CallPolicy(limit=Limit(concurrency=2, key=by_query))
    node = ToolNode([rec.tool("fetch", seconds=1)], policies={"fetch": policy})
    hosts = ["a", "b", "a", "a", "c", "a", "b", "a"]
    await node.ainvoke(ask(*[("fetch", {"query": host}) for host in hosts]))
    assert [rec.peak_of("fetch", host) for host in "abc"] == [2, 2, 1]
    assert rec.peak == 5
    assert rec.times("started", query="a") == pytest.approx([0, 0, 1, 1, 2])
    assert rec.times("started", query="b") == pytest.approx([0, 0])


async def test_a_queue_by_key_has_its_own_room_and_its_own_name() -> None:
    rec = Recorder()
    policy = CallPolicy(limit=Limit(concurrency=1, queue=1, key=by_query))
    node = ToolNode([rec.tool("fetch", seconds=1)], policies={"fetch": policy})
    messages = await node.ainvoke(ask(*[("fetch", {"query": host}) for host in "aaab"]))
    assert [ending_of(message) for message in messages] == [None, None, "rejected", None]
    assert "'a'" in messages[2].content


@given(st.lists(st.integers(0, 300), min_size=1, max_size=400), st.integers(1, 3))
async def test_any_number_of_keys_comes_and_goes(keys: list[int], width: int) -> None:
    rec = Recorder()
    policy = CallPolicy(limit=Limit(concurrency=width, key=by_query))
    node = ToolNode([rec.tool("fetch", seconds=1)], policies={"fetch": policy})
    async with anyio.create_task_group() as tasks:
        for part in (keys[::2], keys[1::2]):
            if part:
                tasks.start_soon(node.ainvoke, ask(*[("fetch", {"query": str(key)}) for key in part]))
                await anyio.sleep(0.5)
    for key in set(keys):
        assert rec.peak_of("fetch", str(key)) <= width
    assert rec.count("finished") == len(keys)


@pytest.mark.parametrize("args", [{}, {"query": ["not", "hashable"]}, {"query": None}], ids=["missing", "list", "null"])
async def test_a_key_function_that_stumbles_over_the_models_arguments_harms_nobody_else(args: object) -> None:
    rec = Recorder()

    async def fetch(query: str) -> str:
        return query

    policy = CallPolicy(limit=Limit(concurrency=1, key=by_query))
    node = ToolNode([make(fetch), rec.tool("slow", seconds=1)], policies={"fetch": policy})
    wrong, fine = await node.ainvoke(ask(("fetch", args), "slow"))
    assert (wrong.status, fine.content) == ("error", "slow")
    assert node.statistics() == IDLE


async def test_who_waits_for_a_narrow_limit_holds_no_place_in_the_wide_one() -> None:
    """Promise 7: calls that wait for one tool must not starve the other tools."""
    rec = Recorder()
    node = ToolNode(
        [rec.tool("narrow", seconds=5), rec.tool("wide", seconds=1)],
        policies={"narrow": CallPolicy(limit=Limit(concurrency=1))},
        limit=Limit(concurrency=2),
    )
    await node.ainvoke(ask(*["narrow"] * 4, *["wide"] * 5))
    assert rec.times("started", "wide") == pytest.approx([0, 1, 2, 3, 4])
    assert rec.peak == 2


async def test_batches_of_one_node_share_its_limits() -> None:
    rec = Recorder()
    node = ToolNode(
        [rec.tool("work", seconds=1), rec.tool("other", seconds=1)],
        policies={"work": CallPolicy(limit=Limit(concurrency=2))},
        limit=Limit(concurrency=3),
    )
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(node.ainvoke, ask("work", "work", "other"))
    assert (rec.peak, rec.peak_of("work")) == (3, 2)
    assert rec.count("finished") == 15


@given(
    gaps=st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.4, 1.0, 3.0]), min_size=1, max_size=25),
    count=st.integers(1, 4),
    per=st.sampled_from([0.3, 1.0, 2.5]),
    width=st.sampled_from([None, 1, 3]),
    seconds=st.sampled_from([0.0, 0.7]),
)
async def test_a_rate_holds_in_any_window_for_any_arrivals(
    gaps: list[float], count: int, per: float, width: int | None, seconds: float
) -> None:
    rec = Recorder()
    rate = Rate(count, per=per)
    limit = Limit(concurrency=width, rate=rate)
    node = ToolNode([rec.tool("work", seconds=seconds)], policies={"work": CallPolicy(limit=limit)})
    arrivals: list[float] = []
    async with anyio.create_task_group() as tasks:
        for gap in gaps:
            await anyio.sleep(gap)
            arrivals.append(anyio.current_time())
            tasks.start_soon(node.ainvoke, ask(("work", {"query": str(len(arrivals) - 1)})))
    assert_rate(rec.times("started"), rate)
    assert rec.count("finished") == len(gaps)
    # Tasks that arrive at the same moment begin in any order on trio.
    order = [arrivals[int(event.query)] for event in rec.events if event.kind == "started"]
    assert order == sorted(order)
    assert node.statistics() == IDLE


async def test_calls_under_a_rate_start_in_their_order_and_at_once_when_the_window_opens() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("work")], policies={"work": CallPolicy(limit=Limit(rate=Rate(3, per=2.0)))})
    await node.ainvoke(ask_numbered("work", 8))
    assert rec.order == [f"work({n})" for n in range(8)]
    assert rec.times("started") == pytest.approx([0, 0, 0, 2, 2, 2, 4, 4])


async def test_a_rate_keeps_its_order_when_calls_come_together_out_of_a_second_queue() -> None:
    rec = Recorder()
    rate = Rate(1, per=1.0)
    node = ToolNode(
        [rec.tool("block", seconds=15), rec.tool("work", seconds=1)],
        policies={"work": CallPolicy(limit=Limit(rate=rate))},
        limit=Limit(concurrency=8),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(node.ainvoke, ask(*["block"] * 8))
        await anyio.sleep(1)
        await node.ainvoke(ask_numbered("work", 8))
    assert_rate(rec.times("started", "work"), rate)
    assert [call for call in rec.order if call != "block"] == [f"work({n})" for n in range(8)]


async def test_a_rate_by_key_holds_for_each_key() -> None:
    rec = Recorder()
    policy = CallPolicy(limit=Limit(rate=Rate(1, per=1.0), key=by_query))
    node = ToolNode([rec.tool("fetch")], policies={"fetch": policy})
    await node.ainvoke(ask(*[("fetch", {"query": host}) for host in "aabab"]))
    assert rec.times("started", query="a") == pytest.approx([0, 1, 2])
    assert rec.times("started", query="b") == pytest.approx([0, 1])


@given(
    # A batch starts 32 calls before it lets them run, and those that take no time make room for the next ones.
    durations=st.lists(st.sampled_from(["0", "0.5", "1", "2.5"]), min_size=1, max_size=32)
    | st.lists(st.sampled_from(["0.5", "1", "2.5"]), min_size=33, max_size=40),
    width=st.integers(1, 5),
    queue=st.sampled_from([None, 0, 3, 100]),
)
async def test_any_mix_of_durations_is_served_in_order_and_as_early_as_possible(
    durations: list[str], width: int, queue: int | None
) -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("work", seconds=float)], limit=Limit(concurrency=width, queue=queue))
    messages = await node.ainvoke(ask(*[("work", {"query": d}) for d in durations]))
    room = len(durations) if queue is None else width + queue
    admitted = durations[:room]
    assert [ending_of(message) for message in messages] == [None] * len(admitted) + ["rejected"] * (
        len(durations) - len(admitted)
    )
    free = [0.0] * width
    expected = []
    for duration in admitted:
        free.sort()
        expected.append(free[0])
        free[0] += float(duration)
    assert rec.times("started") == pytest.approx(expected)
    assert rec.order == [f"work({d})" for d in admitted]


async def test_max_concurrency_of_the_config_is_obeyed() -> None:
    rec = Recorder()
    node = ToolNode([rec.tool("work", seconds=1)], limit=Limit(concurrency=5))
    await node.ainvoke(ask_numbered("work", 10), {"max_concurrency": 2})
    assert rec.peak == 2
    assert rec.order == [f"work({n})" for n in range(10)]
    await node.ainvoke(ask_numbered("work", 10))
    assert rec.peak == 5


def graph_of(node: ToolNode) -> object:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    builder.add_edge("tools", END)
    return builder.compile()


def test_max_concurrency_is_obeyed_by_invoke_alone_and_in_a_graph() -> None:
    for surroundings in (lambda node: node, graph_of):
        rec = Recorder()
        runnable = surroundings(ToolNode([rec.sync_tool("work", seconds=0.02)]))
        runnable.invoke({"messages": ask(*["work"] * 9)}, {"max_concurrency": 3})
        assert rec.peak == 3


def counting_node(counter: Counter, limit: Limit, *, sync: bool = False) -> ToolNode:
    async def work() -> None:
        with counter:
            await anyio.sleep(0.005)

    def work_in_thread() -> None:
        with counter:
            time.sleep(0.005)

    tool = (
        StructuredTool.from_function(func=work_in_thread, name="work", description="A tool of a test.")
        if sync
        else make(work)
    )
    return ToolNode([tool], limit=limit)


def in_threads(*jobs: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        for future in [pool.submit(job) for job in jobs]:
            future.result(timeout=60)


@pytest.mark.parametrize("sync", [False, True], ids=["async tool", "sync tool"])
def test_a_limit_holds_across_threads_and_event_loops(sync: bool) -> None:
    counter = Counter()
    node = counting_node(counter, Limit(concurrency=3), sync=sync)
    batch = ask(*["work"] * 20)

    async def run_in_time() -> None:
        with anyio.fail_after(50):
            await node.ainvoke(batch)

    in_threads(
        *[lambda: node.invoke(batch)] * 3,
        *[lambda: anyio.run(run_in_time)] * 2,
        lambda: anyio.run(run_in_time, backend="trio"),
    )
    assert counter.total == 120
    assert counter.peak == 3
    assert node.statistics() == IDLE


def test_a_waiter_whose_loop_ends_does_not_hold_up_the_others() -> None:
    counter = Counter()
    node = counting_node(counter, Limit(concurrency=1))
    hold, holder_runs = threading.Event(), threading.Event()

    async def holder() -> None:
        holder_runs.set()
        await anyio.to_thread.run_sync(hold.wait)

    node = ToolNode([make(holder), node.tools_by_name["work"]], limit=Limit(concurrency=1))

    async def give_up() -> None:
        with anyio.move_on_after(0.05):
            await node.ainvoke(ask("work"))

    def first() -> None:
        node.invoke(ask("holder"))

    def waiting() -> None:
        holder_runs.wait()
        for backend in ("asyncio", "trio"):
            anyio.run(give_up, backend=backend)
        hold.set()
        node.invoke(ask("work"))

    in_threads(first, waiting)
    assert counter.total == 1
    assert node.statistics() == IDLE


def test_a_rate_holds_across_event_loops() -> None:
    counter = Counter()
    rate = Rate(2, per=0.4)
    node = counting_node(counter, Limit(rate=rate))
    batch = ask(*["work"] * 3)

    async def run_in_time() -> None:
        with anyio.fail_after(50):
            await node.ainvoke(batch)

    in_threads(
        lambda: node.invoke(batch), lambda: asyncio.run(run_in_time()), lambda: anyio.run(run_in_time, backend="trio")
    )
    assert counter.total == 9
    assert_rate(counter.starts, rate, tolerance=0.05)


@pytest.mark.filterwarnings("ignore::callboard.exceptions.LoopBlockedWarning")  # blocking the loop is intended here
def test_a_rate_holds_for_nested_sync_calls() -> None:
    counter = Counter()
    rate = Rate(1, per=0.2)
    inner = counting_node(counter, Limit(rate=rate))

    async def outer() -> None:
        for _ in range(3):
            inner.invoke(ask("work"))

    ToolNode([make(outer)]).invoke(ask("outer"))
    assert counter.total == 3
    assert_rate(counter.starts, rate, tolerance=0.05)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ValueError),
        ({"concurrency": 0}, ValueError),
        ({"concurrency": 1.5}, TypeError),
        ({"concurrency": True}, TypeError),
        ({"concurrency": 1, "queue": -1}, ValueError),
        ({"rate": 5}, TypeError),
        ({"concurrency": 1, "key": "host"}, TypeError),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(arguments: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error, match="Limit"):
        Limit(**arguments)


@pytest.mark.parametrize("arguments", [(0,), (1, 0), (1, -1), (1, float("inf")), (1, float("nan"))])
def test_a_rate_that_makes_no_sense_is_refused(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="Rate"):
        Rate(*arguments)
