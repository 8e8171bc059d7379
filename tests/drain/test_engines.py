"""Drained engines begin no calls; running calls finish or are ended after their grace period."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import CallPolicy, Drained, ToolNode, UnknownCall, create_react_agent, drain_on_signal
from callboard.extend import Body, EngineError, EngineOperations, Seat
from callboard.testing import ScriptedModel, calls
from callboard_actors.process import Processes
from tests.engines._fake import FakeEngine
from tests.helpers import keep

WAIT = 100


class Here:
    """Engine that runs one async call at a time in this process and can be drained."""

    def __init__(self) -> None:
        self.bodies = EngineOperations("engine")
        self._slot = anyio.CapacityLimiter(1)

    async def run_body(self, body: Body) -> Any:
        with self.bodies.running(body, grace=1.0) as noted:
            async with self._slot:
                assert noted.on_begin is not None
                noted.on_begin()
                return await noted.fn(*noted.args)


async def _seconds(seconds: float) -> float:
    await anyio.sleep(seconds)
    return seconds


def _body(seconds: float, call_id: str | None = None, **fields: Any) -> Body:
    return Body(fn=_seconds, args=(seconds,), title="seconds", call_id=call_id, **fields)


async def test_bodies_that_run_finish_and_no_other_begins() -> None:
    """A new call is told that it did not begin, and why."""
    engine, results = Here(), list[Any]()
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(keep, results, engine.run_body(_body(2.0)))
            await anyio.sleep(1)
            group.start_soon(keep, results, engine.bodies.drain(10))
            await anyio.sleep(0.5)
            with pytest.raises(EngineError, match="its engine is being drained") as refused:
                await engine.run_body(_body(1.0))
    assert refused.value.ended == "unavailable"
    with pytest.raises(EngineError, match="being drained"):
        engine.bodies.check_open("an actor")
    engine.bodies.reopen()
    assert await engine.run_body(_body(1.0)) == 1.0
    assert results == [2.0, Drained(finished=1)]


async def test_a_body_that_does_not_finish_is_unknown_and_one_that_waits_is_not() -> None:
    engine, ends = Here(), dict[str | None, str]()

    async def run(call_id: str) -> None:
        with pytest.raises(EngineError, match="its engine was drained") as ended:
            await engine.run_body(_body(1000.0, call_id))
        ends[call_id] = ended.value.ended

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(run, "runs")
            await anyio.sleep(1)
            group.start_soon(run, "waits")
            await anyio.sleep(1)
            report = await engine.bodies.drain(1)
    assert ends == {"runs": "unknown", "waits": "unavailable"}
    assert report == Drained(ended=2, unknown=(UnknownCall(tool="seconds", call_id="runs"),))


@pytest.mark.parametrize(
    ("error", "report"),
    [
        (ValueError("half written"), Drained(finished=1)),
        (
            EngineError("ends", None, "the worker died", ended="unknown"),
            Drained(ended=1, unknown=(UnknownCall(tool="ends"),)),
        ),
    ],
    ids=["an error", "a dead worker"],
)
async def test_a_body_that_fails_while_it_is_ended_is_unknown_only_if_its_worker_died(
    error: Exception, report: Drained
) -> None:
    engine, errors = Here(), list[Exception]()

    async def ends() -> None:
        try:
            await anyio.sleep(1000)
        except anyio.get_cancelled_exc_class() as cancelled:
            raise error from cancelled

    async def run() -> None:
        with pytest.raises(type(error)) as failed:
            await engine.run_body(Body(fn=ends, args=(), title="ends"))
        errors.append(failed.value)

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(1)
            assert await engine.bodies.drain(1) == report
    assert errors == [error]


async def test_a_body_whose_caller_gives_up_while_it_is_ended_is_unknown() -> None:
    engine = Here()

    async def slow_to_end() -> None:
        try:
            await anyio.sleep(1000)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)

    async def run(caller: anyio.CancelScope) -> None:
        with caller, suppress(EngineError):
            await engine.run_body(Body(fn=slow_to_end, args=(), title="slow"))

    async def give_up(caller: anyio.CancelScope) -> None:
        await anyio.sleep(1.2)
        caller.cancel()

    caller = anyio.CancelScope()
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(run, caller)
            await anyio.sleep(1)
            group.start_soon(give_up, caller)
            report = await engine.bodies.drain(1)
    assert report == Drained(ended=1, unknown=(UnknownCall(tool="slow"),))


async def test_a_body_that_is_cancelled_by_its_caller_is_no_matter_of_the_drain() -> None:
    engine = Here()

    async def run() -> None:
        with anyio.move_on_after(2):
            await engine.run_body(_body(1000.0))

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await anyio.sleep(1)
            report = await engine.bodies.drain(10)
    assert report == Drained(finished=1)


@pytest.mark.real_clock
async def test_an_agent_is_drained_before_the_engine_of_its_tools() -> None:
    """Runs keep their engine until they have ended; a fake engine is drained like a real one."""
    engine = FakeEngine()
    node = ToolNode([_seconds_long], policies={"_seconds_long": CallPolicy(runs_in=engine)})
    model = ScriptedModel([calls(("_seconds_long", {"seconds": 0.2}))] * 2 + ["done"])
    agent = create_react_agent(model, node)
    results: list[Any] = []
    async with engine, agent, anyio.create_task_group() as group:
        group.start_soon(keep, results, agent.ainvoke({"messages": [("user", "go")]}))
        while not engine.bodies:
            await anyio.sleep(0.01)
        async with drain_on_signal(agent, engine) as shutdown:
            pass
    assert results[0]["messages"][-1].content == "done"
    assert engine.bodies == ["_seconds_long"] * 2
    assert shutdown.report == Drained(finished=1)


async def _seconds_long(seconds: float) -> str:
    """Take so long."""
    await anyio.sleep(seconds)
    return "done"


def sleep_and_tell(seconds: float) -> int:
    """Sleep in a process, and tell which."""
    time.sleep(seconds)
    return os.getpid()


@pytest.mark.real_clock
@pytest.mark.exhaustive
async def test_a_pool_of_processes_that_is_drained_ends_what_does_not_finish_by_force(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The call of a node is reported as unknown by its id; no process is left, and the pool can be opened again."""
    # pytest imports files under names by which no other process would find them.
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[__name__.count(".")])])
    pool = Processes(workers=2, grace=0.2)
    request = calls(("sleep_and_tell", {"seconds": 60.0}), ("sleep_and_tell", {"seconds": 0.3}))
    policy = CallPolicy(runs_in=pool, on_unknown="fail")
    node = ToolNode([sleep_and_tell], policies={"sleep_and_tell": policy}, handle_tool_errors=True)
    results: list[Any] = []
    async with node, pool:
        # Both workers import the function now, and not while the drain waits.
        await node.ainvoke([calls(*[("sleep_and_tell", {"seconds": 0.1})] * 2)])
        async with anyio.create_task_group() as group:
            group.start_soon(keep, results, node.ainvoke([request]))
            while node.statistics().running < 2:
                await anyio.sleep(0.01)
            report = await pool.drain(1.5)
        with pytest.raises(EngineError, match="its pool of processes is being drained"):
            await pool.run(os.getpid)
        with pytest.raises(EngineError, match="its pool of processes is being drained"):
            async with pool.seat("an actor") as seat:
                assert isinstance(seat, Seat)
    [slow, _] = request.tool_calls
    assert report == Drained(finished=1, ended=1, unknown=(UnknownCall(tool="sleep_and_tell", call_id=slow["id"]),))
    assert [message.status for message in results[0]] == ["error", "success"]
    assert "its pool of processes was drained" in results[0][0].content
    assert pool.pids == []
    async with pool:
        assert await pool.run(os.getpid) != os.getpid()
