"""Nurseries and scopes on each event loop, without calls."""

import asyncio
import math
import time
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Any

import anyio
import pytest
import sniffio
import trio

from callboard._loops._current import current_loop
from callboard._loops._protocol import ChildScope, EventLoop, Nursery, Scope

WAIT = 20


def tasks() -> int:
    """Return the number of tasks of the running loop."""
    if sniffio.current_async_library() == "trio":
        return trio.lowlevel.current_statistics().tasks_living
    return len(asyncio.all_tasks())


async def test_a_child_that_ends_before_it_enters_its_scope_holds_nobody_up() -> None:
    """Promise 1: Ctrl-C may interrupt a child before its first line; its nursery still ends."""

    async def child(scope: Scope) -> None:
        raise RuntimeError("before the first line")

    with pytest.raises(RuntimeError, match="before the first line"):
        async with current_loop().nursery() as nursery:
            nursery.start(child, 1.0)


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize("owner_waits", [False, True])
async def test_a_child_that_other_code_cancels_before_it_begins_holds_nobody_up(owner_waits: bool) -> None:
    """Promise 1: a tool may cancel all tasks that it finds; asyncio then never runs the first line of a new child."""
    begun: list[str] = []

    def start_and_cancel(nursery: Nursery) -> None:
        before = asyncio.all_tasks()
        nursery.start(partial(child, "cancelled"), 1.0)
        for task in asyncio.all_tasks() - before:
            task.cancel()

    async def child(name: str, scope: Scope) -> None:
        with scope:
            begun.append(name)

    async def first(scope: Scope) -> None:
        with scope:
            await anyio.sleep(1)
            start_and_cancel(nursery)

    async with current_loop().nursery() as nursery:
        nursery.start(partial(child, "other"), 1.0)
        if owner_waits:
            nursery.start(first, 1.0)
        else:
            start_and_cancel(nursery)
    assert begun[0] == "other"


async def test_a_child_that_cancels_its_nursery_in_its_first_step_is_cancelled_too() -> None:
    """Promise 1: an actor's handler may stop its own actor. An eager task runs before the nursery knows it."""
    went_on: list[int] = []

    async def child(scope: Scope) -> None:
        with scope:
            nursery.cancel()
            await anyio.sleep(60)
            went_on.append(1)

    async with current_loop().nursery() as nursery:
        nursery.start(child, 1.0)
    assert not went_on


@pytest.mark.parametrize(
    ("first", "moves", "end"),
    [
        (2.0, [5.0], 5.0),
        (5.0, [2.0], 2.0),
        (2.0, [6.0, 4.0], 4.0),
        (4.0, [6.0, 2.0, 5.0], 5.0),
        (2.0, [math.inf, 3.0], 3.0),
        (2.0, [math.inf], 9.0),
        (math.inf, [4.0], 4.0),
    ],
)
@pytest.mark.parametrize("pause", [0.0, 0.5, 1.5])
async def test_a_scope_ends_at_the_deadline_that_it_was_moved_to_last(
    first: float, moves: list[float], end: float, pause: float
) -> None:
    """Promise 6: each report of activity and each attempt moves a deadline, and only the last one counts."""
    loop = current_loop()
    start = loop.now()
    with loop.scope(start + first, 1.0) as scope:
        for deadline in moves:
            await anyio.sleep(pause / len(moves))
            scope.move(start + deadline)
        await anyio.sleep(start + 9.0 - loop.now())
    assert loop.now() - start == pytest.approx(end)
    assert scope.cancel_called == (end < 9.0)


@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_a_scope_that_is_moved_after_its_loop_was_blocked_is_not_cancelled() -> None:
    """Promise 8: results that are ready after a block are processed first, and such a result may move the deadline."""
    loop = current_loop()
    with loop.scope(loop.now() + 0.01, 1.0) as scope:
        time.sleep(0.15)  # longer than a deadline may be late
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        scope.move(loop.now() + 60.0)
        await asyncio.sleep(0.05)
    assert not scope.cancel_called


# Look-up of the running event loop, which each thread remembers.


async def look_up_loop() -> EventLoop:
    return current_loop()


@pytest.mark.backends("asyncio")
async def test_a_callback_between_two_tasks_is_outside_of_the_loop() -> None:
    """A callback has no task whose scopes could be cancelled, whichever loop the thread remembers."""
    current_loop()
    running, error_type = asyncio.get_running_loop(), asyncio.Future[type[BaseException]]()

    def look() -> None:
        try:
            current_loop()
        except BaseException as error:
            error_type.set_result(type(error))

    # Without the tests' own mark of the library, which a callback would inherit.
    context = copy_context()
    context.run(sniffio.current_async_library_cvar.set, None)
    running.call_soon(look, context=context)
    assert issubclass(await asyncio.wait_for(error_type, WAIT), RuntimeError)


