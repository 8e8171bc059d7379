"""One run at a time holds a thread, across processes; other runs get an error, and no call runs twice."""

import logging
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError, GraphRecursionError, UnknownInterruptError
from langgraph.types import Command

from callboard import CallPolicy, Limit, ToolNode, create_react_agent
from callboard.conversations import _journal, _lease
from callboard.conversations._saved_thread import SavedThread
from callboard.conversations._saver import Saver
from callboard.conversations._storage import CHANNEL, FIRST_ID, Held, Left, entries_of
from callboard.exceptions import CallboardError, RunDeadlineExceededError, StorageError, ThreadBusyError
from callboard.testing import Recorder, ScriptedModel, calls

from ._forks import Forks
from ._graphs import delegate
from ._rival_agent import agent_in, thread
from ._savers import AT, FAR, ON_DISK, QUESTION, SAVERS, Recording, complaint, forge, saver_of, say, scripted, shape

pytestmark = pytest.mark.real_clock

ROUNDS = 15
# In another process.


DONE = {"said": ["go", "", "w1 is done", "w2 is done", "done"]}


async def stop_before_calls(directory: Path, saver: str, rounds: int) -> None:
    """Threads that are ready to continue with `None`."""
    async with saver_of(saver, directory / "db") as opened_saver:
        for number in range(rounds):
            agent = agent_in(directory / "log", opened_saver)
            await agent.ainvoke(QUESTION, thread(number), interrupt_before=["tools"])


@pytest.mark.parametrize(
    ("saver", "backends"),
    [("sqlite", ["asyncio", "trio"]), ("aiosqlite", ["asyncio", "asyncio"]), ("aiosqlite", ["trio", "trio"])],
)
@pytest.mark.exhaustive
def test_of_two_processes_that_resume_a_thread_at_once_exactly_one_wins(
    forks: Forks, saver: str, backends: list[str], tmp_path: Path
) -> None:
    anyio.run(stop_before_calls, tmp_path, saver, ROUNDS)
    with Forks() as other_forks:
        rivals = forks, other_forks
        for number in range(ROUNDS):
            start_time = time.monotonic() + 0.2
            for rival, backend in zip(rivals, backends, strict=True):
                rival.begin("agent._rival_agent", "hold", str(tmp_path), saver, backend, number, start_time)
            answers = [rival.answer() for rival in rivals]
            assert answers.count("held") == 1, answers
            winner_index = answers.index("held")
            winner = rivals[winner_index]
            winner.tell()

            assert answers[1 - winner_index] == {"busy": f"process {winner.pid} on {socket.gethostname()}"}
            assert winner.answer() == DONE
            ran = (tmp_path / f"log {number}").read_text().splitlines()
            assert sorted(ran) == [f"w1 in {winner.pid}", f"w2 in {winner.pid}"]
            for rival in rivals:
                rival.end()


@pytest.mark.parametrize("saver", ON_DISK)
@pytest.mark.exhaustive
async def test_a_killed_holder_is_passed_over_at_once(forks: Forks, saver: str, tmp_path: Path) -> None:
    """The next run does not wait for the lease, even while the holder is still a zombie."""
    await stop_before_calls(tmp_path, saver, 1)
    forks.begin("agent._rival_agent", "hold", str(tmp_path), saver, "asyncio", 0, 0.0)
    assert forks.answer() == "held"
    async with saver_of(saver, tmp_path / "db") as opened_saver:
        agent = agent_in(tmp_path / "log 0", opened_saver)
        with pytest.raises(ThreadBusyError, match=f"process {forks.pid} on"):
            await agent.ainvoke(None, thread(0))
        forks.kill()
        result = await agent.ainvoke(None, thread(0))
    forks.tell()
    assert shape(result)[2:] == ["tool:w1 is done", "tool:w2 is done", "ai:done"]
    assert complaint(result["messages"]) is None


async def test_where_a_live_process_once_ran_anybody_may_fork(forks: Forks, tmp_path: Path) -> None:
    """A finished run does not block a fork of its thread from the history, although its process lives."""
    await stop_before_calls(tmp_path, "sqlite", 1)
    forks.begin("agent._rival_agent", "run", str(tmp_path), "sqlite", "asyncio", 0, 0.0)
    try:
        assert forks.answer() == DONE
        async with saver_of("sqlite", tmp_path / "db") as opened_saver:
            agent = agent_in(tmp_path / "log", opened_saver)
            snapshots = [snapshot async for snapshot in agent.aget_state_history(thread(0))]
            results = [
                await agent.ainvoke(None, snapshot.config) for snapshot in snapshots if snapshot.next == ("agent",)
            ]
    finally:
        forks.end()
    assert results
    assert {result["messages"][-1].content for result in results} == {"done"}


