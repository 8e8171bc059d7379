"""Journal of a thread of conversation in a checkpointer: each event is written once, as it happens.

A checkpoint holds the whole state, as in LangGraph, and is written where a run ends. Events between two checkpoints are
written as entries on the earlier checkpoint. Entries are pending writes under callboard's own task ids, which LangGraph
ignores. To find the current position of a thread, read its last checkpoint and replay the entries on it. So storage
grows only with new content. A killed process loses at most the entries whose write had not begun.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from anyio import Event, sleep
from anyio.lowlevel import cancel_shielded_checkpoint
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from callboard._calls._observers import current_mark
from callboard._langgraph._serializers import MEND
from callboard.conversations._actor_states import ActorStates
from callboard.conversations._channels import MESSAGES, Schema, State, Write
from callboard.conversations._flow import Target
from callboard.conversations._langgraph_threads import (
    entries_of_records,
    next_node_channels,
    read_next_nodes,
)
from callboard.conversations._lease import LEASE, OwnLease, describe_holder, is_over, new_holder, release, renew_holder
from callboard.conversations._positions import no_checkpoint, read_position, read_whole
from callboard.conversations._saver import Change, Saver
from callboard.conversations._storage import (
    CHANNEL,
    FIRST_ID,
    ORIGIN,
    PARENT,
    Asked,
    Base,
    Claimed,
    Entry,
    Finished,
    Held,
    Left,
    Move,
    Source,
    Stepped,
    actor_notes_of,
    base_of,
    commits_in,
    encode_entry,
    entries_of,
    holder_in,
    holders_of,
    last_id,
    new_base,
    new_id,
    now,
    reading_stored_data,
    unknown_values,
)
from callboard.conversations._stored_types import drop_untracked
from callboard.conversations._thread import START, RecordedThread
from callboard.conversations._unstorable import describe_unstorable
from callboard.exceptions import StorageError, ThreadBusyError
from callboard.tools._call_record import EMPTY_RECORD, CallRecord

_log = logging.getLogger("callboard")

Durability = Literal["sync", "async", "exit"]


class SavedThread(RecordedThread):
    """Thread of conversation that is stored in a checkpointer, with its journal.

    The durability decides when entries are stored: at once ("sync"), in the background ("async"), or at the end of the
    run ("exit").
    """

    is_kept = True

    def __init__(self, schema: Schema, saver: Saver, durability: Durability) -> None:
        super().__init__(schema, namespace=saver.namespace)
        self.saver = saver
        self._durability = durability
        # Checkpoint on which entries are written; `None` until the first write of a new thread.
        self._base: Base | None = None
        self.checkpoint_id = FIRST_ID
        # Number of writes on `_base`. The next write's task id follows from it, so two runs that write at once collide,
        # and the saver keeps the first.
        self._commits = 0
        # Entries that `apply_entry` has applied to the thread and no write contains yet.
        self._entries: list[Entry] = []
        self._sending: list[Entry] = []
        """Journal entries in the write that is in progress, or in a write that failed and has to be repeated."""
        self._waits_for_next_entry = False  # true if an entry that waits for the next one is the last in `_entries`
        # At most one task writes at a time, so that task ids stay in order.
        self._is_flushing = False
        self._flushed: Event | None = None  # set when the current write ends; `None` if no task waits for that
        self._own_holder: dict[str, Any] | None = None  # this run's holder entry, while it holds the thread
        self._is_hold_confirmed = True  # false until the first write with the holder entry has been read back
        self._claimed_ahead: set[str] = set()  # calls with a claim whose bodies have certainly not started
        self._lease = OwnLease()
        self._is_lost = False  # set if another run has taken the thread: no entry may be written any more
        # Set if the end of a step, or another change of the state, was left out of the journal, because it or an entry
        # before it cannot be stored. The thread then knows more than its journal, and no later entry may be written: a
        # call that a person has rejected would run. The next run goes on from the last stored position.
        self._is_cut_off = False
        self._storage_error: StorageError | None = None
        """Error about the first entry that cannot be stored. No call may begin after it, and the step must not end."""
        self._unstorable_results: set[str] = set()
        """Calls that have finished and whose results cannot be stored: their claims stay, so they do not run again."""
        # Set if the run goes on from an earlier place; its first change then writes a checkpoint of a new branch.
        self._begins_branch = False
        self._is_latest = True  # false if `_base` is older than the thread's last checkpoint
        self.user_metadata: Mapping[str, Any] = {}  # user metadata in the last checkpoint
        self.parents: Mapping[str, str] = {}
        """Ids of the checkpoints at which the outer graphs stood at the last change, by namespace."""

    @property
    def exists(self) -> bool:
        return self._base is not None

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
            self.is_before_step = base_of(checkpoint_tuple).is_ours and not entries
        self.holder = holder  # the latest one: a run that goes on now also bars an earlier place

    def play(self, checkpoint_tuple: CheckpointTuple, entries: Sequence[Entry]) -> None:
        """Load a checkpoint into the thread, and apply journal entries to the loaded state, in order."""
        with reading_stored_data(self.saver.describe(checkpoint_tuple)):
            self.load(checkpoint_tuple)
            self._base, self._commits = base_of(checkpoint_tuple), commits_in(checkpoint_tuple)
            for entry in entries:
                self.apply_entry(entry)
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
        self.next, self.sends, self.records = (), (), {}
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
        if not self._begins_branch or next_targets is None:
            return await super().update(writes, next_targets, closed_tasks)
        # One checkpoint holds both the branch and the change, so no run can hold the branch in between.
        await self._refuse_if_held()
        self._begins_branch = False
        self.apply_entry(self._apply(writes, lambda: next_targets, "update"), is_applied=True)
        return await self._rebase("update")

    async def copy(self) -> None:
        """Store a copy of the current position as a new checkpoint, with the same parent, but without task results."""
        await self._refuse_if_held()
        self._begins_branch = False
        self._forget_tasks()
        self.questions_of_step, self._origin = {}, None
        self.step, self.source = self.step + 1, "fork"
        self.checkpoint_id, self.ts = new_id(self.step), now()
        await self._rebase("fork")

    def _forget_tasks(self) -> None:
        """Remove the results of tasks that ran at the current position, because a new branch starts without them."""
        # Input that has arrived and was not applied yet is kept.
        self.records = {task: record for task, record in self.records.items() if task == START}
        self.actor_states = self.actor_states if START in self.next else self.actor_states.before_calls()

    async def _refuse_if_held(self) -> None:
        # May wait for one lease. Nothing was written yet, so a cancellation here leaves nothing behind.
        if self.holder is not None and not await is_over(self.holder, self.saver.now, self._holder_now):
            raise ThreadBusyError(self.saver.thread_id, describe_holder(self.holder))

    async def record(self, entry: Entry, *, is_applied: bool = False, may_wait: bool = False) -> None:
        if self._storage_error is not None and not isinstance(entry, (Held, Left)):
            # Raised by each of them: the task that got the error of the write may have swallowed it.
            if self._is_cut_off or isinstance(entry, (Move, Claimed)):
                self._is_cut_off = self._is_cut_off or isinstance(entry, Move)
                raise self._storage_error
            if isinstance(entry, Asked) and not self._unstorable_results.isdisjoint(entry.records):
                return
        if self._is_cut_off:
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
        self._entries.append(drop_untracked(entry, self.schema))
        self._waits_for_next_entry = may_wait
        if isinstance(entry, Claimed):
            # Stored before the body starts. A crash afterwards then leaves "unknown", never "has not begun".
            await self._flush(wait=True)
            if self._storage_error is not None and entry.task not in self.records:
                raise self._storage_error  # another call's task has made the write, and got its error
        elif self._durability != "exit" and not may_wait:
            await self._flush(wait=self._durability == "sync", ends_step=isinstance(entry, Move))

    def unstorable(self, output: object) -> str | None:
        """Return a text about the part of an output that cannot be stored; `None` if it can be stored as it is."""
        if type(output) is ToolMessage:
            has_more = output.artifact is not None or output.additional_kwargs or output.response_metadata
            if isinstance(output.content, str) and not has_more:
                return None  # nearly all results; a text is stored in any case
        return None if self.saver.can_store(output) else describe_unstorable(output, self.saver.can_store)

    def check_answers(self, answers: object) -> None:
        """Raise `StorageError` if answers cannot be stored; called before any call of the answers begins."""
        if (part := self.unstorable(answers)) is not None:
            raise self._error_about("an answer", part)

    async def record_error(self, task: str, error: str) -> None:
        # A call that has finished stays finished, also if the write of its result failed.
        if task not in self._unstorable_results and not self.record_of(task).has_ended:
            await super().record_error(task, error)

    async def record_result(self, task: str, output: object, *, may_wait: bool = False) -> None:
        # With durability "sync", a result is stored before a reader of the stream sees it. With "async", it may share
        # the write of the end of its step. A process that is killed before that write leaves the claim of the call, as
        # it would in the moment before the result's own write: the outcome is unknown, and the call does not run again.
        await super().record_result(task, output, may_wait=may_wait and self._durability == "async")

    @property
    def claims_ahead(self) -> bool:
        return self._durability != "exit"  # "exit" stores nothing before the end, so it stores no claims either

    async def claim(self, tasks: Sequence[str]) -> None:
        mark = current_mark() if tasks else None
        record = EMPTY_RECORD if mark is None else CallRecord(mark=mark)
        # All claims of a reply share one write with the `Stepped` entry before them, instead of one write per call.
        for task in tasks:
            entry = Claimed(task, record)
            self.apply_entry(entry)
            self._entries.append(entry)
        # Until a body starts, its claim may be taken back. Only a killed process leaves such a call as unknown.
        self._claimed_ahead.update(tasks)
        self._waits_for_next_entry = False  # an entry that waited for these claims waits no longer
        if self._durability != "exit":
            await self._flush(wait=bool(tasks) or self._durability == "sync")

    async def record_claim(self, task: str, record: CallRecord) -> None:
        before = self.record_of(task)
        is_stored = before.claimed and not (before.pending or before.answers or record.answers)
        if not is_stored:  # neither with the reply nor by an earlier attempt
            if not before.claimed:
                self._claimed_ahead.add(task)  # the error of a neighbour may cancel this task during the write
            await super().record_claim(task, record)
        # If the lease ended before or during the write of the claim, another run may have come first: the saver has
        # then dropped the claim without an error. If it ended later, that run may have run the call again.
        await self._check_lease()
        self._claimed_ahead.discard(task)

    def _take_actor_states(self, entry: Entry) -> None:
        """Append to the journal the actor states that have to be stored in the same write as `entry`."""
        # Result and actor state share one write: a crash leaves both or neither. A repeated call must not find its own
        # effect in the actor's state.
        for state in self.pending_actor_states.due(entry):
            self.apply_entry(state)
            self._entries.append(state)

    async def _flush(self, *, wait: bool, ends_step: bool = False) -> None:
        """Store all journal entries that are not stored yet; `ends_step`: do not pause for entries of other calls."""
        while self._is_flushing:
            if not wait:
                return  # the task that is writing also writes the new entries
            if self._flushed is None:
                self._flushed = Event()
            await self._flushed.wait()  # if that write failed, its entries are still in `_sending`
        self._is_flushing = True
        try:
            if not wait and not ends_step and self.saver.is_waited_for:
                # Calls that end in the same turn of the event loop share a write: that of the step, if it ends, too.
                await cancel_shielded_checkpoint()
                if self._waits_for_next_entry:
                    return
            # A `while`, because tasks that came during a write have returned: this task stores their entries, too.
            while self._sending or self._entries:
                await self._commit()
            if not self._is_hold_confirmed:
                await self._confirm_hold()
        finally:
            # Also after an error or a cancellation: a waiting task must wake up and write by itself.
            flushed, self._is_flushing, self._flushed = self._flushed, False, None
            if flushed is not None:
                flushed.set()

    async def _commit(self) -> None:
        # Directly before the write, with no other wait between: a run that lost the thread must not write.
        await self._check_lease()
        base, changes = self._pending_changes()
        try:
            # If the caller is cancelled here, the write goes on within the grace and the cancellation is raised
            # afterwards. The entries stay in `_sending`; repeating a stored write changes nothing.
            await self.saver.store(*changes)
        except Exception as error:
            self._is_lost = (
                self._is_lost or not self._is_hold_confirmed
            )  # a run that could not begin writes nothing more
            unstorable = self._leave_out_unstorable()
            if unstorable is None:
                raise
            # A text of the serializer names the type, and how to allow it.
            self._storage_error = error if isinstance(error, StorageError) else self._storage_error_of(unstorable)
            if self._storage_error is error:
                raise
            raise self._storage_error from error
        # Only after success: the repetition of a failed write must have the same task id.
        self._base, self._commits, self._sending = base, self._commits + 1, []

    def _pending_changes(self) -> tuple[Base, list[Change]]:
        """Return the checkpoint for the next journal entries, and the `Change` objects that store these entries."""
        base, changes = self._base, []
        if base is None:
            # Two runs that begin the same thread write the same id, and then compete for the first entry on it.
            version = self.saver.next_version
            base, _ = new_base(
                None,
                {},
                FIRST_ID,
                source="input",
                step=-1,
                previous_id=None,
                parents=self.parents,
                next_version=version,
            )
            changes.append(self.saver.checkpoint(base, {}))
        # A failed write may have been stored nevertheless, and savers keep the first of two writes with one id. So it
        # is repeated unchanged, and newer entries go into the next write; entries added to it could be dropped.
        if not self._sending:
            self._sending, self._entries = self._entries, []
        if self._sending:
            task_id = f"callboard-{self._commits + 1:08}"
            changes.append(self.saver.writes(base.id, _writes_of(self._sending), task_id, "~callboard"))
        return base, changes

    def _leave_out_unstorable(self) -> Entry | None:
        """Remove the entries that cannot be stored from a failed write, and what rests on them; return the first one.

        The results of other calls of the step remain. A later step, or another change of the state, does not.
        """
        unstorable: Entry | None = None
        storable: list[Entry] = []
        for entry in [*self._sending, *self._entries]:
            if not self.saver.can_store(encode_entry(entry)):
                unstorable = unstorable or entry
            elif unstorable is None or not isinstance(entry, Move):
                storable.append(entry)
                continue
            if isinstance(entry, Move):
                self._is_cut_off = True
                break
            self._forget_unstorable(entry)
        if unstorable is not None:
            # Nothing of the failed write was stored: serializers refuse values before the database gets them.
            self._sending, self._entries = storable, []
        return unstorable

    def _forget_unstorable(self, entry: Entry) -> None:
        """Remove what an entry has recorded: a later checkpoint would try to store it again."""
        if isinstance(entry, Finished) and entry.task not in self.schema.flow.nodes:
            self._unstorable_results.add(entry.task)
            self.records[entry.task] = CallRecord(claimed=True)
        elif isinstance(entry, (Finished, Claimed)):
            self.records.pop(entry.task, None)
        elif isinstance(entry, Asked):
            for task in entry.records:
                self.records.pop(task, None)

    def _storage_error_of(self, entry: Entry) -> StorageError:
        """Return the error for an entry that cannot be stored."""
        if isinstance(entry, Finished):
            subject = f"the result of {entry.task!r}"
        elif isinstance(entry, (Asked, Claimed)):
            subject = "an answer or a question"
        else:
            subject = "the new values of the state"
        part = describe_unstorable(encode_entry(entry), self.saver.can_store).removeprefix("['output']")
        return self._error_about(subject, part)

    def _error_about(self, subject: str, part: str) -> StorageError:
        return StorageError(
            self.saver.where,
            f"cannot store {subject} in thread {self.saver.thread_id!r}: {part}. It takes texts, numbers of at most "
            "64 bits, lists, mappings, messages and the types that the agent's schemas name",
        )

    async def _check_lease(self) -> None:
        if self._own_holder is None or not self._is_hold_confirmed or not self._lease.may_be_over:
            return
        # Another token, or none: this run did not renew in time, and the thread is no longer its own.
        current = await self._holder_now()
        if current is None or current["token"] != self._own_holder["token"]:
            self._is_lost = True
            raise ThreadBusyError(self.saver.thread_id, describe_holder(current))

    async def _holder_now(self) -> Mapping[str, Any] | None:
        """Read from the database which run holds the thread; return its holder entry, or `None` without such a run."""
        checkpoint_tuple = await self.saver.outline()
        self._check_whole(checkpoint_tuple)
        is_ours = (
            checkpoint_tuple is not None
            and self._base is not None
            and checkpoint_tuple.checkpoint["id"] == self._base.id
        )
        return holder_in(holders_of(checkpoint_tuple)) if checkpoint_tuple is not None and is_ours else None

    @property
    def is_held(self) -> bool:
        return self._own_holder is not None

    async def hold(self, *, counts_as_step: bool = False, may_wait: bool = False) -> None:
        await self._refuse_if_held()
        if self._durability == "exit":
            return  # nothing is written before the end, so no other run could know
        # Before the hold: a fork writes a checkpoint, and the holder entry has to be on that one.
        await self.prepare(counts_as_step=counts_as_step)
        # The clocks of this machine first: others count the lease from the moment at which the database read its own.
        self._lease = OwnLease()
        self._own_holder, self._is_hold_confirmed = new_holder(await self.saver.now()), False
        try:
            await self.record(Held(self._own_holder), may_wait=may_wait)
        except BaseException:
            self._give_up_hold()  # no `stop` follows a failed start: the thread would be busy while the process lives
            raise

    async def _confirm_hold(self) -> None:
        """Read the thread back, and raise `ThreadBusyError` if another run has taken it at the same time."""
        # Savers do not report that they dropped a second write with the same id; only reading it back tells.
        checkpoint_tuple = await self.saver.outline()
        holders = (
            [entry.holder for entry in holders_of(checkpoint_tuple) if isinstance(entry, Held)]
            if checkpoint_tuple
            else []
        )
        if self._own_holder in holders:
            self._is_hold_confirmed = True
            return
        self._is_lost = True  # no entry of this run is in the journal
        self._give_up_hold()
        self._check_whole(checkpoint_tuple)
        raise ThreadBusyError(self.saver.thread_id, describe_holder(holders[-1] if holders else None))

    def _check_whole(self, checkpoint_tuple: CheckpointTuple | None) -> None:
        """Raise `StorageError` if the latest stored checkpoint shows that the database has lost what was written."""
        base = self._base
        # The checkpoint has fewer writes than it had, or an older one is the latest: ids grow with time.
        if base is not None and (
            checkpoint_tuple is None
            or checkpoint_tuple.checkpoint["id"] < base.id
            or (checkpoint_tuple.checkpoint["id"] == base.id and commits_in(checkpoint_tuple) < self._commits)
        ):
            raise StorageError(self.saver.describe_position(base.id), f"does not keep what is written there. {MEND}")

    async def keep_holding(self) -> None:
        # Cancelled when the run ends. A renewal goes through `_flush`, so it keeps its place among other entries.
        while self._own_holder is not None:
            await sleep(LEASE / 3)
            try:
                since = self._lease.read()  # before the clock of the database, as in `hold`
                self._own_holder = renew_holder(self._own_holder, await self.saver.now())
                await self.record(Held(self._own_holder))
                await self._flush(wait=True)
                await self._check_lease()  # by the old lease: if that ended during the write, it may have been dropped
                self._lease.renew(since)  # only now: the database has the new end of the lease
            except ThreadBusyError:
                return  # `_is_lost` is set, and the run's next write raises
            except StorageError:
                if self._storage_error is not None:
                    return  # the run's next entry raises it
                _log.exception("The hold on thread %r could not be prolonged; trying again", self.saver.thread_id)
            except Exception:
                # An outage must not end the run. However long it lasts, `_check_lease` checks the holder afterwards.
                _log.exception("The hold on thread %r could not be prolonged; trying again", self.saver.thread_id)

    def _give_up_hold(self) -> None:
        if self._own_holder is not None:
            release(self._own_holder)
            self._own_holder = None

    async def stop(self) -> None:
        """Store a checkpoint of the position at which the run ends, and the results of tasks in an unfinished step."""
        try:
            # The token is released after the last write. Otherwise another run of this process could start in between.
            await self._store_final_state()
        finally:
            self._give_up_hold()

    async def _store_final_state(self) -> None:
        if self._begins_branch or self._is_lost:
            return  # nothing has changed, or another run's writes count
        if self._is_cut_off:
            # The state has more than the journal. The claims stay: nobody knows how these calls ended.
            self._entries = [Left()] if self._own_holder is not None and self._base is not None else []
            await self._flush(wait=True)
            return
        if not self._is_hold_confirmed:
            await self._flush(wait=True)  # raises if another run holds the thread
        # Claims of calls that have not started are taken back with the last entries of the run. Otherwise the outcomes
        # of these calls would be unknown.
        claims = {task: self.records[task] for task in self._claimed_ahead if task in self.records}
        self._claimed_ahead = set()
        if released := {task: record.with_answers_only() for task, record in claims.items() if record.claimed}:
            self.apply_entry(entry := Asked(released))
            self._entries.append(entry)
        self._take_actor_states(Left())
        # No `Left` entry if a checkpoint follows: holder entries stay on the old one, so the new one frees the thread.
        if self._own_holder is not None and self._base is not None and self._base.id == self.checkpoint_id:
            await self.record(Left())
        if self._base is None or self._base.id != self.checkpoint_id:
            await self._rebase(self.source)
        await self._flush(wait=True)

    async def _rebase(self, source: Source) -> None:
        """Store the whole state as a new checkpoint, which later journal entries are added to."""
        if self._sending or self._is_flushing:
            await self._flush(wait=True)
        # A flush without entries has not checked it. The new checkpoint would hide the entries of the run that has the
        # thread now, and they may need what the thin one loses.
        await self._check_lease()
        # Entries first: if the process dies before the new checkpoint is stored, replay leads to this position.
        before, changes = self._pending_changes() if self._entries else (self._base, [])
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
            parents=self.parents,
            next_version=self.saver.next_version,
        )
        if entries := [*entries_of_records(self.records), *self.actor_states.changes_of_step()]:
            # Before the checkpoint: once that exists, entries on the older one are no longer read. A process that is
            # killed in between leaves this write without a checkpoint, so the task id is unique.
            task_id = f"callboard-{1:08}-{new_id(self.step)}"
            tracked = [drop_untracked(entry, self.schema) for entry in entries]
            changes.append(self.saver.writes(base.id, _writes_of(tracked), task_id, "~callboard"))
        changes.append(self.saver.checkpoint(base, changed))
        # A later checkpoint than `before` may be LangGraph's, which may need the messages of `before`.
        if self._is_latest and before is not None and (thin := before.make_thin(base)) is not None:
            # Last: the thin checkpoint finds its messages in the new one. A crash before only costs space.
            changes.append(self.saver.checkpoint(thin, {MESSAGES: thin.checkpoint["channel_versions"][MESSAGES]}))
        try:
            await self.saver.store(*changes)
        except Exception as error:
            await self._flush(wait=True)  # a checkpoint that cannot be stored does not take the entries with it
            values = base.checkpoint["channel_values"]
            if isinstance(error, StorageError) or self.saver.can_store(values):
                raise
            part = describe_unstorable(values, self.saver.can_store)
            raise StorageError(
                self.saver.where, f"cannot store the state of thread {self.saver.thread_id!r}: {part}"
            ) from error
        # Only after the checkpoint is stored. Until then, a failure leaves the entries to be repeated on the old one.
        self._base, self._commits, self._entries, self._sending, self.holder = base, int(bool(entries)), [], [], None
        self._is_latest = True


def _writes_of(entries: Iterable[Entry]) -> list[Write]:
    return [(CHANNEL, [encode_entry(entry) for entry in entries])]


def _check_messages(messages: object) -> None:
    """Raise TypeError if a stored conversation is not a list of messages."""
    if not isinstance(messages, list):
        raise TypeError(f"the conversation should be a list, and is {type(messages).__name__}")
    # One object of each type is checked, because a conversation may be long.
    for kind in {type(message) for message in messages}:
        if not issubclass(kind, BaseMessage):
            raise TypeError(f"a message should be BaseMessage, and is {kind.__name__}")
