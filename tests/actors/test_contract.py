"""Tests of the actor contract: correct actors pass it, and it finds actors that break it."""

import sqlite3
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from callboard import Actor, ActorDiedError, child, handler, running
from callboard.testing import ActorContract, kill_actor, killing


class Notes(Actor):
    """Actor with lines that are kept in snapshots."""

    async def start(self) -> None:
        self.lines: list[str] = []

    async def snapshot(self) -> list[str]:
        return self.lines

    async def restore(self, snapshot: list[str]) -> None:
        self.lines = snapshot

    @handler
    async def append(self, text: str) -> int:
        """Append a line."""
        await anyio.sleep(0.01)
        self.lines.append(text)
        return len(self.lines)


class TestNotes(ActorContract):
    """An actor of plain state."""

    def actor(self) -> Notes:
        return Notes()

    async def ask(self, reference: Any) -> object:
        return await reference.append("x")


class Session(Actor):
    """A session with a task of its own, as clients of long-lived connections have."""

    async def start(self) -> None:
        self.session = await self.enter(connection())

    @handler
    async def ping(self) -> str:
        """Ask the other side."""
        done = anyio.Event()
        await self.session.send(done)
        await done.wait()
        return "pong"


@asynccontextmanager
async def connection() -> Any:
    send, receive = anyio.create_memory_object_stream[anyio.Event](10)

    async def serve() -> None:
        async for event in receive:
            await anyio.sleep(0.01)
            event.set()

    async with anyio.create_task_group() as group, receive, send:
        group.start_soon(serve)
        try:
            yield send
        finally:
            group.cancel_scope.cancel()


class TestSession(ActorContract):
    """An actor with a task group that is entered in `start`."""

    def actor(self) -> Session:
        return Session()

    async def ask(self, reference: Any) -> object:
        return await reference.ping()


class Database(Actor):
    """A connection that belongs to one thread."""

    def start(self) -> None:
        self.db = sqlite3.connect(":memory:")
        self.db.execute("create table lines (line text)")

    def stop(self) -> None:
        self.db.close()

    @handler
    def add(self, line: str) -> int:
        """Add a line."""
        self.db.execute("insert into lines values (?)", (line,))
        return int(self.db.execute("select count(*) from lines").fetchone()[0])


@pytest.mark.real_clock
class TestDatabase(ActorContract):
    """An actor of plain functions."""

    def actor(self) -> Database:
        return Database()

    async def ask(self, reference: Any) -> object:
        return await reference.add("x")


class Shared(Notes):
    """Faulty actor that keeps its state on the class and loses it at the end."""

    everything: list[str] | None = []

    async def stop(self) -> None:
        Shared.everything = None

    @handler
    async def append(self, text: str) -> int:
        """Append a line."""
        assert Shared.everything is not None, "there is nothing to append to"
        Shared.everything.append(text)
        return len(Shared.everything)


async def test_the_contract_finds_an_actor_whose_second_life_does_not_work() -> None:
    """A contract that no faulty actor fails would be useless."""

    class OfShared(ActorContract):
        def actor(self) -> Shared:
            return Shared()

        async def ask(self, reference: Any) -> object:
            return await reference.append("x")

    Shared.everything = []
    with anyio.fail_after(5), pytest.raises(AssertionError, match="nothing to append to"):
        await OfShared().test_it_starts_answers_and_stops()


async def test_an_actor_whose_state_belongs_to_a_thread_is_put_through_it_without_one() -> None:
    class OfJournal(ActorContract):
        def actor(self) -> Any:
            return child(Notes, snapshots="journal")

        async def ask(self, reference: Any) -> object:
            return await reference.append("x")

    await OfJournal().test_it_starts_answers_and_stops()
    await OfJournal().test_its_state_goes_through_a_snapshot()


async def test_an_actor_is_killed_at_a_chosen_point() -> None:
    async with running(Notes(), intensity=5) as notes:
        for point, lines in (("begun", 1), ("done", 1)):
            with killing(notes, "append", point) as died:  # type: ignore[arg-type]
                with pytest.raises(ActorDiedError, match="killed by a test"):
                    await notes.append("lost")
            assert died == ["append"]
            assert await notes.append("kept") == lines


async def test_to_kill_nothing_is_an_error() -> None:
    """A test whose kill never happens would pass without testing anything."""
    async with running(Notes()) as notes:
        with pytest.raises(ValueError, match="was not called within the block"), killing(notes, "append"):
            pass
        with pytest.raises(ValueError, match="has no handler 'appendd'"), killing(notes, "appendd"):
            pass
    with pytest.raises(RuntimeError, match="does not live"):
        kill_actor(notes)
