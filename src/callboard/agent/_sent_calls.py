"""Calls sent to the tools node with `Send`: they run beside the reply's calls, and streams show them as one task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from callboard._langgraph._node_scope import PUSH, NodePlace, Outer
from callboard.agent._stream_payloads import Teller
from callboard.agent._tools_step import CallsRun, CallStep, CallsThread, run_as_one, unknown_settled
from callboard.conversations._channels import Schema, State, Write
from callboard.conversations._sends import Sent
from callboard.tools._call_record import CallRecord
from callboard.tools._keys import keys_of
from callboard.tools._workings import Workings


async def run_sent_calls(run: CallsRun, sent: Sent) -> list[str]:
    """Run the unfinished calls of a send; return their task names, in order. Raises as `run_calls` does."""
    key = run.tools.messages_key
    requested = sent.requested(run.thread.state.get(key) or [], key)
    keys = keys_of(requested.calls)
    tasks = [sent.task_of(name) for name in keys]
    part = _Part(run, sent, keys)
    place = run.place(sent.node, PUSH, str(sent.number))
    if tasks and all(run.thread.known_of(task).is_finished for task in tasks):
        run.tell.cached(place, [dict(run.thread.written(tasks))])
        return tasks
    places = _PlacesOfSend(part, keys)
    answers = await unknown_settled(part, requested, keys, places)
    await run_as_one(part, CallStep(part, requested, keys, places, answers), place, sent.payload)
    return tasks


class _PlacesOfSend(dict[str, NodePlace]):
    """Positions of a send's calls: that of the send for a single call, numbered ones otherwise."""

    def __init__(self, run: "_Part", keys: Sequence[str]) -> None:
        rest = ((),) if len(keys) == 1 else tuple((str(index),) for index in range(len(keys)))
        super().__init__(
            (key, run.place(run.sent.node, PUSH, str(run.sent.number), *more))
            for key, more in zip(keys, rest, strict=True)
        )


class _Part:
    """Run as seen by the calls of one send."""

    by_call = False

    def __init__(self, run: CallsRun, sent: Sent, keys: Sequence[str]) -> None:
        self.sent = sent
        self.thread = _PartOfThread(run.thread, sent, keys)
        self.outer: Outer | None = run.outer
        self.tools: Workings = run.tools
        self.tell: Teller = run.tell
        self._run = run
        self.place = run.place
        self.config_at = run.config_at
        self.traced = run.traced

    @property
    def is_watched(self) -> bool:
        return self._run.is_watched

    def given(self, node: str) -> Any:
        return self.sent.payload

    def answers_for(self, tasks: Sequence[str]) -> dict[str, Any]:
        return self._run.answers_for([self.sent.task_of(task) for task in tasks])


class _PartOfThread:
    """Thread as seen by the calls of one send: translates the keys of calls into task names."""

    def __init__(self, thread: CallsThread, sent: Sent, keys: Sequence[str]) -> None:
        self._thread = thread
        self._task = sent.task_of
        self._keys = keys

    @property
    def records(self) -> Mapping[str, CallRecord]:
        known = self._thread.records
        return {key: known[task] for key in self._keys if (task := self._task(key)) in known}

    def known_of(self, task: str) -> CallRecord:
        return self._thread.known_of(self._task(task))

    @property
    def state(self) -> State:
        return self._thread.state

    @property
    def schema(self) -> Schema:
        return self._thread.schema

    @property
    def sends(self) -> Sequence[Sent]:
        return self._thread.sends

    @property
    def is_kept(self) -> bool:
        return self._thread.is_kept

    def written(self, order: Iterable[str]) -> list[Write]:
        return self._thread.written([self._task(key) for key in order])

    @property
    def claims_ahead(self) -> bool:
        return self._thread.claims_ahead

    async def claim(self, tasks: Sequence[str]) -> None:
        await self._thread.claim([self._task(key) for key in tasks])

    async def claimed(self, task: str, known: CallRecord) -> None:
        await self._thread.claimed(self._task(task), known)

    async def asked(self, records: Mapping[str, CallRecord]) -> None:
        await self._thread.asked({self._task(key): record for key, record in records.items()})

    async def finished(self, task: str, output: object) -> None:
        await self._thread.finished(self._task(task), output)

    async def failed(self, task: str, error: str) -> None:
        await self._thread.failed(self._task(task), error)
