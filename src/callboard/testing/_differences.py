"""Comparison of a replay with its recording, as a readable report."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from callboard.telemetry._recording._timeline import ModelRequest, RecordedCall, RecordedRun

_SHOWN = 5
"""Number of differences that a report shows."""
_LONGEST = 200
"""Longest value in a report, in characters."""
_QUICK = 0.01
"""Seconds below which the duration of a body says nothing about queues."""


@dataclass(slots=True)
class Story:
    """Recorded run with its calls, in the order in which they began."""

    run: RecordedRun
    calls: Sequence[RecordedCall]
    _asked: int = 0
    _taken: set[int] = field(default_factory=set[int])

    @property
    def is_nested(self) -> bool:
        """`True` if the run was started by a tool, or by a graph that contains the agent."""
        return bool(self.run.namespace)

    def take(self, call_id: str | None) -> RecordedCall:
        """Return the next recorded call with this id; raise LookupError if the recorded run has no such call."""
        for call in self.calls:
            if call.id == call_id and call.number not in self._taken:
                self._taken.add(call.number)
                return call
        # Again, after a kill; otherwise the comparison tells of the call.
        if (again := next((call for call in self.calls if call.id == call_id), None)) is None:
            raise LookupError(f"the recording has no call {call_id!r}")
        return again

    def next_request(self, history: Sequence[BaseMessage]) -> tuple[int, ModelRequest]:
        """Return the next recorded model request and its index in the run; raise LookupError after the last one."""
        # Replies in the history count: after a kill, another run goes on.
        known = {message.id for message in history if isinstance(message, AIMessage)}
        stored = (place + 1 for place in range(len(self.run.requests)) if self.reply_id(place) in known)
        place = max(self._asked, *stored, 0)
        if place >= len(self.run.requests):
            raise LookupError(f"the recorded run has {place} model requests, and the replay made one more")
        self._asked = place + 1
        return place, self.run.requests[place]

    def reply_id(self, place: int) -> str:
        """Return the id of the reply to the model request with index `place`; a made-up id if the reply has none."""
        return (self.run.requests[place].reply or {}).get("id") or f"recorded_{place}"

    def start_again(self) -> None:
        """Forget which calls and requests the replay has made."""
        self._asked = 0
        self._taken.clear()

    def turns(self) -> list[list[RecordedCall]]:
        """Return the recorded calls in groups: calls before any model reply, calls of the first reply, and so on."""
        found: list[list[RecordedCall]] = [[] for _ in range(len(self.run.requests) + 1)]
        for call in self.calls:
            found[self._turn(call)].append(call)
        return found

    def _turn(self, call: RecordedCall) -> int:
        # By the ids in replies, because on a virtual clock many events have the same time.
        asked = [place for place, one in enumerate(self.run.requests, 1) if one.start <= call.start]
        replies = [self.run.requests[place - 1].reply or {} for place in asked]
        said = [{one.get("id") for one in reply.get("tool_calls") or ()} for reply in replies]
        return max((place for place, ids in zip(asked, said, strict=True) if call.id in ids), default=0)


def report(path: Path, found: Sequence[str], errors: Sequence[Exception]) -> str:
    """Return a text with the number of differences, the first differences in full, and the errors of replayed runs."""
    many = "in 1 place" if len(found) == 1 else f"in {len(found)} places, of which the first may cause the others"
    lines = [f"the replay of {path} differs {many}:", *found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"... and {len(found) - _SHOWN} more")
    lines += [f"A run of the replay raised {type(one).__name__}: {_short(str(one))}" for one in errors]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Options of a comparison. Model requests, tool calls and the ends of runs are always compared."""

    order: bool
    """`True` to compare whether calls of a turn waited for each other."""
    results: bool
    """`True` to compare the results of calls that succeeded in both runs."""


def differences(expected: Sequence[Story], got: Sequence[Story], compared: Compared) -> list[str]:
    """Return the differences between recorded and replayed runs, in the order of events; nested runs do not count."""
    told = [one for one in expected if not one.is_nested]
    found = [one for one in got if not one.is_nested]
    texts: list[str] = []
    for place, (one, other) in enumerate(zip_longest(told, found), 1):
        if one is None or other is None:
            texts.append(f"run {place}: {'the recording has no further run' if one is None else 'it did not begin'}")
        else:
            texts += _of_run(f"run {place} of {one.run.agent!r}", one, other, compared)
    return texts


def _of_run(where: str, expected: Story, got: Story, compared: Compared) -> Iterator[str]:
    requests = list(zip_longest(expected.run.requests, got.run.requests))
    for place, (one, other) in enumerate(zip_longest(expected.turns(), got.turns(), fillvalue=())):
        if place:
            yield from _pair(f"{where}, model request {place}", *map(_request, requests[place - 1]))
        turn = f"{where}, after model request {place}" if place else f"{where}, at its start"
        yield from _of_turn(turn, one, other, compared)
    yield from _pair(f"{where}, its end", _end(expected.run), _end(got.run))


