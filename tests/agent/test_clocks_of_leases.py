"""A thread has one run at a time, although the clocks of machines differ, are set, or stand still."""

import os
import time
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import CallPolicy, Limit, ToolNode
from callboard.conversations import _journal, _lease
from callboard.conversations._saved_thread import SavedThread
from callboard.conversations._saver import Saver
from callboard.conversations._storage import CHANNEL
from callboard.exceptions import StorageError, ThreadBusyError
from callboard.testing import calls

from ._savers import AT, FAR, QUESTION, forge, scripted

pytestmark = pytest.mark.real_clock

HOUR = 3600.0


def _agent(saver: Any) -> Any:
    return scripted(["hi"], [], loop=True, checkpointer=saver)


def _hold(saver: Any, until: float) -> None:
    forge(saver, AT, {"kind": "hold", "holder": {**FAR, "until": until}})


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


OWN = _lease.new_holder()
_lease.release(OWN)
PARENT = {**OWN, "pid": os.getppid(), "born": _lease._stat(os.getppid())[1]}
CONTAINER = {**OWN, "pid_namespace": "pid:[1]"}
HOLDERS: dict[str, tuple[dict[str, Any], float, float | None, int, bool, float]] = {
    "another machine": (FAR, 60, None, 0, False, 0),
    "another machine, at its end": (FAR, -1, None, 0, True, _lease.LEASE),
    "another machine, at its end by our clock, and renewed": (FAR, -HOUR, None, 2, False, _lease.LEASE / 3),
    "another machine, at its end for longer than clocks differ": (FAR, -25 * HOUR, None, 0, True, 0),
    "another machine, at its end by our clock, not by the database's": (FAR, -1, -HOUR, 0, False, 0),
    "another machine, at its end by the database's clock, not by ours": (FAR, 60, HOUR, 0, True, 0),
    "another boot of this machine": ({**PARENT, "boot": "before"}, 60, None, 0, False, 0),
    "another boot of this machine, at its end": ({**PARENT, "boot": "before"}, -1, None, 0, True, _lease.LEASE),
    "another container of this machine, with our host name and process id": (CONTAINER, 60, None, 0, False, 0),
    "another container of this machine, at its end by their one clock": (CONTAINER, -1, None, 0, True, 0),
    "another container of this machine, at its end by our clock, not by the database's": (
        CONTAINER,
        -1,
        -HOUR,
        0,
        False,
        0,
    ),
    "a live process of this machine, at its end by any clock": (PARENT, -25 * HOUR, HOUR, 0, False, 0),
    "a later process with the number of a dead one": ({**PARENT, "born": "1"}, 60, None, 0, True, 0),
    "an ended run of this process": (OWN, 60, None, 0, True, 0),
}
"""Holders, the seconds until the end of their lease, how far the database's clock is ahead of ours, if it has one, the
look at which the entry has changed, whether the lease is over, and the seconds until that is known."""


@pytest.mark.every_variant
@pytest.mark.parametrize("holder", HOLDERS)
async def test_a_lease_is_over_if_its_holder_is_surely_gone(holder: str, slept: Slept) -> None:
    """Processes of another machine, boot or container cannot be inspected, so their lease counts.

    Restarted workers often get the same process ids, above all in containers.
    """
    who, until, ahead, changes_at, over, waited = HOLDERS[holder]
    entry = {**who, "until": time.time() + until}
    looks = list[float]()

    async def now() -> float | None:
        return None if ahead is None else time.time() + ahead

    async def current() -> dict[str, Any]:
        looks.append(slept.seconds)
        return {**entry, "until": 0} if len(looks) == changes_at else entry

    assert await _lease.is_over(entry, now, current) is over
    assert slept.seconds == pytest.approx(waited)


async def test_a_holder_whose_clock_is_an_hour_behind_keeps_its_thread(slept: Slept) -> None:
    """The holder renews its lease, so a second run does not enter, and the holder's results are kept."""
    saver = InMemorySaver()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, AT)
    _hold(saver, time.time() - HOUR)
    slept.meanwhile[2] = lambda: _hold(saver, time.time() - HOUR + _lease.LEASE / 3)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await agent.ainvoke(QUESTION, AT)

    forge(saver, AT, {"kind": "leave"})
    state = await agent.aget_state(AT)
    assert len(state.values["messages"]) == 2
    assert len((await agent.ainvoke(QUESTION, AT))["messages"]) == 4


async def test_a_holder_that_renews_nothing_for_a_lease_is_dead(slept: Slept, caplog: pytest.LogCaptureFixture) -> None:
    """The log says why the run waits."""
    saver = InMemorySaver()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, AT)
    _hold(saver, time.time() - 1)
    await agent.ainvoke(QUESTION, AT)
    assert slept.seconds == pytest.approx(_lease.LEASE)
    assert "process 1 on elsewhere held a thread, and its lease is over if its clock is right" in caplog.text


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
        await agent.ainvoke(QUESTION, AT)


