"""A keyed actor has one instance in a fleet; other processes reach it there."""

import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span
from structlog.contextvars import bound_contextvars

from callboard import (
    ActorDiedError,
    CallPolicy,
    InMemorySnapshots,
    Supervisor,
    ToolNode,
    child,
    keyed,
    observe,
    running,
    tool_call,
)
from callboard.actors import _cell
from callboard.actors._keyed import FleetCell
from callboard.actors._mailbox import Mailbox, Poison
from tests.helpers import until

from ._memory import MemoryFleet, MemoryServer
from ._world import LOGS, Counter, Fleets, actions_in, two_processes

pytestmark = pytest.mark.real_clock


async def test_two_processes_that_ask_one_actor_reach_one_instance(fleets: Fleets, log: str) -> None:
    """The process that asks first owns the key; its token is that of the key."""
    async with two_processes(fleets, log) as (first_actors, second_actors):
        replies = [await actors["k"].up() for actors in (first_actors, second_actors, first_actors, second_actors)]
        in_thread = await second_actors["k"].up_in_thread()

    assert [number for number, _ in replies] == [1, 2, 3, 4]
    assert in_thread[0] == 5
    assert {token for _, token in [*replies, in_thread]} == {LOGS[log].lives[0][2]}
    assert [event for event, _, _ in LOGS[log].lives] == ["start", "stop"]


async def test_an_error_comes_back_as_itself(fleets: Fleets, log: str) -> None:
    """The error has its text and the traceback of the process that raised it."""
    async with two_processes(fleets, log) as (first_actors, second_actors):
        await first_actors["k"].up()

        with pytest.raises(LookupError, match="nothing there") as caught:
            await second_actors["k"].fail("nothing there")

    assert "in fail" in "".join(caught.value.__notes__)


async def test_a_reply_that_was_taken_along_comes_back(fleets: Fleets, log: str) -> None:
    """A deferred handler in another process can reply after it has returned."""
    async with two_processes(fleets, log) as (first_actors, second_actors):
        await first_actors["k"].up()

        assert await second_actors["k"].later("hello") == "hello"


async def test_a_cancel_reaches_the_owner(fleets: Fleets, log: str) -> None:
    """The handler has ended when the caller continues, and the next ask is handled."""
    done = actions_in(log)
    async with two_processes(fleets, log) as (first_actors, second_actors):
        await first_actors["k"].up()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second_actors["k"].hold, "it")
            await until(lambda: "it began" in done)
            tasks.cancel_scope.cancel()
        assert done == ["it began", "it was cancelled"]
        with anyio.fail_after(5):
            await second_actors["k"].up()


async def test_an_ask_that_waits_there_can_be_taken_back(fleets: Fleets, log: str) -> None:
    """A cancelled ask that is still in the mailbox never begins."""
    done = actions_in(log)
    async with two_processes(fleets, log) as (first_actors, second_actors), anyio.create_task_group() as tasks:
        await first_actors["k"].up()
        tasks.start_soon(first_actors["k"].hold, "first")
        await until(lambda: "first began" in done)
        with anyio.move_on_after(0.2):
            await second_actors["k"].note("second")
        tasks.cancel_scope.cancel()
    assert done == ["first began", "first was cancelled"]


async def test_asks_of_one_caller_stay_in_order(fleets: Fleets, log: str) -> None:
    """The order holds even if the asks are concurrent and the key has no owner at the first ask."""
    texts: list[str] = []

    async def ask(counter: Any, text: str) -> None:
        texts.append(text)
        await counter.note(text)

    async with two_processes(fleets, log) as (first_actors, second_actors):
        for key, owner in (("k", first_actors), ("k", second_actors), ("l", second_actors), ("l", first_actors)):
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(ask, owner[key], f"{key}{number}")
            assert LOGS[log].done == texts
            LOGS[log].done.clear()
            texts.clear()


@asynccontextmanager
async def elsewhere(fleets: Fleets, log: str, **policies: CallPolicy) -> AsyncGenerator[ToolNode]:
    """Open a node with an actor that another process owns."""
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=fleets()) as owner:
            await owner["k"].up()
            spec = child(Counter(log), key=lambda call: "k", fleet=fleets())
            async with ToolNode([spec], policies=policies) as node:
                yield node


