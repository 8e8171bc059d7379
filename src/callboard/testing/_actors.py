"""What any actor has to stand, as a suite; and a way to end one at a chosen point."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import anyio

from callboard.actors._actor import Actor, keeps_snapshots
from callboard.actors._child import INTENSITY, PERIOD, ChildSpec, spec_of
from callboard.actors._keyed import keyed
from callboard.actors._life import Life
from callboard.actors._message import Message
from callboard.actors._reference import cell_of
from callboard.actors._snapshot_store import InMemorySnapshots
from callboard.actors._supervisor import Supervisor, running
from callboard.exceptions import ActorDiedError
from callboard.tools._node import ToolNode

Point = Literal["begun", "done"]
"""`begun`: the call is in its handler's hands, which has not run yet. `done`: it has run, and nobody knows."""


def kill_actor(reference: object, reason: str = "it was killed by a test") -> None:
    """End an actor as a crash would: what runs is cancelled, what had begun is unknown, its supervisor decides.

    Args:
        reference: to an actor that lives; from within its event loop.
        reason: what the callers are told.

    Raises:
        RuntimeError: if it does not live now.
    """
    life = cell_of(reference).life
    if not isinstance(life, Life):
        raise RuntimeError(f"{reference!r} leads to an actor that does not live now")
    life.kill(reason)


@contextmanager
def killing(reference: object, handler: str, point: Point = "done", *, times: int = 1) -> Generator[list[str]]:
    """End an actor at a point of a call that is made within the block.

    Args:
        reference: to the actor.
        handler: the name of one of its handlers.
        point: at which moment of the call.
        times: how many calls it dies of.

    Yields:
        The handlers that it has died in.

    Raises:
        ValueError: if there is no such handler, or it did not come to that within the block.
    """
    cell = cell_of(reference)
    if handler not in cell.kind._handlers:
        raise ValueError(f"{cell.name} has no handler {handler!r}, only {sorted(cell.kind._handlers)}")
    died: list[str] = []

    def at(message: Message, here: str) -> bool:
        if here != point or message.handler.name != handler or len(died) >= times:
            return False
        died.append(handler)
        return True

    cell.fault = at
    try:
        yield died
    finally:
        cell.fault = None
    if not died:
        raise ValueError(f"{cell.name}.{handler} was not called within the block, so that nothing was killed")


class ActorContract:
    """A suite for an actor: subclass it in a test module, and say which actor it is and how to ask it something.

        class TestBrowser(ActorContract):
            def actor(self) -> Browser:
                return Browser(headless=True)

            async def ask(self, reference: Browser) -> object:
                return await reference.goto("about:blank")

    The tests are async; let anyio's pytest plugin run them, on the backends that the actor is for.
    """

    patience = 30.0
    """Seconds that each test may take."""

    def actor(self) -> Actor | ChildSpec[Any]:
        """An actor that has never lived, or its terms."""
        raise NotImplementedError("say which actor it is: def actor(self): return Browser()")

    async def ask(self, reference: Any) -> object:
        """Ask it something that takes a moment and always works."""
        raise NotImplementedError("say how to ask it: async def ask(self, reference): return await reference.goto(url)")

    async def test_it_starts_answers_and_stops(self) -> None:
        """An actor starts, answers and stops twice: nothing of its first life is in the way of the second."""
        with anyio.fail_after(self.patience):
            for _ in range(2):
                async with running(self._spec()) as reference:
                    await self.ask(reference)

    async def test_two_of_it_live_side_by_side(self) -> None:
        """Its state is its own, and not its class's or its module's."""
        with anyio.fail_after(self.patience):
            async with running(self._spec()) as one, running(self._spec()) as other:
                await self.ask(one)
                await self.ask(other)

    async def test_ten_callers_at_once_are_all_answered(self) -> None:
        """Whoever asks from whichever task."""
        answered: list[object] = []

        async def ask() -> None:
            answered.append(await self.ask(reference))

        with anyio.fail_after(self.patience):
            async with running(self._spec()) as reference, anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(ask)
        _check(len(answered) == 10, f"10 callers asked, {len(answered)} were answered")

    async def test_a_cancelled_call_leaves_it_usable(self) -> None:
        """Cancelled before it begins, and in the middle."""
        with anyio.fail_after(self.patience):
            async with running(self._spec()) as reference:
                for turns in range(4):
                    async with anyio.create_task_group() as group:
                        group.start_soon(self.ask, reference)
                        for _ in range(turns):
                            await anyio.lowlevel.checkpoint()
                        group.cancel_scope.cancel()
                await self.ask(reference)

    async def test_it_comes_back_after_a_crash(self) -> None:
        """A call that was lost is said to be; the next one works."""
        with anyio.fail_after(self.patience):
            async with Supervisor([self._spec()], intensity=10) as tree:
                reference = tree[self._spec().name]
                for point in ("begun", "done"):
                    with killing(reference, await self._asked(reference), point):
                        try:
                            await self.ask(reference)
                        except ActorDiedError:
                            pass
                        else:
                            _check(holds=False, says="a call whose actor was killed had an answer")
                    await self.ask(reference)

    async def test_it_can_be_left_in_the_middle_of_a_call(self) -> None:
        """Its owner is cancelled: it stops, and nothing is left."""
        with anyio.fail_after(self.patience):
            async with anyio.create_task_group() as group:
                async with running(self._spec()) as reference:
                    group.start_soon(self._ask_or_not, reference)
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()

    async def test_its_state_goes_through_a_snapshot(self) -> None:
        """If it has `snapshot` and `restore`: it is evicted, comes back, and works."""
        spec = self._spec()
        if not keeps_snapshots(spec.kind):
            return
        with anyio.fail_after(self.patience):
            kept = InMemorySnapshots()
            for _ in range(2):
                async with keyed(spec.kept_in(kept)) as instances:
                    await self.ask(instances["one"])

    def test_its_handlers_are_tools(self) -> None:
        """Its handlers have what a model has to be told: types and descriptions."""
        ToolNode([spec_of(self.actor())])

    def _spec(self) -> ChildSpec[Any]:
        """Its terms, without those that are for many of it, for a node or for a thread."""
        spec = spec_of(self.actor())
        spec = replace(spec, key=None, cap=None, idle=None, prefix="", intensity=INTENSITY, period=PERIOD)
        return spec.kept_in(InMemorySnapshots()) if spec.is_in_journal else spec

    async def _ask_or_not(self, reference: Any) -> None:
        with suppress(Exception):  # it is about to end, and may say so in its own way
            await self.ask(reference)

    async def _asked(self, reference: Any) -> str:
        """The handler that `ask` calls."""
        cell, seen = cell_of(reference), list[str]()

        def note(message: Message, _: str) -> bool:
            seen.append(message.handler.name)
            return False

        cell.fault = note
        await self.ask(reference)
        cell.fault = None
        _check(bool(seen), "ask() asked nothing of the reference that it was given")
        return seen[0]


def _check(holds: bool, says: str) -> None:
    if not holds:
        raise AssertionError(says)
