"""Decisions of a gate and a limiter, on a clock of the test and without an event loop; calls are run step by step."""

import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from types import coroutine
from typing import Any

import pytest

from callboard import CallContext, Limit, Rate
from callboard._calls import _gate, _shared_permits
from callboard._calls._gate import Gate, NoPlaceError
from callboard._calls._limits import Limiter, limiter_of
from callboard._calls._permits import Loan, count_start
from callboard._calls._shared_permits import SharedPermit
from callboard.extend import PermitRequest


@coroutine
def pause() -> Generator[None]:
    yield


def result_of(steps: Any) -> Any:
    """Return the result of a coroutine that does not wait."""
    with pytest.raises(StopIteration) as end:
        steps.send(None)
    return end.value.value


class Wakeup:
    def __init__(self) -> None:
        self.sets = 0

    def set(self) -> None:
        self.sets += 1

    async def wait(self) -> None:
        while not self.sets:
            await pause()


class Loop:
    """Event loop with a clock that the test moves."""

    def __init__(self, time: float = 0.0, offset: float = 0.0) -> None:
        self.time, self.offset = time, offset
        self.wakeups: list[Wakeup] = []

    def now(self) -> float:
        return self.time

    def wakeup(self) -> Wakeup:
        self.wakeups.append(Wakeup())
        return self.wakeups[-1]


class Call:
    """Call that enters a gate; `step` runs it until it waits, and `result` is true or the refusal."""

    def __init__(self, gate: Gate | SharedPermit, loop: Any) -> None:
        self._steps = gate.enter(loop)
        self.result: bool | NoPlaceError | None = None
        self.step()

    def step(self) -> "bool | NoPlaceError | None":
        if self.result is None:
            try:
                self._steps.send(None)
            except StopIteration:
                self.result = True
            except NoPlaceError as refused:
                self.result = refused
        return self.result

    def cancel(self) -> None:
        with pytest.raises(KeyboardInterrupt):
            self._steps.throw(KeyboardInterrupt)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Any:
    fake_loop = Loop()

    async def sleep_until(time: float) -> None:
        while fake_loop.time < time:
            await pause()

    monkeypatch.setattr(_gate, "sleep_until", sleep_until)
    return fake_loop


def full_gate(limit: Limit, loop: Any) -> Gate:
    """Return a gate whose permits are all taken, one by one."""
    gate = Gate(limit, "the gate")
    for _ in range(limit.concurrency or 1):
        assert gate.try_enter(loop)
    return gate


def test_a_call_that_gives_up_hands_its_wakeup_on(loop: Any) -> None:
    gate = full_gate(Limit(concurrency=1), loop)
    first, second, third = (Call(gate, loop) for _ in range(3))
    second.cancel()
    gate.leave()
    first.cancel()
    assert third.step() is True
    assert not gate.is_unused(loop)
    gate.leave()
    assert gate.is_unused(loop)


def test_a_full_queue_refuses_and_says_why(loop: Any) -> None:
    gate = full_gate(Limit(concurrency=2, queue=1), loop)
    waiting, refused = Call(gate, loop), Call(gate, loop)
    assert waiting.result is None
    assert str(refused.result) == "the gate is full: 2 of 2 run, 1 wait, and no more may"
    rated = Gate(Limit(rate=Rate(1, per=1.0), queue=0), "the gate")
    assert Call(rated, loop).result is True
    assert str(Call(rated, loop).result) == "the gate is full: the rate is used up, 0 wait, and no more may"


@pytest.mark.parametrize("early", [0.5, 1e-9], ids=["half a second", "the last digits"])
def test_a_call_that_wakes_before_the_rate_allows_its_start_sleeps_again(
    loop: Any, monkeypatch: pytest.MonkeyPatch, early: float
) -> None:
    """Clocks of loops differ in the last digits. A call with a free permit must not wait for a wakeup of nobody."""

    async def nap(_: float) -> None:
        await pause()

    monkeypatch.setattr(_gate, "sleep_until", nap)
    gate = Gate(Limit(concurrency=1, rate=Rate(1, per=0.75)), "the gate")
    assert gate.try_enter(loop)
    call = Call(gate, loop)
    gate.leave()
    loop.time = 0.75 - early
    assert call.step() is None
    assert call.step() is None
    loop.time = 0.75
    assert call.step() is True


