"""Thread of conversation that is stored in a checkpointer: loaded at a position, changed through its journal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from callboard._calls._observers import current_mark
from callboard.conversations._actor_states import ActorStates
from callboard.conversations._channels import MESSAGES, Schema, State, Write
from callboard.conversations._journal import Journal
from callboard.conversations._langgraph_threads import (
    entries_of_records,
    next_node_channels,
    read_next_nodes,
)
from callboard.conversations._positions import no_checkpoint, read_position, read_whole
from callboard.conversations._saver import Saver
from callboard.conversations._storage import (
    BEFORE,
    FIRST_ID,
    ORIGIN,
    PARENT,
    Asked,
    Claimed,
    Entry,
    Finished,
    Held,
    Left,
    Move,
    Said,
    Source,
    Stamp,
    Stepped,
    actor_notes_of,
    base_of,
    commits_in,
    entries_of,
    holder_in,
    last_id,
    new_base,
    new_id,
    now,
    reading_stored_data,
    unknown_values,
)
from callboard.conversations._stored_types import drop_untracked
from callboard.conversations._targets import Target
from callboard.conversations._thread import START, Thread
from callboard.conversations._unstorable import describe_unstorable
from callboard.exceptions import StorageError, ThreadBusyError
from callboard.tools._call_record import EMPTY_RECORD, CallRecord

Durability = Literal["sync", "async", "exit"]


class SavedThread(Thread):
    """Thread of conversation that is stored in a checkpointer, with its journal.

    The durability decides when entries are stored: at once ("sync"), in the background ("async"), or at the end of the
    run ("exit").
    """

    __slots__ = (
        "_begins_branch",
        "_claimed_ahead",
        "_durability",
        "_is_latest",
        "_journal",
        "_unstorable_results",
        "parents",
        "saver",
        "user_metadata",
    )

    is_kept = True

    def __init__(self, schema: Schema, saver: Saver, durability: Durability) -> None:
        super().__init__(schema, namespace=saver.namespace)
        self.saver = saver
        self._durability = durability
        self._journal = Journal(saver, self._forget_unstorable)
        self.checkpoint_id = FIRST_ID
        self._claimed_ahead: set[str] = set()  # calls with a claim whose bodies have certainly not started
        self._unstorable_results: set[str] = set()
        """Calls that have finished and whose results cannot be stored: their claims stay, so they do not run again."""
        # Set if the run goes on from an earlier place; its first change then writes a checkpoint of a new branch.
        self._begins_branch = False
        self._is_latest = True  # false if the journal's checkpoint is older than the thread's last checkpoint
        self.user_metadata: Mapping[str, Any] = {}  # user metadata in the last checkpoint
        self.parents: Mapping[str, str] = {}
        """Ids of the checkpoints at which the outer graphs stood at the last change, by namespace."""

    @property
    def exists(self) -> bool:
        return self._journal.base is not None

    @property
    def has_begun(self) -> bool:
        return self.checkpoint_id != FIRST_ID

    @property
    def has_position(self) -> bool:
        """`True` unless the thread is new and no input was applied to it."""
        # With durability "exit", the position is stored only when the run ends.
        return self.exists or self.has_begun or bool(self.next)

    @property
    def config(self) -> RunnableConfig:
        """Config that names the thread and its current position; for a new thread, only the thread."""
        return self.saver.config(self.checkpoint_id) if self.has_position else self.saver.config()

    @property
    def parent_config(self) -> RunnableConfig | None:
        return None if self.parent_id is None else self.saver.config(self.parent_id)

    async def open(self, checkpoint_id: str | None, *, for_reading: bool = False) -> None:
        """Load the thread at its latest position or at `checkpoint_id`; raise ValueError if the position is missing."""
        checkpoint_tuple = await self.saver.get()
        if checkpoint_tuple is None:
            if checkpoint_id is not None:
                raise no_checkpoint(checkpoint_id)
            return
        entries = entries_of(checkpoint_tuple)
        # A run from an earlier position starts a new branch.
        self._begins_branch = checkpoint_id is not None and checkpoint_id != last_id(checkpoint_tuple, entries)
        holder = holder_in(entries)
        if checkpoint_id is not None and self._begins_branch:
            past = await read_position(self.saver, checkpoint_id)
            self._is_latest = past.checkpoint_tuple.checkpoint["id"] == checkpoint_tuple.checkpoint["id"]
            self.play(await read_whole(self.saver, self.schema, past.checkpoint_tuple), past.entries)
            if past.input is not None:
                self.receive(past.input)  # sets the records of the tasks, too
            else:
                self._forget_tasks()
                for entry in past.tasks if for_reading else ():
                    self.apply_entry(entry)  # only to be read: a new branch starts without those results
        else:
            self.play(await read_whole(self.saver, self.schema, checkpoint_tuple), entries)
            has_moved = any(not isinstance(entry, Said) for entry in entries)
            self.is_before_step = not has_moved and base_of(checkpoint_tuple).notes.get(BEFORE, False)
        self.holder = holder  # the latest one: a run that goes on now also bars an earlier place

    def play(self, checkpoint_tuple: CheckpointTuple, entries: Sequence[Entry]) -> None:
        """Load a checkpoint into the thread, and apply journal entries to the loaded state, in order."""
        with reading_stored_data(self.saver.describe(checkpoint_tuple)):
            self.load(checkpoint_tuple)
            self._journal.start_on(base_of(checkpoint_tuple), commits_in(checkpoint_tuple))
            for entry in entries:
                self.apply_entry(entry)
            # A run that was killed before it stored this checkpoint may have left a copy of the entries on it.
            self.unread = [*{message.id: message for message in self.unread}.values()]
            for name in self.schema.conversations:
                _check_messages(self.state.get(name) or [])

    def load(self, checkpoint_tuple: CheckpointTuple) -> None:
        """Load the state and the next nodes from a checkpoint of callboard or LangGraph, but apply no journal entry."""
        base = base_of(checkpoint_tuple)
        self.state = State(self.schema, base.checkpoint["channel_values"])
        self.user_metadata = base.user_metadata
        self.parents = base.metadata.get("parents", {})
        self.step = base.metadata.get("step", -1)
        self.source = base.metadata.get("source", "loop")
        self.checkpoint_id, self.ts = base.id, base.checkpoint["ts"]
        self.parent_id = base.notes.get(PARENT, base.parent_id)
        self._origin = tuple(base.notes[ORIGIN]) if ORIGIN in base.notes else None
        self.next, self.sends, self.records, self.unread = (), (), {}, []
        self.questions_of_step, self.has_unattributed_questions = {}, False
        self.actor_states = ActorStates.read(actor_notes_of(base.checkpoint))
        read_next_nodes(self, checkpoint_tuple)

    async def prepare(self, *, counts_as_step: bool = False) -> None:
        self.parents = self.saver.parents or self.parents
        if self._begins_branch:
            # Before the write: a branch is begun at most once, also if the write fails.
            self._begins_branch = False
            self.source = "fork"
            if counts_as_step:
                self.step += 1
            self.parent_id, self.checkpoint_id, self._origin = self.checkpoint_id, new_id(self.step), None
            await self._rebase("fork")

    async def update(
        self, writes: Iterable[Write], next_targets: Sequence[Target] | None, closed_tasks: Iterable[str] = ()
    ) -> None:
        """Apply writes to the state between two runs, and record the change; raise `ThreadBusyError` during a run.

        Without `next_targets`, the step stays the same, but the questions of `closed_tasks` are no longer open.
        """
        if not self._begins_branch or next_targets is None:
            # Held for the change, though it is one entry: a run that starts meanwhile would not see it.
            await self.hold(joins_next_write=True)
            try:
                await self.amend(writes, None if next_targets is None else lambda: next_targets, "update")
                if records := dict.fromkeys(closed_tasks, EMPTY_RECORD):
                    await self.record_questions(records)
            finally:
                await self.stop()
            return
        # One checkpoint holds both the branch and the change, so no run can hold the branch in between.
        await self._journal.refuse_if_held(self.holder)
        self._begins_branch = False
        self.apply_entry(self._apply(writes, lambda: next_targets, "update"), is_applied=True)
        await self._rebase("update")

    async def copy(self) -> None:
        """Store a copy of the current position as a new checkpoint, with the same parent, but without task results."""
        await self._journal.refuse_if_held(self.holder)
        self._begins_branch = False
        self._forget_tasks()
        self.questions_of_step, self._origin = {}, None
        self.step, self.source = self.step + 1, "fork"
        self.checkpoint_id, self.ts = new_id(self.step), now()
        await self._rebase("fork")

    def _stamp(self, steps: int) -> Stamp:
        return Stamp(new_id(self.step + steps), now())

    def _forget_tasks(self) -> None:
        """Remove the results of tasks that ran at the current position, because a new branch starts without them."""
        # Input that has arrived and was not applied yet is kept.
        self.records = {task: record for task, record in self.records.items() if task == START}
        self.actor_states = self.actor_states if START in self.next else self.actor_states.before_calls()

    async def record(self, entry: Entry, *, is_applied: bool = False, joins_next_write: bool = False) -> None:
        journal = self._journal
        if journal.storage_error is not None and not isinstance(entry, (Held, Left)):
            # Raised by each of them: the task that got the error of the write may have swallowed it.
            if journal.is_cut_off or isinstance(entry, (Move, Claimed, Said)):
                journal.is_cut_off = journal.is_cut_off or isinstance(entry, Move)
                raise journal.storage_error
            if isinstance(entry, Asked) and not self._unstorable_results.isdisjoint(entry.records):
                return
        if journal.is_cut_off:
            return
        # Nothing up to the `append` below suspends this task. Otherwise a write that another task begins could contain
        # the actors' states without the entry.
        self._take_actor_states(entry)
        if isinstance(entry, Stepped):
            self._claimed_ahead.clear()  # models reuse call ids: a later call must not pass for claimed
        # The thread changes first, the journal afterwards. If the process dies in between, the next run finds the
        # thread as it was before.
        self.apply_entry(entry, is_applied=is_applied)
        # A copy without untracked keys; the thread itself keeps their values.
        journal.append(drop_untracked(entry, self.schema), joins_next_write=joins_next_write)
        if isinstance(entry, Claimed):
            # Stored before the body starts. A crash afterwards then leaves "unknown", never "has not begun".
            await journal.flush(wait=True)
            if journal.storage_error is not None and entry.task not in self.records:
                raise journal.storage_error  # another call's task has made the write, and got its error
        elif self._durability != "exit" and not joins_next_write:
            await journal.flush(wait=self._durability == "sync", ends_step=isinstance(entry, Move))

    def _forget_unstorable(self, entry: Entry) -> None:
        """Remove what an entry has recorded: a later checkpoint would try to store it again."""
        if isinstance(entry, Finished) and entry.task not in self.schema.flow.nodes:
            self._unstorable_results.add(entry.task)
            self.records[entry.task] = CallRecord(claimed=True)
        elif isinstance(entry, (Finished, Claimed, Asked)):
            for task in entry.records if isinstance(entry, Asked) else [entry.task]:
                self.records.pop(task, None)
        elif isinstance(entry, Said):
            self.unread = [message for message in self.unread if message is not entry.message]

    def unstorable(self, output: object) -> str | None:
        return self.saver.unstorable(output)

    def check_storable(self, subject: str, value: object) -> None:
        if (part := self.unstorable(value)) is not None:
            raise self._journal.error_about(subject, part)

    async def receive_messages(self, messages: Sequence[BaseMessage]) -> None:
        for message in messages:
            await self.record(Said(message), joins_next_write=True)
        if self._durability != "exit":
            await self._journal.flush(wait=True)

    @property
    def loss(self) -> Exception | None:
        if self._journal.is_lost:
            return ThreadBusyError(self.saver.thread_id, "another run")
        return self._journal.storage_error if self._journal.is_cut_off else None

    async def refuse_if_held(self) -> None:
        """Raise `ThreadBusyError` if a run holds the thread, as it was when the thread was opened."""
        await self._journal.refuse_if_held(self.holder)

    async def record_error(self, task: str, error: str) -> None:
        # A call that has finished stays finished, also if the write of its result failed.
        if task not in self._unstorable_results and not self.record_of(task).has_ended:
            await super().record_error(task, error)

    async def record_result(self, task: str, output: object, *, joins_next_write: bool = False) -> None:
        # With durability "sync", a result is stored before a reader of the stream sees it. With "async", it may share
        # the write of the end of its step. A process that is killed before that write leaves the claim of the call, as
        # it would in the moment before the result's own write: the outcome is unknown, and the call does not run again.
        await super().record_result(task, output, joins_next_write=joins_next_write and self._durability == "async")

    @property
    def claims_ahead(self) -> bool:
        return self._durability != "exit"  # "exit" stores nothing before the end, so it stores no claims either

    async def claim_ahead(self, tasks: Sequence[str]) -> None:
        mark = current_mark() if tasks else None
        record = EMPTY_RECORD if mark is None else CallRecord(mark=mark)
        # All claims of a reply share one write with the `Stepped` entry before them, instead of one write per call.
        for task in tasks:
            entry = Claimed(task, record)
            self.apply_entry(entry)
            self._journal.append(entry)
        # Until a body starts, its claim may be taken back. Only a killed process leaves such a call as unknown.
        self._claimed_ahead.update(tasks)
        if self._durability != "exit":
            # Also without claims: the `Stepped` entry before them waits no longer.
            await self._journal.flush(wait=bool(tasks) or self._durability == "sync", ends_step=True)

    async def ensure_claim(self, task: str, record: CallRecord) -> None:
        before = self.record_of(task)
        is_same_tool = before.tool == record.tool
        is_stored = before.claimed and is_same_tool and not (before.pending or before.answers or record.answers)
        if not is_stored:  # neither with the reply nor by an earlier attempt
            if not before.claimed:
                self._claimed_ahead.add(task)  # the error of a neighbour may cancel this task during the write
            mark, accepted = current_mark(), record.with_answers_only()._replace(tool=record.tool)
            await self.record(Claimed(task, accepted if mark is None else accepted._replace(mark=mark)))
        # If the lease ended before or during the write of the claim, another run may have come first: the saver has
        # then dropped the claim without an error. If it ended later, that run may have run the call again.
        await self._journal.check_lease()
        self._claimed_ahead.discard(task)

    def _take_actor_states(self, entry: Entry) -> None:
        """Append to the journal the actor states that have to be stored in the same write as `entry`."""
        # Result and actor state share one write: a crash leaves both or neither. A repeated call must not find its own
        # effect in the actor's state.
        for state in self.pending_actor_states.due(entry):
            self.apply_entry(state)
            self._journal.append(state)

    @property
    def is_held(self) -> bool:
        return self._journal.is_held

    async def hold(self, *, counts_as_step: bool = False, joins_next_write: bool = False) -> None:
        await self._journal.refuse_if_held(self.holder)
        if self._durability == "exit":
            return  # nothing is written before the end, so no other run could know
        # Before the hold: a fork writes a checkpoint, and the holder entry has to be on that one.
        await self.prepare(counts_as_step=counts_as_step)
        try:
            await self.record(await self._journal.begin_hold(), joins_next_write=joins_next_write)
        except BaseException:
            # No `stop` follows a failed start: the thread would be busy while the process lives.
            self._journal.end_hold()
            raise

    @property
    def renewal_time(self) -> float:
        return self._journal.renewal_time

    async def renew_hold(self) -> None:
        await self._journal.renew_hold(self.record)

    async def stop(self) -> None:
        """Store a checkpoint of the position at which the run ends, and the results of tasks in an unfinished step."""
        try:
            # The token is released after the last write. Otherwise another run of this process could start in between.
            await self._store_final_state()
        finally:
            self._journal.end_hold()

    async def _store_final_state(self) -> None:
        journal = self._journal
        if self._begins_branch or journal.is_lost:
            return  # nothing has changed, or another run's writes count
        if journal.is_cut_off:
            # The state has more than the journal. The claims stay: nobody knows how these calls ended.
            journal.drop_unsent()
            if journal.is_held and journal.base is not None:
                journal.append(Left())
            await journal.flush(wait=True)
            return
        if not journal.is_hold_confirmed:
            await journal.flush(wait=True)  # raises if another run holds the thread
        # Claims of calls that have not started are taken back with the last entries of the run. Otherwise the outcomes
        # of these calls would be unknown.
        claims = {task: self.records[task] for task in self._claimed_ahead if task in self.records}
        self._claimed_ahead = set()
        if released := {task: record.with_answers_only() for task, record in claims.items() if record.claimed}:
            self.apply_entry(entry := Asked(released))
            journal.append(entry)
        self._take_actor_states(Left())
        # No `Left` entry if a checkpoint follows: holder entries stay on the old one, so the new one frees the thread.
        if journal.base is None or journal.base.id != self.checkpoint_id:
            await self._rebase(self.source)
        elif journal.is_held:
            await self.record(Left())
        await journal.flush(wait=True)

    async def _rebase(self, source: Source) -> None:
        """Store the whole state as a new checkpoint, which later journal entries are added to."""
        journal = self._journal
        # Also if nothing was to be written: the new checkpoint would hide the entries of a run that has the thread now,
        # and they may need what the thin one loses.
        await journal.settle()
        # Entries first: if the process dies before the new checkpoint is stored, replay leads to this position.
        before, changes = journal.take_changes() if journal.has_unsent else (journal.base, [])
        # States without a location are in entries on the old checkpoint; the new checkpoint's notes refer to them.
        self.actor_states = self.actor_states.with_location(None if before is None else before.id)
        base, changed = new_base(
            before,
            {**unknown_values(before, self.schema.specs), **self.state.snapshot(), **next_node_channels(self)},
            self.checkpoint_id,
            source=source,
            step=self.step,
            previous_id=self.parent_id,
            sends=len(self.sends),
            actors=self.actor_states.as_notes(),
            origin=self._origin,
            # With "exit", a later run stores no claims of the calls that it begins.
            is_before_step=self.is_before_step and source == "loop" and self._durability != "exit",
            parents=self.parents,
            next_version=self.saver.next_version,
        )
        entries = [*entries_of_records(self.records), *self.actor_states.changes_of_step(), *map(Said, self.unread)]
        if entries:
            # Before the checkpoint: once that exists, entries on the older one are no longer read. A process that is
            # killed in between leaves this write without a checkpoint, so the task id is unique.
            task_id = f"callboard-{1:08}-{new_id(self.step)}"
            tracked = [drop_untracked(entry, self.schema) for entry in entries]
            changes.append(journal.write_of(tracked, base, task_id))
        changes.append(self.saver.checkpoint(base, changed))
        # A later checkpoint than `before` may be LangGraph's, which may need the messages of `before`.
        if self._is_latest and before is not None and (thin := before.make_thin(base)) is not None:
            # Last: the thin checkpoint finds its messages in the new one. A crash before only costs space.
            changes.append(self.saver.checkpoint(thin, {MESSAGES: thin.checkpoint["channel_versions"][MESSAGES]}))
        try:
            await self.saver.store(*changes)
        except Exception as error:
            await journal.flush(wait=True)  # a checkpoint that cannot be stored does not take the entries with it
            values = base.checkpoint["channel_values"]
            if isinstance(error, StorageError) or self.saver.can_store(values):
                raise
            part = describe_unstorable(values, self.saver.can_store)
            raise StorageError(
                self.saver.where, f"cannot store the state of thread {self.saver.thread_id!r}: {part}"
            ) from error
        # Only after the checkpoint is stored. Until then, a failure leaves the entries to be repeated on the old one.
        journal.start_on(base, int(bool(entries)))
        self.holder = None
        self._is_latest = True


def _check_messages(messages: object) -> None:
    """Raise TypeError if a stored conversation is not a list of messages."""
    if not isinstance(messages, list):
        raise TypeError(f"the conversation should be a list, and is {type(messages).__name__}")
    # One object of each type is checked, because a conversation may be long.
    for kind in {type(message) for message in messages}:
        if not issubclass(kind, BaseMessage):
            raise TypeError(f"a message should be BaseMessage, and is {kind.__name__}")
