"""Thread of conversation: its state, its next nodes, and the results of tasks.

Every change of a thread is an entry, so that a journal can store the changes and replay them.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, assert_never, cast
from uuid import uuid4

from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages
from langgraph.types import Command, Interrupt, Overwrite

from callboard.conversations._actor_states import ActorStates, PendingStates
from callboard.conversations._channels import MESSAGES, Schema, State, Write
from callboard.conversations._storage import (
    ActorState,
    Amended,
    Asked,
    Claimed,
    Entry,
    Failed,
    Finished,
    Held,
    Left,
    Move,
    Said,
    Source,
    Stamp,
    Stepped,
    new_id,
    now,
)
from callboard.conversations._targets import NumberedSend, Target, number_sends, split_targets
from callboard.tools._call_record import EMPTY_RECORD, NOT_YET, CallRecord

NextTargets = Callable[[], Sequence[Target]]
"""Function that returns the next nodes and LangGraph sends; called after the state has changed."""

START = "__start__"
"""Name of the node that applies the input to the state."""

_STEPS: Mapping[Source, int] = {"input": 1, "loop": 1, "update": 1, "command": 0, "fork": 0, "repair": 0}
"""Number of steps by which a change from each source advances the thread; a command belongs to the next step."""

_SOURCE_NAMES: Mapping[Source, Source] = {"input": "loop", "command": "update"}
"""Sources of changes that snapshots show under another name.

