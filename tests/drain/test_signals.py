"""Signals: a process drains its objects in stages and knows its exit code."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import Drained, DrainingError, ToolNode, UnknownCall, drain_on_signal
from callboard.testing import Recorder, calls

WAIT = 100
UNKNOWN = UnknownCall(tool="pay")


class Fake:
    """Object that takes so many seconds to drain and returns a given report."""

    def __init__(self, name: str, log: list[str], seconds: float = 0.0, report: Drained | None = None) -> None:
        self.name, self.log, self.seconds = name, log, seconds
        self.report = Drained(finished=1) if report is None else report

    async def drain(self, timeout: float) -> Drained:
        self.log.append(f"{self.name}, {timeout:g} s")
        await anyio.sleep(min(self.seconds, timeout))
        self.log.append(f"{self.name} done")
        return self.report


@contextmanager
def _handler(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        assert signal.signal(number, before) is handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_one_stage_after_the_other_and_ends_the_block(number: signal.Signals) -> None:
    log: list[str] = []
    agents = [Fake("one", log, 3.0), Fake("two", log, 2.0)]
    engine = Fake("engine", log, 1.0, Drained(ended=1, unknown=(UNKNOWN,)))
    with _handler(signal.SIGTERM, signal.SIG_DFL), anyio.fail_after(WAIT):
        async with drain_on_signal(agents, engine, timeout=10) as shutdown:
            signal.raise_signal(number)
            while not shutdown.has_begun:
                await anyio.sleep(0)
            log.append("goes on")
            await anyio.sleep_forever()

    together = {"one, 10 s", "two, 10 s", "goes on"}
    assert set(log[:3]) == together
    assert log[3:] == ["two done", "one done", "engine, 7 s", "engine done"]
    assert shutdown.report == Drained(finished=2, ended=1, unknown=(UNKNOWN,))
    assert shutdown.exit_code == 4


async def test_a_server_that_hears_signals_is_told_and_leaves_the_block_itself() -> None:
    """Uvicorn leaves the block itself after its clients have their answers."""
    log: list[str] = []
    numbers: list[int] = []
    is_told = anyio.Event()

    def server(number: int, _: object) -> None:
        numbers.append(number)
        is_told.set()

    with _handler(signal.SIGTERM, server), anyio.fail_after(WAIT):
        async with drain_on_signal(Fake("agent", log, 1.0)) as shutdown:
            signal.raise_signal(signal.SIGTERM)
            await is_told.wait()
            await anyio.sleep(5)
            log.append("left by the server")
    assert numbers == [signal.SIGTERM]
    assert log == ["agent, 30 s", "agent done", "left by the server"]
    assert shutdown.exit_code == 0


async def test_a_second_signal_ends_what_runs_and_the_report_says_so() -> None:
    """The later stages get no time."""
    recorder, log = Recorder(), list[str]()
    node = ToolNode([recorder.tool("stuck", hang=True)])
    errors: list[bool] = []

    async def run() -> None:
        with pytest.raises(DrainingError) as ended:
            await node.ainvoke([calls("stuck")])
        errors.append(ended.value.begun)

    with _handler(signal.SIGTERM, signal.SIG_DFL), anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            async with drain_on_signal(node, Fake("engine", log, 5.0), timeout=10_000) as shutdown:
                group.start_soon(run)
                await recorder.wait_for("started")
                signal.raise_signal(signal.SIGTERM)
                while not shutdown.has_begun:
                    await anyio.sleep(0)
                await anyio.sleep(1)
                signal.raise_signal(signal.SIGTERM)
                await anyio.sleep_forever()
    assert errors == [True]
    assert log == ["engine, 0 s", "engine done"]
    assert [call.tool for call in shutdown.report.unknown] == ["stuck"]
    assert (shutdown.report.finished, shutdown.report.ended) == (1, 1)


async def test_a_block_that_is_left_is_drained_and_signals_mean_what_they_meant() -> None:
    """A lifespan may end without a signal; the former signal handlers are restored."""
    log: list[str] = []

    def handler(number: int, _: object) -> None:
        raise AssertionError(number)

    with _handler(signal.SIGTERM, handler), _handler(signal.SIGINT, handler), anyio.fail_after(WAIT):
        async with drain_on_signal(Fake("agent", log)) as shutdown:
            assert not shutdown.has_begun
    assert log == ["agent, 30 s", "agent done"]


async def test_who_is_cancelled_while_a_block_is_left_has_what_runs_ended_at_once() -> None:
    """No run may outlive the block."""
    recorder = Recorder()
    node = ToolNode([recorder.tool("stuck", hang=True)])

    async def run() -> None:
        with pytest.raises(DrainingError):
            await node.ainvoke([calls("stuck")])

    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await recorder.wait_for("started")
            with anyio.move_on_after(1):
                async with drain_on_signal(node, timeout=10_000) as shutdown:
                    pass
            assert recorder.running == 0
    assert shutdown.exit_code == 4


async def test_what_cannot_be_drained_hinders_nothing_else_and_is_an_error_at_the_end() -> None:
    """Other objects are drained first; an ended supervisor, for instance, raises its error afterwards."""
    log: list[str] = []

    class Broken:
        async def drain(self, timeout: float) -> Drained:
            raise RuntimeError("it is not running")

    with anyio.fail_after(WAIT), pytest.raises(RuntimeError, match="it is not running"):
        async with drain_on_signal(Broken(), Fake("engine", log)):
            pass
    assert log == ["engine, 30 s", "engine done"]


@pytest.mark.real_clock
def test_in_another_thread_things_are_drained_when_the_block_is_left() -> None:
    """A test client runs an application in another thread, which receives no signals."""
    log: list[str] = []

    async def lifespan() -> None:
        async with drain_on_signal(Fake("agent", log)):
            assert signal.getsignal(signal.SIGTERM) == before

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=anyio.run, args=(lifespan,))
    thread.start()
    thread.join(20)
    assert log[1:] == ["agent done"]


async def test_what_has_no_drain_is_refused_before_anything_begins() -> None:
    """A missing argument, a class instead of an object, and a timeout out of range are refused."""
    for wrong, kind, pattern in (
        ([], ValueError, "has nothing to drain"),
        ([object()], TypeError, r"takes what has a method drain\(timeout\)"),
        ([ToolNode], TypeError, "takes what has a method"),
    ):
        with pytest.raises(kind, match=pattern):
            async with drain_on_signal(*wrong):  # type: ignore[arg-type]
                pass
    with pytest.raises(ValueError, match=r"timeout=...\) must be 0 or more"):
        async with drain_on_signal(Fake("agent", []), timeout=-1):
            pass


@pytest.mark.real_clock
@pytest.mark.exhaustive
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("tool", "seconds", "expected", "code"),
    [("pay", 0.5, "paid", 0), ("look", 60.0, "ended, begun=True", 3), ("pay", 60.0, "ended, begun=True", 4)],
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_without_a_server_ends_with_the_code_of_its_drain(
    backend: str, tool: str, seconds: float, expected: str, code: int, number: signal.Signals
) -> None:
    """The signal comes from another process while the event loop is idle."""
    command = [sys.executable, "-m", f"{__package__}._script", backend, tool, str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[__name__.count(".")])}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        process.send_signal(number)
        output, errors = process.communicate(timeout=30)
    assert output == f"{expected}\n"
    assert process.returncode == code
    assert ("unknown: pay (call '" in errors) == (code == 4)
