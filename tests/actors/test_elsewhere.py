"""Actors on an engine: they start, answer, fail and restart like actors in this process."""

import math
import threading
from typing import Any

import anyio
import pytest

from callboard import (
    Actor,
    ActorDiedError,
    ActorGoneError,
    ActorStartError,
    EngineError,
    Reply,
    SupervisorError,
    ToolNode,
    child,
    handler,
    keyed,
    progress,
    remaining,
    running,
    tool_call,
)
from callboard.actors import _engine_runner
from callboard.actors._actor import Lifespan
from tests.engines._fake import FakeEngine
from tests.helpers import BrokenError, contents, keep, until

log: list[Any] = []
gates: dict[str, anyio.Event] = {}


@pytest.fixture(autouse=True)
def _clear_log() -> None:
    log.clear()
    gates.clear()


class Notebook(Actor):
    """Actor whose lines are kept in snapshots."""

    fatal = (BrokenError,)
    groups = {"reads": 2}

    def __init__(self, title: str, *, lines: tuple[str, ...] = ()) -> None:
        self.title = title
        self.lines = list(lines)

    async def start(self) -> None:
        log.append(("start", self.title, self.key))

    async def stop(self) -> None:
        log.append(("stop", self.title, len(self.lines)))

    @handler
    async def append(self, text: str) -> int:
        """Write a line."""
        self.lines.append(text)
        return len(self.lines)

    @handler
    async def size(self) -> int:
        """How many lines there are."""
        return len(self.lines)

    @handler
    def where(self) -> tuple[int, int]:
        """In which thread this runs, and how many lines there are."""
        return threading.get_ident(), len(self.lines)

    @handler(group="reads")
    async def read(self) -> str:
        """All lines."""
        if "reading" in gates:
            await gates["reading"].wait()
        return "\n".join(self.lines)

    @handler
    async def fail(self, broken: bool) -> None:
        """Raise an error."""
        raise BrokenError("broken") if broken else ValueError("no")

    @handler
    async def wait(self) -> None:
        """Wait for ever."""
        try:
            log.append(("waits", remaining()))
            progress("still waiting")
            await anyio.sleep(math.inf)
        finally:
            log.append("waits no more")

    @handler(deferred=True)
    async def later(self, reply: Reply[str], text: str) -> None:
        """Answer when the gate is open."""

        async def answer() -> None:
            await gates["later"].wait()
            reply.send(text)

        log.append(answer)

    @handler
    async def exit(self) -> None:
        """End the worker's code."""
        raise SystemExit(3)


class Counter(Actor):
    """Keyed actor whose count is kept in snapshots."""

    def __init__(self) -> None:
        self.count = 0

    @handler
    async def add(self) -> int:
        """One more."""
        self.count += 1
        return self.count

    async def snapshot(self) -> int:
        return self.count

    async def restore(self, snapshot: int) -> None:
        if snapshot < 0:
            raise ValueError(f"{snapshot} is less than nothing")
        self.count = snapshot


async def test_an_actor_elsewhere_lives_and_answers_as_one_here() -> None:
    engine = FakeEngine()
    async with running(child(Notebook("notes", lines=("first",)), runs_in=engine)) as notebook:
        assert engine.seats == 1
        assert await notebook.append("second") == 2
        assert await notebook.size() == 2
        assert await notebook.read() == "first\nsecond"

    assert log == [("start", "notes", None), ("stop", "notes", 2)]
    assert (engine.seats, engine.opened) == (0, 0)
    assert engine.bodies[:2] == ["Notebook.start", "Notebook"]  # one more call waits for the end of the actor
    assert engine.bodies[2:] == ["Notebook.append", "Notebook.size", "Notebook.read", "Notebook.stop"]


@pytest.mark.real_clock
async def test_plain_handlers_run_in_a_thread_of_the_actor_there() -> None:
    """Plain handlers of a remote actor share one thread that is not the event loop's, so thread-bound state works."""
    with anyio.fail_after(5):
        async with running(child(Notebook("notes"), runs_in=FakeEngine())) as notebook:
            thread, size = await notebook.where()
            assert (thread, size) == await notebook.where()
    assert thread != threading.get_ident()


