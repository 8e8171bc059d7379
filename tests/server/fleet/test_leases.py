"""Leases: two owners of a key never both write, because each owner stops when its lease ends by its own clock."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard import Actor, ActorDiedError, CallPolicy, ToolNode, child, cleanup, fencing_token, handler, keyed
from callboard.actors._actor import Resources
from callboard.actors._runner import LeasedRunner
from callboard.extend import KeyMovedError
from callboard_actors._server.fleet._lease import (
    CLEAN_UP_FRACTION,
    HEARTBEATS_PER_LEASE,
    SAFE_FRACTION,
    SHORTEST_LEASE,
    Lease,
)
from tests.helpers import until

from ._memory import MemoryFleet, MemoryServer
from ._world import Counter, actions_in

LEASE = 1.2


class Clock:
    """Clock that shows a given time."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        return self.time


def _beaten(clock: Clock, seconds: float) -> Lease:
    lease = Lease(seconds, clock)
    assert lease.renew(clock.time, was_member=False)
    return lease


class _RenewedWhileItIsRead(Lease):
    """Lease that another thread renews, too late, while the first field is read that a renewal changes."""

    is_armed = False

    @property
    def _renewed_at(self) -> float:  # type: ignore[override]
        if self.is_armed:
            self.is_armed = False
            assert not self.renew(self._clock(), was_member=True)
        return self._stored_time

    @_renewed_at.setter
    def _renewed_at(self, time: float) -> None:
        self._stored_time = time


def test_an_era_is_not_safe_while_a_late_answer_begins_the_next_one() -> None:
    """`is_safe` reads three fields without a lock, from threads other than that of the heartbeats."""
    clock = Clock()
    lease = _RenewedWhileItIsRead(10.0, clock)
    assert lease.renew(clock.time, was_member=False)
    clock.time += 10.0
    lease.is_armed = True

    assert not lease.is_safe(0)
    assert lease.is_safe(1)


class _LostOwnership:
    token = 7
    is_current = False


class _NeverStarted(Actor):
    async def start(self) -> None:
        raise AssertionError("the code of an actor started after its key was lost")


async def test_an_actor_does_not_start_after_its_key_was_lost() -> None:
    """The lease may expire while the state is loaded, and `start` may write to a resource of the next owner."""
    runner = LeasedRunner(_NeverStarted(), "actor", lambda _: None, ownership=_LostOwnership(), clean_up=1.0)
    with anyio.fail_after(30), pytest.raises(KeyMovedError, match="owns its key no more"):
        await runner.start(Resources(), None)


_beats = st.lists(st.tuples(*[st.floats(0.0, 1.5)] * 3, st.booleans()), max_size=20)


@given(seconds=st.floats(SHORTEST_LEASE, 100.0), beats=_beats)
@settings(deadline=None)
def test_a_member_is_safe_only_while_its_server_waits(
    seconds: float, beats: list[tuple[float, float, float, bool]]
) -> None:
    """The lease is safe whatever the delays of renewals and the pauses of the process are."""
    clock = Clock()
    lease, era, expires = _beaten(clock, seconds), 0, clock.time + seconds
    has_keys = True
    for pause, time_there, back, is_heard in beats:
        clock.time += pause * seconds
        said_at = clock.time
        clock.time += time_there * seconds
        was_member = expires >= clock.time
        expires, keys_taken = clock.time + seconds, not was_member  # another member may have taken the keys meanwhile
        if keys_taken:
            has_keys = False
        assert has_keys or not lease.is_safe(era)
        clock.time += back * seconds
        if is_heard:
            is_renewed = lease.renew(said_at, was_member=was_member)
            assert not (is_renewed and keys_taken and era == lease.era and has_keys)
            has_keys, era = True, lease.era
        if lease.is_safe(era):
            time_left = expires - clock.time
            assert time_left >= (1 - SAFE_FRACTION) * seconds - 1e-6, (
                "there is time to end what runs before the server goes on"
            )


