"""Decisions of circuits, tested without calls: what a circuit takes over from a store, and when it can be dropped."""

from typing import Any

import anyio
import pytest

from callboard.extend import Done, Found
from callboard.middleware._breaker import FEWEST, Circuit, CircuitBreaker, LocalCircuits, Rules, SharedCircuits, Ticket
from tests.server.documents._memory import MemoryDocuments, MemoryServer

pytestmark = pytest.mark.every_variant  # they take no time, and each is another decision

RULES = Rules(ratio=0.5, minimum=1, window=10, open_for=7, probes=1)
REQUEST: Any = None
"""Circuits of one process do not read the request."""


def let_in(circuit: Circuit, now: float) -> Ticket:
    ticket = circuit.before(now)
    assert ticket is not None
    return ticket


def shared(open_for: float = 7) -> SharedCircuits:
    rules = Rules(ratio=0.5, minimum=1, window=10, open_for=open_for, probes=1)
    return SharedCircuits(rules, MemoryDocuments(MemoryServer()), None)


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


# Before, seconds left elsewhere -> new state if it changed, seconds left here, and left here when it is over elsewhere
FOLLOWED: dict[str, tuple[str, float, str | None, float, float]] = {
    "closed, and open nowhere": ("closed", 0, None, 0, 0),
    "closed, and open elsewhere": ("closed", 1, "open", 1, 0),
    "opened here, which the store does not know": ("open", 0, None, 1, 1),
    "opened here and elsewhere": ("open", 1, None, 1, 0),
    "opened here and later elsewhere": ("open", 5, None, 5, 0),
    "opened here, and reset elsewhere": ("shared", 0, None, 0, 0),
    "opened here again after a time that the store knew": ("again", 0, None, 1, 1),
    "half-open, and open nowhere": ("half-open", 0, None, 0, 0),
    "half-open, and opened again elsewhere": ("half-open", 1, "open", 1, 0),
}


@pytest.mark.parametrize(("before", "elsewhere", "news", "here", "afterwards"), FOLLOWED.values(), ids=FOLLOWED)
def test_a_circuit_follows_the_others(
    before: str, elsewhere: float, news: str | None, here: float, afterwards: float
) -> None:
    """It is open as long as it is elsewhere. An opening that the store never had is not ended by the store."""
    circuit, now = Circuit(RULES), {"half-open": 7, "again": 13}.get(before, 6)
    if before != "closed":
        circuit.after(let_in(circuit, 0), 0, failed=True)
    circuit.is_shared = before in {"shared", "again"}
    if before == "again":
        circuit.after(let_in(circuit, 7), 7, failed=True)

    assert circuit.follow(elsewhere, now) == news
    assert circuit.wait(now) == here
    circuit.follow(0, now)
    assert circuit.wait(now) == afterwards


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
    circuits = LocalCircuits(RULES)
    await circuits.enter("busy", REQUEST)
    for number in range(FEWEST - 1):
        circuits.leave(await circuits.enter(number, REQUEST), None)
    assert len(circuits._circuits) == FEWEST
    await circuits.enter("one more", REQUEST)
    assert set(circuits._circuits) == {"busy", "one more"}
    assert circuits._prune_at == FEWEST


async def test_the_next_look_for_idle_circuits_comes_when_they_are_twice_as_many() -> None:
    circuits = LocalCircuits(RULES)
    for number in range(FEWEST + 1):
        await circuits.enter(number, REQUEST)
    assert (len(circuits._circuits), circuits._prune_at) == (FEWEST + 1, 2 * FEWEST)


async def test_the_call_that_tries_a_tool_again_announces_it_and_refused_calls_do_not() -> None:
    circuits = LocalCircuits(RULES)
    first = await circuits.enter("a", REQUEST)
    assert (first.news, circuits.leave(first, True)) == (None, "open")
    refused = [await circuits.enter("a", REQUEST)]
    await anyio.sleep(7)
    trial = await circuits.enter("a", REQUEST)
    refused.append(await circuits.enter("a", REQUEST))
    assert trial.ticket is not None
    assert trial.news == "half-open"
    assert [(one.ticket, one.news) for one in refused] == [(None, None)] * 2


@pytest.mark.parametrize(
    ("text", "left", "seconds"),
    [("open 1", 0.5, 0.5), ("open 1", 8, 8), ("open 1", -0.5, 0), ("open 1", 8.5, 0), ("open 2", 3, 0), (None, 3, 0)],
)
def test_a_document_opens_a_circuit_for_its_life_unless_it_is_void_or_forged(
    text: str | None, left: float, seconds: float
) -> None:
    assert shared()._left(Found(text=text, left=left, marks=(1,), now=1000.0)) == (None, seconds)


@pytest.mark.parametrize(("open_for", "lives"), [(7, 6.9), (0.05, 0.001)])
def test_the_document_of_an_open_circuit_lives_a_little_shorter_than_the_circuit_is_open(
    open_for: float, lives: float
) -> None:
    written, _ = shared(open_for)._open(Found(text=None, marks=(1,), now=1000.0))
    assert (written.text, written.lives) == ("open 1", pytest.approx(lives))


def test_a_circuit_opens_for_half_a_minute_when_half_of_ten_calls_in_a_minute_failed() -> None:
    assert CircuitBreaker()._rules == Rules(ratio=0.5, minimum=10, window=60, open_for=30, probes=1)


def test_the_name_of_a_document_tells_nothing_of_its_key_and_is_that_of_every_version() -> None:
    """Processes with different versions share the circuits."""
    assert shared()._document("a").name == "ac8d8342bbb2362d13f0a559a3621bb4"


async def test_an_answer_of_the_store_about_an_earlier_state_changes_nothing() -> None:
    """The circuit has opened or closed while the store was asked."""
    circuits = shared()
    admission = await circuits.enter("a", REQUEST)
    assert circuits.leave(admission, True) == "open"
    circuit = admission.circuit
    circuit.is_shared = False

    assert circuits._follow("a", circuit.changes - 1, 100.0) is None
    assert circuits._follow("a", circuit.changes, 0.0) is None
    circuits._stored(circuit, circuit.changes - 1, Done(None))
    circuits._stored(circuit, circuit.changes, OSError("away"))
    assert (circuits.state("a"), circuit.is_shared) == ("open", False)
    circuits._stored(circuit, circuit.changes, Done(None))
    assert circuit.is_shared