@pytest.mark.parametrize("fatal", ["BrokenError", "SystemExit"])
async def test_errors_of_handlers_are_their_callers_and_fatal_ones_end_it(fatal: str) -> None:
    """`sys.exit()` in a handler ends this life only: its caller gets an error, and the next life begins."""
    engine = FakeEngine()
    async with running(child(Notebook, "notes", runs_in=engine)) as notebook:
        await notebook.append("lost")
        with pytest.raises(ValueError, match="no"):
            await notebook.fail(False)
        assert await notebook.size() == 1
        with pytest.raises(ActorDiedError, match=fatal):
            await (notebook.exit() if fatal == "SystemExit" else notebook.fail(True))
        assert await notebook.size() == 0
    assert [entry for entry in log if entry[0] == "start"] == [("start", "notes", None)] * 2


async def test_whoever_asks_when_its_worker_dies_is_told_and_the_next_life_begins() -> None:
    engine = FakeEngine()
    async with running(child(Notebook, "notes", runs_in=engine)) as notebook, anyio.create_task_group() as group:
        outcomes: list[Any] = []
        group.start_soon(keep, outcomes, notebook.wait())
        await until(lambda: bool(log[1:]))
        group.start_soon(keep, outcomes, notebook.size())
        await anyio.sleep(0)
        engine.kill()
        await until(lambda: len(outcomes) == 2)

    assert isinstance(outcomes[0], ActorDiedError)
    assert "its worker was killed by SIGKILL" in str(outcomes[0])
    assert outcomes[1] == 0


@pytest.mark.parametrize(("recurs", "times"), [(True, 1), (False, 2)])
async def test_a_call_that_ended_its_worker_itself_is_not_run_again(recurs: bool, times: int) -> None:
    """A call that kills its worker would kill the next one, too.

    A call whose worker was killed by another process may succeed.
    """
    engine = FakeEngine()
    node = ToolNode([child(Notebook, "notes", runs_in=engine)], on_unknown="rerun")
    async with node, anyio.create_task_group() as group:
        results: list[Any] = []
        group.start_soon(keep, results, node.ainvoke([tool_call("wait", "1")]))
        await until(lambda: engine.bodies.count("Notebook.wait") + engine.bodies.count("wait") == 1)
        engine.kill("its worker exited with code 3", recurs=recurs)
        if not recurs:
            await until(lambda: engine.bodies.count("Notebook.wait") + engine.bodies.count("wait") == 2)
            engine.kill("its worker exited with code 3", recurs=True)

    assert engine.bodies.count("Notebook.wait") + engine.bodies.count("wait") == times
    assert contents(results[0])[0].endswith("What Notebook held is lost. Find out before you call it again.")


async def test_one_that_dies_while_nobody_asks_is_started_again_until_its_supervisor_gives_up() -> None:
    engine = FakeEngine()
    with pytest.raises(SupervisorError):
        async with running(child(Notebook, "notes", runs_in=engine, intensity=2)) as notebook:
            for lives in range(1, 4):
                await until(lambda lives=lives: len(log) == lives)  # type: ignore[misc]
                assert await notebook.size() == 0
                engine.kill()
            await anyio.sleep(math.inf)
    assert log == [("start", "notes", None)] * 3


async def test_a_deferred_reply_is_sent_from_there() -> None:
    engine = FakeEngine()
    gates["later"] = anyio.Event()
    async with running(child(Notebook, "notes", runs_in=engine)) as notebook, anyio.create_task_group() as group:
        replies: list[str] = []
        group.start_soon(keep, replies, notebook.later("at last"))
        await until(lambda: len(log) == 2)
        assert await notebook.size() == 0
        group.start_soon(log[1])
        gates["later"].set()
        await until(lambda: bool(replies))
    assert replies == ["at last"]


async def test_a_state_is_kept_and_comes_back() -> None:
    engine = FakeEngine()
    async with keyed(child(Counter, cap=1, runs_in=engine)) as counters:
        assert await counters["a"].add() == 1
        assert await counters["b"].add() == 1
        assert await counters["a"].add() == 2
    async with running(child(Counter, runs_in=engine, save="each_call")) as counter:
        assert await counter.add() == 1
        engine.kill()
        assert await counter.add() == 2


async def test_a_snapshot_that_is_not_taken_is_told_with_what_it_said() -> None:
    class Store:
        async def load(self, actor: str, key: object) -> object:
            return -1

        async def save(self, actor: str, key: object, snapshot: object) -> None: ...

    with pytest.raises(ActorStartError, match="-1 is less than nothing"):
        async with running(child(Counter, runs_in=FakeEngine(), snapshots=Store())):
            pass


