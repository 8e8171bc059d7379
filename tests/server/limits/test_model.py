"""The scripts of all servers agree with the reference model for any sequence of requests."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard import Limit
from callboard_actors._server._limits import LimitsTransport, Numbers, Op, Step
from callboard_actors.postgres._transports import PostgresLimitsTransport
from callboard_actors.redis._transports import RedisLimitsTransport
from tests.server._servers import server_url

pytestmark = pytest.mark.timeout(300)

CLIENTS = ("alpha", "beta")
_numbers = count(1)

acts = st.lists(
    st.tuples(st.sampled_from(["enter", "enter", "leave"]), st.integers(0, 9), st.sampled_from(["", "x", "y"])),
    max_size=30,
)


@st.composite
def talks(draw: st.DrawFn) -> list[tuple[int, list[tuple[str, int, str]]]]:
    """Generate batches of requests by two clients."""
    return draw(st.lists(st.tuples(st.integers(0, 1), acts), max_size=6))


@dataclass
class Waiter:
    """Entry of the queue."""

    who: str
    tenant: str
    rank: int


@dataclass
class Model:
    """Reference model of one limit: its permits, its queue and the order of turns, without crashes and time.

    Args:
        concurrency: maximum number of permits.
        queue: maximum number of waiting entries; `None` for any number.
    """

    concurrency: int
    queue: int | None
    held: list[str] = field(default_factory=list)
    waiting: list[Waiter] = field(default_factory=list)
    """Queue in order of arrival."""
    lanes: dict[str, int] = field(default_factory=dict)
    """Highest rank of each tenant since the queue was last empty."""
    granted: list[str] = field(default_factory=list)
    full: list[str] = field(default_factory=list)

    def enter(self, who: str, tenant: str) -> None:
        """Request a permit."""
        if not self.waiting and len(self.held) < self.concurrency:
            self._give(who)
        elif self.queue is not None and len(self.waiting) >= self.queue:
            self.full.append(who)
        else:
            if not self.waiting:
                self.lanes.clear()
            rank = max(self._head().rank if self.waiting else 0, self.lanes.get(tenant, -1) + 1)
            self.lanes[tenant] = rank
            self.waiting.append(Waiter(who, tenant, rank))

    def leave(self, who: str) -> None:
        """Release a permit or leave the queue, then grant the free permit to the next entry."""
        self.held = [one for one in self.held if one != who]
        self.waiting = [one for one in self.waiting if one.who != who]
        while self.waiting and len(self.held) < self.concurrency:
            head = self._head()
            self.waiting.remove(head)
            self._give(head.who)

    def _head(self) -> Waiter:
        return min(self.waiting, key=lambda one: one.rank)  # the first of those

    def _give(self, who: str) -> None:
        self.held.append(who)
        self.granted.append(who)


class World:
    """Limit on a server with two client processes, and the model beside it."""

    def __init__(self, lines: list[LimitsTransport], limit: Limit) -> None:
        assert limit.concurrency is not None
        self.model = Model(limit.concurrency, limit.queue)
        self.granted: set[str] = set()
        self.full: list[str] = []
        self._gate = f"model-{next(_numbers)}"
        self._numbers = Numbers.of(limit, lease=60.0)
        self._lines = lines
        self._epochs = ["", ""]
        self._spots: dict[str, str] = {}
        self._gone: set[str] = set()

    async def say(self, client: int, acts: list[tuple[str, int, str]]) -> None:
        ops: list[Op] = []
        said: set[str] = set()
        for kind, number, tenant in acts:
            who = f"{CLIENTS[client]}.{number}"
            is_in = who in self._all() or who in said
            if kind == "enter" and not is_in and who not in self._gone:
                ops.append(Op("enter", who, tenant=tenant))
                said.add(who)
                self.model.enter(who, tenant)
            elif kind == "leave" and is_in:
                ops.append(Op("leave", who, spot=self._spots.get(who, "")))
                self._gone.add(who)
                self.model.leave(who)
        step = Step(self._gate, self._numbers, self._epochs[client], ops, asks_all=True)
        [answer] = await self._lines[client].say([step])
        self._epochs[client] = answer.epoch
        assert answer.epoch
        self._spots |= answer.queued
        self.full += answer.full
        self.granted = {who for who in self.granted if not who.startswith(CLIENTS[client])} | set(answer.granted)

    def _all(self) -> set[str]:
        return {*self.model.held, *(one.who for one in self.model.waiting)}

    async def settle(self) -> None:
        """Let both clients report their permits."""
        for client in (0, 1):
            await self.say(client, [])


async def _play(make: Any, limit: Limit, talk: list[tuple[int, list[tuple[str, int, str]]]]) -> None:
    lines = [make(), make()]
    try:
        for line, client in zip(lines, CLIENTS, strict=True):
            await line.open(client)
            if isinstance(line, RedisLimitsTransport):
                line._began = 0  # a fresh server grants nothing for one lease
        world = World(lines, limit)
        for client, said in talk:
            await world.say(client, said)
            await world.settle()
            held = {who for who in world.granted if who in world.model.held}
            assert held == set(world.model.held)
            assert sorted(world.full) == sorted(world.model.full)
        await _empty(world)
    finally:
        for line in lines:
            await line.close()


async def _empty(world: World) -> None:
    """Release one permit after the other and check that model and server grant in the same order."""
    while world.model.held:
        first = world.model.held[0]
        client, number = CLIENTS.index(first.partition(".")[0]), int(first.partition(".")[2])
        await world.say(client, [("leave", number, "")])
        await world.settle()
        assert {who for who in world.granted if who in world.model.held} == set(world.model.held)


@pytest.mark.parametrize("kind", ["redis", pytest.param("postgres", marks=pytest.mark.exhaustive)])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(talk=talks(), concurrency=st.integers(1, 3), queue=st.none() | st.integers(0, 4))
def test_a_server_does_what_the_model_does(
    request: pytest.FixtureRequest, kind: str, talk: Any, concurrency: int, queue: Any
) -> None:
    """Permits, queue, tenants' turns and rejections agree. The two scripts are in different languages."""
    transport = {"redis": RedisLimitsTransport, "postgres": PostgresLimitsTransport}[kind]
    url = server_url(request, kind)
    anyio.run(_play, lambda: transport(url, kind, "model"), Limit(concurrency=concurrency, queue=queue), talk)