@pytest.mark.every_variant
@pytest.mark.parametrize(("passed", "holds"), [(5.5, True), (6.0, False), (6.5, False)])
def test_a_lease_holds_for_its_safe_share_and_not_at_its_end(passed: float, holds: bool) -> None:
    clock = Clock()
    lease = _beaten(clock, 10.0)
    clock.time += passed
    assert (lease.is_safe(0), lease.is_lost()) == (holds, not holds)
    assert lease.renew(clock.time, was_member=True) is holds
    lease.lose_all_keys()
    assert not lease.is_safe(lease.era)


def test_a_lease_without_a_heartbeat_is_neither_safe_nor_lost() -> None:
    lease = Lease(10.0, Clock())
    assert (lease.seconds_until_unsafe() < 0, lease.is_safe(0), lease.is_lost()) == (True, False, False)


@pytest.mark.parametrize("seconds", [SHORTEST_LEASE, 15.0, 86_400.0])
def test_a_lease_has_time_to_try_again_and_to_clean_up(seconds: float) -> None:
    """Even the shortest lease leaves time for a second renewal and for clean-up."""
    sent_by, answered_by = seconds / HEARTBEATS_PER_LEASE, 2 * seconds / HEARTBEATS_PER_LEASE
    time_left = seconds - SAFE_FRACTION * seconds - CLEAN_UP_FRACTION * seconds
    clock = Clock()
    lease = _beaten(clock, seconds)
    clock.time += answered_by

    assert sent_by < answered_by < SAFE_FRACTION * seconds
    assert lease.is_safe(0)
    assert time_left >= 0.06, "for hearing of the loss"


def test_a_grace_that_outlasts_the_lease_is_refused_when_a_node_is_built() -> None:
    """The error names the grace period, the lease, and the change to make."""
    spec = child(Counter("-"), key=lambda call: "k", fleet=MemoryFleet(MemoryServer(), lease=15.0))
    expected_error = (
        r"'hold' has grace=30, .* lease=15 of MemoryFleet.* has 5 s to end what runs.*lease=90 or more, .* grace=5 or"
    )

    with pytest.raises(ValueError, match=expected_error):
        ToolNode([spec], policies={"hold": CallPolicy(grace=30.0)})
    with pytest.raises(ValueError, match="'up' has grace=6"):
        ToolNode([spec], grace=6.0)
    ToolNode([spec], policies={"hold": CallPolicy(grace=5.0)})


class Slow(Actor):
    """Actor whose clean-up takes longer than any lease."""

    def __init__(self, log: str) -> None:
        self.log = actions_in(log)

    async def start(self) -> None:
        self.log.append("start")

    async def stop(self) -> None:
        self.log.append("stopping")
        try:
            await anyio.sleep(60.0)
        finally:
            self.log.append("stopped")

    @handler
    async def look(self) -> None:
        """Start the actor."""

    @handler
    async def hold(self) -> None:
        """Wait, and clean up."""
        self.log.append("began")
        try:
            await anyio.sleep(60.0)
        finally:
            # As on a busy machine, where the clean-up begins a little later than its time is counted.
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.01)
            with cleanup():
                await anyio.sleep(60.0)
            self.log.append("cleaned up")


class LoopClock:
    """Clock that stands still while the event loop of the test does not run, as on a machine with too little time."""

    def __init__(self) -> None:
        self.time = 0.0

    async def run(self) -> None:
        before = time.monotonic()
        while True:
            await anyio.sleep(0.005)
            now = time.monotonic()
            self.time += min(now - before, 0.02)
            before = now


