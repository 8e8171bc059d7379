"""A thread that a checkpointer keeps: what happens is written as it happens, in one place, and only once.

A checkpoint holds the whole state, as LangGraph's do, and is written where a run ends. What happens between two
checkpoints is written on the first of them as entries, under task ids of our own, which LangGraph passes over;
to know where a thread stands is to take the last checkpoint and play its entries. Storage therefore grows
with what is new, and a killed process loses at most what it had not begun to write.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

from anyio import Event, sleep
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from callboard._calls._observers import current_mark
from callboard._langgraph._node_scope import PUSH
from callboard._langgraph._serializers import MEND
from callboard.agent._conversation._actor_states import ActorStates
from callboard.agent._conversation._channels import Schema, State, Write
from callboard.agent._conversation._checkpoint import (
    CHANNEL,
    FIRST_ID,
    MESSAGES,
    PARENT,
    Base,
    base_of,
    changed_channels,
    commits_in,
    entries_of,
    holder_in,
    is_damaged,
    last_id,
    may_be_thin,
    metadata_of,
    new_base,
    noted_actors,
    thinned,
    unknown_values,
)
from callboard.agent._conversation._journal_entries import Asked, Claimed, Entry, Finished, Held, Left, Source, Stepped
from callboard.agent._conversation._langgraph_threads import (
    coming,
    furthest,
    kept_records,
    read_coming,
    writes_for_langgraph,
)
from callboard.agent._conversation._lease import LEASE, OwnLease, described, is_over, new_holder, prolonged, release
from callboard.agent._conversation._past import Past, no_checkpoint, place_of, whole
from callboard.agent._conversation._saver import Saver
from callboard.agent._conversation._sound import check_messages, sound
from callboard.agent._conversation._thread import START, Following, Thread, new_id, now
from callboard.agent._conversation._untracked import tracked_entry, tracked_writes
from callboard.exceptions import StorageError, ThreadBusyError
from callboard.tools._call_record import NOTHING_KNOWN, CallRecord

_log = logging.getLogger("callboard")

Durability = Literal["sync", "async", "exit"]


class SavedThread(Thread):
    """A thread and its journal.

    Args:
        schema: of its state.
        saver: keeps it.
        durability: when what happened has to be stored: before the run goes on ("sync"), meanwhile
            ("async"), or when the run stops ("exit").
    """

    def __init__(self, schema: Schema, saver: Saver, durability: Durability) -> None:
        super().__init__(schema, namespace=saver.namespace)
        self.saver = saver
        self._durability = durability
        self._base: Base | None = None
        self.checkpoint_id = FIRST_ID
        self._commits = 0
        self._entries: list[Entry] = []
        self._sending: list[Entry] = []
        """Those of the write that is being made, or has to be made again."""
        self._flushing: Event | None = None
        self._mine: dict[str, Any] | None = None  # the holder that this run has written, while it holds the thread
        self._ahead: set[str] = set()  # claimed calls that have not begun: unknown only if the process is killed
        self._lease = OwnLease()
        self._is_lost = False  # whether another run has taken the thread
        self._forks = False
        self.about: Mapping[str, Any] = {}  # metadata that a user gave with the run that wrote the last checkpoint

    @property
    def exists(self) -> bool:
        """Whether anything was stored before."""
        return self._base is not None

    @property
    def has_begun(self) -> bool:
        return self.checkpoint_id != FIRST_ID

    @property
    def is_anywhere(self) -> bool:
        """Whether the thread has a place; with durability "exit", that is stored when the run ends."""
        return self.exists or self.has_begun or bool(self.next)

    @property
    def is_kept(self) -> bool:
        return True

    @property
    def config(self) -> RunnableConfig:
        """Leads to the checkpoint at which the thread stands, or to the thread if it has none."""
        return self.saver.config(self.checkpoint_id) if self.is_anywhere else self.saver.config()

    @property
    def parent_config(self) -> RunnableConfig | None:
        """Where the thread stood before."""
        return None if self.parent_id is None else self.saver.config(self.parent_id)

    async def open(self, checkpoint_id: str | None, *, looks: bool = False) -> None:
        """Go to where the thread stands.

        Args:
            checkpoint_id: where it stood once; by default, where it stands now. What is done from an
                earlier place is a fork of its own.
            looks: whether it is only to be looked at, with what the tasks of that place did afterwards.

        Raises:
            ValueError: if there is no such place.
        """
        found = await self.saver.get()
        if found is None:
            if checkpoint_id is not None:
                raise no_checkpoint(checkpoint_id)
            return
        entries = entries_of(found)
        self._forks = checkpoint_id is not None and checkpoint_id != last_id(found, entries)
        holder = holder_in(entries)
        if checkpoint_id is not None and self._forks:
            past = await place_of(self.saver, checkpoint_id)
            await self._go_back(past, looks=looks)
        else:
            self.play(await whole(self.saver, found), entries)
        self.holder = holder  # of now, and not of where the thread stood once

    async def _go_back(self, past: Past, *, looks: bool) -> None:
        self.play(await whole(self.saver, past.found), past.entries)
        if past.given is not None:
            self.receive(past.given)  # in which is what the tasks had done
        else:
            self._forget_tasks()
            for entry in past.tasks if looks else ():
                self.take(entry)  # to go on from there is another branch, on which it was not done

    def play(self, found: CheckpointTuple, entries: Sequence[Entry]) -> None:
        """Go to a checkpoint, and from there to where its entries lead.

        Raises:
            StorageError: if that makes no sense.
        """
        with sound(self.saver.told(found)):
            self.load(found)
            self._base, self._commits = base_of(found), commits_in(found)
            theirs = dict(self.records)
            for entry in entries:
                self.take(entry)
            if self.checkpoint_id == self._base.id:
                self.records = furthest(self.records, theirs)
            for name in self.schema.conversations:
                check_messages(self.state.get(name) or [])

    def load(self, found: CheckpointTuple) -> None:
        """Go to a checkpoint, whoever wrote it."""
        base = base_of(found)
        values = base.checkpoint["channel_values"]
        self.state = State(self.schema, values)
        self.about = base.about
        self.step = base.metadata.get("step", -1)
        self.source = base.metadata.get("source", "loop")
        self.checkpoint_id, self.ts = base.id, base.checkpoint["ts"]
        self.parent_id = base.notes.get(PARENT, base.parent_id)
        self.next, self.sends, self.records = (), (), {}
        self.actor_states = ActorStates.read(noted_actors(base.checkpoint))
        read_coming(self, found)

    async def prepare(self, *, repeats: bool = False) -> None:
        if self._forks:
            self._forks = False
            self.step += repeats
            self.parent_id, self.checkpoint_id = self.checkpoint_id, new_id(self.step)
            await self._rebase("fork")

    async def update(self, writes: Iterable[Write], following: Following) -> None:
        if not self._forks:
            return await super().update(writes, following)
        # The changed place is the beginning of the branch: one checkpoint, and no run that could be at it.
        await self._refuse_if_held()
        self._forks = False
        self.take(self._amended(writes, following, "update"), live=True)
        return await self._rebase("update")

    async def copy(self) -> None:
        """Go to a copy of this place, with the same place before it, and not what the tasks of this one did."""
        await self._refuse_if_held()
        self._forks = False
        self._forget_tasks()
        self.asked_here = {}
        self.step, self.source = self.step + 1, "fork"
        self.checkpoint_id, self.ts = new_id(self.step), now()
        await self._rebase("fork")

    def _forget_tasks(self) -> None:
        """Forget what the tasks of the place did: it counts on that branch only; the input is part of the place."""
        self.records = {task: record for task, record in self.records.items() if task == START}
        self.actor_states = self.actor_states if START in self.next else self.actor_states.before_calls()

    async def _refuse_if_held(self) -> None:
        if self.holder is not None and not await is_over(self.holder, self.saver.now, self._holder_now):
            raise ThreadBusyError(self.saver.thread_id, described(self.holder))

    async def record(self, entry: Entry, *, live: bool = False, later: bool = False) -> None:
        self._take_kept(entry)
        if isinstance(entry, Stepped):
            self._ahead.clear()  # models use the names of calls again
        await super().record(entry, live=live)
        self._entries.append(tracked_entry(entry, self.schema))
        if isinstance(entry, Claimed):
            await self._flush(wait=True)  # before the body starts, or it says nothing
        elif self._durability != "exit" and not later:
            await self._flush(wait=self._durability == "sync")

    @property
    def claims_ahead(self) -> bool:
        return self._durability != "exit"  # where nothing is stored before the end, no claim is

    async def claim(self, tasks: Sequence[str]) -> None:
        mark = current_mark() if tasks else None
        known = NOTHING_KNOWN if mark is None else CallRecord(mark=mark)
        for task in tasks:
            entry = Claimed(task, known)
            self.take(entry)
            self._entries.append(entry)
        self._ahead.update(tasks)
        if self._durability != "exit":
            await self._flush(wait=bool(tasks) or self._durability == "sync")

    async def claimed(self, task: str, known: CallRecord) -> None:
        self._ahead.discard(task)
        before = self.records.get(task)
        if before is not None and before.claimed and not (before.pending or before.answers or known.answers):
            return  # it is stored already, with the reply or for an attempt before this one
        await super().claimed(task, known)

    def _release(self) -> None:
        """Take back the claims of calls that have not begun; stored with whatever the run leaves."""
        known = {task: self.records[task] for task in self._ahead if task in self.records}
        self._ahead = set()
        if released := {task: record.accepted() for task, record in known.items() if record.claimed}:
            self.take(entry := Asked(released))
            self._entries.append(entry)

    def _take_kept(self, entry: Entry) -> None:
        """Take in the states of actors that are stored with an entry, in one write."""
        for state in self.kept_by_actors.due(entry):
            self.take(state)
            self._entries.append(state)

    async def _flush(self, *, wait: bool) -> None:
        """Store what has happened; what happens meanwhile is stored along with it, in one write.

        Args:
            wait: for the end of a write that somebody else makes.
        """
        while self._flushing is not None:
            if not wait:
                return
            await self._flushing.wait()  # and then see to what could not be stored
        self._flushing = Event()
        try:
            while self._sending or self._entries:
                await self._commit()
        finally:
            self._flushing.set()
            self._flushing = None

    async def _commit(self) -> None:
        if self._base is None:
            await self._begin()
        assert self._base is not None
        await self._see_to_lease()
        # What failed may have been stored all the same, and of two writes with one id savers keep the first: so it
        # is sent again as it was, and what has happened since is sent after it.
        if not self._sending:
            self._sending, self._entries = self._entries, []
        task_id = f"callboard-{self._commits + 1:08}"
        try:
            await self.saver.write(self._base.id, _stored(self._sending), task_id, "~callboard")
        except Exception:
            self._leave_out_what_cannot_be_stored()
            raise
        self._commits += 1
        self._sending = []

    def _leave_out_what_cannot_be_stored(self) -> None:
        """Leave out the entries that no checkpointer can store; the others of that write are written again."""
        left_out = [entry for entry in self._sending if not self.saver.can_store(entry.encode())]
        for entry in left_out:
            if isinstance(entry, Finished):
                self.records.pop(entry.task, None)
        self._sending = [entry for entry in self._sending if entry not in left_out]

    async def _see_to_lease(self) -> None:
        """Raise ThreadBusyError if our lease may be over and another run has taken the thread."""
        if self._mine is None or not self._lease.may_be_over:
            return
        current = await self._holder_now()
        if current is None or current["token"] != self._mine["token"]:
            self._is_lost = True
            raise ThreadBusyError(self.saver.thread_id, described(current))

    async def _holder_now(self) -> Mapping[str, Any] | None:
        found = await self.saver.outline()
        is_ours = found is not None and self._base is not None and found.checkpoint["id"] == self._base.id
        return holder_in(entries_of(found)) if found is not None and is_ours else None

    @property
    def is_held(self) -> bool:
        return self._mine is not None

    async def hold(self, *, repeats: bool = False) -> None:
        await self._refuse_if_held()
        if self._durability == "exit":
            return  # nothing is written before the end, so nobody can be told
        await self.prepare(repeats=repeats)
        mine, self._lease = new_holder(await self.saver.now()), OwnLease()
        self._mine = mine
        try:
            await self._write_hold(mine)
            found = await self.saver.outline()
        except BaseException:
            self._lose()  # nobody would end a run that has not begun, and the thread would be busy for good
            raise
        holders = [entry.holder for entry in entries_of(found) if isinstance(entry, Held)] if found else []
        if mine not in holders:
            self._lose()
            if self._base is not None and is_damaged(found, self._base.id, self._commits):
                raise StorageError(self.saver.told_at(self._base.id), f"does not keep what is written there. {MEND}")
            raise ThreadBusyError(self.saver.thread_id, described(holders[-1] if holders else None))

    async def _write_hold(self, mine: dict[str, Any]) -> None:
        since = self._lease.read()
        await self.record(Held(mine))
        await self._flush(wait=True)
        self._lease.renew(since)

    async def keep_holding(self) -> None:
        while self._mine is not None:
            await sleep(LEASE / 3)
            try:
                self._mine = prolonged(self._mine, await self.saver.now())
                await self._write_hold(self._mine)
            except ThreadBusyError:
                return  # the run notices when it writes
            except Exception:
                _log.exception("The hold on thread %r could not be prolonged; trying again", self.saver.thread_id)

    def _lose(self) -> None:
        if self._mine is not None:
            release(self._mine)
            self._mine = None

    async def stop(self) -> None:
        """Leave the thread as the run leaves it: with a checkpoint, and on it what its open tasks have done."""
        try:
            await self._leave()
        finally:
            self._lose()

    async def _leave(self) -> None:
        if self._forks or self._is_lost:
            return  # nothing has happened, or nothing that counts
        self._release()
        self._take_kept(Left())
        if self._mine is not None and self._base is not None and self._base.id == self.checkpoint_id:
            await self.record(Left())
        if self._base is None or self._base.id != self.checkpoint_id:
            await self._flush(wait=True)
            await self._rebase(self.source)
        await self._flush(wait=True)
        if self.records and self._base is not None:
            for index, (task_id, writes) in enumerate(writes_for_langgraph(self, self._base)):
                kept = tracked_writes(writes, self.schema.untracked)
                await self.saver.write(self._base.id, kept, task_id, f"~{PUSH}, {index:010}")

    async def _begin(self) -> None:
        """Write the checkpoint before the first entry: there was nothing, whatever has been taken in since."""
        about, version = metadata_of("input", -1), self.saver.next_version
        base = new_base(None, {}, FIRST_ID, about, place_before=None, next_version=version)
        await self.saver.put(base.checkpoint, cast("Any", base.metadata), None, {})
        self._base = base

    async def _rebase(self, source: Source) -> None:
        """Write a checkpoint, and what follows on it; the one before becomes thin."""
        before = self._base
        values = {**unknown_values(before, self.schema.specs), **self.state.snapshot(), **coming(self)}
        about, following = metadata_of(source, self.step), self.saver.next_version
        self.actor_states = self.actor_states.written_at(None if before is None else before.id)
        base = new_base(
            before,
            values,
            self.checkpoint_id,
            about,
            place_before=self.parent_id,
            sends=len(self.sends),
            actors=self.actor_states.noted(),
            next_version=following,
        )
        versions = base.checkpoint["channel_versions"]
        changed = {name: versions[name] for name in changed_channels(before, values)}
        if kept := [*kept_records(self.records), *self.actor_states.kept()]:
            # Before the checkpoint: once that is there, what is written on the one before does not count any more.
            # A killed process may have left a write without its checkpoint, so each has a name of its own.
            task_id = f"callboard-{1:08}-{new_id(self.step)}"
            tracked = [tracked_entry(entry, self.schema) for entry in kept]
            await self.saver.write(base.id, _stored(tracked), task_id, "~callboard")
        await self.saver.put(base.checkpoint, cast("Any", base.metadata), base.parent_id, changed)
        self._base, self._commits, self._entries, self._sending, self.holder = base, int(bool(kept)), [], [], None
        if before is not None and may_be_thin(before, base):
            thin = thinned(before, base)
            written = {MESSAGES: thin.checkpoint["channel_versions"][MESSAGES]}
            await self.saver.put(thin.checkpoint, cast("Any", thin.metadata), thin.parent_id, written)


def _stored(entries: Iterable[Entry]) -> list[Write]:
    """Entries as one write to the checkpointer."""
    return [(CHANNEL, [entry.encode() for entry in entries])]