LangGraph, too, calls the step that applies input a "loop" step.
"""


class Thread:
    """Thread of conversation in memory: its state, its next nodes, and the results of their tasks.

    Only the run that made it can use it. `namespace` is the namespace of the agent within the graphs that run it; empty
    without such graphs.
    """

    __slots__ = (
        "_adds_message_ids",
        "_arrival",
        "_can_join_messages",
        "_origin",
        "actor_states",
        "begun",
        "checkpoint_id",
        "has_unattributed_questions",
        "holder",
        "is_before_step",
        "namespace",
        "next",
        "not_begun",
        "parent_id",
        "pending_actor_states",
        "questions_of_step",
        "records",
        "schema",
        "sends",
        "source",
        "state",
        "step",
        "ts",
        "unread",
    )

    is_kept: ClassVar[bool] = False
    """`True` if the thread is stored, so that another run can resume it."""

    def __init__(self, schema: Schema, *, namespace: str = "") -> None:
        self.schema = schema
        self.state = State(schema, {})
        self.step = -1
        """Number of the last completed step; -1 before the first step."""
        self.next: tuple[str, ...] = ()
        """Names of the nodes in the next step that get the state as input."""
        self.sends: tuple[NumberedSend, ...] = ()
        """Sends of the next step: nodes that get an input other than the state (LangGraph's `Send`)."""
        self.records: dict[str, CallRecord] = {}
        """Records of the next step's tasks (start, questions, result), by the name of a node or the key of a call."""
        self.begun: Collection[str] = ()
        """Ids of calls that had begun when new input left them without an answer."""
        self.not_begun: Collection[str] = ()
        """Ids of calls that certainly have not begun when new input left them without an answer."""
        self.is_before_step = False
        """`True` if no task of the next step has begun, because a run has ended before it, such as at a breakpoint."""
        self.has_unattributed_questions = False
        """`True` if another agent stored questions of this step without naming the calls that asked them."""
        self.checkpoint_id = new_id(self.step)
        """Id of the current position."""
        self.namespace = namespace
        self.questions_of_step: dict[str, Sequence[Interrupt]] = {}
        """All questions that tasks of the next step have asked, by task; including answered questions."""
        self.source: Source = "input"
        """Source of the change that led to the current position."""
        self.parent_id: str | None = None
        self.ts = now()
        # Replaced, never changed: `copy(self)` shares it, and so do earlier positions of the thread.
        self.actor_states = ActorStates()
        self.pending_actor_states = PendingStates()
        """States of actors after calls whose results are not stored yet."""
        self.unread: list[BaseMessage] = []
        """Messages that the thread has received and that are not in the conversation yet; there may be very many."""
        self.holder: Mapping[str, Any] | None = None
        """Holder entry of the run that alone may change the thread, as last read; `None` if there is no such run."""
        self._arrival: Thread | None = None
        """Copy of the thread at the position where the input of this run had arrived, and was not applied to the state.

        `None` if the run has no input.
        """
        self._origin: tuple[str, int] | None = None
        self._adds_message_ids = schema.has_message_ids
        # Only `add_messages` is known to treat one list like several: another reducer is called for each write.
        self._can_join_messages = MESSAGES in schema.conversations

    @property
    def exists(self) -> bool:
        """`True` if the thread was stored before this run."""
        return False

    @property
    def has_begun(self) -> bool:
        return self.exists

    @property
    def origin(self) -> tuple[str, int]:
        """Id of the position, and number of the step before it, from which the ids of the next step's tasks are made.

        A change within a step, such as an update of the state, leaves them as they are: graphs inside of the tasks are
        stored under these ids.
        """
        return self._origin or (self.checkpoint_id, self.step)

    @property
    def next_nodes(self) -> tuple[str, ...]:
        """Names of all nodes that run in the next step; the nodes of LangGraph sends come first."""
        return (*(send.node for send in self.sends), *self.next) if self.sends else self.next

    def tasks_of_sends(self) -> list[str]:
        messages = self.state.get(MESSAGES) or []
        return [task for send in self.sends for task in send.tasks(messages, MESSAGES)]

    @property
    def questions(self) -> list[Interrupt]:
        return [question for record in self.records.values() for question in record.pending]

    def record_of(self, task: str) -> CallRecord:
        return self.records.get(task, EMPTY_RECORD)

    @property
    def mark(self) -> str | None:
        """Text (mark) that an observer stored for the interrupted run or one of its calls; `None` without a mark."""
        marks = (record.mark for record in self.records.values() if record.mark is not None)
        return next(marks, (self.holder or {}).get("mark"))

    async def amend(
        self,
        writes: Iterable[Write],
        next_targets: NextTargets | None,
        source: Source,
        *,
        read: Sequence[BaseMessage] = (),
    ) -> None:
        """Apply writes to the state outside of a step, and record the change."""
        # `next_targets` is called once the state has changed; `None` keeps the current next nodes. `read` are the
        # unread messages that the writes add to the conversation.
        await self.prepare()
        before: Thread | None = None
        if source == "input":
            # Streams show the position where the input arrived; the entry covers both positions in one write.
            before = copy(self)
            before.state = self.state.copy()
        entry = self._apply(writes, next_targets, source, read)
        if before is not None:
            before.receive(entry)
            # Fresh dicts for the tasks, so that changes of the run do not show in the earlier position.
            before.records, before.questions_of_step = {}, {}
            self._arrival = before
        await self.record(entry, is_applied=True)

    async def read_messages(self, next_targets: NextTargets | None) -> list[Write]:
        """Add the unread messages to the conversation, record the change, and return its writes."""
        messages = [*self.unread]  # more may arrive during the change
        writes: list[Write] = [(MESSAGES, [*messages])]
        await self.amend(writes, next_targets, "update", read=messages)
        return writes

    def _apply(
        self,
        writes: Iterable[Write],
        next_targets: NextTargets | None,
        source: Source,
        read: Sequence[BaseMessage] = (),
    ) -> Amended:
        """Apply writes to the state, and return the journal entry of this change without recording it."""
        writes_with_ids = self.with_ids(writes)
        # Before `next_targets()`, which looks at the changed state; the entry is then recorded as `is_applied`.
        self.state.apply(writes_with_ids)
        targets = None if next_targets is None else next_targets()
        steps, received = _STEPS[source], None
        if source == "input" and (self.step >= 0 or START in self.next):
            # Stamps in this order: ids of checkpoints grow with time, and the arrival comes before the change.
            received = self._stamp(steps)
            steps += 1
        stamp = self._stamp(steps)
        nodes, sends = split_targets(targets or ())
        return Amended(
            writes=writes_with_ids,
            source=source,
            received=received,
            read=[str(message.id) for message in read],
            next=None if targets is None else nodes,
            sends=sends,
            id=stamp.id,
            ts=stamp.ts,
        )

    def with_ids(self, writes: Iterable[Write]) -> Sequence[Write]:
        """Return writes to the state, and give ids to their messages that have none."""
        if not self._adds_message_ids:
            return [*writes]
        return [(name, _with_ids(value) if name == MESSAGES else value) for name, value in writes]

    def take_arrival(self) -> "Thread | None":
        """Return the thread as it was when this run's input had arrived but was not applied, once; else `None`."""
        arrival, self._arrival = self._arrival, None
        return arrival

    async def record_result(self, task: str, output: object, *, joins_next_write: bool = False) -> None:
        """Record the result of a task; with `joins_next_write`, it may be stored with the next journal entry."""
        await self.record(Finished(task, self.with_message_ids(output)), joins_next_write=joins_next_write)

    def record_results(self, tasks: Sequence[str], outputs: Sequence[object]) -> None:
        """Record the results of several tasks of a thread in memory, in which nothing has to be stored."""
        if {*map(type, outputs)} != {ToolMessage}:
            outputs = [*map(self.with_message_ids, outputs)]
        elif self._adds_message_ids:
            _give_ids(cast("Sequence[ToolMessage]", outputs))
        for task, output in zip(tasks, outputs, strict=True):
            self.records[task] = CallRecord(output=output)

    async def record_questions(self, records: Mapping[str, CallRecord]) -> None:
        """Record the questions of tasks, and the answers that these tasks have taken."""
        await self.record(Asked(dict(records)))

    async def ensure_claim(self, task: str, record: CallRecord) -> None:
        """Record that a call is about to run its tool, with the accepted answers that the tool gets, unless it is."""
        # A stored thread stores this before the tool starts.

    async def claim_ahead(self, tasks: Sequence[str]) -> None:
        """Record that several calls are about to run their tools."""
        # A stored thread stores this before any of the tools starts, together with entries that were held back for it.

    def unstorable(self, output: object) -> str | None:
        """Return a text about the part of an output that cannot be stored; `None` if it can be stored as it is."""
        return None

    def check_storable(self, subject: str, value: object) -> None:
        """Raise `StorageError` if a value, which the text `subject` names, cannot be stored."""

    async def receive_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Record messages for the next turn, and store them in one write; with the durability "exit", at the end."""
        for message in messages:
            await self.record(Said(message))

    @property
    def loss(self) -> Exception | None:
        """Error about changes of this run that are not stored, although the run was stopped; `None` without a loss."""
        return None

    async def record_error(self, task: str, error: str) -> None:
        """Record the error of a task; the task runs again when the thread is resumed."""
        await self.record(Failed(task, error))

    def apply_outputs(self, tasks: Sequence[str]) -> list[Write]:
        """Apply the outputs of finished tasks to the state, in the given order of tasks; return their writes."""
        writes = self.writes_of_tasks(tasks, joins_messages=self._can_join_messages)
        self.state.apply(writes)
        return writes

    def writes_of_tasks(self, tasks: Iterable[str], *, joins_messages: bool = False) -> list[Write]:
        """Return finished tasks' writes to the state; `joins_messages` makes one write of consecutive tool messages."""
        writes: list[Write] = []
        messages: list[ToolMessage] | None = None
        for task in tasks:
            output = self.records.get(task, EMPTY_RECORD).output
            if joins_messages and type(output) is ToolMessage:
                if messages is None:
                    writes.append((MESSAGES, messages := []))
                messages.append(output)
            elif output is not NOT_YET:
                writes += self.schema.writes_of(as_update(output, MESSAGES))
                messages = None
        return writes

    async def record_step(
        self, tasks: Sequence[str], next_targets: Sequence[Target], *, joins_next_write: bool = False
    ) -> None:
        """Record the end of the step; `tasks` are its tasks, `next_targets` the next nodes and sends."""
        # `joins_next_write`: with the claims of the next step's calls, or with the last checkpoint.
        stamp, (nodes, sends) = self._stamp(_STEPS["loop"]), split_targets(next_targets)
        entry = Stepped(order=list(tasks), next=nodes, sends=sends, id=stamp.id, ts=stamp.ts)
        await self.record(entry, is_applied=True, joins_next_write=joins_next_write)

    async def record(self, entry: Entry, *, is_applied: bool = False, joins_next_write: bool = False) -> None:
        """Apply a journal entry to the thread. A stored thread stores it, at once or with the next entry."""
        self.apply_entry(entry, is_applied=is_applied)

    def with_message_ids(self, output: Any) -> Any:
        """Return the output of a task, and give ids to its messages that have none."""
        # With stored ids, each replay yields the same messages.
        if not self._adds_message_ids:
            return output
        if isinstance(output, BaseMessage):
            _give_ids((output,))
            return output
        if isinstance(output, list):
            return [self.with_message_ids(item) for item in output]
        # A copy: a node may return the same object each time, and its messages in other forms need an id each time.
        if isinstance(output, Command) and isinstance(output.update, dict):
            return replace(output, update=self.with_message_ids(output.update))
        if isinstance(output, dict) and MESSAGES in output:
            return {**output, MESSAGES: _with_ids(output[MESSAGES])}
        return output

    @property
    def claims_ahead(self) -> bool:
        """`True` if the starts of all calls of a reply are recorded in one write, before any of the calls starts."""
        return False

    async def prepare(self, *, counts_as_step: bool = False) -> None:
        """Begin a new branch if the thread was loaded at an earlier position; called before each change."""
        # With `counts_as_step`, the new branch counts as a step, as in LangGraph.

    @property
    def is_held(self) -> bool:
        """`True` if this run holds the thread and has to renew its lease."""
        return False

    async def hold(self, *, counts_as_step: bool = False, joins_next_write: bool = False) -> None:
        """Take the thread, so that no other run may change it; raise `ThreadBusyError` if another run holds it."""
        # `joins_next_write`: the thread is taken in the same write as the next change, which then raises the error if
        # another run was faster.

    @property
    def renewal_time(self) -> float:
        """Loop time at which this run has to renew its lease on the thread; `math.inf` if it has none to renew."""
        return math.inf

    async def renew_hold(self) -> None:
        """Renew the lease on the thread if its `renewal_time` has come."""

    async def stop(self) -> None:
        """Store the remaining changes of the run and release the thread; called after every end of a run."""

    def apply_entry(self, entry: Entry, *, is_applied: bool = False) -> None:
        """Apply a journal entry, which is new or was read from storage, to the thread, without storing the entry."""
        # With `is_applied`, the entry's writes are in the state already and are not applied again.
        match entry:
            case Finished():
                self.records[entry.task] = CallRecord(output=entry.output)
            case Stepped():
                # On replay, the outputs come from the `Finished` entries before this one.
                if not is_applied:
                    self.apply_outputs(entry.order)
                self._move(entry, "loop")
            case Asked():
                self.records.update(entry.records)
                self.questions_of_step |= {
                    task: record.pending for task, record in entry.records.items() if record.pending
                }
            case Claimed():
                # Replaced by the next entry of the task. On replay, a claim without such an entry means "unknown".
                self.records[entry.task] = entry.known._replace(claimed=True)
            case Failed():
                self.records[entry.task] = self.record_of(entry.task)._replace(error=entry.error, claimed=False)
            case Held():
                self.holder = entry.holder
            case Left():
                self.holder = None
            case ActorState():
                self.actor_states = self.actor_states.with_state(entry)
            case Said():
                self.unread.append(entry.message)
            case Amended():
                if not is_applied:
                    self.state.apply(entry.writes)
                if entry.read:
                    read_ids = frozenset(entry.read)  # there may be very many
                    self.unread = [message for message in self.unread if message.id not in read_ids]
                self._move(entry, entry.source, entry.received)
            case _:
                assert_never(entry)

    def receive(self, entry: Amended) -> None:
        """Move the thread to the position where it has received the input of `entry`, but not applied it."""
        if entry.received is not None:
            self.step += 1
            self.parent_id = self.checkpoint_id
            self.checkpoint_id, self.ts = entry.received.id, entry.received.ts
        if START in self.next:
            self.actor_states = self.actor_states.before_calls()  # this input replaces an unapplied one
        # One update of the state, in which lists for the same key are joined.
        values: dict[str, Any] = {}
        for name, value in entry.writes:
            before = values.get(name)
            values[name] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
        self.source, self._origin = "input", None
        self.next, self.sends, self.records = (START,), (), {START: CallRecord(output=values)}

    def _move(self, entry: Move, source: Source, received: Stamp | None = None) -> None:
        self._origin = self.origin if entry.next is None else None
        self.step += _STEPS[source]
        self.source = _SOURCE_NAMES.get(source, source)
        self.parent_id = self.checkpoint_id
        if received is not None:
            self.step += self.parent_id != received.id  # no extra step if the thread already stood at the arrival
            self.parent_id = received.id
        self.checkpoint_id, self.ts = entry.id, entry.ts
        if entry.next is not None:
            # At an arrival, earlier results count only if that input is applied, not if other input replaces it.
            counts, states = START not in self.next or source == "loop", self.actor_states
            self.actor_states = states.at_next_step() if counts else states.before_calls()
            self.questions_of_step, self.records = {}, {}
            self.next, self.sends = tuple(entry.next), number_sends(entry.sends) if entry.sends else ()
            self.has_unattributed_questions = False

    def _stamp(self, steps: int) -> Stamp:
        """Return the id and time of the position `steps` steps after the latest one."""
        # In memory all positions have one id: ids of tasks differ by the number of the step.
        return Stamp(self.checkpoint_id, self.ts)


def as_update(output: Any, messages_key: str) -> Any:
    """Return the output of a call as an update of the state: a message as a dict, other outputs unchanged."""
    if isinstance(output, list):
        return [as_update(item, messages_key) for item in output]
    return {messages_key: [output]} if isinstance(output, ToolMessage) else output


def _with_ids(messages: Any) -> Any:
    """Return messages, converted as `add_messages` converts them, with an id for each message that has none."""
    if isinstance(messages, Overwrite):
        return Overwrite(_with_ids(messages.value))
    if isinstance(messages, BaseMessage):  # as `push_message` writes it
        _give_ids((messages,))
        return messages
    items = messages if isinstance(messages, list) else [messages]
    if not all(isinstance(message, BaseMessage) for message in items):
        items = convert_to_messages(items)
    _give_ids(items)
    return items


def _give_ids(messages: Iterable[BaseMessage]) -> None:
    """Give an id to each message that has none: a random UUID to the first, and the following numbers to the others."""
    # A random one for each takes a tenth of the time of a step with many calls.
    without_id = [message for message in messages if message.id is None]
    if without_id:
        first = str(uuid4())
        for number, message in enumerate(without_id, int(first[24:], 16)):
            message.id = f"{first[:24]}{number % 16**12:012x}"
