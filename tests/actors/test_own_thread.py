"""Plain functions of an actor: all run in one thread. Tests of calls that do not end when cancelled."""

import sqlite3
import threading
from collections.abc import Callable

import anyio
import pytest
from anyio import from_thread
from anyio.from_thread import check_cancelled

from callboard import AbandonedThreadWarning, Actor, CallPolicy, ToolNode, handler, running, tool_call

pytestmark = pytest.mark.real_clock


class Ledger(Actor):
    """Actor with a connection of sqlite3, which belongs to the thread that opened it."""

    def __init__(
        self, release: threading.Event, opened: list[int], closed: list[int], tell: Callable[[], None]
    ) -> None:
        self.release, self.opened, self.closed, self.tell = release, opened, closed, tell

    def start(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.opened.append(threading.get_ident())

    def stop(self) -> None:
        self.connection.close()
        self.closed.append(threading.get_ident())

    @handler
    def count(self) -> int:
        """Ask the database."""
        return int(self.connection.execute("select 1").fetchone()[0])

    @handler
    def wait(self, *, asks: bool) -> None:
        """Wait, and ask from time to time whether to go on."""
        self.tell()
        while not self.release.wait(0.01):
            if asks:
                check_cancelled()


class Both(Ledger):
    """Actor whose async handlers call its plain handlers."""

    @handler
    async def count_twice(self) -> int:
        """Ask the database twice."""
        return await self.count() + await self.count()

    @handler
    async def wait_for_it(self) -> None:
        """Wait, by the plain handler."""
        await self.wait(asks=True)

    @handler(group="reads")
    async def thread(self) -> int:
        """Say which thread that is."""
        return await self.here()

    @handler
    def here(self) -> int:
        """Say which thread this is, after a step in the event loop."""
        from_thread.run(anyio.sleep, 0)
        return threading.get_ident()


class Cancelled:
    """Record of a `Ledger` call that is cancelled halfway, and of the next call."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.began = threading.Event()
        self.opened: list[int] = []
        self.closed: list[int] = []

    async def run(self, *, asks: bool) -> None:
        ledger = Ledger(self.release, self.opened, self.closed, self.began.set)
        policy = CallPolicy(timeout=0.1, grace=5.0 if asks else 0.1)
        try:
            with anyio.fail_after(10):
                async with ToolNode([ledger], policies={"wait": policy}) as node:
                    assert await self._answer_of(node, "wait", asks=asks) == "{'ended': 'timeout'}"
                    assert self.began.is_set()
                    assert await self._answer_of(node, "count") == "1"
        finally:
            self.release.set()

    async def _answer_of(self, node: ToolNode, name: str, **args: object) -> str:
        message = (await node.ainvoke([tool_call(name, name, **args)]))["messages"][0]
        return str(message.additional_kwargs.get("callboard") or message.content)

    async def closes(self, times: int) -> None:
        with anyio.fail_after(5):
            while len(self.closed) < times or _threads():
                await anyio.sleep(0.01)


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "callboard actor Ledger"]


async def test_a_plain_handler_that_asks_is_cancelled_and_its_actor_lives_on() -> None:
    story = Cancelled()

    await story.run(asks=True)

    assert len(story.opened) == 1
    assert story.closed == story.opened
    await story.closes(1)


@pytest.mark.filterwarnings("ignore::callboard.AbandonedThreadWarning")
async def test_a_thread_that_does_not_end_costs_the_actor_its_life_and_closes_what_it_had_opened() -> None:
    story = Cancelled()

    await story.run(asks=False)

    await story.closes(2)
    assert len(set(story.opened)) == 2
    assert sorted(story.closed) == sorted(story.opened)


async def test_a_thread_that_does_not_end_is_named_in_a_warning() -> None:
    """The warning names the handler, so that its author can make it poll for cancellation."""
    with pytest.warns(AbandonedThreadWarning, match=r"the worker thread of Ledger\.wait goes on"):
        await Cancelled().run(asks=False)


async def test_a_plain_handler_that_an_async_one_awaits_runs_in_the_actors_thread() -> None:
    """In the loop's thread the database would refuse the call, and a blocking handler would block the loop."""
    opened: list[int] = []
    actor = Both(threading.Event(), opened, [], lambda: None)
    async with running(actor) as running_actor:
        assert await running_actor.count_twice() == 2
        assert await running_actor.thread() == opened[0] != threading.get_ident()


async def test_a_plain_handler_that_an_async_one_awaits_ends_when_that_one_is_cancelled() -> None:
    release = threading.Event()
    began = threading.Event()
    actor = Both(release, [], [], began.set)
    try:
        with anyio.fail_after(10):
            async with running(actor) as running_actor:
                with anyio.move_on_after(0.1):
                    await running_actor.wait_for_it()
                assert began.is_set()
                assert await running_actor.count() == 1
    finally:
        release.set()
