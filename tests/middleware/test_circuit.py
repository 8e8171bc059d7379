"""Decisions of circuits, tested without calls: when a circuit opens, and when it can be dropped."""

import anyio
import pytest

from callboard.middleware._breaker import FEWEST, Circuit, CircuitBreaker, Circuits, Rules, Ticket

pytestmark = pytest.mark.every_variant  # they take no time, and each is another decision

RULES = Rules(ratio=0.5, minimum=1, window=10, open_for=7, probes=1)


def let_in(circuit: Circuit, now: float) -> Ticket:
    ticket = circuit.before(now)
    assert ticket is not None
    return ticket


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        ({0: "good", 5: "bad", 9: "bad"}, "closed"),
        ({0: "good", 5: "bad", 10: "bad"}, "open"),
        ({0: "bad", 5: "good", 10: "good"}, "closed"),
    ],
)
def test_an_outcome_counts_until_it_is_as_old_as_the_window(outcomes: dict[int, str], state: str) -> None:
    circuit = Circuit(Rules(ratio=1, minimum=2, window=10, open_for=7, probes=1))
    for now, outcome in outcomes.items():
        circuit.after(let_in(circuit, now), now, failed=outcome == "bad")
    assert circuit.state(max(outcomes)) == state


@pytest.mark.parametrize(("outcomes", "state"), [(("bad", "bad"), "open"), (("bad", "good"), "closed")])
def test_a_circuit_that_has_closed_counts_from_the_beginning(outcomes: tuple[str, str], state: str) -> None:
    circuit = Circuit(Rules(ratio=1, minimum=2, window=10, open_for=7, probes=1))
    for now, outcome in ((0, "bad"), (0, "bad"), (7, "good"), *((8, outcome) for outcome in outcomes)):
        circuit.after(let_in(circuit, now), now, failed=outcome == "bad")
    assert circuit.state(8) == state


def test_a_trial_call_of_an_earlier_time_takes_no_place_of_a_later_one() -> None:
    circuit = Circuit(Rules(ratio=1, minimum=1, window=10, open_for=7, probes=2))
    circuit.after(let_in(circuit, 0), 0, failed=True)
    fails, _ = let_in(circuit, 7), let_in(circuit, 7)
    circuit.after(fails, 7, failed=True)
    assert [circuit.before(14) is not None for _ in range(3)] == [True, True, False]


def test_a_circuit_is_idle_when_a_new_one_would_do_the_same() -> None:
    """No call is running, the last outcome does not count any more, and the tool was not down within the window."""
    circuit = Circuit(Rules(ratio=1, minimum=1, window=10, open_for=7, probes=1))
    assert circuit.idle(0)
    first, second = let_in(circuit, 0), let_in(circuit, 0)
    circuit.after(first, 2, failed=False)
    assert not circuit.idle(100)
    circuit.after(second, 5, failed=None)
    assert [circuit.idle(now) for now in (11, 12)] == [False, True]
    circuit.after(let_in(circuit, 5), 5, failed=False)
    assert [circuit.idle(now) for now in (14, 15)] == [False, True]
    circuit.after(let_in(circuit, 20), 20, failed=True)
    assert [circuit.idle(now) for now in (36, 37)] == [False, True]


async def test_idle_circuits_are_dropped_when_there_are_many_and_those_in_use_are_kept() -> None:
    circuits = Circuits(RULES)
    circuits.enter("busy")
    for number in range(FEWEST - 1):
        circuits.leave(circuits.enter(number), None)
    assert len(circuits._circuits) == FEWEST
    circuits.enter("one more")
    assert set(circuits._circuits) == {"busy", "one more"}
    assert circuits._prune_at == FEWEST


async def test_the_next_look_for_idle_circuits_comes_when_they_are_twice_as_many() -> None:
    circuits = Circuits(RULES)
    for number in range(FEWEST + 1):
        circuits.enter(number)
    assert (len(circuits._circuits), circuits._prune_at) == (FEWEST + 1, 2 * FEWEST)


async def test_the_call_that_tries_a_tool_again_announces_it_and_refused_calls_do_not() -> None:
    circuits = Circuits(RULES)
    first = circuits.enter("a")
    assert (first.news, circuits.leave(first, True)) == (None, "open")
    refused = [circuits.enter("a")]
    await anyio.sleep(7)
    trial = circuits.enter("a")
    refused.append(circuits.enter("a"))
    assert trial.ticket is not None
    assert trial.news == "half-open"
    assert [(one.ticket, one.news) for one in refused] == [(None, None)] * 2


def test_a_circuit_opens_for_half_a_minute_when_half_of_ten_calls_in_a_minute_failed() -> None:
    assert CircuitBreaker()._rules == Rules(ratio=0.5, minimum=10, window=60, open_for=30, probes=1)