@pytest.mark.real_clock
async def test_what_an_owner_cleans_up_ends_with_its_lease(log: str) -> None:
    """The clean-up is cut off at the end of the lease, whatever its grace period is: the next owner may then begin."""
    clock = LoopClock()
    server = MemoryServer(now=lambda: clock.time)
    cut_off, other_fleet = (MemoryFleet(server, lease=3.0) for _ in range(2))
    done = actions_in(log)

    async def hold(actor: Any) -> None:
        with pytest.raises(ActorDiedError):
            await actor.hold()

    with anyio.fail_after(30):
        async with (
            keyed(Slow(log), fleet=cut_off, stop_timeout=30.0) as first_actors,
            keyed(Slow(log), fleet=other_fleet, stop_timeout=0.1) as second_actors,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(clock.run)
            tasks.start_soon(hold, first_actors["k"])
            await until(lambda: "began" in done)
            cut_off.is_away = True
            await second_actors["k"].look()
            tasks.cancel_scope.cancel()

    assert done[:6] == ["start", "began", "cleaned up", "stopping", "stopped", "start"]


@pytest.mark.real_clock
async def test_the_log_says_that_a_lost_lease_has_cut_a_stop_short(log: str, caplog: pytest.LogCaptureFixture) -> None:
    """The message must not blame `stop_timeout`, which is much longer."""
    fleet = MemoryFleet(MemoryServer(), lease=LEASE)
    done = actions_in(log)
    with anyio.fail_after(30):
        async with keyed(Slow(log), fleet=fleet, idle=0.1, stop_timeout=10.0) as actors:
            await actors["k"].look()
            await until(lambda: "stopping" in done)
            fleet.is_away = True
            await until(lambda: "stopped" in done)

    assert "did not stop within" not in caplog.text
    assert "was cancelled before it had stopped: memory could not be reached for too long" in caplog.text


@pytest.mark.real_clock
async def test_a_sign_of_life_that_hangs_costs_no_key(log: str) -> None:
    """A renewal without an answer is given up, and a new connection is made in time."""
    server = MemoryServer()
    fleet = MemoryFleet(server, lease=2.0)
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=fleet) as actors:
            _, token = await actors["k"].up()
            fleet.hangs = 1
            await until(lambda: fleet.hangs == 0)
            [(member, expires)] = server.members.items()
            await until(lambda: server.members[member] > expires)
            assert await actors["k"].up() == (2, token)


class Book(Actor):
    """Text in a database that refuses late writes of former owners: the example of the page about fleets."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def start(self) -> None:
        statement = "UPDATE books SET token = ? WHERE id = ? AND token <= ?"
        self._write(statement, (fencing_token(), self.key, fencing_token()))

    def _write(self, statement: str, values: Any) -> None:
        with sqlite3.connect(self.path) as database:
            if database.execute(statement, values).rowcount == 0:
                raise RuntimeError("another process owns this book now")

    @handler
    async def append(self, line: str) -> int | None:
        """Write a line."""
        self.append_late(line, fencing_token())
        return fencing_token()

    @handler
    async def look(self) -> None:
        """Start the actor, and write nothing."""

    def append_late(self, line: str, token: int | None) -> None:
        self._write(
            "UPDATE books SET text = text || ?, token = ? WHERE id = ? AND token <= ?", (line, token, "k", token)
        )


@pytest.mark.real_clock
async def test_a_resource_refuses_a_late_write_once_the_next_owner_has_started(tmp_path: Path) -> None:
    """The next owner writes its token in `start`, before any other write."""
    path = tmp_path / "books"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE books (id TEXT, text TEXT, token INTEGER)")
        database.execute("INSERT INTO books VALUES ('k', '', 0)")
    server = MemoryServer()
    with anyio.fail_after(30):
        async with keyed(Book(path), fleet=MemoryFleet(server)) as first_actors:
            first = await first_actors["k"].append("one")
        async with keyed(Book(path), fleet=MemoryFleet(server)) as second_actors:
            await second_actors["k"].look()
            with pytest.raises(RuntimeError, match="another process owns this book"):
                Book(path).append_late("late", first)
            await second_actors["k"].append("two")

    with sqlite3.connect(path) as database:
        assert database.execute("SELECT text FROM books").fetchone() == ("onetwo",)


def test_a_member_that_the_server_has_forgotten_loses_its_keys() -> None:
    """The keys are lost as soon as the answer arrives, for example after a step of the server's clock."""
    clock = Clock()
    lease = _beaten(clock, 10.0)
    clock.time += 2.5

    assert not lease.renew(clock.time, was_member=False)
    assert (lease.is_safe(0), lease.is_safe(1)) == (False, True)