class StandsStill(InMemorySaver):
    """Stands still before it stores an entry of the kind `at`, while another run takes the thread."""

    at = ""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__()
        self._clocks = clocks

    def stand_still(self) -> None:
        self.at = ""
        _hold(self, time.time() + HOUR)
        # The lease has ended, counted from its last renewal, and not from a renewal that is being written.
        self._clocks.append((160.0, 5_060.0))

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if self.at in [entry["kind"] for channel, value in writes if channel == CHANNEL for entry in value]:
            self.stand_still()
        super().put_writes(config, writes, task_id, task_path)


@pytest.mark.parametrize("at", ["claim", "later claim", "hold", ""])
async def test_a_holder_that_was_replaced_begins_no_call(
    at: str, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim or its renewal is dropped in silence, or it stands still before a call whose claim is stored.

    A later claim is that of a call that waited for another one, and is stored alone.

    The new run does not know that the call begins, so both would charge.
    """
    began: list[str] = []
    saver = StandsStill(clocks)
    monkeypatch.setattr(_journal, "LEASE", 0.03)  # the time between renewals

    def charge() -> str:
        """Charge."""
        began.append("charge")
        saver.at = "claim" if at == "later claim" else ""
        return "charged"

    def think(state: Any) -> Any:
        saver.at = "claim" if at == "claim" else ""
        return {}

    async def late(request: Any, call_next: Any) -> Any:
        if at == "hold":
            clocks.append((120.0, 5_020.0))
            saver.at = at
            while saver.at:
                await anyio.sleep(0.001)
        elif not at:
            saver.stand_still()
        return await call_next(request)

    node = ToolNode([charge], middleware=[late], policies={"charge": CallPolicy(limit=Limit(concurrency=1))})
    asked = ["charge"] * (2 if at == "later claim" else 1)
    agent = scripted([calls(*asked), "done"], node, checkpointer=saver, pre_model_hook=think)
    with anyio.fail_after(10), pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await agent.ainvoke(QUESTION, AT)
    assert began == asked[1:]


class Forgetful(InMemorySaver):
    """A damaged database: from some time on, stored entries are missing, or the newest checkpoint."""

    loses = ""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if self.loses != "entries":
            super().put_writes(config, writes, task_id, task_path)
        if self.loses == "checkpoint":
            checkpoints = self.storage["1"][""]
            checkpoints.pop(max(checkpoints)) if len(checkpoints) > 1 else None


@pytest.mark.parametrize("loses", ["entries", "checkpoint"])
async def test_a_database_that_keeps_nothing_is_no_other_run(loses: str) -> None:
    """The error says that the database is damaged, and not that another run holds the thread."""
    saver = Forgetful()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, AT)
    saver.loses = loses
    with pytest.raises(StorageError, match=r"thread '1'.* does not keep what is written there\. Bring back a copy"):
        await agent.ainvoke(QUESTION, AT)


async def test_a_database_that_loses_entries_during_a_run_is_no_other_run(clocks: Clocks) -> None:
    """The run looks at its lease, and finds neither its own entry nor that of another run."""
    saver = InMemorySaver()

    async def think(state: Any) -> Any:
        saver.writes.clear()
        clocks.append((100.0 + 2 * HOUR, 5_000.0 + 2 * HOUR))
        return {}

    with pytest.raises(StorageError, match=r"thread '1'.* does not keep what is written there"):
        await scripted(["hi"], [], checkpointer=saver, pre_model_hook=think).ainvoke(QUESTION, AT)


@pytest.mark.exhaustive
async def test_leases_in_postgresql_go_by_its_clock(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases are written and read by the server's clock, so a holder whose clock is an hour behind is safe."""
    right = time.time
    monkeypatch.setattr(_lease.time, "time", lambda: right() - HOUR)
    async with scripted(["hi"], [], loop=True, checkpointer=postgres_url) as agent:
        with anyio.fail_after(60):
            await agent.ainvoke(QUESTION, AT)
            saver: Any = agent.checkpointer
            holders = [
                entry["holder"]
                for found in [saver.get_tuple(AT)]
                for _, channel, value in found.pending_writes
                if channel == CHANNEL
                for entry in value
                if entry["kind"] == "hold"
            ]
            assert all(abs(holder["until"] - right() - _lease.LEASE) < 30 for holder in holders)
            _hold(saver, right() + 30)  # the lease has ended by every clock but that of this machine plus two hours
            monkeypatch.setattr(_lease.time, "time", lambda: right() + HOUR)
            with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
                await agent.ainvoke(QUESTION, AT)
            forge(saver, AT, {"kind": "leave"})


async def test_a_holder_that_was_replaced_writes_no_checkpoint_when_it_ends(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its late checkpoint would hide the entries of the new run, and thin the checkpoint below them."""
    saver = InMemorySaver()
    leave = SavedThread._store_final_state
    found: list[Any] = []

    async def stands_still_before(self: SavedThread) -> None:
        await self._journal.flush(wait=True)
        _hold(saver, time.time() + HOUR)
        clocks.append((100.0 + 2 * HOUR, 5_000.0 + 2 * HOUR))
        found.extend(saver.list(AT))
        await leave(self)

    monkeypatch.setattr(SavedThread, "_store_final_state", stands_still_before)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await _agent(saver).ainvoke(QUESTION, AT)
    assert [one.checkpoint for one in saver.list(AT)] == [one.checkpoint for one in found]


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
    await agent.ainvoke(QUESTION, AT)
    assert thought == [True]