def holds(saver: Recording) -> list[dict[str, Any]]:
    return [entry["holder"] for entry in saver.entries if entry["kind"] == "hold"]


def is_held(saver: Any) -> bool:
    """Return whether other processes would see the thread as held."""
    last = [entry for entry in entries_of(saver.get_tuple(AT)) if isinstance(entry, (Held, Left))][-1:]
    return any(isinstance(entry, Held) for entry in last)


async def test_a_cancelled_run_gives_up_a_thread_that_it_has_not_moved() -> None:
    """Its end is stored on trio, too. Otherwise other machines would wait for the end of the lease."""
    saver, begun = InMemorySaver(), anyio.Event()

    async def work() -> None:
        """Work."""
        begun.set()
        await anyio.sleep_forever()

    agent = scripted([calls("work")], [work], checkpointer=saver)
    await agent.ainvoke(QUESTION, AT, interrupt_before=["tools"])
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ainvoke, None, AT)
        await begun.wait()
        assert is_held(saver)
        group.cancel_scope.cancel()

    assert not is_held(saver)


@asynccontextmanager
async def running(agent: Any, recorder: Recorder, **options: Any) -> AsyncGenerator[list[Any]]:
    """Start a run, let the block run while the run is in its first call `work`, then wait for the run."""
    results: list[Any] = []

    async def run() -> None:
        results.append(await agent.ainvoke(QUESTION, AT, **options))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await recorder.wait_for("started")
        yield results
        release.set()


release = anyio.Event()


def make_held_agent(script: list[Any], recorder: Recorder, saver: Any, **options: Any) -> Any:
    """An agent whose tool runs until the test lets it end."""
    global release
    release = anyio.Event()
    tool = recorder.tool("work")
    body = tool.coroutine
    assert body is not None

    async def work(query: str = "") -> Any:
        """Work."""
        result = await body(query)
        await release.wait()
        return result

    return scripted(script, [work], loop=True, checkpointer=saver, **options)


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("kind", SAVERS)
async def test_of_two_tasks_one_is_told(kind: str, durability: Any, tmp_path: Path) -> None:
    recorder = Recorder()
    async with saver_of(kind, tmp_path / "db") as saver:
        agent = make_held_agent([calls("work"), "done"], recorder, saver)
        async with running(agent, recorder, durability=durability):
            with pytest.raises(
                ThreadBusyError, match=f"The thread '1' is being run by process {os.getpid()}"
            ) as caught:
                await agent.ainvoke(say("and me?"), AT)
        result = await agent.ainvoke(QUESTION, AT)
    assert isinstance(caught.value, CallboardError)
    assert (caught.value.thread_id, caught.value.holder.split()[1]) == ("1", str(os.getpid()))
    assert shape(result["messages"][:4]) == ["human:go", "ai:", "tool:work", "ai:done"]
    assert "human:and me?" not in shape(result)
    assert complaint(result["messages"]) is None


@pytest.mark.parametrize("kind", SAVERS)
async def test_of_many_that_begin_at_once_one_wins(kind: str, tmp_path: Path) -> None:
    recorder = Recorder()
    answers: list[Any] = []
    async with saver_of(kind, tmp_path / "db") as saver:
        agent = make_held_agent([calls("work"), "done"], recorder, saver)

        async def run(number: int) -> None:
            try:
                answers.append(await agent.ainvoke(say(str(number)), AT))
            except ThreadBusyError as error:
                answers.append(error)
                if len(answers) == 7:
                    release.set()

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(run, number)
        state = await agent.aget_state(AT)

    (won,) = [answer for answer in answers if isinstance(answer, dict)]
    assert recorder.count("started") == 1
    assert state.values["messages"] == won["messages"]
    assert len(won["messages"]) == 4


