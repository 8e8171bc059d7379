"""A thread that a checkpointer keeps: what happens is written as it happens, in one place, and only once.

A checkpoint holds the whole state, as LangGraph's do, and is written where a run ends. What happens between two
checkpoints is written on the first of them as entries, under task ids of our own, which LangGraph passes over;
to know where a thread stands is to take the last checkpoint and play its entries. Storage therefore grows
with what is new, and a killed process loses at most what it had not begun to write.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple

from callboard.agent._channels import Schema, State
from callboard.agent._saver import Saver
from callboard.agent._thread import Entry, Source, Thread, new_id, now

CHANNEL = "__callboard__"
"""Where entries are written."""

BRANCH = "branch:to:"
"""LangGraph's channels for the nodes that come next."""

PARENT = "callboard_parent"
"""In a checkpoint's metadata: the place before it, which may be an entry."""

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
        super().__init__(schema)
        self.saver = saver
        self.namespace = saver.namespace
        self._durability = durability
        self._base: Checkpoint | None = None
        self._commits = 0
        self._entries: list[Entry] = []
        self._flushing = False
        self._forks = False

    @property
    def exists(self) -> bool:
        """Whether anything was stored before."""
        return self._base is not None

    @property
    def is_kept(self) -> bool:
        return True

    @property
    def config(self) -> RunnableConfig:
        """Where the thread stands."""
        return self.saver.config(self.checkpoint_id) if self.exists else self.saver.config()

    @property
    def parent_config(self) -> RunnableConfig | None:
        """Where it stood before."""
        return None if self.parent_id is None else self.saver.config(self.parent_id)

    async def open(self, checkpoint_id: str | None) -> None:
        """Go to where the thread stands.

        Args:
            checkpoint_id: where it stood once; by default, where it stands now. What is done from an
                earlier place is a fork of its own.

        Raises:
            ValueError: if there is no such place.
        """
        found = await self.saver.get()
        if found is None:
            return
        entries = entries_of(found)
        self._forks = checkpoint_id is not None and checkpoint_id != _last_id(found, entries)
        if checkpoint_id is not None and self._forks:
            found, entries = await self._earlier(checkpoint_id)
        self.play(found, entries)

    async def _earlier(self, checkpoint_id: str) -> tuple[CheckpointTuple, list[Entry]]:
        """The checkpoint before or at a place, and its entries up to there."""
        found = await self.saver.get(checkpoint_id)
        if found is not None:
            return found, []
        around = await self.saver.before(checkpoint_id, 1)
        for found in around:
            entries = entries_of(found)
            ids = [entry.get("id") for entry in entries]
            if checkpoint_id in ids:
                return found, entries[: ids.index(checkpoint_id) + 1]
        raise ValueError(f"The thread has no checkpoint {checkpoint_id!r}")

    def play(self, found: CheckpointTuple, entries: Sequence[Entry]) -> None:
        """Be at a checkpoint, and then where the entries lead."""
        self.load(found)
        self._base = found.checkpoint
        self._commits = len({write[0] for write in found.pending_writes or () if write[1] == CHANNEL})
        for entry in entries:
            self.take(entry)

    def load(self, found: CheckpointTuple) -> None:
        """Be where a checkpoint is, whoever wrote it."""
        checkpoint, values = found.checkpoint, found.checkpoint["channel_values"]
        self.state = State(self.schema, values)
        self.step = found.metadata.get("step", -1)
        self.source = cast("Source", found.metadata.get("source", "loop"))
        self.checkpoint_id, self.ts = checkpoint["id"], checkpoint["ts"]
        around = found.parent_config or {}
        self.parent_id = cast("Any", found.metadata).get(PARENT, around.get("configurable", {}).get("checkpoint_id"))
        self.next = tuple(name.removeprefix(BRANCH) for name in values if name.startswith(BRANCH))
        self.records = {}

    async def prepare(self) -> None:
        if self._forks:
            self._forks = False
            await self._rebase("fork")

    async def record(self, entry: Entry, *, live: bool = False) -> None:
        await super().record(entry, live=live)
        self._entries.append(entry)
        if self._durability != "exit":
            await self._flush()

    async def _flush(self) -> None:
        """Store what has happened; what happens meanwhile is stored along with it, in one write."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._entries:
                await self._commit()
        finally:
            self._flushing = False

    async def _commit(self) -> None:
        if self._base is None:
            await self._rebase("input", empty=True)
        assert self._base is not None
        entries, self._entries = self._entries, []
        self._commits += 1
        task_id = f"callboard-{self._commits:08}"
        await self.saver.write(self._base["id"], [(CHANNEL, entry) for entry in entries], task_id, "~callboard")

    async def stop(self) -> None:
        """Leave the thread as the run leaves it: a checkpoint at the end of a turn, the journal before that."""
        if self.next or self.records:
            await self._flush()
        elif self._base is None or self._base["id"] != self.checkpoint_id:
            await self._rebase(self.source)

    async def _rebase(self, source: Source, *, empty: bool = False) -> None:
        """Write a checkpoint, and what follows on it."""
        parent = self._base
        values = {} if empty else {**self.state.snapshot(), **{BRANCH + node: None for node in self.next}}
        old: Mapping[str, Any] = {} if parent is None else parent["channel_versions"]
        version = self.saver.next_version(max(old.values()) if old else None)
        changed = dict.fromkeys({*values, *_gone(parent, values)}, version)
        checkpoint = Checkpoint(
            v=4,
            id=new_id(self.step) if empty or source == "fork" else self.checkpoint_id,
            ts=now(),
            channel_values=values,
            channel_versions=cast("Any", {**old, **changed}),
            versions_seen={} if parent is None else parent["versions_seen"],
            updated_channels=None,
        )
        metadata = cast(
            "CheckpointMetadata", {"source": source, "step": self.step, "parents": {}, PARENT: self.parent_id}
        )
        await self.saver.put(checkpoint, metadata, None if parent is None else parent["id"], changed)
        self._base, self._commits = checkpoint, 0
        if not empty:
            self._entries = []
            if checkpoint["id"] != self.checkpoint_id:
                self.parent_id, self.checkpoint_id = self.checkpoint_id, checkpoint["id"]


def _gone(parent: Checkpoint | None, values: Mapping[str, Any]) -> set[str]:
    return set() if parent is None else parent["channel_values"].keys() - values.keys()


def entries_of(found: CheckpointTuple) -> list[Entry]:
    """What happened after a checkpoint, in order."""
    commits: dict[str, list[Entry]] = {}
    for task_id, channel, value in found.pending_writes or ():
        if channel == CHANNEL:
            commits.setdefault(task_id, []).append(value)
    return [entry for task_id in sorted(commits) for entry in commits[task_id]]


def _last_id(found: CheckpointTuple, entries: Sequence[Entry]) -> str:
    ids = [str(entry["id"]) for entry in entries if "id" in entry]
    return ids[-1] if ids else found.checkpoint["id"]
