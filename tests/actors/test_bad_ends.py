"""Ends of actors at awkward moments, or with clean-up that fails: who gets the error, and what is cleaned up."""

import asyncio
import logging
from typing import Any, ClassVar

import anyio
import pytest

from callboard import (
    Actor,
    ActorDiedError,
    ActorStartError,
    Backoff,
    CallCancelledError,
    Supervisor,
    SupervisorError,
    child,
    handler,
    keyed,
    running,
)
from callboard.actors._actor import Resources
from tests.helpers import keep, live_tasks

WAIT = 600
pytestmark = pytest.mark.hangs_after(WAIT)
SOON = Backoff(first=0)


class Worker(Actor):
    """Actor that does what it is told and records it."""

    log: ClassVar[list[str]] = []
    fatal = (OSError,)

    def __init__(self, name: str = "w", *, at_start: BaseException | None = None, at_stop: Any = None) -> None:
        self.name = name
        self.at_start = at_start
        self.at_stop = at_stop
        self.count = 0

    async def start(self) -> None:
        self.log.append(f"+{self.name}")
        if self.at_start is not None:
            raise self.at_start

    async def stop(self) -> None:
        self.log.append(f"-{self.name}")
        if isinstance(self.at_stop, BaseException):
            raise self.at_stop
        await anyio.sleep(self.at_stop or 0)
        self.log.append(f"-{self.name} done")

    @handler
    async def work(self, seconds: float = 0) -> int:
        await anyio.sleep(seconds)
        self.count += 1
        return self.count

    @handler
    async def tidy(self, seconds: float) -> None:
        try:
            await anyio.sleep(WAIT)
        finally:
            await anyio.sleep(seconds)  # an unshielded `finally`, as most code has it
            self.log.append("tidied")

    @handler
    async def fail(self, error: BaseException) -> None:
        raise error

    @handler
    async def cancel_itself(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep(1)

    @handler
    async def cancel_a_part(self) -> str:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep(1)
        return "went on"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Worker.log.clear()


@pytest.mark.backends("asyncio")
async def test_a_plain_finally_of_a_handler_ends_within_the_grace() -> None:
    """A cancelled handler may await in an unshielded `finally` on asyncio, as tools may.

    The actor and its state survive.
    """
    async with running(Worker) as worker:
        await worker.work()
        with anyio.move_on_after(1) as scope:
            await worker.tidy(0.5)
        assert scope.cancelled_caught
        assert Worker.log == ["+w", "tidied"]
        assert await worker.work() == 2


@pytest.mark.backends("asyncio")
async def test_a_handler_that_says_it_was_cancelled_has_ended_its_call_and_nothing_else() -> None:
    """A library may raise the cancellation error by itself. The caller gets an error, and the actor lives on."""
    async with running(Worker) as worker:
        await worker.work()
        with pytest.raises(CallCancelledError, match=r"Worker\.fail"):
            await worker.fail(asyncio.CancelledError())
        assert await worker.work() == 2


@pytest.mark.backends("asyncio")
async def test_a_handler_that_cancels_its_own_task_ends_the_actor_which_is_restarted() -> None:
    """The handler runs in the actor's own task, so a cancellation cannot be attributed to the handler.

    The actor restarts.
    """
    async with Supervisor([Worker], backoff=SOON) as tree:
        await tree[Worker].work()
        with pytest.raises(ActorDiedError, match="the task of Worker was cancelled"):
            await tree[Worker].cancel_itself()
        assert await tree[Worker].work() == 1


@pytest.mark.backends("asyncio")
async def test_a_start_that_cancels_its_own_task_is_one_that_fails() -> None:
    """A cancellation inside `start` is a failed start, in the first life and later ones.

    It does not cancel the owner.
    """

    class Cancelled(Worker):
        lives: ClassVar[list[int]] = [0]

        async def start(self) -> None:
            self.lives[0] += 1
            if self.lives[0] != 2:
                await Worker.cancel_itself.__wrapped__(self)  # type: ignore[attr-defined]

    with pytest.raises(ActorStartError, match="CancelledError"):
        async with Supervisor([Cancelled]):
            pytest.fail("it has started")
    with pytest.raises(SupervisorError, match="CancelledError"):
        async with Supervisor([Cancelled], intensity=1, backoff=SOON) as tree:
            with pytest.raises(ActorDiedError):
                await tree[Cancelled].fail(OSError())
            await anyio.sleep_forever()
    assert Cancelled.lives == [3]


async def test_a_scope_of_a_handlers_own_is_nobody_elses() -> None:
    async with running(Worker) as worker:
        assert await worker.cancel_a_part() == "went on"


@pytest.mark.parametrize("early", [-0.001, 0, 0.001])
async def test_an_ask_that_is_cancelled_at_the_instant_of_its_answer_leaves_nothing_undecided(early: float) -> None:
    async with running(Worker) as worker:
        for number in range(20):
            before = await worker.work()
            with anyio.move_on_after(1 + early) as scope:
                assert await worker.work(1) == before + 1
            after = await worker.work()
            assert after in ({before + 2} if not scope.cancelled_caught else {before + 1, before + 2}), number


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize(
    ("phase", "log"),
    [("first start", "+b"), ("second start", "+a +b -a"), ("restart", "+a +b -b +b -a"), ("handler", "+a +b -b -a")],
)
async def test_ctrl_c_reaches_the_owner_bare_and_stops_the_others(error: BaseException, phase: str, log: str) -> None:
    """`KeyboardInterrupt` is not wrapped as a failed start or as an end of the actor, which could be retried."""
    before, starts = live_tasks(), list[int]()

    class Interrupted(Worker):
        async def start(self) -> None:
            self.log.append("+b")
            starts.append(1)
            if phase.endswith("start") and len(starts) == (2 if phase == "restart" else 1):
                raise error

    children = [child(Interrupted("b"), name="b")]
    if phase != "first start":
        children.insert(0, child(Worker("a"), name="a"))
    with pytest.raises(type(error)) as caught:
        async with Supervisor(children, backoff=SOON) as tree:
            assert not phase.endswith(" start")
            with pytest.raises(ActorDiedError):
                await tree["b"].fail(error if phase == "handler" else OSError())
            await anyio.sleep_forever()
    assert caught.value is error
    assert [line for line in Worker.log if not line.endswith("done")] == log.split()
    assert live_tasks() == before


@pytest.mark.parametrize("blocks_error", [ValueError("block"), None])
async def test_a_stop_that_fails_is_logged_and_hides_nothing(
    blocks_error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    children = [child(Worker("a"), name="a"), child(Worker("b", at_stop=RuntimeError("no way")), name="b")]
    came_out: BaseException | None = None
    with caplog.at_level(logging.WARNING, "callboard"):
        try:
            async with Supervisor(children):
                if blocks_error is not None:
                    raise blocks_error
        except ValueError as error:
            came_out = error
    assert came_out is blocks_error
    assert Worker.log == ["+a", "+b", "-b", "-a", "-a done"]
    assert "stopping the actor 'b' failed: RuntimeError" in caplog.text
    assert "no way" not in caplog.text


async def test_an_owner_that_is_cancelled_while_an_actor_serves_waits_until_it_has_stopped() -> None:
    before, came_to = live_tasks(), list[BaseException]()
    async with anyio.create_task_group() as group:
        with anyio.move_on_after(1) as scope:
            async with running(child(Worker("w", at_stop=3), name="w", stop_timeout=4)) as worker:
                group.start_soon(keep, came_to, worker.work(WAIT))
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert Worker.log == ["+w", "-w", "-w done"]
    assert [type(outcome) for outcome in came_to] == [ActorDiedError]
    await anyio.sleep(1)
    assert live_tasks() == before


async def test_an_owner_that_is_cancelled_while_an_actor_stops_does_not_cut_it_short() -> None:
    before = live_tasks()
    began = anyio.current_time()
    with anyio.move_on_after(2) as scope:
        async with running(Worker("w", at_stop=5)):
            await anyio.sleep(1)
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert anyio.current_time() - began == pytest.approx(6)
    assert Worker.log == ["+w", "-w", "-w done"]
    assert live_tasks() == before


class Unkept(Worker):
    """Actor whose snapshot fails at times."""

    broken: ClassVar[list[bool]] = []

    async def snapshot(self) -> int:
        if self.broken:
            raise TypeError("cannot be kept")
        return self.count

    async def restore(self, snapshot: int) -> None:
        self.count = snapshot


class PlainUnkept(Unkept):
    def snapshot(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.broken:
            raise TypeError("cannot be kept")
        return self.count


@pytest.fixture(autouse=True)
def _whole() -> None:
    Unkept.broken.clear()


@pytest.mark.real_clock
@pytest.mark.parametrize("kind", [Unkept, PlainUnkept])
async def test_a_snapshot_that_fails_after_a_call_costs_nobody_a_result(
    kind: type[Unkept], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "callboard"):
        async with Supervisor([child(kind, name="w", save="each_call")], backoff=SOON) as tree:
            assert await tree["w"].work() == 1
            kind.broken.append(True)
            assert [await tree["w"].work(), await tree["w"].work()] == [2, 3]
            assert Worker.log == ["+w"]
            kind.broken.clear()
            assert "the state of the actor 'w' could not be had for its snapshot: TypeError" in caplog.text
            kind.broken.append(True)
            with pytest.raises(ActorDiedError):
                await tree["w"].fail(OSError())
            assert await tree["w"].work() == 2  # restored from the snapshot of the first call


async def test_a_snapshot_that_fails_at_the_end_does_not_keep_the_actor_from_stopping(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Resources that `start` opened are closed even if the last snapshot fails."""
    with caplog.at_level(logging.WARNING, "callboard"):
        async with running(child(Unkept, name="w")) as worker:
            await worker.work()
            Unkept.broken.append(True)
        assert Worker.log == ["+w", "-w", "-w done"]
        assert "the state of the actor 'w' could not be had for its snapshot" in caplog.text


async def test_an_evicted_actor_whose_snapshot_fails_goes_on_from_the_one_before() -> None:
    async with keyed(Unkept, cap=1) as workers:
        assert [await workers["a"].work(), await workers["a"].work()] == [1, 2]
        assert await workers["b"].work() == 1
        assert await workers["a"].work() == 3
        Unkept.broken.append(True)
        assert await workers["b"].work() == 2
        Unkept.broken.clear()
        assert await workers["a"].work() == 3


@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
async def test_the_log_of_an_end_has_the_type_and_the_frames_of_the_error_and_its_text_only_for_debugging(
    caplog: pytest.LogCaptureFixture, level: int
) -> None:
    """An error text may contain a secret. `Redact` covers results but not log lines."""

    with caplog.at_level(level, "callboard"):
        async with Supervisor([child(Worker("w"), name="w")], backoff=SOON) as tree:
            with pytest.raises(ActorDiedError):
                await tree["w"].fail(OSError("sk-ant-secret"))
            await tree["w"].work()

    assert "the actor 'w' has ended: OSError" in caplog.text
    assert ", in fail\n" in caplog.text
    assert ("OSError: sk-ant-secret" in caplog.text) == (level == logging.DEBUG)


class _Resource:
    """Context manager that records its end, and raises an error of its own there."""

    def __init__(
        self, name: str, log: list[str], *, error: BaseException | None = None, swallows: bool = False
    ) -> None:
        self.name, self.log, self.error, self.swallows = name, log, error, swallows

    async def __aenter__(self) -> str:
        return self.name

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.log.append(f"{self.name} {error!r}")
        if self.error is not None:
            raise self.error
        return self.swallows


async def test_every_resource_is_left_in_reverse_order_whatever_the_others_raise() -> None:
    """An error of one end is the error that the next one sees; the first error is kept as its context."""
    log: list[str] = []
    resources, block, end = Resources(), OSError("block"), OSError("end")
    assert await resources.enter(_Resource("a", log)) == "a"
    await resources.enter(_Resource("b", log, error=end))
    await resources.enter(_Resource("c", log))
    with pytest.raises(OSError, match="end") as caught:
        await resources.__aexit__(type(block), block, None)

    assert log == ["c OSError('block')", "b OSError('block')", "a OSError('end')"]
    assert caught.value.__context__ is block


async def test_a_resource_may_swallow_the_error() -> None:
    """The resources below it then see no error."""
    log: list[str] = []
    resources, block = Resources(), OSError("block")
    await resources.enter(_Resource("a", log))
    await resources.enter(_Resource("b", log, swallows=True))

    assert await resources.__aexit__(type(block), block, None)
    assert log == ["b OSError('block')", "a None"]
    with pytest.raises(TypeError, match=r"'builtins\.int' object does not support the context manager protocol"):
        await resources.enter(5)  # type: ignore[arg-type]