async def test_budget_and_progress_cross(fleets: Fleets, log: str) -> None:
    """The handler sees the deadline of its caller, and the caller gets progress reports."""
    progress_messages: list[object] = []
    async with elsewhere(fleets, log, time_left=CallPolicy(budget=20.0)) as node:
        with observe(lambda event: progress_messages.append(event.message)):
            state = await node.ainvoke([tool_call("time_left", "c1")])

    assert 0 < float(state["messages"][0].content) <= 20.0
    assert "half way" in progress_messages


async def test_a_timeout_of_a_tool_call_ends_the_handler_elsewhere(fleets: Fleets, log: str) -> None:
    """The message reports the timeout, and the handler in the other process is cancelled."""
    async with elsewhere(fleets, log, hold=CallPolicy(timeout=0.5)) as node:
        state = await node.ainvoke([tool_call("hold", "c1", what="it")])
        assert LOGS[log].done == ["it began", "it was cancelled"]

    assert state["messages"][0].status == "error"


async def test_who_closes_hands_its_keys_over_at_once(fleets: Fleets, log: str) -> None:
    """States and higher tokens move to the next owner without waiting for a lease to expire."""
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=fleets(lease=20.0)) as second_actors:
            async with keyed(Counter(log), fleet=fleets(lease=20.0)) as first_actors:
                await first_actors["k"].up()
                _, first = await second_actors["k"].up()
            with anyio.fail_after(10):
                number, second = await second_actors["k"].up()

    assert number == 3
    assert first is not None
    assert second is not None
    assert second > first


async def test_who_goes_because_nobody_asks_gives_its_key_back(fleets: Fleets, log: str) -> None:
    """The state is saved before the key is released, so the next owner continues from it."""
    async with two_processes(fleets, log, idle=0.2) as (first_actors, second_actors):
        await first_actors["k"].up()
        await until(lambda: first_actors.statistics().alive == 0)
        await anyio.sleep(0.1)
        assert (await second_actors["k"].up())[0] == 2
        assert second_actors.statistics().alive == 1

    assert [event for event, _, _ in LOGS[log].lives] == ["start", "stop", "start", "stop"]


async def test_what_cannot_be_sent_is_named(fleets: Fleets, log: str) -> None:
    """An argument that cannot be pickled is an error only if it has to be sent to another process."""
    async with two_processes(fleets, log) as (first_actors, second_actors):
        await first_actors["k"].note(lambda: None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"Counter\.note cannot be sent .*: argument 1, of type function"):
            await second_actors["k"].note(lambda: None)  # type: ignore[arg-type]
        assert (await second_actors["k"].up())[0] == 1


def _fail_to_load() -> str:
    raise ModuleNotFoundError("No module named 'of_another_version'")