async def test_threads_and_their_namesakes_elsewhere_are_not_held() -> None:
    recorder = Recorder()
    agent = make_held_agent([calls("work"), "done"], recorder, InMemorySaver())
    other_agent = scripted(["hi"], [], loop=True, checkpointer=InMemorySaver())
    same_saver_agent = scripted(["hi"], [], loop=True, checkpointer=agent.checkpointer)
    async with running(agent, recorder):
        await other_agent.ainvoke(QUESTION, AT)
        result = await same_saver_agent.ainvoke(QUESTION, {"configurable": {"thread_id": "u"}})
    assert result["messages"][-1].content == "hi"


async def test_a_stream_holds_like_any_run_and_is_told_like_any_run() -> None:
    saver, gate = Recording(), anyio.Event()

    async def wait() -> str:
        """Wait."""
        await gate.wait()
        return ""

    agent = scripted([calls("wait"), "hi"], [wait], loop=True, checkpointer=saver)
    async with aclosing(agent.astream(QUESTION, AT, stream_mode="values")) as stream:
        await anext(stream)  # the run goes on after its reader has left, up to the gate
        with pytest.raises(ThreadBusyError):
            await agent.ainvoke(QUESTION, AT)
        with pytest.raises(ThreadBusyError):
            [chunk async for chunk in agent.astream(QUESTION, AT)]
    gate.set()
    result = await agent.ainvoke(QUESTION, AT)
    assert result["messages"][-1].content == "hi"
    assert not is_held(saver)


async def _cancel_run(agent: Any, recorder: Recorder) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ainvoke, QUESTION, AT)
        await recorder.wait_for("started")
        group.cancel_scope.cancel()


async def _spent(agent: Any, recorder: Recorder) -> None:
    with pytest.raises(RunDeadlineExceededError):
        await agent.ainvoke(QUESTION, AT, budget=0.2)


async def _leave_stream(agent: Any, recorder: Recorder) -> None:
    async with aclosing(agent.astream(QUESTION, AT, stream_mode="values")) as stream:
        await anext(stream)


async def _stop_at_interrupt(agent: Any, recorder: Recorder) -> None:
    await agent.ainvoke(QUESTION, AT, interrupt_before="*")


async def _out_of_steps(agent: Any, recorder: Recorder) -> None:
    with pytest.raises(GraphRecursionError):
        await agent.ainvoke(QUESTION, {**AT, "recursion_limit": 1})


async def _without_input(agent: Any, recorder: Recorder) -> None:
    with pytest.raises(EmptyInputError):
        await agent.ainvoke({"question": 1}, AT)


async def _answering_nobody(agent: Any, recorder: Recorder) -> None:
    with pytest.raises(UnknownInterruptError):
        await agent.ainvoke(Command(resume="yes"), AT)


ENDS = [_cancel_run, _spent, _leave_stream, _stop_at_interrupt, _out_of_steps, _without_input, _answering_nobody]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__[1:])
async def test_whatever_ends_a_run_the_thread_is_let_go(end: Any) -> None:
    recorder, saver = Recorder(), Recording()
    agent = make_held_agent([calls("work"), "done"], recorder, saver)
    await end(agent, recorder)
    assert not is_held(saver)
    other_agent = scripted(["hi"], [], checkpointer=saver)
    result = await other_agent.ainvoke(say("hello"), AT)
    assert holds(saver)
    assert shape(result)[-2:] == ["human:hello", "ai:hi"]
    assert complaint(result["messages"]) is None
    assert not is_held(saver)


async def test_a_run_that_could_not_take_hold_holds_nothing() -> None:
    class Shaky(InMemorySaver):
        reads = 0

        def get_tuple(self, config: Any) -> Any:
            self.reads += 1
            if self.reads == 2:
                raise OSError("the line is dead")
            return super().get_tuple(config)

    agent = scripted(["hi"], [], checkpointer=Shaky())
    with pytest.raises(OSError, match="the line is dead"):
        await agent.ainvoke(QUESTION, AT)
    result = await agent.ainvoke(QUESTION, AT)
    assert result["messages"][-1].content == "hi"


@pytest.mark.parametrize("kind", SAVERS)
async def test_nothing_to_go_on_with_is_an_error_still(kind: str, tmp_path: Path) -> None:
    async with saver_of(kind, tmp_path / "db") as saver:
        agent = scripted(["hi"], [], checkpointer=saver)
        for _ in range(2):
            with pytest.raises(EmptyInputError, match="An agent starts from messages"):
                await agent.ainvoke(None, AT)


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> float:
    """A lease of a few seconds."""
    lease = 0.06
    for module in (_lease, _journal):
        monkeypatch.setattr(module, "LEASE", lease)
    return lease


