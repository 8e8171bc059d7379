"""Lifecycle of actors.

Resources opened in `start` are closed in `stop`, in one task or thread. Cancellation of calls.
"""

import inspect
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import Any, ClassVar

import anyio
import pytest

from callboard import (
    Actor,
    ActorDiedError,
    ActorStartError,
    Backoff,
    Reply,
    Supervisor,
    SupervisorError,
    ToolNode,
    child,
    cleanup,
    handler,
    keyed,
    running,
    tool_call,
)
from tests.helpers import keep, live_tasks

pytestmark = pytest.mark.hangs_after(600)
SOON = Backoff(first=0)


class Page(Actor):
    """Page whose driver has its own task, like those of browsers."""

    log: ClassVar[list[str]] = []

    def __init__(self, fails_after: float = float("inf")) -> None:
        self.fails_after = fails_after

    async def start(self) -> None:
        self.log.append("start")
        self.group = await self.enter(anyio.create_task_group())
        self.group.start_soon(self._driver)

    async def _driver(self) -> None:
        await anyio.sleep(self.fails_after)
        raise ConnectionError("the driver has gone")

    async def stop(self) -> None:
        self.log.append("stop")
        self.group.cancel_scope.cancel()

    @handler
    async def goto(self, url: str, seconds: float = 1) -> str:
        try:
            await anyio.sleep(seconds)
        finally:
            with cleanup():
                await anyio.sleep(0.5)
            self.log.append(f"{url} ended")
        return url

    @handler(deferred=True)
    async def keep(self, reply: Reply[str], seconds: float) -> None:
        self.open_reply = reply
        await anyio.sleep(seconds)

    @handler(on_cancel="restart")
    async def fragile(self, clean_up_fails: bool = False) -> None:
        try:
            await anyio.sleep(10)
        except BaseException:
            if clean_up_fails:
                raise ValueError("clean-up") from None
            raise


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Page.log.clear()
    Slow.log.clear()


async def test_a_task_of_start_that_fails_ends_the_actor_with_its_own_error() -> None:
    with pytest.raises(SupervisorError) as caught:
        async with Supervisor([Page(5)], intensity=1, period=100, backoff=SOON) as tree:
            with pytest.raises(ActorDiedError, match="the driver has gone"):
                await tree[Page].goto("x", 10)
            assert await tree[Page].goto("y") == "y"
            await anyio.sleep_forever()
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert (Page.log.count("start"), Page.log.count("stop")) == (2, 2)


async def test_a_deferred_handler_that_is_cancelled_lets_its_caller_go() -> None:
    """A caller may be cancelled although the handler kept its reply and nobody will send it."""
    async with running(Page) as page:
        with anyio.move_on_after(1) as scope:
            await page.keep(5)
        assert scope.cancelled_caught
        with anyio.move_on_after(5) as scope:
            await page.keep(1)
        assert scope.cancelled_caught
        assert await page.goto("x") == "x"


@pytest.mark.parametrize("clean_up_fails", [False, True])
async def test_an_actor_that_cannot_be_trusted_after_a_cancel_is_restarted(clean_up_fails: bool) -> None:
    """An actor with `on_cancel="restart"` restarts after a cancelled call, even if the handler's clean-up raises."""
    async with Supervisor([Page], backoff=SOON) as tree:
        with anyio.move_on_after(1):
            await tree[Page].fragile(clean_up_fails)
        assert await tree[Page].goto("x") == "x"
    assert Page.log.count("start") == 2


class Slow(Actor):
    """Slow actor that records how far its code got."""

    log: ClassVar[list[str]] = []

    def __init__(self, start: float = 0, stop: float = 0, error: BaseException | None = None) -> None:
        self.times = (start, stop)
        self.error = error

    async def start(self) -> None:
        self.log.append("start")
        await anyio.sleep(self.times[0])
        if self.error is not None:
            raise self.error
        self.log.append("started")

    async def stop(self) -> None:
        self.log.append("stop")
        await anyio.sleep(self.times[1])
        self.log.append("stopped")

    @handler
    async def work(self, seconds: float) -> None:
        try:
            await anyio.sleep(seconds)
        except BaseException:
            self.log.append("cancelled")
            raise


async def test_a_start_that_takes_too_long_is_cancelled_and_said() -> None:
    with pytest.raises(ActorStartError, match="longer than 3 s"):
        async with running(child(Slow(100), start_timeout=3)):
            pytest.fail("it did not start")
    assert Slow.log == ["start"]


@pytest.mark.parametrize("error", [FileNotFoundError("no such program"), ValueError("wrong")])
async def test_a_start_that_fails_says_why(error: Exception) -> None:
    with pytest.raises(ActorStartError) as caught:
        async with running(Slow(0, 0, error)):
            pytest.fail("it did not start")
    assert caught.value.__cause__ is error
    assert caught.value.is_permanent == isinstance(error, FileNotFoundError)