def test_a_gate_is_in_use_until_its_last_start_is_a_period_ago(loop: Any) -> None:
    gate = Gate(Limit(rate=Rate(2, per=10.0)), "the gate")
    for loop.time in (0.0, 4.0):
        assert gate.try_enter(loop)
        gate.leave()
    loop.time = 10.0
    assert not gate.is_unused(loop)
    loop.time = 14.0
    assert gate.is_unused(loop)


class Store:
    """Store of a shared limit that grants each request at once, refuses it, or does not answer."""

    answers = True
    failure: str | None = None
    token, is_lost = 1, False

    def __init__(self, name: str | None = None) -> None:
        self.name = name
        self.log: list[str] = []
        self.requests: list[PermitRequest] = []

    def check(self, limit: Limit) -> None:
        self.log.append(f"checked {limit.concurrency}")

    def ask(self, request: PermitRequest, wake: Callable[[], object]) -> "Store":
        self.requests.append(request)
        if self.answers:
            wake()
        return self

    def begin(self) -> None:
        self.log.append("begun")

    def leave(self) -> None:
        self.log.append("left")


def shared(store: Any, *, name: str = "tool:fetch", key: str = "", tenant: str = "", **numbers: Any) -> SharedPermit:
    limit = Limit(**numbers or {"concurrency": 1})
    return SharedPermit(store, PermitRequest(limit=limit, name=name, key=key, tenant=tenant, title="the queue"))


def test_a_permit_of_a_store_is_held_from_its_grant_to_its_release(loop: Any) -> None:
    store: Any = Store()
    permit = SharedPermit(store, store)
    result_of(permit.enter(loop))
    assert permit.token == 1
    assert result_of(count_start([permit], loop)) is True
    permit.leave()
    permit.leave()
    assert (store.log, permit.token) == (["begun", "left"], None)


@pytest.mark.parametrize(
    "wrap", [lambda permit: permit, lambda permit: Loan(permit, "", permit.leave)], ids=["held", "borrowed"]
)
def test_no_body_starts_with_a_permit_that_was_lost(loop: Any, wrap: Callable[[SharedPermit], Any]) -> None:
    """Another process may have it now."""
    store: Any = Store()
    other_permit, permit = shared(Store()), shared(store)
    result_of(permit.enter(loop))
    store.is_lost = True
    assert result_of(count_start([other_permit, wrap(permit)], loop)) is False
    assert store.log == []


def test_a_request_at_a_store_that_is_refused_or_cancelled_is_withdrawn(loop: Any) -> None:
    store: Any = Store()
    store.failure = "the queue is full"
    assert str(Call(shared(store), loop).result) == "the queue is full"
    store.answers = False
    Call(shared(store), loop).cancel()
    assert store.log == ["left", "left"]


def test_a_lent_permit_is_released_by_the_last_who_needs_it() -> None:
    """A nested call may wait for it while its lender leaves, and a call that gives up needs it no more."""
    released: list[bool] = []
    loan = Loan(Gate(Limit(concurrency=1), "the gate"), "the gate", lambda: released.append(True))
    loan.join()
    loan.join()
    loan.withdraw()  # the lender
    loan.withdraw()
    assert released == []
    loan.withdraw()
    assert released == [True]


def call_of(host: str) -> Any:
    return {"name": "fetch", "args": {"host": host}, "id": "1"}


def test_idle_gates_are_dropped_when_there_are_many_and_those_in_use_are_kept(loop: Any) -> None:
    limiter = Limiter(Limit(concurrency=1, key=lambda call: call["args"]["host"]), "the queue")
    busy = limiter.gate(call_of("busy"), loop)
    assert busy.try_enter(loop)
    held_gate = limiter.gate(call_of("held"), loop)
    for number in range(62):
        limiter.gate(call_of(f"{number}"), loop)
    assert len(limiter._by_key) == 64
    limiter.gate(call_of("one more"), loop)
    assert set(limiter._by_key) == {"busy", "held", "one more"}
    assert limiter._prune_at == 64
    assert limiter.gate(call_of("busy"), loop) is busy
    assert limiter.gate(call_of("held"), loop) is held_gate


def test_the_next_look_for_idle_gates_comes_when_they_are_twice_as_many(loop: Any) -> None:
    limiter = Limiter(Limit(concurrency=1, key=lambda call: call["args"]["host"]), "the queue")
    gates = [limiter.gate(call_of(f"{number}"), loop) for number in range(65)]
    assert (len({id(gate) for gate in gates}), limiter._prune_at) == (65, 128)