class KeyOfAnotherVersion(str):
    """Key that can be sent, and cannot be loaded where it arrives."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[], str], tuple[()]]:
        return _fail_to_load, ()


async def test_a_key_that_its_owner_cannot_load_is_an_error_of_its_ask(fleets: Fleets, log: str) -> None:
    """Versions of a program differ while it is deployed. The ask waited for ever, and the owner lost its connection."""
    key = KeyOfAnotherVersion("k")
    async with two_processes(fleets, log) as (first_actors, second_actors):
        assert await first_actors[key].up()
        with pytest.raises(ModuleNotFoundError, match="of_another_version"):
            await second_actors[key].up()
        assert (await first_actors[key].up())[0] == 2


async def test_many_keys_at_once_are_no_more_than_a_server_takes(fleets: Fleets, log: str) -> None:
    """All keys start at once and end at once; messages to the server stay within its limits."""
    # The usual lease: while 150 actors start at once, a busy machine may not renew the short lease of other tests.
    async with two_processes(lambda **_: fleets(lease=15.0), log) as (first_actors, second_actors):
        for actors in (first_actors, second_actors):
            async with anyio.create_task_group() as tasks:
                for number in range(150):
                    tasks.start_soon(actors[number].up)
        assert first_actors.statistics().alive == 150
        assert [(await second_actors[number].up())[0] for number in (0, 75, 149)] == [3, 3, 3]


async def test_terms_that_cannot_work_are_refused() -> None:
    """The error comes early and contains a remedy."""
    fleet = MemoryFleet(MemoryServer())
    with pytest.raises(ValueError, match="the next owner of a key cannot read"):
        child(Counter("-"), fleet=fleet, snapshots=InMemorySnapshots())
    with pytest.raises(ValueError, match="leave one out"):
        child(Counter("-"), fleet=fleet, snapshots="journal")
    with pytest.raises(TypeError, match="fleet is one such as"):
        child(Counter("-"), fleet="redis://localhost")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lives once for each key"):
        ToolNode([child(Counter("-"), fleet=fleet)])
    with pytest.raises(ValueError, match="lives once for each key"):
        Supervisor([child(Counter("-"), fleet=fleet)])
    with pytest.raises(ValueError, match="lives once for each key"):
        await running(Counter("-"), fleet=fleet).__aenter__()


async def test_trace_and_bound_values_cross(fleets: Fleets, log: str) -> None:
    """Trace and bound log values of the asker reach the handler; other context variables are not mixed."""
    async with two_processes(fleets, log) as (first_actors, second_actors):
        await first_actors["k"].up()
        span = NonRecordingSpan(SpanContext(7, 8, is_remote=False, trace_flags=TraceFlags(1)))
        with bound_contextvars(user="ada"), use_span(span):
            bound, trace = await second_actors["k"].around()
        assert (bound, trace) == ({"user": "ada"}, 7)
        assert await second_actors["k"].around() == ({}, 0)


def test_sync_code_asks_through_a_node(log: str) -> None:
    """`invoke` serves code without an event loop; each run acts as a process of the fleet."""
    server = MemoryServer()
    node = ToolNode([child(Counter(log), key=lambda call: "k", fleet=MemoryFleet(server))])

    contents = [node.invoke([tool_call("up", "c1")])["messages"][0].content for _ in range(2)]

    assert [content.split(",")[0] for content in contents] == ["[1", "[2"]
    assert not any(server.is_alive(member) for member in server.members)


async def test_a_handler_that_ends_its_actor_is_unknown_to_who_asked_from_elsewhere(fleets: Fleets, log: str) -> None:
    """The owner process continues and restarts the actor."""
    async with two_processes(fleets, log) as (first_actors, second_actors):
        await first_actors["k"].up()
        with pytest.raises(ActorDiedError):
            await second_actors["k"].give_up()
        assert (await second_actors["k"].up())[0] == 1
        assert (first_actors.statistics().alive, second_actors.statistics().alive) == (1, 0)


class _Counted:
    """Confirmation of a call that must run in this process."""

    def __init__(self) -> None:
        self.times = 0

    async def is_here(self) -> bool:
        return True

    def release_turn(self) -> None:
        self.times += 1


@pytest.mark.parametrize("backend_name", ["asyncio", "trio"])
def test_a_posting_of_one_thread_is_not_confirmed_for_the_call_of_another(
    monkeypatch: pytest.MonkeyPatch, backend_name: str
) -> None:
    """References may be used from several threads. A call that is not confirmed holds back the next one of its key."""
    cell = FleetCell("counter", Counter, Mailbox(9, "wait", {}), Poison(0))
    cell.gone_reason = None
    postings = [_Counted(), _Counted()]
    cell.fleet_host = SimpleNamespace(  # type: ignore[assignment]
        membership=SimpleNamespace(post=lambda ask: postings[ask.args[0]]),
        release_key_if_unused=lambda key: None,
        clean_up=1.0,
    )
    # Both threads have stored their confirmation before either puts its message into the mailbox.
    barrier, watched = threading.Barrier(2), _cell.observe_ask

    def observe_when_both(*args: Any) -> Any:
        barrier.wait(30)
        return watched(*args)

    monkeypatch.setattr(_cell, "observe_ask", observe_when_both)
    confirmed: dict[int, int] = {}

    async def ask(number: int) -> None:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(cell.ask, Counter._handlers["up"], (number,), {})
                await anyio.wait_all_tasks_blocked()
                confirmed[number] = postings[number].times
                group.cancel_scope.cancel()

    threads = [
        threading.Thread(target=anyio.run, args=(ask, number), kwargs={"backend": backend_name}) for number in (0, 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert confirmed == {0: 1, 1: 1}
