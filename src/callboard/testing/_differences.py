"""Comparison of a replay with its recording, as a readable report."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from callboard.telemetry._recording._timeline import ModelRequest, ReadMessage, RecordedCall, RecordedRun

_MAX_DIFFERENCES = 5
"""Number of differences that a report shows."""
_MAX_VALUE_CHARS = 200
"""Longest value in a report, in characters."""
QUICK = 0.01
"""Seconds below which the duration of a body says nothing about queues."""


@dataclass(slots=True)
class Story:
    """Recorded run with its calls, in the order in which they began."""

    run: RecordedRun
    calls: Sequence[RecordedCall]
    _next_index: int = 0
    _taken_numbers: set[int] = field(default_factory=set[int])

    @property
    def is_nested(self) -> bool:
        """`True` if the run was started by a tool, or by a graph that contains the agent."""
        return bool(self.run.namespace)

    def has_call(self, call_id: str | None) -> bool:
        """Return whether the recorded run has a call with this id."""
        return any(call.id == call_id for call in self.calls)

    @property
    def is_cut_off(self) -> bool:
        """`True` if an error or a cancellation has ended the run, and with it the calls that had not ended."""
        return self.run.outcome not in ("ok", "interrupted")

    def next_call(self, call_id: str | None) -> RecordedCall | None:
        """Return the next recorded call with this id that was not taken; `None` without one."""
        return next(
            (call for call in self.calls if call.id == call_id and call.number not in self._taken_numbers), None
        )

    def take(self, call_id: str | None) -> RecordedCall:
        """Return the next recorded call with this id; raise LookupError if the recorded run has no such call."""
        if (next_call := self.next_call(call_id)) is not None:
            self._taken_numbers.add(next_call.number)
            return next_call
        # Again, after a kill; otherwise the comparison tells of the call.
        if (repeated_call := next((call for call in self.calls if call.id == call_id), None)) is None:
            raise LookupError(f"the recording has no call {call_id!r}")
        return repeated_call

    def answered_requests(self, history: Sequence[BaseMessage]) -> int:
        """Return the number of recorded model requests to which the replay has got the reply."""
        # Replies in the history count: after a kill, another run goes on.
        reply_ids = {message.id for message in history if isinstance(message, AIMessage)}
        stored = (index + 1 for index in range(len(self.run.requests)) if self.reply_id(index) in reply_ids)
        return max(self._next_index, *stored, 0)

    def messages_of_people(self, requests: int) -> list[ReadMessage]:
        """Return the messages of people that the recorded run has read after this number of model requests."""
        # Background calls of the replay make their own messages; messages before the input are part of the input.
        return [
            message
            for message in self.run.messages
            if message.requests == requests and message.background is None and message.point != "input"
        ]

    def next_request(self, history: Sequence[BaseMessage]) -> tuple[int, ModelRequest]:
        """Return the next recorded model request and its index in the run; raise LookupError after the last one."""
        index = self.answered_requests(history)
        if index >= len(self.run.requests):
            raise LookupError(f"the recorded run has {index} model requests, and the replay made one more")
        self._next_index = index + 1
        return index, self.run.requests[index]

    def reply_id(self, index: int) -> str:
        """Return the id of the reply to the model request with this index; a made-up id if the reply has none."""
        return (self.run.requests[index].reply or {}).get("id") or f"recorded_{index}"

    def start_again(self) -> None:
        """Forget which calls and requests the replay has made."""
        self._next_index = 0
        self._taken_numbers.clear()

    def turns(self) -> list[list[RecordedCall]]:
        """Return the recorded calls in groups: calls before any model reply, calls of the first reply, and so on."""
        turns: list[list[RecordedCall]] = [[] for _ in range(len(self.run.requests) + 1)]
        for call in self.calls:
            turns[self._turn(call)].append(call)
        return turns

    def _turn(self, call: RecordedCall) -> int:
        """Return the number of the model request whose reply contains the call; 0 if no reply before it does."""
        # By the ids in replies, because on a virtual clock many events have the same time.
        before = [number for number, request in enumerate(self.run.requests, 1) if request.start <= call.start]
        replies = [self.run.requests[number - 1].reply or {} for number in before]
        call_ids = [{tool_call.get("id") for tool_call in reply.get("tool_calls") or ()} for reply in replies]
        return max((number for number, ids in zip(before, call_ids, strict=True) if call.id in ids), default=0)


def report(path: Path, texts: Sequence[str], errors: Sequence[Exception]) -> str:
    """Return a text with the number of differences, the first differences in full, and the errors of replayed runs."""
    number_text = (
        "in 1 place" if len(texts) == 1 else f"in {len(texts)} places, of which the first may cause the others"
    )
    lines = [f"the replay of {path} differs {number_text}:", *texts[:_MAX_DIFFERENCES]]
    if len(texts) > _MAX_DIFFERENCES:
        lines.append(f"... and {len(texts) - _MAX_DIFFERENCES} more")
    lines += [f"A run of the replay raised {type(error).__name__}: {_shorten(str(error))}" for error in errors]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOptions:
    """Options of a comparison. Model requests, tool calls and the ends of runs are always compared."""

    order: bool
    """`True` to compare whether calls of a turn waited for each other."""
    results: bool
    """`True` to compare the results of calls that succeeded in both runs."""


def differences(expected: Sequence[Story], got: Sequence[Story], options: ComparisonOptions) -> list[str]:
    """Return the differences between recorded and replayed runs, in the order of events; nested runs do not count."""
    recorded = [story for story in expected if not story.is_nested]
    replayed = [story for story in got if not story.is_nested]
    texts: list[str] = []
    for number, (story, replayed_story) in enumerate(zip_longest(recorded, replayed), 1):
        if story is None or replayed_story is None:
            texts.append(f"run {number}: {'the recording has no further run' if story is None else 'it did not begin'}")
        else:
            texts += _compare_runs(f"run {number} of {story.run.agent!r}", story, replayed_story, options)
    return texts


def _compare_runs(title: str, expected: Story, got: Story, options: ComparisonOptions) -> Iterator[str]:
    requests = list(zip_longest(expected.run.requests, got.run.requests))
    for number, (recorded_calls, replayed_calls) in enumerate(zip_longest(expected.turns(), got.turns(), fillvalue=())):
        if number:
            texts = [
                "no further request to the model"
                if request is None
                else f"a request to the model ({request.error or 'ok'})"
                for request in requests[number - 1]
            ]
            yield from _compare_texts(f"{title}, model request {number}", *texts)
        turn = f"{title}, after model request {number}" if number else f"{title}, at its start"
        if expected.is_cut_off:
            # Whether a call begins before the error of its neighbour ends it depends on the event loop.
            comparable_calls = _without_unbegun_calls(recorded_calls, replayed_calls)
            comparable_replayed_calls = _without_unbegun_calls(replayed_calls, recorded_calls)
            yield from _compare_turns(turn, comparable_calls, comparable_replayed_calls, options)
        else:
            yield from _compare_turns(turn, recorded_calls, replayed_calls, options)
        messages = [_describe_messages(story.messages_of_people(number)) for story in (expected, got)]
        yield from _compare_texts(turn, *messages)
    yield from _compare_texts(f"{title}, its end", _describe_end(expected.run), _describe_end(got.run))


def _without_unbegun_calls(calls: Sequence[RecordedCall], other_calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """Return the calls without those that ended with their run, and that did not begin in the other run."""
    other_ids = {call.id for call in other_calls}
    return [call for call in calls if not (is_ended_with_run(call) and call.id not in other_ids)]


def is_ended_with_run(call: RecordedCall) -> bool:
    """Return whether a call was cancelled with its batch, and not alone: then the model reads no message about it."""
    return call.outcome == "cancelled" and call.result is None and call.cancelled_by != "application"


def _compare_turns(
    title: str, expected: Sequence[RecordedCall], got: Sequence[RecordedCall], options: ComparisonOptions
) -> Iterator[str]:
    unmatched_calls = list(got)
    for call in expected:
        replayed_call = next((candidate for candidate in unmatched_calls if candidate.id == call.id), None)
        if replayed_call is not None:
            unmatched_calls.remove(replayed_call)
        yield from _compare_texts(
            title, _describe_call(call), _describe_call(replayed_call), *_describe_changes(call, replayed_call)
        )
        if options.results and replayed_call is not None and call.outcome == replayed_call.outcome == "ok":
            yield from _compare_results(
                f"{title}, result of {call.id} {call.tool}", _text(call.result), _text(replayed_call.result)
            )
    for call in unmatched_calls:
        yield from _compare_texts(title, _describe_call(None), _describe_call(call))
    yield from _compare_texts(title, _ids_in_order(expected, got), _ids_in_order(got, expected))
    if options.order:
        has_recorded_queue, has_replayed_queue = _has_queue(expected), _has_queue(got)
        if has_recorded_queue is not None and has_replayed_queue is not None:
            yield from _compare_texts(title, _describe_queue(has_recorded_queue), _describe_queue(has_replayed_queue))


def _ids_in_order(calls: Sequence[RecordedCall], compared_calls: Sequence[RecordedCall]) -> str:
    """Return the ids of the calls that are in both lists, as one text, sorted by the call numbers in `calls`."""
    common = {call.id for call in compared_calls}
    # By number: on trio, the calls of a batch begin in any order.
    return ", ".join(f"{call.id}" for call in sorted(calls, key=lambda call: call.number) if call.id in common)


def _has_queue(calls: Sequence[RecordedCall]) -> bool | None:
    """Return whether one of the calls waited for the end of another call; `None` if the times do not show this."""
    ended_calls = [call for call in calls if call.end is not None and call.attempts]
    durations = [
        attempt.end - attempt.start for call in ended_calls for attempt in call.attempts if attempt.end is not None
    ]
    # A real queue takes as long as the shortest body. Shorter waits, and all waits for quick bodies, are chance.
    if len(ended_calls) < 2 or not durations or min(durations) < QUICK:
        return None
    if max(call.waited for call in ended_calls) > min(durations) / 2:
        return True
    # If something held the event loop, a call may have begun when those before it had already ended.
    starts = [call.start for call in calls]
    return None if max(starts) - min(starts) > min(durations) / 2 else False


def _describe_queue(has_queue: bool) -> str:
    return "a call waits for the end of another" if has_queue else "no call waits for the end of another"


def _compare_texts(title: str, expected: str, got: str, *further: str) -> Iterator[str]:
    if expected != got:
        yield "\n".join([f"{title}:", f"  expected  {expected}", f"  got       {got}", *further])


def _compare_results(title: str, expected: str, got: str) -> Iterator[str]:
    """Yield the difference of two results. Long results are shown from shortly before the first different character."""
    shorter_length = min(len(expected), len(got))
    common_length = next((index for index in range(shorter_length) if expected[index] != got[index]), shorter_length)
    start = max(0, common_length - _MAX_VALUE_CHARS // 4) if max(len(expected), len(got)) > _MAX_VALUE_CHARS else 0
    prefix = "..." if start else ""
    yield from _compare_texts(title, *(f"{prefix}{_shorten(text[start:])}" for text in (expected, got)))


def _describe_changes(call: RecordedCall, replayed_call: RecordedCall | None) -> Iterator[str]:
    """Yield a line for each argument that has changed, and one with the error if only the replayed call failed."""
    if replayed_call is None:
        return
    if isinstance(call.args, dict) and isinstance(replayed_call.args, dict):
        for name in dict.fromkeys((*call.args, *replayed_call.args)):
            recorded_value, replayed_value = (
                _shorten(args[name]) if name in args else "none" for args in (call.args, replayed_call.args)
            )
            if recorded_value != replayed_value:
                yield f"  argument  {name}: {recorded_value} -> {replayed_value}"
    if replayed_call.failed and not call.failed and replayed_call.result:
        yield f"  message   {_shorten(replayed_call.result)}"


def _describe_call(call: RecordedCall | None) -> str:
    if call is None:
        return "no such call"
    errors = [attempt.error for attempt in call.attempts if attempt.error is not None]
    if errors and errors[-1] == call.error:  # the last attempt is the outcome
        errors.pop()
    earlier_errors = f", after {', '.join(errors)}" if errors else ""
    args = call.args if isinstance(call.args, dict) else {}
    arguments = ", ".join(f"{name}={_shorten(value)}" for name, value in args.items())
    return f"{call.id} {call.tool}({arguments}): {_describe_outcome(call.outcome, call.error)}{earlier_errors}"


def _describe_messages(messages: Sequence[ReadMessage]) -> str:
    texts: list[str] = []
    for read in messages:
        content = read.message.get("content") if isinstance(read.message, dict) else read.message
        texts.append(f"{_shorten(content)} {read.where}")
    return f"reads {', '.join(texts)}" if texts else "reads no message of a person"


def _describe_end(run: RecordedRun) -> str:
    questions = f", {run.questions} open questions" if run.questions else ""
    return f"{_describe_outcome(run.outcome, run.error)}{questions}"


def _describe_outcome(outcome: str | None, error: str | None) -> str:
    return f"{outcome} ({error})" if error not in (None, outcome) else f"{outcome}"


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
