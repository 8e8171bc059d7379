"""Decisions of circuits, tested without calls: when a circuit opens, and when it can be dropped."""

import pytest

from callboard.middleware._breaker import FEWEST, Circuit, Circuits, Rules, Ticket

pytestmark = pytest.mark.every_variant  # they take no time, and each is another decision

RULES = Rules(ratio=0.5, minimum=1, window=10, open_for=7, probes=1)


def let_in(circuit: Circuit, now: float) -> Ticket:
    ticket = circuit.before(now)
    assert ticket is not None
    return ticket


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