def test_a_gate_that_a_thread_is_about_to_enter_is_not_replaced(loop: Any) -> None:
    """A second gate of the same key would admit a second call, although the limit of the key is one."""
    limiter = Limiter(Limit(concurrency=1, key=lambda call: call["args"]["host"]), "the queue of requests")
    gate = limiter.gate(call_of("a"), loop)

    def ask_for_other_keys() -> None:
        for n in range(200):
            limiter.gate(call_of(f"other {n}"), loop)

    thread = threading.Thread(target=ask_for_other_keys)
    thread.start()
    thread.join(30)

    assert gate.try_enter(loop)
    assert not limiter.gate(call_of("a"), loop).try_enter(loop)
    assert len(limiter._by_key) < 100  # unused gates are still removed


def by_host(call: Any) -> Any:
    return call["args"]["host"]


def by_user(_: Any, context: CallContext) -> Any:
    return context.config["user"]


HOST, USER = "ac8d8342bbb2362d13f0a559a3621bb4", "cec78459472eed8b9f4625f155fd705a"
"""Keys "a" and "ann", as every process of a fleet has to write them, whatever its version."""


@pytest.mark.every_variant
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("", "", "the queue of tool 'fetch'")),
        ({"key": by_host}, (HOST, "", "the queue of tool 'fetch' for calls like this one")),
        ({"key": by_user}, (USER, "", "the queue of tool 'fetch' for calls like this one")),
        ({"tenant": by_user}, ("", USER, "the queue of tool 'fetch'")),
        ({"key": by_host, "tenant": by_user}, (HOST, USER, "the queue of tool 'fetch' for calls like this one")),
    ],
)
def test_a_shared_limit_asks_its_store_with_digests_of_key_and_tenant(
    loop: Any, options: Any, expected: tuple[str, str, str]
) -> None:
    """Keys and tenants may be confidential, and the digests of all processes must be equal."""
    store: Any = Store()
    limit = Limit(concurrency=2, shared=store, **options)
    limiter = limiter_of(limit, "tool:fetch", "tool 'fetch'")
    context = partial(CallContext, config={"user": "ann"})
    result_of(limiter.gate(call_of("a"), loop, context).enter(loop))
    key, tenant, title = expected
    assert store.requests == [PermitRequest(limit=limit, name="tool:fetch", key=key, tenant=tenant, title=title)]
    assert store.log == ["checked 2"]


def test_permits_of_one_resource_and_key_are_interchangeable() -> None:
    """A store with a name of its own has one resource, whatever the names of the limits are."""
    store, vendor = Store(), Store("vendor")
    permit = shared(store)
    assert permit.identity == shared(store, tenant="t").identity
    other_permits = [shared(Store()), shared(store, name="tool:search"), shared(store, key="b")]
    assert permit.identity not in [other_permit.identity for other_permit in other_permits]
    assert shared(vendor).identity == shared(vendor, name="tool:search").identity != permit.identity


def test_holders_of_interchangeable_permits_are_listed_together_until_they_leave() -> None:
    store = Store()
    first_holder: Any = object()
    second_holder: Any = object()
    permit, twin = shared(store), shared(store)
    permit.add_holder(first_holder)
    twin.add_holder(second_holder)
    assert permit.holders == {first_holder, second_holder}
    permit.remove_holder(first_holder)
    assert permit.holders == twin.holders == {second_holder}
    twin.remove_holder(second_holder)
    assert permit.holders == set()
    assert permit.identity not in _shared_permits._holders  # keys come from the model, in any number


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize("backend", ["asyncio", pytest.param("trio", marks=pytest.mark.exhaustive)])
def test_a_forked_child_has_all_permits_of_a_limit(backend: str) -> None:
    """The calls that held them go on in the parent alone, and those of the child waited for their ends for ever."""
    command = [sys.executable, "-m", "tests.calls._forked_limit", backend]
    root = Path(__file__).parents[2]
    program = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    results = "['worked', 'worked']"
    assert program.stdout.splitlines() == [f"child: {results}", f"parent: {results}"], program.stderr


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_forked_child_has_all_worker_threads_of_a_node(backend: str) -> None:
    """Threads of the parent do not run there: neither those that calls gave up, nor one that had not begun.

    The child refused its calls because of the first, and its first sync tool waited a second for the other.
    """
    command = [sys.executable, "-m", "tests.calls._forked_threads", backend]
    root = Path(__file__).parents[2]
    program = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    parent, child = program.stdout.splitlines()
    assert "all 40 worker threads are held" in parent, program.stderr
    assert child == "child: ['worked'], waited: False", program.stderr
