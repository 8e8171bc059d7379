"""A circuit as a shared document: JSON, which anybody may have written."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from callboard._documents import Found
from callboard.middleware._circuit import MOST, Circuit, Memory, Rules

_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    mark: int
    """That of its shelf when it was written: a later one closes all circuits."""
    changes: _Count
    until: _Seconds | None
    first: _Count
    """When the oldest outcome was, in milliseconds; each of the others says how much later it was than the last."""
    outcomes: list[tuple[_Count, Annotated[str, Field(pattern=r"^[.x]+$")]]]
    """Calls that ended at one time: "." for each success, "x" for each failure."""
    probing: dict[str, _Seconds]


def text_of(circuit: Circuit, mark: int) -> str:
    """What is stored of a circuit; times to the millisecond."""
    memory = circuit.memory()
    outcomes: list[tuple[int, str]] = []
    first = last = round(memory.outcomes[0][0] * 1000) if memory.outcomes else 0
    for when, failed in memory.outcomes:
        now = max(last, round(when * 1000))
        if outcomes and now == last:
            outcomes[-1] = (outcomes[-1][0], outcomes[-1][1] + ".x"[failed])
        else:
            outcomes.append((now - last, ".x"[failed]))
        last = now
    return _Stored(
        mark=mark,
        changes=memory.changes,
        until=memory.until,
        first=first,
        outcomes=outcomes,
        probing=dict(memory.probing),
    ).model_dump_json()


_SLACK = 1.0
"""Seconds by which the clock of a store may go back without anybody being taken for a stranger."""
_EACH_OUTCOME, _EACH_PROBE = 20, 48
"""Bytes that are stored of each, at most."""


def size_of(rules: Rules) -> int:
    """How many bytes the document of a circuit may take, at the most."""
    return 1024 + max(MOST, rules.minimum) * _EACH_OUTCOME + rules.probes * _EACH_PROBE


def circuit_of(found: Found, rules: Rules, lease: float, known: Memory) -> Circuit:
    """The circuit that a document is of.

    Args:
        found: the document, and the mark of its shelf.
        rules: of the circuit.
        lease: seconds for which a probe counts unless it is renewed.
        known: what this process knows of it: that is told again to a store that has forgotten it.
    """
    if found.text is None:
        return Circuit(rules, known)
    try:
        stored = _Stored.model_validate_json(found.text)
    except ValidationError:
        stored = None
    if stored is None or (stored.until or 0) > found.now + rules.open_for + _SLACK:
        # Whoever wrote this is not one of us: as if nothing had been written, and other tickets than before.
        return Circuit(rules, Memory(known.changes + 1, None))
    if found.marks[0] != stored.mark:
        return Circuit(rules, Memory(stored.changes + 1, None))
    return Circuit(rules, _checked(stored, rules, lease, found.now))


def _checked(stored: _Stored, rules: Rules, lease: float, now: float) -> Memory:
    """What of it can be: no call has ended later than now, and no probe counts for longer than it may."""
    outcomes: list[tuple[float, bool]] = []
    when = stored.first
    for later, ends in stored.outcomes:
        when += later
        outcomes += [(when / 1000, end == "x") for end in ends]
    return Memory(
        stored.changes,
        stored.until,
        tuple(outcome for outcome in outcomes[-max(MOST, rules.minimum) :] if outcome[0] <= now + 0.001),
        tuple((probe, until) for probe, until in stored.probing.items() if until <= now + lease + _SLACK),
    )