async def test_a_run_that_goes_on_prolongs_its_lease(short_lease: float) -> None:
    recorder, saver = Recorder(), Recording()
    agent = make_held_agent([calls("work"), "done"], recorder, saver)
    async with running(agent, recorder):
        while len(holds(saver)) < 4:
            await anyio.sleep(0.001)
    count = len(holds(saver))
    await anyio.sleep(2 * short_lease)
    assert len({holder["token"] for holder in holds(saver)}) == 1
    ends = [holder["until"] for holder in holds(saver)]
    assert ends == sorted(set(ends))
    times = [moment for entry, moment in zip(saver.entries, saver.times, strict=True) if entry["kind"] == "hold"]
    # No holder claims the thread for longer than one lease from now on.
    assert all(end <= moment + short_lease for end, moment in zip(ends, times, strict=True))
    assert len(holds(saver)) == count
    assert not is_held(saver)


async def test_a_run_that_waits_for_a_background_call_prolongs_its_lease(short_lease: float) -> None:
    """Nothing else happens in the run then, and no other machine may take the thread meanwhile."""
    saver, is_built = Recording(), anyio.Event()

    async def build() -> str:
        """Build."""
        await is_built.wait()
        return "built"

    model = ScriptedModel([calls("build"), "meanwhile", "done"])
    node = ToolNode([build], policies={"build": CallPolicy(background=True)})
    async with create_react_agent(model, node, checkpointer=saver) as agent:
        run = await agent.start(QUESTION, AT)
        while len(model.requests) < 2:
            await anyio.sleep(0.001)
        count = len(holds(saver))
        while len(holds(saver)) < count + 4:
            await anyio.sleep(0.001)
        is_built.set()
        result = await run.result()
    assert result["messages"][-1].content == "done"
    assert len({holder["token"] for holder in holds(saver)}) == 1
    assert not is_held(saver)


async def test_a_write_that_fails_does_not_end_the_prolonging(
    short_lease: float, caplog: pytest.LogCaptureFixture
) -> None:
    """A locked database must not stop the renewals, or another machine would take the thread."""
    recorder, saver = Recorder(), Recording()
    agent = make_held_agent([calls("work"), "done"], recorder, saver)
    with caplog.at_level(logging.CRITICAL, "callboard"):
        async with running(agent, recorder) as results:
            saver.fails_at = "hold"
            with anyio.move_on_after(20 * short_lease):
                while saver.fails_at or len(holds(saver)) < 4:
                    await anyio.sleep(0.001)
            prolonged = len(holds(saver))
    assert prolonged >= 4
    assert results[0]["messages"][-1].content == "done"


async def test_agents_within_a_call_need_not_hold() -> None:
    """Inner agents belong to their caller, and two calls may run the same agent concurrently."""
    recorder, saver = Recorder(), Recording()
    inner = scripted(
        [lambda messages: calls("work") if len(messages) == 1 else "inner"],
        [recorder.tool("work", seconds=0.02)],
        loop=True,
    )
    outer = scripted([calls("inner", "inner"), "done"], [delegate(inner, "inner")], checkpointer=saver)
    result = await outer.ainvoke(QUESTION, AT)
    assert shape(result)[2:] == ["tool:inner", "tool:inner", "ai:done"]
    assert recorder.peak == 2
    assert len(holds(saver)) == 1


async def test_with_durability_exit_nobody_is_told() -> None:
    saver = Recording()
    agent = scripted(["hi"], [], loop=True, checkpointer=saver)
    async with aclosing(agent.astream(QUESTION, AT, stream_mode="values", durability="exit")) as stream:
        await anext(stream)
        result = await agent.ainvoke(QUESTION, AT, durability="exit")
    assert result["messages"][-1].content == "hi"
    assert holds(saver) == []


async def test_with_durability_exit_a_run_is_told_all_the_same() -> None:
    """Such a run is refused while another run holds the thread, because one of the two would lose its data."""
    recorder = Recorder()
    agent = make_held_agent([calls("work"), "done"], recorder, InMemorySaver())

    async with running(agent, recorder):
        with pytest.raises(ThreadBusyError):
            await agent.ainvoke(say("me too"), AT, durability="exit")


