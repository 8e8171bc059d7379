"""Where a conversation stands: its state, the steps that come next, and what is known of their tasks.

All that happens to a thread is an entry, so that a journal can keep it and play it again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self, assert_never
from uuid import uuid4

from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages
from langgraph.checkpoint.base.id import uuid6
from langgraph.types import Command, Interrupt, Overwrite, Send

from callboard._calls._observers import current_mark
from callboard.agent._conversation._actor_states import ActorStates, KeptStates
from callboard.agent._conversation._channels import Schema, State, Write
from callboard.agent._conversation._journal_entries import (
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
    Source,
    Stamp,
    Stepped,
)
from callboard.agent._sends import Sent, Target, nodes_in, numbered, sends_in
from callboard.tools._call_record import NOTHING_KNOWN, CallRecord

Following = Callable[[], Sequence[Target]]
"""Says, of a changed state, what comes next."""

START = "__start__"
"""The node that takes input in."""

_STEPS: Mapping[Source, int] = {"input": 1, "loop": 1, "update": 1, "command": 0, "fork": 0, "repair": 0}
"""How many steps a change counts for; what a command brings belongs to the step that it leads to."""

_SHOWN: Mapping[Source, Source] = {"input": "loop", "command": "update"}
"""What a change is said to come from, if that is another word: to take input in is a step, as in LangGraph."""


class Thread:
    """A conversation and how far it has come; kept in memory.

    Args:
        schema: of its state.
        namespace: of the agent within the graphs around it.
        messages_key: where the state has the conversation.
    """

    def __init__(self, schema: Schema, *, namespace: str = "", messages_key: str = "messages") -> None:
        self.schema = schema
        self.state = State(schema, {})
        self.step = -1
        """The number of the last step that has ended."""
        self.next: tuple[str, ...] = ()
        """The nodes of the step that comes, but for those that are sent something."""
        self.sends: tuple[Sent, ...] = ()
        """What nodes of that step are sent."""
        self.records: dict[str, CallRecord] = {}
        """By task of that step: a node's name, or the key of a call."""
        self.asked_here: dict[str, Sequence[Interrupt]] = {}
        """By task, what was asked in that step, though it may have been answered since."""
        self.asked_unheard = False
        """Whether another agent's calls have asked in that step, and nobody knows which did."""
        self.source: Source = "input"
        """What has made the last change of the thread."""
        self.checkpoint_id = new_id(self.step)
        self.parent_id: str | None = None
        self.ts = now()
        self.actor_states = ActorStates()
        self.kept_by_actors = KeptStates()
        """What calls that have no result yet have made of actors."""
        self.holder: Mapping[str, Any] | None = None
        """The run that has the thread, as far as is known."""
        self.namespace = namespace
        self._messages_key = messages_key
        self._has_ids = schema.adds_messages(messages_key)
        self._arrival: Mapping[str, Any] = {}
        """What was different where the input of this run had come, and had not been taken in."""

    @property
    def exists(self) -> bool:
        """Whether anything was known of it before this run."""
        return False

    @property
    def is_kept(self) -> bool:
        """Whether another run can go on where this one stops."""
        return False

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to go on with; a thread that a run holds and has not changed has nothing."""
        return self.exists

    @property
    def coming(self) -> tuple[str, ...]:
        """The nodes of the step that comes, whatever they run with."""
        return (*(one.node for one in self.sends), *self.next)

    def sent_tasks(self) -> list[str]:
        """The names of the tasks that what is sent consists of, in order."""
        messages = self.state.get(self._messages_key) or []
        return [task for one in self.sends for task in one.tasks(messages, self._messages_key)]

    @property
    def questions(self) -> list[Interrupt]:
        """What people are asked, and have not answered, by all tasks of the step that comes."""
        return [question for record in self.records.values() for question in record.pending]

    def known_of(self, task: str) -> CallRecord:
        """What is known of a task of the step that comes."""
        return self.records.get(task, NOTHING_KNOWN)

    @property
    def mark(self) -> str | None:
        """What an observer left on the run that has stopped here, or on one of its calls."""
        left = (record.mark for record in self.records.values() if record.mark is not None)
        return next(left, (self.holder or {}).get("mark"))

    async def amend(self, writes: Iterable[Write], following: Following | None, source: Source) -> None:
        """Change the state outside of any step.

        Args:
            writes: to its channels.
            following: says, of the changed state, which nodes come next; `None` for the same as before.
            source: what the change comes from.
        """
        await self.prepare()
        before = copy(self)
        before.state = self.state.copy()
        entry = self._amended(writes, following, source)
        if source == "input":
            before.receive(entry)
            self._arrival = {name: getattr(before, name) for name in _OF_AN_ARRIVAL}
        await self.record(entry, live=True)

    def arrival(self) -> Self | None:
        """The thread where the input of this run had come; `None` if there was no input."""
        if not self._arrival:
            return None
        place = copy(self)
        place.__dict__.update(self._arrival, records={}, asked_here={})
        return place

    async def update(self, writes: Iterable[Write], following: Following) -> None:
        """Change the state while no run is at it; see `amend`.

        Raises:
            ThreadBusyError: if a run has the thread; it would not know of the change, and write over it.
        """
        await self.hold()
        try:
            await self.amend(writes, following, "update")
        finally:
            await self.stop()

    def _amended(self, writes: Iterable[Write], following: Following | None, source: Source) -> Amended:
        """Change the state; returns the entry that says so."""
        has_ids, key = self._has_ids, self._messages_key
        named = [(name, _with_ids(value) if has_ids and name == key else value) for name, value in writes]
        self.state.apply(named)
        coming = _SAME if following is None else _coming(following())
        steps, received = _STEPS[source], None
        if source == "input" and (self.step >= 0 or START in self.next):
            received = self._stamp(steps)
            steps += 1
        stamp = self._stamp(steps)
        return Amended(
            writes=named,
            source=source,
            received=received,
            next=coming.nodes,
            sends=coming.sends,
            id=stamp.id,
            ts=stamp.ts,
        )

    async def finished(self, task: str, output: object) -> None:
        """Note that a task of this step has ended."""
        await self.record(Finished(task, self.identified(output)))

    async def asked(self, records: Mapping[str, CallRecord]) -> None:
        """Note what tasks of this step wait for."""
        await self.record(Asked(dict(records)))

    async def claimed(self, task: str, known: CallRecord) -> None:
        """Note that the body of a call is about to start; stored before it does, and with the answers it has."""
        mark = current_mark()
        accepted = known.accepted()
        await self.record(Claimed(task, accepted if mark is None else accepted._replace(mark=mark)))

    async def claim(self, tasks: Sequence[str]) -> None:
        """Note that the bodies of calls are about to start of which nothing is known; stored before any does.

        Args:
            tasks: their names. If there are none, what was held back for them is stored.
        """

    async def failed(self, task: str, error: str) -> None:
        """Note that a task of this step raised; it is run again when the thread goes on."""
        await self.record(Failed(task, error))

    def apply_outputs(self, order: Sequence[str]) -> list[Write]:
        """Take in what the tasks of this step wrote, in their order."""
        writes = self.written(order)
        self.state.apply(writes)
        return writes

    def written(self, order: Iterable[str]) -> list[Write]:
        """What tasks of this step wrote, as far as they have ended."""
        known = self.records
        return [
            write
            for task in order
            if (record := known.get(task)) is not None and record.is_finished
            for write in self.schema.writes_of(as_update(record.output, self._messages_key))
        ]

    async def stepped(self, order: Sequence[str], following: Sequence[Target], *, claims: bool = False) -> None:
        """End the step, whose writes the state has by now.

        Args:
            order: its tasks, in the order in which their outputs count.
            following: says what comes next.
            claims: whether the next step claims calls before anything else, and this is to be stored in one write
                with the claims.
        """
        coming, stamp = _coming(following), self._stamp(_STEPS["loop"])
        entry = Stepped(order=list(order), next=coming.nodes, sends=coming.sends, id=stamp.id, ts=stamp.ts)
        await self.record(entry, live=True, later=claims)

    @property
    def claims_ahead(self) -> bool:
        """Whether the calls of a reply are claimed before any of them starts."""
        return False

    async def prepare(self, *, repeats: bool = False) -> None:
        """Get ready to be changed; a thread that goes on from a place of the past begins its branch here."""

    @property
    def is_held(self) -> bool:
        """Whether this run has the thread to itself, and has to say so now and then."""
        return False

    async def hold(self, *, repeats: bool = False) -> None:
        """Take the thread for this run alone.

        Args:
            repeats: whether the run does again what came after a place of the past; its beginning is a step then, as
                in LangGraph.

        Raises:
            ThreadBusyError: if another one is.
        """

    async def keep_holding(self) -> None:
        """Say now and then that this run goes on; ends when it is cancelled."""

    async def stop(self) -> None:
        """End the run's work on the thread, however the run has ended."""

    async def record(self, entry: Entry, *, live: bool = False, later: bool = False) -> None:
        """Change the thread as an entry says, and keep the entry where the thread is kept.

        Args:
            entry: what.
            live: whether the state has what was written already.
            later: whether the next entry may be waited for, to be stored in one write with it.
        """
        self.take(entry, live=live)

    def take(self, entry: Entry, *, live: bool = False) -> None:
        """Change the thread as an entry says."""
        match entry:
            case Finished():
                self.records[entry.task] = CallRecord(output=entry.output)
            case Asked():
                self.records.update(entry.records)
                self.asked_here |= {task: record.pending for task, record in entry.records.items() if record.pending}
            case Claimed():
                self.records[entry.task] = entry.known._replace(claimed=True)
            case Failed():
                self.records[entry.task] = self.known_of(entry.task)._replace(error=entry.error, claimed=False)
            case Held():
                self.holder = entry.holder
            case Left():
                self.holder = None
            case ActorState():
                self.actor_states = self.actor_states.changed(entry)
            case Stepped():
                if not live:
                    self.apply_outputs(entry.order)
                self._move(entry, "loop")
            case Amended():
                if not live:
                    self.state.apply(entry.writes)
                self._move(entry, entry.source, entry.received)
            case _:
                assert_never(entry)

    def receive(self, entry: Amended) -> None:
        """Go to the place where input had come and had not been taken in: to take it in is the step that comes.

        Args:
            entry: which says so.
        """
        if entry.received is not None:
            self.step += 1
            self.parent_id, (self.checkpoint_id, self.ts) = self.checkpoint_id, entry.received
        if START in self.next:
            self.actor_states = self.actor_states.before_calls()  # it takes the place of other input
        self.source = "input"
        self.next, self.sends, self.records = (START,), (), {START: CallRecord(output=_merged(entry.writes))}

    def _move(self, entry: Move, source: Source, received: Stamp | None = None) -> None:
        self.step += _STEPS[source]
        self.source = _SHOWN.get(source, source)
        self.parent_id = self.checkpoint_id
        if received is not None:
            self.step += self.parent_id != received.id  # unless it stood there
            self.parent_id = received.id
        self.checkpoint_id, self.ts = entry.id, entry.ts
        if entry.next is not None:
            # Where input had come, what had finished before it counts only if that input is taken in.
            counts, states = START not in self.next or source == "loop", self.actor_states
            self.actor_states = states.at_next() if counts else states.before_calls()
            self.next, self.records, self.asked_here = tuple(entry.next), {}, {}
            self.sends = numbered(entry.sends)
            self.asked_unheard = False

    def _stamp(self, steps: int) -> Stamp:
        """A new place, so many steps on."""
        return Stamp(new_id(self.step + steps), now())

    def identified(self, output: Any) -> Any:
        """An output whose messages have ids, so that it is the same whenever it is played again."""
        if not self._has_ids:
            return output
        if isinstance(output, BaseMessage):
            return _with_ids([output])[0]
        if isinstance(output, list):
            return [self.identified(item) for item in output]
        if isinstance(output, Command) and isinstance(output.update, dict):
            self.identified(output.update)
        elif isinstance(output, dict) and self._messages_key in output:
            output[self._messages_key] = _with_ids(output[self._messages_key])
        return output