def _of_turn(
    where: str, expected: Sequence[RecordedCall], got: Sequence[RecordedCall], compared: Compared
) -> Iterator[str]:
    left = list(got)
    for call in expected:
        other = next((one for one in left if one.id == call.id), None)
        if other is not None:
            left.remove(other)
        yield from _pair(where, _call(call), _call(other), *_details(call, other))
        if compared.results and other is not None and call.outcome == other.outcome == "ok":
            yield from _of_result(f"{where}, result of {call.id} {call.tool}", _text(call.result), _text(other.result))
    for call in left:
        yield from _pair(where, _call(None), _call(call))
    yield from _pair(where, _order(expected, got), _order(got, expected))
    if compared.order:
        before, now = _has_queue(expected), _has_queue(got)
        if before is not None and now is not None:
            yield from _pair(where, _queue(before), _queue(now))


def _order(calls: Sequence[RecordedCall], others: Sequence[RecordedCall]) -> str:
    """Return the ids of the calls that are in both lists, as one text, sorted by the call numbers in `calls`."""
    common = {call.id for call in others}
    # By number: on trio, the calls of a batch begin in any order.
    return ", ".join(f"{call.id}" for call in sorted(calls, key=lambda call: call.number) if call.id in common)


def _has_queue(calls: Sequence[RecordedCall]) -> bool | None:
    """Return whether one of the calls waited for the end of another call; `None` if the times do not show this."""
    ended = [call for call in calls if call.end is not None and call.attempts]
    took = [one.end - one.start for call in ended for one in call.attempts if one.end is not None]
    # A real queue takes as long as the shortest body. Shorter waits, and all waits for quick bodies, are chance.
    if len(ended) < 2 or not took or min(took) < _QUICK:
        return None
    if max(call.waited for call in ended) > min(took) / 2:
        return True
    # If something held the event loop, a call may have begun when those before it had already ended.
    starts = [call.start for call in calls]
    return None if max(starts) - min(starts) > min(took) / 2 else False


def _queue(has_queue: bool) -> str:
    return "a call waits for the end of another" if has_queue else "no call waits for the end of another"


def _pair(where: str, expected: str, got: str, *further: str) -> Iterator[str]:
    if expected != got:
        yield "\n".join([f"{where}:", f"  expected  {expected}", f"  got       {got}", *further])


def _of_result(where: str, expected: str, got: str) -> Iterator[str]:
    """Yield the difference of two results. Long results are shown from shortly before the first different character."""
    shorter = min(len(expected), len(got))
    same = next((place for place in range(shorter) if expected[place] != got[place]), shorter)
    start = max(0, same - _LONGEST // 4) if max(len(expected), len(got)) > _LONGEST else 0
    skipped = "..." if start else ""
    yield from _pair(where, *(f"{skipped}{_short(text[start:])}" for text in (expected, got)))


def _details(call: RecordedCall, other: RecordedCall | None) -> Iterator[str]:
    """Yield a line for each argument that has changed, and one with the error if only the replayed call failed."""
    if other is None:
        return
    if isinstance(call.args, dict) and isinstance(other.args, dict):
        for name in dict.fromkeys((*call.args, *other.args)):
            before, now = (_short(args[name]) if name in args else "none" for args in (call.args, other.args))
            if before != now:
                yield f"  argument  {name}: {before} -> {now}"
    if other.failed and not call.failed and other.result:
        yield f"  message   {_short(other.result)}"


def _request(request: ModelRequest | None) -> str:
    if request is None:
        return "no further request to the model"
    return f"a request to the model ({request.error or 'ok'})"


def _call(call: RecordedCall | None) -> str:
    if call is None:
        return "no such call"
    failed = [attempt.error for attempt in call.attempts if attempt.error is not None]
    if failed and failed[-1] == call.error:  # the last attempt is the outcome
        failed.pop()
    tried = f", after {', '.join(failed)}" if failed else ""
    args = call.args if isinstance(call.args, dict) else {}
    shown = ", ".join(f"{name}={_short(value)}" for name, value in args.items())
    return f"{call.id} {call.tool}({shown}): {_ending(call.outcome, call.error)}{tried}"


def _end(run: RecordedRun) -> str:
    questions = f", {run.questions} open questions" if run.questions else ""
    return f"{_ending(run.outcome, run.error)}{questions}"


def _ending(outcome: str | None, error: str | None) -> str:
    return f"{outcome} ({error})" if error not in (None, outcome) else f"{outcome}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