def test_trio_as_a_guest_of_asyncio_is_found() -> None:
    """Both loops run in one thread, in turns."""

    async def host() -> list[Any]:
        running, over = asyncio.get_running_loop(), asyncio.Future[Any]()
        outer = current_loop()

        async def guest() -> list[EventLoop]:
            await trio.lowlevel.checkpoint()
            return [current_loop(), current_loop()]

        trio.lowlevel.start_guest_run(
            guest, run_sync_soon_threadsafe=running.call_soon_threadsafe, done_callback=over.set_result
        )
        inner = (await asyncio.wait_for(over, WAIT)).unwrap()
        return [outer, *inner, current_loop()]

    outer, first, second, after = asyncio.run(host())
    assert (outer.name, first.name) == ("asyncio", "trio")
    assert first is second
    assert after is outer


# A child that is cancelled alone


async def _sleep() -> None:
    await anyio.sleep(60)


async def _in_a_scope() -> None:
    with anyio.fail_after(30):
        await anyio.sleep(60)


async def _in_two_scopes() -> None:
    with anyio.CancelScope(), anyio.move_on_after(30):
        await anyio.sleep(60)


async def _in_a_group() -> None:
    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(anyio.sleep, 60)


async def _in_a_group_in_a_scope() -> None:
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(_in_a_group)
            await anyio.sleep(60)


BODIES = [_sleep, _in_a_scope, _in_two_scopes, _in_a_group, _in_a_group_in_a_scope]


@pytest.mark.parametrize("body", BODIES)
async def test_a_child_that_is_cancelled_alone_goes_on_and_its_siblings_never_notice(body: Any) -> None:
    """A call that a person cancels still has to store its message."""
    steps: list[object] = []

    async def child(scope: ChildScope) -> None:
        with scope:
            try:
                await body()
            except BaseException as error:
                steps.append(scope.end_cancellation(error))
            await anyio.sleep(3)
            steps.append(current_loop().is_cancelled())

    async def sibling(scope: ChildScope) -> None:
        with scope:
            await anyio.sleep(20)
            steps.append("sibling")

    scopes: list[ChildScope] = []

    def keep_scope(scope: ChildScope) -> Any:
        scopes.append(scope)
        return child(scope)

    before, start = tasks(), anyio.current_time()
    with anyio.fail_after(100):
        async with current_loop().nursery() as nursery:
            nursery.start(keep_scope, 5.0)
            nursery.start(sibling, 5.0)
            await anyio.sleep(10)
            scopes[0].cancel_alone()
            scopes[0].cancel_alone()
        assert not nursery.cancel_called
    assert steps == [True, False, "sibling"]
    assert anyio.current_time() - start == pytest.approx(20, abs=1)
    assert tasks() == before


async def cancel_alone_and_with_nursery(child: Callable[[ChildScope], Any]) -> None:
    """Cancel a child alone, and its nursery a second later."""
    scopes: list[ChildScope] = []

    def keep_scope(scope: ChildScope) -> Any:
        scopes.append(scope)
        return child(scope)

    before = tasks()
    with anyio.fail_after(100):
        async with current_loop().nursery() as nursery:
            nursery.start(keep_scope, 5.0)
            await anyio.sleep(10)
            scopes[0].cancel_alone()
            await anyio.sleep(1)
            nursery.cancel()
    assert tasks() == before


@pytest.mark.parametrize("body", BODIES)
async def test_a_child_that_was_cancelled_alone_ends_with_its_nursery(body: Any) -> None:
    """Promise 4: the cancellation of the owner passes, also while the child cleans up."""
    steps: list[object] = []

    async def child(scope: ChildScope) -> None:
        with scope:
            try:
                await body()
            finally:
                with current_loop().shield(math.inf):
                    await anyio.sleep(3)
                steps.append("cleaned")
            steps.append("went on")

    await cancel_alone_and_with_nursery(child)
    assert steps == ["cleaned"]


@pytest.mark.parametrize("body", BODIES)
async def test_a_child_that_ended_its_cancellation_is_cancelled_again_with_its_nursery(body: Any) -> None:
    """The batch of a cancelled call may be cancelled while the call stores its message."""
    steps: list[object] = []

    async def child(scope: ChildScope) -> None:
        with scope:
            try:
                await body()
            except BaseException as error:
                steps.append(scope.end_cancellation(error))
            await anyio.sleep(60)
            steps.append("went on")

    await cancel_alone_and_with_nursery(child)
    assert steps == [True]
