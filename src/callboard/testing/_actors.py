"""Test suite for actors, and functions that kill an actor at a chosen point of a call."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal

import anyio

from callboard.actors._actor import Actor, keeps_snapshots
from callboard.actors._actor_set import keyed
from callboard.actors._child import INTENSITY, PERIOD, ChildSpec, spec_of
from callboard.actors._incarnation import Incarnation
from callboard.actors._mailbox import Message
from callboard.actors._reference import cell_of
from callboard.actors._snapshots import InMemorySnapshots
from callboard.actors._supervisor import Supervisor, running
from callboard.exceptions import ActorDiedError
from callboard.tools._node import ToolNode

Point = Literal["begun", "done"]
"""Moment in a call: `begun` just before the handler runs, `done` after the handler and before the caller's answer."""


def kill_actor(reference: object, reason: str = "it was killed by a test") -> None:
    """Kill an actor as a crash would, and leave the restart to its supervisor. Call this in the actor's event loop.

    Running calls are cancelled, and their outcome is unknown.

    Args:
        reference: reference to the actor.
        reason: text of the error that ends the actor.

    Raises:
        RuntimeError: if the actor is not alive now.
    """
    incarnation = cell_of(reference).incarnation
    if not isinstance(incarnation, Incarnation):
        raise RuntimeError(f"{reference!r} leads to an actor that does not live now")
    incarnation.kill(reason)


@contextmanager
def killing(reference: object, handler: str, point: Point = "done") -> Generator[list[str]]:
    """Kill an actor at a chosen point of the next call of a handler; yield a list that gets the handler's name then.

    Args:
        reference: reference to the actor.
        handler: name of the handler.
        point: "begun" before the handler runs, "done" after it, before its caller has the reply.

    Raises:
        ValueError: if there is no such handler, or if the block ended without a death.
    """
    cell = cell_of(reference)
    if handler not in cell.kind._handlers:
        raise ValueError(f"{cell.name} has no handler {handler!r}, only {sorted(cell.kind._handlers)}")
    died: list[str] = []

    def must_die(message: Message, current_point: str) -> bool:
        if current_point != point or message.handler.name != handler or died:
            return False
        died.append(handler)
        return True

    cell.fault = must_die
    try:
        yield died
    finally:
        cell.fault = None
    if not died:
        raise ValueError(f"{cell.name}.{handler} was not called within the block, so that nothing was killed")


class ActorContract:
    """Suite of tests for an actor. Subclass it in a test module, and implement `actor` and `ask`.

        class TestBrowser(ActorContract):
            def actor(self) -> Browser:
                return Browser(headless=True)

            async def ask(self, reference: Browser) -> object:
                return await reference.goto("about:blank")

    The tests are async. Run them with anyio's pytest plugin, on each backend that the actor supports.
    """

    patience = 30.0
    """Time limit of each test, in seconds."""

    def actor(self) -> Actor | ChildSpec[Any]:
        """Return the actor to test, which was never started, or a child spec of it."""
        raise NotImplementedError("say which actor it is: def actor(self): return Browser()")

    async def ask(self, reference: Any) -> object:
        """Call one handler of the actor, and return the result. The handler must be fast and never fail."""
        raise NotImplementedError("say how to ask it: async def ask(self, reference): return await reference.goto(url)")

    async def test_it_starts_answers_and_stops(self) -> None:
        """Start, call and stop the actor twice: the first run must not affect the second."""
        with anyio.fail_after(self.patience):
            for _ in range(2):
                async with running(self._spec()) as reference:
                    await self.ask(reference)

    async def test_two_of_it_live_side_by_side(self) -> None:
        """Run two instances at once: state must belong to the instance, not to the class or module."""
        with anyio.fail_after(self.patience):
            async with running(self._spec()) as first, running(self._spec()) as second:
                await self.ask(first)
                await self.ask(second)

    async def test_ten_callers_at_once_are_all_answered(self) -> None:
        """Call the actor from ten tasks at once: each task must get a result."""
        answered: list[object] = []

        async def ask() -> None:
            answered.append(await self.ask(reference))

        with anyio.fail_after(self.patience):
            async with running(self._spec()) as reference, anyio.create_task_group() as group:
                for _ in range(10):
                    group.start_soon(ask)
        _check(len(answered) == 10, f"10 callers asked, {len(answered)} were answered")

    async def test_a_cancelled_call_leaves_it_usable(self) -> None:
        """Cancel a call before its handler begins, and another while its handler runs: the next call must succeed."""
        with anyio.fail_after(self.patience):
            async with running(self._spec()) as reference:
                for turns in range(4):  # scheduler turns before the cancellation, to hit different points of the call
                    await self._cancel_ask(reference, turns)
                await self.ask(reference)

    async def test_it_comes_back_after_a_crash(self) -> None:
        """Kill the actor during a call: the call must raise `ActorDiedError`, and the next call must succeed."""
        with anyio.fail_after(self.patience):
            async with Supervisor([self._spec()], intensity=10) as tree:
                reference = tree[self._spec().name]
                for point in ("begun", "done"):
                    with killing(reference, await self._find_handler_name(reference), point):
                        _check(await self._dies(reference), "a call whose actor was killed had an answer")
                    await self.ask(reference)

    async def test_it_can_be_left_in_the_middle_of_a_call(self) -> None:
        """Leave the actor's `async with` block during a call: the actor must stop, and leave nothing running."""
        with anyio.fail_after(self.patience):
            async with anyio.create_task_group() as group:
                async with running(self._spec()) as reference:
                    group.start_soon(self._ask_or_not, reference)
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()

    async def test_its_state_goes_through_a_snapshot(self) -> None:
        """Restore the actor from its snapshot, if it has `snapshot` and `restore`: it must answer again."""
        spec = self._spec()
        if not keeps_snapshots(spec.kind):
            return
        with anyio.fail_after(self.patience):
            store = InMemorySnapshots()
            for _ in range(2):  # leaving the block stores the snapshot; the second round starts from it
                async with keyed(spec.with_snapshots(store)) as instances:
                    await self.ask(instances["one"])

    def test_its_handlers_are_tools(self) -> None:
        """Make tools of the handlers: they must have the types and descriptions that a model needs."""
        ToolNode([spec_of(self.actor())])

    def _spec(self) -> ChildSpec[Any]:
        """Return the child spec of `actor()` without its options for keys, restart limits, tool names and journals."""
        spec = spec_of(self.actor())
        spec = replace(spec, key=None, cap=None, idle=None, prefix="", intensity=INTENSITY, period=PERIOD)
        return spec.with_snapshots(InMemorySnapshots()) if spec.is_in_journal else spec

    async def _cancel_ask(self, reference: Any, turns: int) -> None:
        """Start a call, and cancel it after so many turns of the scheduler."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.ask, reference)
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()

    async def _dies(self, reference: Any) -> bool:
        """Call the actor, and return whether the call ended with the actor's death."""
        try:
            await self.ask(reference)
        except ActorDiedError:
            return True
        return False

    async def _ask_or_not(self, reference: Any) -> None:
        with suppress(Exception):  # the actor is stopping: any error of its own is allowed here
            await self.ask(reference)

    async def _find_handler_name(self, reference: Any) -> str:
        """Call `ask` once, and return the name of the handler that it called."""
        cell, handler_names = cell_of(reference), list[str]()

        def note(message: Message, _: str) -> bool:
            handler_names.append(message.handler.name)
            return False

        cell.fault = note
        await self.ask(reference)
        cell.fault = None
        _check(bool(handler_names), "ask() asked nothing of the reference that it was given")
        return handler_names[0]


def _check(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)