@pytest.mark.parametrize("kind", SAVERS)
async def test_the_state_may_be_looked_at_and_not_changed_while_a_run_goes_on(kind: str, tmp_path: Path) -> None:
    """A reader sees the stored part of the run. A change could replace a result, or the run could overwrite it."""
    recorder = Recorder()
    async with saver_of(kind, tmp_path / "db") as saver:
        agent = make_held_agent([calls("work"), "done"], recorder, saver)
        async with running(agent, recorder, durability="sync") as results:
            state = await agent.aget_state(AT)
            snapshots = [snapshot async for snapshot in agent.aget_state_history(AT)]
            with pytest.raises(ThreadBusyError):
                await agent.aupdate_state(AT, say("psst"))
        await agent.aupdate_state(AT, say("now"))
        after = await agent.aget_state(AT)
    assert shape(state.values) == ["human:go", "ai:"]
    assert state.next == ("tools",)
    assert len(snapshots) >= 2
    assert shape(results[0]) == ["human:go", "ai:", "tool:work", "ai:done"]
    assert after.values["messages"][:-1] == results[0]["messages"]
    assert after.values["messages"][-1].content == "now"


async def test_no_hold_is_kept_in_memory_when_its_run_has_ended() -> None:
    """A process runs many threads, so records of ended runs would be a leak."""
    before = set(_lease._own_tokens)
    agent = scripted(["hi"], [], loop=True, checkpointer=InMemorySaver())
    for _ in range(3):
        await agent.ainvoke(QUESTION, AT)
    assert set(_lease._own_tokens) == before


class Raced(InMemorySaver):
    """Another run takes the thread just before the first write of this one; the look at it afterwards fails once."""

    looks = 0

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if self.looks < 2:
            other_hold = {"kind": "hold", "holder": {**FAR, "until": time.time() + 3600}}
            super().put_writes(config, [(CHANNEL, [other_hold])], task_id, task_path)
        super().put_writes(config, writes, task_id, task_path)

    def get_tuple(self, config: Any) -> Any:
        self.looks += 1
        if self.looks == 2:
            raise ConnectionError("cut off")
        return super().get_tuple(config)


async def test_a_run_that_cannot_see_whether_it_holds_the_thread_writes_nothing_more() -> None:
    """Its last checkpoint would hide the entries of the run that holds the thread."""
    saver = Raced()
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await scripted(["done"], [], checkpointer=saver).ainvoke(QUESTION, AT)
    assert [checkpoint_tuple.checkpoint["id"] for checkpoint_tuple in saver.list(AT)] == [FIRST_ID]


# The clocks of machines differ, are set, or stand still.


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
    fake_sleep = Slept()
    monkeypatch.setattr(_lease, "sleep", fake_sleep)
    return fake_sleep


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
    holder_fields, until, ahead, changes_at, over, waited = HOLDERS[holder]
    entry = {**holder_fields, "until": time.time() + until}
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


@pytest.mark.parametrize("change", ["run", "update", "copy"])
async def test_a_holder_that_renews_nothing_for_a_lease_does_not_bar_an_earlier_place(
    change: str, slept: Slept
) -> None:
    """A machine that restarts has another boot: a fork must not wait until somebody has run the thread at its end."""
    saver = InMemorySaver()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, AT)
    earlier = (await agent.aget_state(AT)).config
    await agent.ainvoke(QUESTION, AT)
    _hold(saver, time.time() - 1)
    if change == "run":
        assert len((await agent.ainvoke(QUESTION, earlier))["messages"]) == 4
    else:
        await agent.aupdate_state(
            earlier, None if change == "copy" else say("more"), as_node="__copy__" if change == "copy" else None
        )

    assert slept.seconds == pytest.approx(_lease.LEASE)


@pytest.mark.parametrize("change", ["run", "update"])
async def test_a_holder_that_renews_its_lease_bars_an_earlier_place_too(change: str, slept: Slept) -> None:
    saver = InMemorySaver()
    agent = _agent(saver)
    await agent.ainvoke(QUESTION, AT)
    earlier = (await agent.aget_state(AT)).config
    await agent.ainvoke(QUESTION, AT)
    _hold(saver, time.time() - HOUR)
    slept.meanwhile[2] = lambda: _hold(saver, time.time() - HOUR + _lease.LEASE / 3)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await (agent.ainvoke(QUESTION, earlier) if change == "run" else agent.aupdate_state(earlier, say("more")))