async def test_what_cannot_cross_is_told_before_anything_runs() -> None:
    """A class that cannot be imported elsewhere is refused when the terms are made.

    Bad arguments are refused at the start.
    """

    class Local(Actor):
        @handler
        async def run(self) -> None: ...

    engine = FakeEngine()
    with pytest.raises(TypeError, match="'Local' cannot run elsewhere"):
        child(Local, runs_in=engine)
    with pytest.raises(TypeError, match=r"runs_in is an engine, such as Processes\(workers=2\).*got 'pool'"):
        child(Notebook, "notes", runs_in="pool")  # type: ignore[arg-type]
    with pytest.raises(ActorStartError, match="cannot be pickled") as caught:
        async with running(child(Notebook, lambda: "notes", runs_in=engine)):  # type: ignore[arg-type]
            pass
    assert caught.value.is_permanent
    assert log == []


async def test_a_seat_that_is_refused_is_no_life() -> None:
    engine = FakeEngine()
    engine.refuse("it has no room")
    with pytest.raises(ActorStartError, match="it has no room"):
        async with running(child(Notebook, "notes", runs_in=engine)):
            pass
    with pytest.raises(ActorGoneError):
        async with running(child(Notebook, "notes", runs_in=engine)) as notebook:
            pass
        await notebook.size()


class Asker(Actor):
    """Actor whose handlers raise errors of engines and of other actors."""

    def __init__(self) -> None:
        self.ask_count = 0

    @handler
    async def ask(self, ended: str) -> None:
        """Fail as somebody else did."""
        self.ask_count += 1
        if ended == "died":
            raise ActorDiedError("other", None, "another actor died")
        raise EngineError("other", None, "another worker was killed", ended=ended)  # type: ignore[arg-type]

    @handler
    async def times(self) -> int:
        """How often that was."""
        return self.ask_count

    @handler(deferred=True)
    async def slowly(self, reply: Reply[str]) -> None:
        """Take the reply along, after a long while."""
        log.append("begun")
        try:
            await anyio.sleep(100)
        finally:
            log.append("cancelled")
        reply.send("never")

    @handler(deferred=True)
    async def keep(self, reply: Reply[str]) -> None:
        """Take the reply along, for good."""
        log.append(reply)


@pytest.mark.parametrize("ended", ["died", "unknown", "unavailable", "finished"])
async def test_what_a_handler_says_of_others_is_not_taken_for_its_own_end(ended: str) -> None:
    """An error about another pool or actor is an ordinary error of the handler.

    The actor lives on, and no call is repeated.
    """
    async with running(child(Asker, runs_in=FakeEngine())) as asker:
        with pytest.raises((ActorDiedError, EngineError), match="another"):
            await asker.ask(ended)
        assert await asker.times() == 1


async def test_a_handler_that_takes_its_reply_along_is_cancelled_there_before_it_has() -> None:
    async with running(child(Asker, runs_in=FakeEngine())) as asker:
        with anyio.move_on_after(1):
            await asker.slowly()
        assert log == ["begun", "cancelled"]
        assert await asker.times() == 0


async def test_whoever_is_owed_a_reply_by_a_worker_that_dies_is_told_as_others_are() -> None:
    engine = FakeEngine()
    async with running(child(Asker, runs_in=engine)) as asker, anyio.create_task_group() as group:
        errors: list[BaseException] = []
        group.start_soon(keep, errors, asker.keep())
        await until(lambda: bool(log))
        engine.kill()
        await until(lambda: bool(errors))
        assert engine.bodies.count("Asker.start") == 1
        await until(lambda: engine.bodies.count("Asker.start") == 2)
        log.clear()
    assert isinstance(errors[0], ActorDiedError)
    assert "its worker was killed by SIGKILL" in str(errors[0])


class Slow(Actor):
    """Actor whose `start` never returns."""

    async def start(self) -> None:
        gates["starts"].set()
        await anyio.sleep_forever()


async def test_an_actor_that_is_stopped_during_its_start_raises_the_error_of_its_start() -> None:
    """The supervisor decides by the error of the start whether to retry. A `KeyError` would be no help."""
    gates["starts"] = anyio.Event()
    description = _engine_runner.Description("slow", Slow, (), {}, None)
    caught: list[BaseException] = []
    async with anyio.create_task_group() as group:
        group.start_soon(keep, caught, _engine_runner.start("1", description, Lifespan(), None))
        await gates["starts"].wait()
        await _engine_runner.stop("1")

    assert [type(error) for error in caught] == [ActorStartError]
