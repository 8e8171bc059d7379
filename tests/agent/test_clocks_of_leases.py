"""A thread has one run at a time, although the clocks of machines differ, are set, or stand still."""

import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard.conversations import _lease
from callboard.conversations._journal import SavedThread
from callboard.conversations._saver import Saver
from callboard.conversations._storage import CHANNEL
from callboard.exceptions import StorageError, ThreadBusyError

from ._savers import FAR, QUESTION, forge, scripted

pytestmark = pytest.mark.real_clock

CONFIG: Any = {"configurable": {"thread_id": "t"}}
HOUR = 3600.0


def _agent(saver: Any) -> Any:
    return scripted(["hi"], [], loop=True, checkpointer=saver)


def _hold(saver: Any, until: float) -> None:
    forge(saver, CONFIG, {"kind": "hold", "holder": {**FAR, "until": until}})


Clocks = list[tuple[float, float]]


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    """Readings of both clocks of a holder, of which the last one counts."""
    readings = [(100.0, 5_000.0)]
    monkeypatch.setattr(_lease.OwnLease, "read", lambda *_: readings[-1])
    return readings


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> "Slept":
    """Replace the wait of tasks that watch a lease holder."""
    found = Slept()
    monkeypatch.setattr(_lease, "sleep", found)
    return found


class Slept:
    """Records the waited seconds, and runs a function meanwhile."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.meanwhile: dict[int, Callable[[], object]] = {}
        self._count = 0

    async def __call__(self, seconds: float) -> None:
        self.seconds += seconds
        self._count += 1
        self.meanwhile.get(self._count, list[object])()


async def test_a_holder_whose_clock_is_an_hour_behind_keeps_its_thread(slept: Slept) -> None:
    """The holder renews its lease, so a second run does not enter, and the holder's results are kept."""
    saver = InMemorySaver()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, CONFIG)
    _hold(saver, time.time() - HOUR)
    slept.meanwhile[2] = lambda: _hold(saver, time.time() - HOUR + _lease.LEASE / 3)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await agent.ainvoke(QUESTION, CONFIG)

    forge(saver, CONFIG, {"kind": "leave"})
    state = await agent.aget_state(CONFIG)
    assert len(state.values["messages"]) == 2
    assert len((await agent.ainvoke(QUESTION, CONFIG))["messages"]) == 4


async def test_a_holder_that_renews_nothing_for_a_lease_is_dead(slept: Slept, caplog: pytest.LogCaptureFixture) -> None:
    """The log says why the run waits; a lease that ended yesterday is dead by any clock."""
    saver = InMemorySaver()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, CONFIG)
    _hold(saver, time.time() - 1)
    await agent.ainvoke(QUESTION, CONFIG)
    assert slept.seconds == pytest.approx(_lease.LEASE)
    assert "process 1 on elsewhere held a thread, and its lease is over if its clock is right" in caplog.text
    _hold(saver, time.time() - 25 * HOUR)
    await agent.ainvoke(QUESTION, CONFIG)

    assert slept.seconds == pytest.approx(_lease.LEASE)


@pytest.mark.parametrize(
    ("passed", "shown", "may_be_over"),
    [
        (20.0, 20.0, False),
        (61.0, 61.0, True),  # the holder was suspended
        (20.0, 20.0 + HOUR, True),  # the clock was set, or one clock stood still in a pause
        (20.0, 20.0 - HOUR, True),
    ],
)
def test_a_holder_looks_before_it_writes_when_its_lease_may_be_over(
    passed: float, shown: float, may_be_over: bool, clocks: Clocks
) -> None:
    """The holder checks both clocks of its machine, monotonic and wall clock."""
    lease = _lease.OwnLease()
    clocks.append((100.0 + passed, 5_000.0 + shown))

    assert lease.may_be_over is may_be_over
    lease.renew(clocks[-1])
    assert not lease.may_be_over


