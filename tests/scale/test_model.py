"""The model of a fleet agrees with queueing theory and with the page about scale."""

import math
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import simpy

from ._model import DAY, Fleet, Station, ceiling, simulate
from ._report import COSTS, LARGEST, grown, table

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "scale.md"
SMALL = Fleet(nodes=4, calls=200.0)


def mean_wait(servers: int, load: float, customers: int = 60_000) -> float:
    """Return the mean wait of customers with random arrivals and random service times of one second on average."""
    env, chance = simpy.Environment(), random.Random(7)
    station, waits = Station(env, servers), []

    def customer() -> object:
        began, seconds = env.now, chance.expovariate(1.0)
        yield from station.serve(seconds)
        waits.append(env.now - began - seconds)

    def arrivals() -> object:
        for _ in range(customers):
            yield env.timeout(chance.expovariate(load * servers))
            env.process(customer())

    env.process(arrivals())
    env.run()
    return statistics.fmean(waits)


def erlang_c(servers: int, load: float) -> float:
    """Mean seconds of waiting at an M/M/c queue; A. K. Erlang, 1917."""
    offered = servers * load
    full = offered**servers / math.factorial(servers) / (1 - load)
    waits = full / (sum(offered**n / math.factorial(n) for n in range(servers)) + full)
    return waits / (servers * (1 - load))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("servers", "load"), [(1, 0.3), (1, 0.7), (8, 0.5), (8, 0.8)])
def test_customers_wait_as_long_as_queueing_theory_says(servers: int, load: float) -> None:
    assert mean_wait(servers, load) == pytest.approx(erlang_c(servers, load), rel=0.1, abs=0.003)


def test_a_fleet_with_nothing_to_wait_for_takes_what_its_parts_take() -> None:
    fleet = Fleet(nodes=1, calls=2 / 3600, limited=1.0, limits=0)
    report = simulate(fleet, COSTS, seconds=20 * 3600)
    trips = 3 + 2  # a checkpoint each; a call's place, and its result
    alone = (
        COSTS.turn + COSTS.write + COSTS.call + COSTS.shared + COSTS.place / 2 + COSTS.write_call + trips * fleet.trip
    )
    # One event loop sends two calls one after the other.
    assert alone <= report.quantile(0.5) <= alone + COSTS.call + COSTS.shared + COSTS.place


@pytest.mark.exhaustive
def test_servers_are_in_use_as_much_as_they_are_asked_for() -> None:
    """Utilisation equals demand divided by capacity, whatever the queues (the utilisation law)."""
    report = simulate(SMALL, COSTS, seconds=120.0)
    for kind, share in SMALL.demands(COSTS).items():
        assert report.in_use[kind] == pytest.approx(share, rel=0.1), kind


@pytest.mark.exhaustive
@pytest.mark.parametrize("factor", [0.9, 1.3])
def test_queues_grow_without_end_above_the_ceiling_and_not_below(factor: float) -> None:
    fleet = replace(SMALL, nodes=2)
    most, first = ceiling(fleet, COSTS)
    short, long = (simulate(replace(fleet, calls=factor * most), COSTS, seconds=s, warm_up=20.0) for s in (20.0, 60.0))
    assert first == "event loops"
    if factor < 1:
        assert long.in_use[first] < 0.98
        assert long.depth[first] < 200
    else:
        assert long.in_use[first] > 0.99
        assert long.depth[first] > 1.5 * short.depth[first]


def test_signs_of_life_are_all_that_a_store_hears_of_a_fleet_that_sleeps() -> None:
    asleep = Fleet(nodes=1_000, calls=0.0, limits=10)
    assert asleep.demands(COSTS)["limits"] == pytest.approx(1_000 * 10 * 3 / 10 * COSTS.beat)
    assert asleep.demands(COSTS)["database"] == 0


def test_the_page_has_the_numbers_of_the_model() -> None:
    page = PAGE.read_text()
    for line in table(grown()):
        assert line in page, f"docs/explanation/scale.md lacks: {line}"


@pytest.mark.exhaustive
def test_the_largest_fleet_does_what_the_page_says() -> None:
    report = simulate(LARGEST, COSTS, seconds=10.0)
    demands = LARGEST.demands(COSTS)
    assert LARGEST.calls * DAY / 3 == pytest.approx(1e8)
    for kind, share in demands.items():
        assert report.in_use[kind] == pytest.approx(share, rel=0.15), kind
    assert report.quantile(0.99) < 0.05
