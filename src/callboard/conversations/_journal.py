"""Journal of a thread of conversation in a checkpointer: each event is written once, before what depends on it begins.

A checkpoint holds the whole state, as in LangGraph, and is written where a run ends. Events between two checkpoints are
written as entries on the earlier checkpoint. Entries are pending writes under callboard's own task ids, which LangGraph
ignores. To find the current position of a thread, read its last checkpoint and replay the entries on it. So storage
grows only with new content. A killed process loses at most the entries whose write had not begun.

A run that holds the thread has a lease on it. The lease is an entry, too: `Held`, and `Left` at the end.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from anyio import Lock
from anyio.lowlevel import cancel_shielded_checkpoint
from langgraph.checkpoint.base import CheckpointTuple

from callboard._langgraph._serializers import MEND
from callboard._loops._current import current_loop
from callboard._loops._deadline import INSTANT
from callboard.conversations._channels import Write
from callboard.conversations._lease import LEASE, OwnLease, describe_holder, is_over, new_holder, release, renew_holder
from callboard.conversations._saver import Change, Saver
from callboard.conversations._storage import (
    CHANNEL,
    FIRST_ID,
    Asked,
    Base,
    Claimed,
    Entry,
    Finished,
    Held,
    Move,
    commits_in,
    encode_entry,
    holder_in,
    holders_of,
    new_base,
)
from callboard.conversations._unstorable import describe_unstorable
from callboard.exceptions import StorageError, ThreadBusyError

_log = logging.getLogger("callboard")


class Journal:
    """Journal entries on the last checkpoint of a thread, and the lease of the run that writes them.

    `forget` is called with each entry that cannot be stored, and is left out of the journal.
    """

    def __init__(self, saver: Saver, forget: Callable[[Entry], None]) -> None:
        self._saver = saver
        self._forget = forget
        self.base: Base | None = None
        """Checkpoint on which entries are written; `None` until the first write of a new thread."""
        # Number of writes on `base`. The next write's task id follows from it, so two runs that write at once collide,
        # and the saver keeps the first.
        self._commits = 0
        self._entries: list[Entry] = []
        """Entries that no write contains yet."""
        self._sending: list[Entry] = []
        """Entries in the write that is in progress, or in a write that failed and has to be repeated."""
        self._waits_for_next_entry = False  # true if an entry that waits for the next one is the last in `_entries`
        self._flushing = Lock(fast_acquire=True)  # at most one task writes at a time, so that task ids stay in order
        self._own_holder: dict[str, Any] | None = None  # this run's holder entry, while it holds the thread
        self.is_hold_confirmed = True
        """`False` until the first write with the holder entry of this run has been read back."""
        self._lease = OwnLease()
        self.renewal_time = math.inf
        """Loop time at which the lease has to be renewed; `math.inf` without a lease, and for one that is lost."""
        self.is_lost = False
        """`True` if another run has taken the thread: no entry may be written any more."""
        self.storage_error: StorageError | None = None
        """Error about the first entry that cannot be stored. No call may begin after it, and the step must not end."""
        self.is_cut_off = False
        """`True` if the end of a step, or another change of the state, was left out.

        It or an entry before it cannot be stored. No later entry may be written: a replay without the end of the step
        would run a call that a person has rejected. The next run goes on from the last stored position.
        """

    def append(self, entry: Entry, *, joins_next_write: bool = False) -> None:
        """Add an entry to the next write; with `joins_next_write`, that write may wait for the next entry."""
        self._entries.append(entry)
        self._waits_for_next_entry = joins_next_write

    @property
    def has_unsent(self) -> bool:
        """`True` if there are entries that no write contains yet."""
        return bool(self._entries)

    def drop_unsent(self) -> None:
        self._entries = []

    def start_on(self, base: Base, commits: int) -> None:
        """Write later entries on a checkpoint that is stored, and on which there are so many writes already."""
        self.base, self._commits, self._entries, self._sending = base, commits, [], []

    async def flush(self, *, wait: bool, ends_step: bool = False) -> None:
        """Store all entries that are not stored yet, in this task.

        While another task writes, it stores them too; this one waits for it only with `wait`. Without `ends_step`, this
        task pauses for entries of calls that end at the same time.
        """
        if not wait and self._flushing.locked():
            return  # the task that is writing also writes the new entries
        # A cancelled run stores its end, too. On trio, `acquire` raises the cancellation even if the lock is free.
        if self._flushing.locked():
            await self._flushing.acquire()
        else:
            self._flushing.acquire_nowait()
        try:  # if the write before failed, its entries are still in `_sending`
            if not wait and not ends_step and self._saver.is_waited_for:
                # Calls that end in the same turn of the event loop share a write: that of the step, if it ends, too.
                await cancel_shielded_checkpoint()
                if self._waits_for_next_entry:
                    return
            # A `while`, because tasks that came during a write have returned: this task stores their entries, too.
            while self._sending or self._entries:
                await self._commit()
            if not self.is_hold_confirmed:
                await self._confirm_hold()
        finally:
            self._flushing.release()

    async def settle(self) -> None:
        """Wait for a write that is in progress, and repeat one that has failed; check that the lease still holds."""
        if self._sending or self._flushing.locked():
            await self.flush(wait=True)
        await self.check_lease()

    async def _commit(self) -> None:
        # Directly before the write, with no other wait between: a run that lost the thread must not write.
        await self.check_lease()
        base, changes = self.take_changes()
        try:
            # If the caller is cancelled here, the write goes on within the grace and the cancellation is raised
            # afterwards. The entries stay in `_sending`; repeating a stored write changes nothing.
            await self._saver.store(*changes)
        except Exception as error:
            self.is_lost = self.is_lost or not self.is_hold_confirmed  # a run that could not begin writes nothing more
            unstorable = self._leave_out_unstorable()
            if unstorable is None:
                raise
            # A text of the serializer names the type, and how to allow it.
            self.storage_error = error if isinstance(error, StorageError) else self._error_about_entry(unstorable)
            if self.storage_error is error:
                raise
            raise self.storage_error from error
        # Only after success: the repetition of a failed write must have the same task id.
        self.base, self._commits, self._sending = base, self._commits + 1, []

    def take_changes(self) -> tuple[Base, list[Change]]:
        """Return the checkpoint for the next entries, and the `Change` objects that store these entries."""
        base, changes = self.base, []
        if base is None:
            # Two runs that begin the same thread write the same id, and then compete for the first entry on it.
            base, _ = new_base(
                None,
                {},
                FIRST_ID,
                source="input",
                step=-1,
                previous_id=None,
                parents=self._saver.parents,
                next_version=self._saver.next_version,
            )
            changes.append(self._saver.checkpoint(base, {}))
        # A failed write may have been stored nevertheless, and savers keep the first of two writes with one id. So it
        # is repeated unchanged, and newer entries go into the next write; entries added to it could be dropped.
        if not self._sending:
            self._sending, self._entries = self._entries, []
        if self._sending:
            changes.append(self.write_of(self._sending, base, f"callboard-{self._commits + 1:08}"))
        return base, changes

    def write_of(self, entries: Iterable[Entry], base: Base, task_id: str) -> Change:
        writes: list[Write] = [(CHANNEL, [encode_entry(entry) for entry in entries])]
        return self._saver.writes(base.id, writes, task_id, "~callboard")

    def _leave_out_unstorable(self) -> Entry | None:
        """Remove the entries that cannot be stored from a failed write, and what rests on them; return the first one.

        The results of other calls of the step remain. A later step, or another change of the state, does not.
        """
        unstorable: Entry | None = None
        storable: list[Entry] = []
        for entry in [*self._sending, *self._entries]:
            if not self._saver.can_store(encode_entry(entry)):
                unstorable = unstorable or entry
            elif unstorable is None or not isinstance(entry, Move):
                storable.append(entry)
                continue
            if isinstance(entry, Move):
                self.is_cut_off = True
                break
            self._forget(entry)
        if unstorable is not None:
            # Nothing of the failed write was stored: serializers refuse values before the database gets them.
            self._sending, self._entries = storable, []
        return unstorable

    def _error_about_entry(self, entry: Entry) -> StorageError:
        if isinstance(entry, Finished):
            subject = f"the result of {entry.task!r}"
        elif isinstance(entry, (Asked, Claimed)):
            subject = "an answer or a question"
        else:
            subject = "the new values of the state"
        part = describe_unstorable(encode_entry(entry), self._saver.can_store).removeprefix("['output']")
        return self.error_about(subject, part)

    def error_about(self, subject: str, part: str) -> StorageError:
        """Return the error for a value that cannot be stored: what it is, and a text about the part of it."""
        return StorageError(
            self._saver.where,
            f"cannot store {subject} in thread {self._saver.thread_id!r}: {part}. It takes texts, numbers of at most "
            "64 bits, lists, mappings, messages and the types that the agent's schemas name",
        )

    @property
    def is_held(self) -> bool:
        return self._own_holder is not None

    async def refuse_if_held(self, holder: Mapping[str, Any] | None) -> None:
        """Raise `ThreadBusyError` if the run of a holder entry still holds the thread."""
        # May wait for one lease. Nothing was written yet, so a cancellation here leaves nothing behind.
        if holder is not None and not await is_over(holder, self._saver.now, self._read_holder):
            raise self._busy(holder)

    async def begin_hold(self) -> Held:
        """Begin a lease on the thread, and return the entry with which the run takes the thread."""
        # The clocks of this machine first: others count the lease from the moment at which the database read its own.
        self._lease = OwnLease()
        self.renewal_time = current_loop().now() + LEASE / 3
        self._own_holder, self.is_hold_confirmed = new_holder(await self._saver.now()), False
        return Held(self._own_holder)

    def end_hold(self) -> None:
        if self._own_holder is not None:
            release(self._own_holder)
            self._own_holder, self.renewal_time = None, math.inf

    async def renew_hold(self, record: Callable[[Entry], Awaitable[None]]) -> None:
        """Renew the lease if its `renewal_time` has come."""
        # Cancelled when the run ends. A renewal goes through `flush`, so it keeps its place among other entries.
        if self._own_holder is None or current_loop().now() < self.renewal_time - INSTANT:
            return
        self.renewal_time = current_loop().now() + LEASE / 3
        try:
            since = self._lease.read()  # before the clock of the database, as in `begin_hold`
            self._own_holder = renew_holder(self._own_holder, await self._saver.now())
            await record(Held(self._own_holder))
            await self.flush(wait=True)
            await self.check_lease()  # by the old lease: if that ended during the write, it may have been dropped
            self._lease.renew(since)  # only now: the database has the new end of the lease
        except ThreadBusyError:
            self.renewal_time = math.inf  # `is_lost` is set, and the run's next write raises
        except Exception:
            if self.storage_error is not None:
                self.renewal_time = math.inf  # the run's next entry raises it
                return
            # An outage must not end the run. However long it lasts, `check_lease` checks the holder afterwards.
            _log.exception("The hold on thread %r could not be prolonged; trying again", self._saver.thread_id)
        except BaseException:  # cancelled in the middle, because the run parks: it renews the lease itself then
            self.renewal_time = current_loop().now()
            raise

    async def check_lease(self) -> None:
        """Raise `ThreadBusyError` if the lease may have ended, and another run has taken the thread since."""
        if self._own_holder is None or not self.is_hold_confirmed or not self._lease.may_be_over:
            return
        # Another token, or none: this run did not renew in time, and the thread is no longer its own.
        holder = await self._read_holder()
        if holder is None or holder["token"] != self._own_holder["token"]:
            self.is_lost = True
            raise self._busy(holder)

    async def _confirm_hold(self) -> None:
        """Read the thread back, and raise `ThreadBusyError` if another run has taken it at the same time."""
        # Savers do not report that they dropped a second write with the same id; only reading it back tells.
        checkpoint_tuple = await self._saver.outline()
        entries = [] if checkpoint_tuple is None else holders_of(checkpoint_tuple)
        holders = [entry.holder for entry in entries if isinstance(entry, Held)]
        if self._own_holder in holders:
            self.is_hold_confirmed = True
            return
        self.is_lost = True  # no entry of this run is in the journal
        self.end_hold()
        self._check_whole(checkpoint_tuple)
        raise self._busy(holders[-1] if holders else None)

    async def _read_holder(self) -> Mapping[str, Any] | None:
        """Read from the database which run holds the thread; return its holder entry, or `None` without such a run."""
        # On the latest checkpoint, which is not that of this run if the run starts at an earlier position.
        checkpoint_tuple = await self._saver.outline()
        self._check_whole(checkpoint_tuple)
        return None if checkpoint_tuple is None else holder_in(holders_of(checkpoint_tuple))

    def _check_whole(self, checkpoint_tuple: CheckpointTuple | None) -> None:
        """Raise `StorageError` if the latest stored checkpoint shows that the database has lost what was written."""
        base = self.base
        # The checkpoint has fewer writes than it had, or an older one is the latest: ids grow with time.
        if base is not None and (
            checkpoint_tuple is None
            or checkpoint_tuple.checkpoint["id"] < base.id
            or (checkpoint_tuple.checkpoint["id"] == base.id and commits_in(checkpoint_tuple) < self._commits)
        ):
            raise StorageError(self._saver.describe_position(base.id), f"does not keep what is written there. {MEND}")

    def _busy(self, holder: Mapping[str, Any] | None) -> ThreadBusyError:
        return ThreadBusyError(self._saver.thread_id, describe_holder(holder))
