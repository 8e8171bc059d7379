"""JSON form of a circuit in a shared store. Other clients may write to the store, so reading validates everything."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from callboard._records._documents import Found
from callboard.middleware._breaker._circuit import MOST, Circuit, Memory, Rules

_Seconds = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=2**53)]


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    mark: int
    """Value of the reset mark at writing time. A later reset makes the whole document invalid."""
    changes: _Count
    until: _Seconds | None
    first: _Count
    """Time of the oldest outcome, in milliseconds. Each entry of `outcomes` gives the milliseconds since the last."""
    outcomes: list[tuple[_Count, Annotated[str, Field(pattern=r"^[.x]+$")]]]
    """Outcomes at one time: "." for each success, "x" for each failure."""
    probing: dict[str, _Seconds]


def text_of(circuit: Circuit, mark: int) -> str:
    """Return the JSON of a circuit; times are rounded to milliseconds."""
    memory = circuit.memory()
    outcomes: list[tuple[int, str]] = []
    first = last = round(memory.outcomes[0][0] * 1000) if memory.outcomes else 0
    for when, failed in memory.outcomes:
        # Never before the previous outcome: rounding or a clock set back would give a negative difference.
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
"""Seconds by which the store's clock may go back before a document counts as forged."""
_EACH_OUTCOME, _EACH_PROBE = 20, 48
"""Maximum bytes that one outcome and one trial call take in the document."""


def size_of(rules: Rules) -> int:
    """Return the maximum size in bytes of the document of a circuit."""
    return 1024 + max(MOST, rules.minimum) * _EACH_OUTCOME + rules.probes * _EACH_PROBE


def circuit_of(found: Found, rules: Rules, lease: float, known: Memory) -> Circuit:
    """Return the circuit that a document describes, or `known` if the store has lost it.

    `lease` is the number of seconds for which a trial call counts unless it is renewed.
    """
    if found.text is None:
        # The store has lost its data, as after a restart without persistence: this process restores what it knows.
        return Circuit(rules, known)
    try:
        stored = _Stored.model_validate_json(found.text)
    except ValidationError:
        stored = None
    if stored is None or (stored.until or 0) > found.now + rules.open_for + _SLACK:
        # Invalid, or open for longer than any circuit can be: some other client wrote this. Start with a closed
        # circuit, and with a number of changes that makes all tickets of running calls invalid.
        return Circuit(rules, Memory(known.changes + 1, None))
    if found.marks[0] != stored.mark:
        # All circuits were reset after this was written.
        return Circuit(rules, Memory(stored.changes + 1, None))
    return Circuit(rules, _checked(stored, rules, lease, found.now))


def _checked(stored: _Stored, rules: Rules, lease: float, now: float) -> Memory:
    """Return the plausible part: no outcome is in the future, and no trial call counts for more than a lease."""
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
