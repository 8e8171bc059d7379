"""Limits for work that is not a tool call."""

import threading

import anyio
import pytest

from callboard import CallRejectedError, Limit, Rate
from callboard._calls._limits import Limiter
from callboard._loops._current import current_loop
from callboard.extend import LimitGuard

WAIT = 30


def asked(host: str) -> dict:
    return {"name": "GET", "args": {"host": host}, "id": None}


async def test_no_more_have_a_place_than_there_are_for_each_key() -> None:
    places = LimitGuard(Limit(concurrency=2, key=lambda call: call["args"]["host"]), "requests")
    running, most = list[str](), list[int]()

    async def work(host: str) -> None:
        async with places.place(asked(host)):
            running.append(host)
            most.append(running.count(host))
            await anyio.sleep(1)
            running.remove(host)

    began = anyio.current_time()
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            for host in "abababab":
                group.start_soon(work, host)
    assert max(most) == 2
    assert anyio.current_time() - began < 3


async def use(places: LimitGuard) -> None:
    with anyio.fail_after(WAIT):
        async with places.place(asked("a")):
            pass


async def test_who_finds_the_queue_full_is_refused_and_who_is_cancelled_leaves_it() -> None:
    """A waiter that left the queue does not keep the next one from its place."""
    full, patient = (LimitGuard(Limit(concurrency=1, queue=queue), "requests") for queue in (0, None))
    async with full.place(asked("a")):
        with pytest.raises(CallRejectedError, match="the queue of requests is full: 1 of 1 run"):
            await use(full)
    async with patient.place(asked("a")):
        with anyio.move_on_after(1) as scope:
            await use(patient)
        assert scope.cancelled_caught
    await use(full)
    await use(patient)


async def test_starts_are_held_to_a_rate() -> None:
    """The rate bounds the starts, even if each piece of work is very short."""
    places = LimitGuard(Limit(rate=Rate(2, per=10.0)), "requests")
    began = anyio.current_time()
    for _ in range(3):
        await use(places)
    assert anyio.current_time() - began >= 10


def test_what_is_no_limit_is_an_error() -> None:
    """A bare number is refused, because it does not say whether it means concurrency or a rate."""
    with pytest.raises(TypeError, match=r"such as Limit\(concurrency=8\)"):
        LimitGuard(8, "requests")


async def test_a_gate_that_a_thread_is_about_to_enter_is_not_replaced() -> None:
    """A second gate of the same key would admit a second call, although the limit of the key is one."""
    limiter = Limiter(Limit(concurrency=1, key=lambda call: call["args"]["host"]), "the queue of requests")
    loop = current_loop()
    gate = limiter.gate(asked("a"), loop)

    def ask_for_other_keys() -> None:
        for n in range(200):
            limiter.gate(asked(f"other {n}"), loop)

    thread = threading.Thread(target=ask_for_other_keys)
    thread.start()
    thread.join(WAIT)

    assert gate.try_enter(loop)
    assert not limiter.gate(asked("a"), loop).try_enter(loop)
    assert len(limiter._by_key) < 100  # unused gates are still removed