async def test_a_holder_that_was_replaced_writes_nothing_although_it_renews_first(clocks: Clocks) -> None:
    """A holder that was suspended may renew its lease first, and must still notice that it was replaced."""
    saver = InMemorySaver()

    async def think(state: Any) -> Any:
        _hold(saver, time.time() + HOUR)
        clocks.append((100.0 + 2 * HOUR, 5_000.0 + 2 * HOUR))
        return {}

    agent = scripted(["hi"], [], checkpointer=saver, pre_model_hook=think)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await agent.ainvoke(QUESTION, CONFIG)


class Forgetful(InMemorySaver):
    """A damaged database: from some time on, stored entries are missing."""

    is_damaged = False

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if not self.is_damaged:
            super().put_writes(config, writes, task_id, task_path)


async def test_a_database_that_keeps_nothing_is_no_other_run() -> None:
    """The error says that the database is damaged, and not that another run holds the thread."""
    saver = Forgetful()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, CONFIG)
    saver.is_damaged = True
    with pytest.raises(StorageError, match=r"thread 't'.* does not keep what is written there\. Bring back a copy"):
        await agent.ainvoke(QUESTION, CONFIG)


@pytest.mark.exhaustive
async def test_leases_in_postgresql_go_by_its_clock(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are written and read by the server's clock, so a holder whose clock is an hour behind is safe."""
    right = time.time
    monkeypatch.setattr(_lease.time, "time", lambda: right() - HOUR)
    async with scripted(["hi"], [], loop=True, checkpointer=postgres_url) as agent:
        with anyio.fail_after(60):
            await agent.ainvoke(QUESTION, CONFIG)
            saver: Any = agent.checkpointer
            holders = [
                entry["holder"]
                for found in [saver.get_tuple(CONFIG)]
                for _, channel, value in found.pending_writes
                if channel == CHANNEL
                for entry in value
                if entry["kind"] == "hold"
            ]
            assert all(abs(holder["until"] - right() - _lease.LEASE) < 30 for holder in holders)
            _hold(saver, right() + 30)  # the lease has ended by every clock but that of this machine plus two hours
            monkeypatch.setattr(_lease.time, "time", lambda: right() + HOUR)
            with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
                await agent.ainvoke(QUESTION, CONFIG)
            forge(saver, CONFIG, {"kind": "leave"})


async def test_a_holder_that_was_replaced_writes_no_checkpoint_when_it_ends(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late checkpoint would hide the entries of the new run, and thin the checkpoint below them."""
    saver = InMemorySaver()
    leave = SavedThread._store_final_state
    found: list[Any] = []

    async def stands_still_before(self: SavedThread) -> None:
        await self._flush(wait=True)
        _hold(saver, time.time() + HOUR)
        clocks.append((100.0 + 2 * HOUR, 5_000.0 + 2 * HOUR))
        found.extend(saver.list(CONFIG))
        await leave(self)

    monkeypatch.setattr(SavedThread, "_store_final_state", stands_still_before)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await _agent(saver).ainvoke(QUESTION, CONFIG)

    assert [one.checkpoint for one in saver.list(CONFIG)] == [one.checkpoint for one in found]


async def test_a_holder_trusts_its_lease_no_longer_than_others_do(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other machines count from the time in the database, so a slow answer must not prolong the lease."""
    leases: list[_lease.OwnLease] = []
    renew = _lease.OwnLease.renew

    def renewed(self: _lease.OwnLease, since: tuple[float, float]) -> None:
        leases.append(self)
        renew(self, since)

    async def slow_clock(self: Saver) -> float:
        clocks.append((100.0 + 50, 5_000.0 + 50))
        return 5_000.0

    monkeypatch.setattr(_lease.OwnLease, "renew", renewed)
    monkeypatch.setattr(Saver, "now", slow_clock)

    async def think(state: Any) -> Any:
        assert not leases[-1].may_be_over
        clocks.append((100.0 + _lease.LEASE, 5_000.0 + _lease.LEASE))
        thought.append(leases[-1].may_be_over)
        return {}

    thought: list[bool] = []
    agent = scripted(["hi"], [], checkpointer=InMemorySaver(), pre_model_hook=think)
    await agent.ainvoke(QUESTION, CONFIG)

    assert thought == [True]