async def test_an_owner_that_is_cancelled_while_an_actor_starts_waits_for_its_end() -> None:
    before = live_tasks()
    for seconds in (0, 1):
        with anyio.move_on_after(seconds) as scope:
            async with running(Slow(20)):
                pytest.fail("it had not started")
        assert scope.cancelled_caught
    await anyio.sleep(1)
    assert live_tasks() == before
    assert "stop" not in Slow.log


async def test_handlers_that_go_on_are_cancelled_and_the_actor_still_stops_in_order() -> None:
    """`stop` may await on either loop, even if the handlers exceeded their time and were cancelled."""
    outcomes: list[object] = []
    async with anyio.create_task_group() as group:
        async with running(child(Slow(0, 1), stop_timeout=3)) as slow:
            group.start_soon(keep, outcomes, slow.work(100))
            await anyio.sleep(1)
            began = anyio.current_time()
        assert anyio.current_time() - began == pytest.approx(4)
    assert [type(outcome) for outcome in outcomes] == [ActorDiedError]
    assert Slow.log == ["start", "started", "cancelled", "stop", "stopped"]


async def test_a_stop_that_takes_too_long_is_cut_off() -> None:
    """A `stop` that exceeds its timeout is cancelled, so that the supervisor can continue."""
    async with running(child(Slow(0, 100), stop_timeout=2)):
        began = anyio.current_time()
    assert anyio.current_time() - began == pytest.approx(2)
    assert Slow.log == ["start", "started", "stop"]


async def test_a_scope_of_start_that_is_over_ends_the_actor_and_not_its_owner() -> None:
    """A cancelled scope that `start` entered ends the actor with a clear error.

    It does not cancel the owner's block.
    """

    class Limited(Actor):
        async def start(self) -> None:
            await self.enter(anyio.move_on_after(3))

    with pytest.raises(SupervisorError) as caught:
        async with Supervisor([Limited], intensity=0):
            await anyio.sleep_forever()
    assert isinstance(caught.value.__cause__, RuntimeError)


class Interrupted(Actor):
    """Actor with a handler that is interrupted by Ctrl-C."""

    @handler
    async def work(self) -> None:
        """Work."""
        raise KeyboardInterrupt


async def test_ctrl_c_in_an_actor_by_key_is_for_whoever_owns_the_block() -> None:
    with pytest.raises(KeyboardInterrupt):
        async with keyed(Interrupted) as actors:
            with pytest.raises(ActorDiedError):
                await actors["a"].work()
            await anyio.sleep_forever()


@pytest.mark.parametrize("is_open", [True, False])
async def test_ctrl_c_in_an_actor_of_a_node_comes_out_where_its_life_ends(is_open: bool) -> None:
    """`KeyboardInterrupt` ends the run or the open node. As a tool message it would let the model continue."""
    node = ToolNode([Interrupted()])
    with pytest.raises(KeyboardInterrupt):
        async with node if is_open else nullcontext():
            result = await node.ainvoke([tool_call("work")])
            assert is_open
            assert "KeyboardInterrupt" in result["messages"][0].content


async def test_a_dropped_reply_is_an_error_for_its_caller() -> None:
    """If a handler drops its reply without sending it, its caller must not wait forever."""

    class Forgetful(Actor):
        @handler(deferred=True)
        async def ask(self, reply: Reply[int]) -> None:
            pass

    async with running(Forgetful) as actor:
        with pytest.raises(RuntimeError, match="without sending it"):
            await actor.ask()


@contextmanager
def few_frames() -> Iterator[None]:
    """Limit the call stack to 300 frames more than there are."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 300)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


async def test_a_failing_start_is_tried_for_as_long_as_the_intensity_allows() -> None:
    """Hundreds of failed starts must not deepen the call stack, which has few free frames here."""
    tries: list[float] = []

    class Eager(Actor):
        fatal = (ValueError,)

        async def start(self) -> None:
            tries.append(anyio.current_time())
            if len(tries) > 1:
                raise OSError

        @handler
        async def die(self) -> None:
            raise ValueError

    with pytest.raises(SupervisorError), few_frames():
        async with Supervisor([Eager], intensity=500, backoff=SOON) as tree:
            with pytest.raises(ActorDiedError):
                await tree[Eager].die()
            await anyio.sleep_forever()
    assert len(tries) == 501


@asynccontextmanager
async def _nothing() -> Any:
    yield


async def test_enter_is_for_start_only() -> None:
    """A context that a handler enters could not be closed in the right order, so `enter` is refused there."""

    class Late(Actor):
        @handler
        async def work(self) -> None:
            await self.enter(_nothing())

    async with running(Late) as actor:
        with pytest.raises(RuntimeError, match="is for `start`"):
            await actor.work()
