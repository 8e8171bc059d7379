"""Real trees of supervisors whose actors die by plan. Each start and stop is recorded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio
import sniffio
from hypothesis import strategies as st

from callboard import Actor, ActorDiedError, Backoff, PoisonousCallError, Supervisor, SupervisorError, child, handler
from callboard.actors._restarts import Restart, Strategy
from callboard.actors._supervised import ActorUnit
from callboard.actors._supervisor import _actors_in
from tests.helpers import BrokenError, live_tasks

Outcome = Literal["starts", "fails", "never"]
"""Outcome of a start. `never` means that a retry is useless, as for a missing program."""
BACKOFF = Backoff(first=0.37, factor=1.9, maximum=5, jitter=0)
"""Uneven numbers, so that no two events happen at the same time by accident."""
POISON = 2
UNTIL = 60


@dataclass(frozen=True)
class Leaf:
    """Actor in the plan of a tree."""

    restart: Restart = "permanent"
    later: Sequence[Outcome] = ()
    """Outcomes of the starts after the first one. All further starts succeed."""
    name: str = ""


@dataclass(frozen=True)
class Branch:
    """Supervisor in the plan of a tree."""

    children: "Sequence[Leaf | Branch]"
    strategy: Strategy = "one_for_one"
    intensity: int = 3
    period: float = 5.29
    name: str = ""


@dataclass(frozen=True)
class Death:
    """Planned death of an actor: a kill or a fatal call, if it is alive."""

    at: int
    leaf: int
    """Index of the actor, modulo the number of actors."""
    call: str | None = None


@dataclass(frozen=True)
class Plan:
    """Plan of what happens to a tree."""

    root: Branch
    deaths: Sequence[Death]


def _with_name(node: Leaf | Branch, name: str) -> Leaf | Branch:
    if isinstance(node, Leaf):
        return replace(node, name=name)
    children = [_with_name(inner, f"{name}{letter}") for inner, letter in zip(node.children, "abcd", strict=False)]
    return replace(node, children=children, name=name)


def leaves(node: Leaf | Branch) -> Iterator[Leaf]:
    """Return the actors of a tree in the order in which they start."""
    if isinstance(node, Leaf):
        yield node
    else:
        for inner in node.children:
            yield from leaves(inner)


def _branches(children: st.SearchStrategy[Leaf] | st.SearchStrategy[Leaf | Branch]) -> st.SearchStrategy[Branch]:
    return st.builds(
        Branch,
        children=st.lists(children, min_size=1, max_size=4),
        strategy=st.sampled_from(("one_for_one", "one_for_all", "rest_for_one")),
        intensity=st.integers(0, 4),
        period=st.sampled_from((1.29, 5.29, 30.29)),
    )


_leaves = st.builds(
    Leaf,
    restart=st.sampled_from(("permanent", "transient", "temporary")),
    later=st.just(()) | st.lists(st.sampled_from(("starts", "fails", "fails", "never")), max_size=4),
)
_inner = _branches(_leaves)
tree_plans = st.builds(
    Plan,
    root=_branches(_leaves | _leaves | _inner | _branches(_leaves | _inner)).map(lambda one: _with_name(one, "")),
    deaths=st.lists(
        st.builds(Death, at=st.integers(1, 20), leaf=st.integers(0, 9), call=st.sampled_from((None, None, "x", "y"))),
        max_size=12,
        unique_by=lambda death: death.at,
    ).map(lambda deaths: sorted(deaths, key=lambda death: death.at)),
)


class Worker(Actor):
    """Actor that records its starts and stops, and dies on request."""

    fatal = (BrokenError,)

    def __init__(self, world: "TreeWorld", leaf: Leaf) -> None:
        self.world = world
        self.leaf = leaf

    async def start(self) -> None:
        outcome = self.world.next_start(self.leaf)
        self.world.write(f"{'+' if outcome == 'starts' else '?'}{self.leaf.name}")
        if outcome == "fails":
            raise ConnectionError("not now")
        if outcome == "never":
            raise FileNotFoundError("no such program")

    async def stop(self) -> None:
        self.world.write(f"-{self.leaf.name}")

    @handler
    async def die(self, call: str) -> None:
        raise BrokenError(call)


class TreeWorld:
    """Player of one plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.events: list[tuple[float, str]] = []
        self._began_at = 0.0
        self._starts: dict[str, int] = {}

    def next_start(self, leaf: Leaf) -> Outcome:
        number = self._starts[leaf.name] = self._starts.get(leaf.name, -1) + 1
        return leaf.later[number - 1] if 1 <= number <= len(leaf.later) else "starts"

    def write(self, event: str) -> None:
        self.events.append((round(anyio.current_time() - self._began_at, 3), event))

    async def play(self) -> list[str]:
        """Play the plan and return the tasks that are left."""
        before = live_tasks()
        self._began_at = anyio.current_time()
        tree = self._supervisor(self.plan.root)
        try:
            async with tree:
                assert tree._tree is not None
                units = _actors_in(tree._tree)
                for death in self.plan.deaths:
                    await anyio.sleep_until(self._began_at + death.at)
                    await self._die(units[death.leaf % len(units)], death.call)
                await anyio.sleep_until(self._began_at + UNTIL)
                self.write("is left")
        except SupervisorError:
            self.write("gives up")
        if sniffio.current_async_library() == "trio":
            await anyio.lowlevel.checkpoint()
        return [f"a task is left: {task}" for task in live_tasks() - before]

    async def _die(self, unit: ActorUnit, call: str | None) -> None:
        if not unit.is_alive:
            return
        if call is None:
            unit.kill("the plan says so")
            return
        try:
            await unit.cell.ask(Worker._handlers["die"], (call,), {})
        except (ActorDiedError, PoisonousCallError):
            return

    def _supervisor(self, branch: Branch) -> Supervisor:
        return Supervisor(
            [self._child(node) for node in branch.children],
            name=branch.name,
            strategy=branch.strategy,
            intensity=branch.intensity,
            period=branch.period,
            backoff=BACKOFF,
        )

    def _child(self, node: Leaf | Branch) -> Any:
        if isinstance(node, Branch):
            return self._supervisor(node)
        worker = Worker(self, node)
        return child(worker, name=node.name, restart=node.restart, poison=POISON)
