"""A fleet as a queueing model: event loops, a store of shared limits, a database, and agents' turns that use them.

In this discrete-event model, each event loop, each processor of a database and the one thread of Redis is a server
with a queue, and its service times are measured. Waiting for models, for bodies of tools and for the network is a
delay without a queue. Arrivals are open: questions arrive independently of the answers to earlier ones.
"""

import math
import random
import statistics
from collections.abc import Generator
from dataclasses import dataclass, replace

import simpy

DAY = 86_400.0
Steps = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Processor seconds of each operation, as `python -m tests.benchmark scale` measures them.

    Args:
        turn: of the event loop, for an agent's turn with its checkpoints, without its calls.
        call: of the event loop, for each call.
        shared: of the event loop, to take a place from a store and return it.
        place: of a store, to grant a place and take it back.
        beat: of a store, for one renewal of a process at one limit.
        write: of a database, for a turn without its calls.
        write_call: of a database, for each call.
    """

    turn: float
    call: float
    shared: float
    place: float
    beat: float
    write: float
    write_call: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Number of nodes, and their load.

    Args:
        nodes: processes, each with one event loop.
        calls: tool calls a second.
        calls_a_turn: tool calls that a model asks for at once.
        limited: the share of calls that need a place at a shared limit.
        limits: number of shared limits; each node holds places at each of them.
        stores: number of servers among which the limits are divided.
        databases: number of servers among which the threads are divided.
        processors: of each database.
        body: seconds that a tool waits, on average.
        model: seconds that a model takes for a reply, on average; it replies twice in a turn.
        trip: seconds to another machine and back.
        lease: seconds after which a process without renewals loses its places; it renews three times in this time.
    """

    nodes: int
    calls: float
    calls_a_turn: int = 2
    limited: float = 0.5
    limits: int = 10
    stores: int = 1
    databases: int = 1
    processors: int = 8
    body: float = 0.5
    model: float = 2.0
    trip: float = 0.0005
    lease: float = 10.0

    @property
    def turns(self) -> float:
        """Turns per second."""
        return self.calls / self.calls_a_turn

    def demands(self, costs: Costs) -> dict[str, float]:
        """Return the utilisation of each kind of server, 1 being full: demand divided by capacity."""
        beats = self.nodes * self.limits * 3 / self.lease
        turn = costs.turn + self.calls_a_turn * (costs.call + self.limited * costs.shared)
        write = costs.write + self.calls_a_turn * costs.write_call
        return {
            "event loops": self.turns * turn / self.nodes,
            "limits": (self.calls * self.limited * costs.place + beats * costs.beat) / self.stores,
            "database": self.turns * write / (self.databases * self.processors),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Results of a simulated fleet.

    Args:
        turns: number of turns that ended.
        overhead: seconds of each turn beyond its model and its slowest body.
        in_use: utilisation of each kind of server, 1 being full.
        depth: the longest queue at any server of a kind.
    """

    turns: int
    overhead: list[float]
    in_use: dict[str, float]
    depth: dict[str, int]

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the turns had their overhead; infinity without turns."""
        if not self.overhead:
            return math.inf
        return sorted(self.overhead)[min(len(self.overhead) - 1, int(share * len(self.overhead)))]

    @property
    def mean(self) -> float:
        """Mean overhead in seconds."""
        return statistics.fmean(self.overhead)


class Station:
    """Servers with one shared FIFO queue."""

    def __init__(self, env: simpy.Environment, servers: int) -> None:
        self._env = env
        self._servers = simpy.Resource(env, servers)
        self.busy = 0.0
        self.depth = 0

    def serve(self, seconds: float) -> Steps:
        """Wait for a server and occupy it for some seconds."""
        with self._servers.request() as turn:
            self.depth = max(self.depth, len(self._servers.queue))
            yield turn
            yield self._env.timeout(seconds)
            self.busy += seconds


class _World:
    def __init__(self, fleet: Fleet, costs: Costs, seed: int, warm_up: float) -> None:
        self.fleet = fleet
        self.costs = costs
        self.env = simpy.Environment()
        self.random = random.Random(seed)
        self.warm_up = warm_up
        self.loops = [Station(self.env, 1) for _ in range(fleet.nodes)]
        self.stores = [Station(self.env, 1) for _ in range(fleet.stores)]
        self.databases = [Station(self.env, fleet.processors) for _ in range(fleet.databases)]
        self.overhead: list[float] = []

    @property
    def kinds(self) -> dict[str, list[Station]]:
        return {"event loops": self.loops, "limits": self.stores, "database": self.databases}

    def busy(self, kind: str) -> float:
        """Total busy seconds of all servers of a kind."""
        return sum(one.busy for one in self.kinds[kind])

    def arrivals(self) -> Steps:
        while True:
            yield self.env.timeout(self.random.expovariate(self.fleet.turns))
            self.env.process(self._turn())

    def beats(self) -> Steps:
        """Lease renewals of all nodes, evenly spread."""
        fleet = self.fleet
        beats = fleet.nodes * fleet.limits * 3 / fleet.lease
        while beats and self.costs.beat:
            yield self.env.timeout(1 / beats)
            self.env.process(self.random.choice(self.stores).serve(self.costs.beat))

    def _turn(self) -> Steps:
        fleet, costs, env = self.fleet, self.costs, self.env
        loop, database = self.random.choice(self.loops), self.random.choice(self.databases)
        began = env.now
        models = [self.random.expovariate(1 / fleet.model) for _ in range(2)]
        bodies = [self.random.expovariate(1 / fleet.body) for _ in range(fleet.calls_a_turn)]
        # A third each for the request, the calls and the results, as in the checkpoints of a turn.
        for model in (*models, 0.0):
            yield from loop.serve(costs.turn / 3)
            yield from self._away(database.serve(costs.write / 3))
            yield env.timeout(model)
            if model is models[0]:
                calls = [env.process(self._call(loop, database, body)) for body in bodies]
                yield env.all_of(calls)
        if began >= self.warm_up:
            self.overhead.append(env.now - began - sum(models) - max(bodies))

    def _call(self, loop: Station, database: Station, body: float) -> Steps:
        fleet, costs, env = self.fleet, self.costs, self.env
        is_limited = self.random.random() < fleet.limited
        store = self.random.choice(self.stores)
        yield from loop.serve(costs.call / 2 + (costs.shared if is_limited else 0.0))
        if is_limited:
            yield from self._away(store.serve(costs.place / 2))
        yield env.timeout(body)
        if is_limited:
            env.process(self._away(store.serve(costs.place / 2)))  # the call does not wait for this
        yield from loop.serve(costs.call / 2)
        yield from self._away(database.serve(costs.write_call))

    def _away(self, work: Steps) -> Steps:
        """Wait for the network delay to another machine."""
        yield self.env.timeout(self.fleet.trip)
        yield from work


def simulate(fleet: Fleet, costs: Costs, *, seconds: float = 60.0, seed: int = 1, warm_up: float = 30.0) -> Report:
    """Simulate a fleet at work.

    Args:
        fleet: the nodes and their load.
        costs: seconds of each operation.
        seconds: simulated seconds that are measured.
        seed: seed of the random numbers; equal seeds give equal reports.
        warm_up: simulated seconds before that, in which the queues fill.
    """
    world = _World(fleet, costs, seed, warm_up)
    world.env.process(world.arrivals())
    world.env.process(world.beats())
    world.env.run(warm_up)
    before = {kind: world.busy(kind) for kind in world.kinds}
    world.env.run(warm_up + seconds)
    servers = {"event loops": fleet.nodes, "limits": fleet.stores, "database": fleet.databases * fleet.processors}
    return Report(
        turns=len(world.overhead),
        overhead=world.overhead,
        in_use={kind: (world.busy(kind) - before[kind]) / seconds / servers[kind] for kind in world.kinds},
        depth={kind: max(one.depth for one in them) for kind, them in world.kinds.items()},
    )


def ceiling(fleet: Fleet, costs: Costs) -> tuple[float, str]:
    """Return the calls per second at which the first kind of server is fully utilised, and the name of that kind.

    By the bottleneck law of operational analysis: P. J. Denning and J. P. Buzen, "The Operational Analysis of Queueing
    Network Models", ACM Computing Surveys 10 (1978).
    """
    idle, full = replace(fleet, calls=0.0).demands(costs), fleet.demands(costs)
    room = {
        kind: (1 - idle[kind]) / (full[kind] - idle[kind]) * fleet.calls for kind in full if full[kind] > idle[kind]
    }
    first = min(room, key=room.__getitem__)
    return room[first], first
