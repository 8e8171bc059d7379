"""Calls of a recording, grouped by agent run and batch, and short texts about recordings, runs and calls."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from math import isfinite
from typing import Any

from callboard._cli._shown_text import as_json, count, escape_name, one_line
from callboard.questions import printable
from callboard.telemetry import Note, Part, RecordedCall, RecordedRun

_UNITS = "kMGT"
_UNNAMED = "LangGraph"
"""Name of an agent without a name of its own, in LangGraph and in `create_react_agent`."""


@dataclass(frozen=True, slots=True)
class RunOfCalls:
    """Run of an agent in a recording, with its batches of calls."""

    number: int | None
    """Position of the run in its part of the recording, from 1; `None` for the group of calls that no agent made."""
    run: RecordedRun | None
    """Recorded facts about the run; `None` for calls without an agent, or if the event of the run's start was lost."""
    batches: Mapping[int, Sequence[RecordedCall]]
    """Calls of each batch, in the order of their starts, by the position of the batch in the run, from 1."""

    @property
    def title(self) -> str:
        """Heading of the run for display: its number and the name of its agent."""
        if self.number is None:
            return "calls without an agent"
        agent = self.run.agent if self.run else ""
        agent = "agent" if agent == _UNNAMED else agent
        return f"run {self.number}" + (f"  {escape_name(agent)}" if agent else "")


def runs_of(part: Part) -> list[RunOfCalls]:
    """Return all agent runs, even without calls, in one part (one recorder's events) of a recording, by start time."""
    runs: dict[int | None, RecordedRun] = {run.number: run for run in part.runs}
    batches: dict[int | None, dict[int, list[RecordedCall]]] = {number: {} for number in runs}
    for call in part.calls:
        batches.setdefault(call.run, {}).setdefault(call.batch, []).append(call)
    # Runs, batches and calls share the numbers of a recording, which have gaps: "run 1" would be followed by "run 18".
    numbers: list[int | None] = [number for number in batches if number is not None]
    positions = dict(zip(numbers, count_from(1), strict=False))
    return [
        RunOfCalls(
            None if number is None else positions[number], runs.get(number), dict(enumerate(calls.values(), start=1))
        )
        for number, calls in batches.items()
    ]


def end_of(call: RecordedCall, part: Part) -> float:
    """Return the end time of a call; for an open call, the time of the last event in its part of the recording."""
    return max(call.start, part.end if call.end is None else call.end)


def notes_in_short(call: RecordedCall) -> str:
    """Return a short text with a call's latest progress report, and its latest middleware decision of each kind."""
    counts = Counter(note.kind for note in call.notes)
    last = {note.kind: note for note in call.notes}
    texts = {kind: note_in_short(kind, note.facts, note.message) for kind, note in last.items()}
    # The number of reports would look like a part of the amounts, such as 10/10.
    times = {kind: f" x{many}" if many > 1 and kind != "progress" else "" for kind, many in counts.items()}
    return ", ".join(texts[kind] + times[kind] for kind in counts)


def note_in_short(kind: str, facts: Mapping[str, Any], message: str | None) -> str:
    """Return a short text about a note of a call: a progress report, or a middleware's decision such as a retry."""
    # `kind` is "progress" or the name of the decision; `facts` are its values by name.
    if kind != "progress":
        error = facts.get("error")
        return escape_name(kind) + (f": {escape_name(error)}" if isinstance(error, str) else "")
    done, total = facts.get("done"), facts.get("total")
    amounts = "" if done is None else _amount(done) if total is None else f"{_amount(done)}/{_amount(total)}"
    return " ".join(filter(None, (amounts, message))) or kind


def _amount(value: object) -> str:
    """Return a number as text, with up to four digits and a suffix such as k or M (4.2M). Other values become text."""
    if not isinstance(value, int | float) or not isfinite(value):
        return escape_name(str(value))
    size, unit = float(value), ""
    for larger in _UNITS:
        if abs(size) < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.3g}{unit}" if unit else f"{size:.4g}"


def facts_in_short(note: Note) -> dict[str, str]:
    """Return the values and the message of a progress report or middleware decision, as printable texts by name."""
    facts = {**note.facts, **({} if note.message is None else {"message": note.message})}
    texts: dict[str, str] = {}
    for name, value in facts.items():
        text = f"{value:.4g}" if isinstance(value, float) else value
        texts[escape_name(name)] = printable(text if isinstance(text, str) else as_json(text))
    return texts


def statement(part: Part) -> str:
    """Return a sentence about one part of a recording: number of events, lost events, and time spent on recording."""
    lost = f"{count(part.lost, 'event')} lost" if part.lost else "no events lost"
    closing = part.closing
    if closing is None:
        return f"cut off: the process ended early, or goes on; {lost if part.lost else 'no loss is known'}"
    return (
        f"{count(closing.events, 'event')}, {lost}, {closing.bytes / 1000:.1f} kB; recording took "
        f"{closing.overhead * 1000:.1f} ms of the event loop's time, {closing.per_event * 1e6:.1f} µs an event"
    )


def about_part(part: Part) -> str:
    """Return a line of text about a part of a recording: start time, process id, versions of callboard and Python."""
    facts = (
        f"{part.started.astimezone():%Y-%m-%d %H:%M:%S}" if part.started else "",
        f"callboard {part.callboard}" if part.callboard else "",
        f"Python {part.python}" if part.python else "",
        f"pid {part.pid}" if part.pid else "",
    )
    return one_line("  ".join(filter(None, facts)), 200)


def error_beside(outcome: str | None, error: str | None) -> str:
    """Return the error of a call or a run as a text beside its outcome; empty if the outcome says the same."""
    return "" if error is None or error == outcome else error


def about_run(group: RunOfCalls) -> list[str]:
    """Return short texts about a run: its thread id, outcome, error, questions, model requests and tokens."""
    run = group.run
    if run is None:
        return []
    tokens_in = sum(request.input_tokens or 0 for request in run.requests)
    tokens_out = sum(request.output_tokens or 0 for request in run.requests)
    facts = [
        f"thread {escape_name(run.thread)}" if run.thread else "",
        f"in {escape_name(run.namespace)}" if run.namespace else "",
        escape_name(run.outcome or "open"),
        escape_name(error_beside(run.outcome, run.error)),
        count(run.questions, "question") if run.questions else "",
        count(len(run.requests), "model request") if run.requests else "",
        count(len(run.messages), "message") if run.messages else "",
        f"{tokens_in:,} + {tokens_out:,} tokens" if tokens_in or tokens_out else "",
    ]
    return [text for text in facts if text]