@pytest.mark.parametrize(
    ("passed", "wall_seconds", "may_be_over"),
    [
        (20.0, 20.0, False),
        (61.0, 61.0, True),  # the holder was suspended
        (20.0, 20.0 + HOUR, True),  # the clock was set, or one clock stood still in a pause
        (20.0, 20.0 - HOUR, True),
    ],
)
def test_a_holder_looks_before_it_writes_when_its_lease_may_be_over(
    passed: float, wall_seconds: float, may_be_over: bool, clocks: Clocks
) -> None:
    """The holder checks both clocks of its machine, monotonic and wall clock."""
    lease = _lease.OwnLease()
    clocks.append((100.0 + passed, 5_000.0 + wall_seconds))
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
    """Stands still before it stores an entry of the kind `stops_at`, while another run takes the thread."""

    stops_at = ""

    def __init__(self, clocks: Clocks) -> None:
        super().__init__()
        self._clocks = clocks

    def stand_still(self) -> None:
        self.stops_at = ""
        _hold(self, time.time() + HOUR)
        # The lease has ended, counted from its last renewal, and not from a renewal that is being written.
        self._clocks.append((160.0, 5_060.0))

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if self.stops_at in [entry["kind"] for channel, value in writes if channel == CHANNEL for entry in value]:
            self.stand_still()
        super().put_writes(config, writes, task_id, task_path)


@pytest.mark.parametrize("moment", ["claim", "later claim", "hold", ""])
async def test_a_holder_that_was_replaced_begins_no_call(
    moment: str, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
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
        saver.stops_at = "claim" if moment == "later claim" else ""
        return "charged"

    def think(state: Any) -> Any:
        saver.stops_at = "claim" if moment == "claim" else ""
        return {}

    async def late(request: Any, call_next: Any) -> Any:
        if moment == "hold":
            clocks.append((120.0, 5_020.0))
            saver.stops_at = moment
            while saver.stops_at:
                await anyio.sleep(0.001)
        elif not moment:
            saver.stand_still()
        return await call_next(request)

    node = ToolNode([charge], middleware=[late], policies={"charge": CallPolicy(limit=Limit(concurrency=1))})
    requested = ["charge"] * (2 if moment == "later claim" else 1)
    agent = scripted([calls(*requested), "done"], node, checkpointer=saver, pre_model_hook=think)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await agent.ainvoke(QUESTION, AT)
    assert began == requested[1:]


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
        await agent.ainvoke(QUESTION, AT)
        saver: Any = agent.checkpointer
        holders = [
            entry["holder"]
            for checkpoint_tuple in [saver.get_tuple(AT)]
            for _, channel, value in checkpoint_tuple.pending_writes
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
    earlier_tuples: list[Any] = []

    async def stands_still_before(self: SavedThread) -> None:
        await self._journal.flush(wait=True)
        _hold(saver, time.time() + HOUR)
        clocks.append((100.0 + 2 * HOUR, 5_000.0 + 2 * HOUR))
        earlier_tuples.extend(saver.list(AT))
        await leave(self)

    monkeypatch.setattr(SavedThread, "_store_final_state", stands_still_before)
    with pytest.raises(ThreadBusyError, match="process 1 on elsewhere"):
        await _agent(saver).ainvoke(QUESTION, AT)
    assert [checkpoint_tuple.checkpoint for checkpoint_tuple in saver.list(AT)] == [
        checkpoint_tuple.checkpoint for checkpoint_tuple in earlier_tuples
    ]


async def test_a_holder_trusts_its_lease_no_longer_than_others_do(
    clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other machines count from the time in the database, so a slow answer must not prolong the lease."""
    leases: list[_lease.OwnLease] = []
    renew = _lease.OwnLease.renew

    def record_renewal(self: _lease.OwnLease, since: tuple[float, float]) -> None:
        leases.append(self)
        renew(self, since)

    async def slow_clock(self: Saver) -> float:
        clocks.append((100.0 + 50, 5_000.0 + 50))
        return 5_000.0

    monkeypatch.setattr(_lease.OwnLease, "renew", record_renewal)
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