_OF_AN_ARRIVAL = ("state", "step", "checkpoint_id", "parent_id", "ts", "source", "next", "sends")


class _Coming(NamedTuple):
    """What comes next, as an entry has it."""

    nodes: Sequence[str] | None
    sends: Sequence[Send]


_SAME = _Coming(None, ())
"""What came next before comes next still."""


def _coming(targets: Sequence[Target]) -> _Coming:
    return _Coming(nodes_in(targets), sends_in(targets))


def as_update(output: Any, messages_key: str) -> Any:
    """The output of a call as an update of the state."""
    if isinstance(output, list):
        return [as_update(item, messages_key) for item in output]
    return {messages_key: [output]} if isinstance(output, ToolMessage) else output


def _merged(writes: Iterable[Write]) -> dict[str, Any]:
    """Several writes as one update of a state."""
    merged: dict[str, Any] = {}
    for name, value in writes:
        before = merged.get(name)
        merged[name] = [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
    return merged


def _with_ids(messages: Any) -> Any:
    """Messages with ids, as `add_messages` would read what was written."""
    if isinstance(messages, Overwrite):
        return Overwrite(_with_ids(messages.value))
    found = messages if isinstance(messages, list) else [messages]
    if not all(isinstance(message, BaseMessage) for message in found):
        found = convert_to_messages(found)
    for message in found:
        if message.id is None:
            message.id = str(uuid4())
    return found


def new_id(step: int) -> str:
    """An id for a checkpoint; later ones are greater."""
    return str(uuid6(clock_seq=step))


def now() -> str:
    """The time as checkpoints have it."""
    return datetime.now(UTC).isoformat()
