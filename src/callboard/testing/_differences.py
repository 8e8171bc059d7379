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
        reply_ids = {message.id for message in history if isinstance(message, AIMessage)}
        stored = (index + 1 for index in range(len(self.run.requests)) if self.reply_id(index) in reply_ids)
        index = max(self._asked, *stored, 0)
        if index >= len(self.run.requests):
            raise LookupError(f"the recorded run has {index} model requests, and the replay made one more")
        self._asked = index + 1
        return index, self.run.requests[index]

    def reply_id(self, index: int) -> str:
        """Return the id of the reply to the model request with this index; a made-up id if the reply has none."""
        return (self.run.requests[index].reply or {}).get("id") or f"recorded_{index}"

    def start_again(self) -> None:
        """Forget which calls and requests the replay has made."""
        self._asked = 0
        self._taken.clear()

    def turns(self) -> list[list[RecordedCall]]:
        """Return the recorded calls in groups: calls before any model reply, calls of the first reply, and so on."""
        turns: list[list[RecordedCall]] = [[] for _ in range(len(self.run.requests) + 1)]
        for call in self.calls:
            turns[self._turn(call)].append(call)
        return turns

    def _turn(self, call: RecordedCall) -> int:
        # By the ids in replies, because on a virtual clock many events have the same time.
        before = [number for number, request in enumerate(self.run.requests, 1) if request.start <= call.start]
        replies = [self.run.requests[number - 1].reply or {} for number in before]
        call_ids = [{tool_call.get("id") for tool_call in reply.get("tool_calls") or ()} for reply in replies]
        return max((number for number, ids in zip(before, call_ids, strict=True) if call.id in ids), default=0)


def report(path: Path, texts: Sequence[str], errors: Sequence[Exception]) -> str:
    """Return a text with the number of differences, the first differences in full, and the errors of replayed runs."""
    many = "in 1 place" if len(texts) == 1 else f"in {len(texts)} places, of which the first may cause the others"
    lines = [f"the replay of {path} differs {many}:", *texts[:_SHOWN]]
    if len(texts) > _SHOWN:
        lines.append(f"... and {len(texts) - _SHOWN} more")
    lines += [f"A run of the replay raised {type(error).__name__}: {_short(str(error))}" for error in errors]
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
    recorded = [story for story in expected if not story.is_nested]
    replayed = [story for story in got if not story.is_nested]
    texts: list[str] = []
    for number, (story, other) in enumerate(zip_longest(recorded, replayed), 1):
        if story is None or other is None:
            texts.append(f"run {number}: {'the recording has no further run' if story is None else 'it did not begin'}")
        else:
            texts += _of_run(f"run {number} of {story.run.agent!r}", story, other, compared)
    return texts


def _of_run(title: str, expected: Story, got: Story, compared: Compared) -> Iterator[str]:
    requests = list(zip_longest(expected.run.requests, got.run.requests))
    for number, (before, now) in enumerate(zip_longest(expected.turns(), got.turns(), fillvalue=())):
        if number:
            yield from _pair(f"{title}, model request {number}", *map(_request, requests[number - 1]))
        turn = f"{title}, after model request {number}" if number else f"{title}, at its start"
        yield from _of_turn(turn, before, now, compared)
    yield from _pair(f"{title}, its end", _end(expected.run), _end(got.run))


def _of_turn(
    title: str, expected: Sequence[RecordedCall], got: Sequence[RecordedCall], compared: Compared
) -> Iterator[str]:
    left = list(got)
    for call in expected:
        other = next((candidate for candidate in left if candidate.id == call.id), None)
        if other is not None:
            left.remove(other)
        yield from _pair(title, _call(call), _call(other), *_details(call, other))
        if compared.results and other is not None and call.outcome == other.outcome == "ok":
            yield from _of_result(f"{title}, result of {call.id} {call.tool}", _text(call.result), _text(other.result))
    for call in left:
        yield from _pair(title, _call(None), _call(call))
    yield from _pair(title, _order(expected, got), _order(got, expected))
    if compared.order:
        before, now = _has_queue(expected), _has_queue(got)
        if before is not None and now is not None:
            yield from _pair(title, _queue(before), _queue(now))


def _order(calls: Sequence[RecordedCall], others: Sequence[RecordedCall]) -> str:
    """Return the ids of the calls that are in both lists, as one text, sorted by the call numbers in `calls`."""
    common = {call.id for call in others}
    # By number: on trio, the calls of a batch begin in any order.
    return ", ".join(f"{call.id}" for call in sorted(calls, key=lambda call: call.number) if call.id in common)


def _has_queue(calls: Sequence[RecordedCall]) -> bool | None:
    """Return whether one of the calls waited for the end of another call; `None` if the times do not show this."""
    ended = [call for call in calls if call.end is not None and call.attempts]
    took = [attempt.end - attempt.start for call in ended for attempt in call.attempts if attempt.end is not None]
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


def _pair(title: str, expected: str, got: str, *further: str) -> Iterator[str]:
    if expected != got:
        yield "\n".join([f"{title}:", f"  expected  {expected}", f"  got       {got}", *further])


def _of_result(title: str, expected: str, got: str) -> Iterator[str]:
    """Yield the difference of two results. Long results are shown from shortly before the first different character."""
    shorter = min(len(expected), len(got))
    same = next((index for index in range(shorter) if expected[index] != got[index]), shorter)
    start = max(0, same - _LONGEST // 4) if max(len(expected), len(got)) > _LONGEST else 0
    skipped = "..." if start else ""
    yield from _pair(title, *(f"{skipped}{_short(text[start:])}" for text in (expected, got)))


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
