"""Circuits shared by processes behave like one local circuit, for any order of events."""

from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st

from callboard.extend import Found
from callboard.middleware._breaker._circuit import Admission, Circuit, Memory, Rules, Ticket
from callboard.middleware._breaker._fleet_circuits import FleetCircuits, circuit_of, text_of

from ._memory import MemoryServer

RULES = Rules(ratio=0.5, minimum=3, window=10, open_for=7, probes=2)
PROCESSES = 3

BEGIN = st.tuples(st.just("begin"), st.integers(0, PROCESSES - 1))
END = st.tuples(st.just("end"), st.integers(0, 20), st.sampled_from([True, True, False, None]))
PASS = st.tuples(st.just("pass"), st.integers(0, 12))


class StandingServer(MemoryServer):
    """Server whose clock moves only on request."""

    def now(self) -> float:
        return 1_000_000.0 + self.ahead


@given(events=st.lists(BEGIN | END | PASS, max_size=40))
def test_circuits_of_many_processes_are_one_circuit(events: list[Any]) -> None:
    """Admission of each call and the state after each event agree, in each process."""
    anyio.run(_play, events)


async def _play(events: list[Any]) -> None:
    server = StandingServer()
    from ._memory import MemoryDocuments

    fleet = [FleetCircuits(MemoryDocuments(server, lease=1e6), RULES, None) for _ in range(PROCESSES)]
    model = Circuit(RULES)
    inside: list[tuple[FleetCircuits, Admission, Ticket]] = []
    request: Any = None
    for event in events:
        if event[0] == "pass":
            server.ahead += event[1]
        elif event[0] == "begin":
            admission = await fleet[event[1]].enter("key", request)
            ticket = model.before(server.now())
            assert (admission.ticket is None) == (ticket is None)
            assert ticket is not None or abs(admission.wait - model.wait(server.now())) < 0.01
            if ticket is not None:
                inside.append((fleet[event[1]], admission, ticket))
        elif inside:
            process, admission, ticket = inside.pop(event[1] % len(inside))
            process.leave(admission, event[2])
            model.after(ticket, server.now(), failed=event[2])
        assert {circuits.state("key") for circuits in fleet} == {model.state(server.now())}


SECONDS = st.integers(0, 10**13).map(lambda ms: ms / 1000)


@given(
    changes=st.integers(0, 10**6),
    until=st.none() | st.floats(0, 1007, allow_nan=False),
    outcomes=st.lists(st.tuples(st.integers(0, 1_000_000).map(lambda ms: ms / 1000), st.booleans()), max_size=30),
    probing=st.dictionaries(st.text("0123456789abcdef", min_size=1), st.floats(0, 1010), max_size=3),
)
def test_a_circuit_is_stored_as_it_is(
    changes: int, until: float | None, outcomes: list[tuple[float, bool]], probing: dict[str, float]
) -> None:
    """Times are stored in milliseconds."""
    memory = Memory(changes, until, tuple(sorted(outcomes, key=lambda one: one[0])), tuple(probing.items()))
    text = text_of(Circuit(RULES, memory), mark=5)

    found = Found(text=text, marks=(5,), now=1000.0, me="0" * 16)
    again = circuit_of(found, RULES, 10.0, Memory(0, None)).memory()

    assert again == memory
