"""What identical calls of many processes share: results, and who is finding one out. Each is a document in a store.

The process that leads gives signs of life until it says what it has found. A document that nobody tends is gone after
a lease; then one of those who wait leads.
"""

import math
import threading
from collections.abc import Callable, Hashable
from functools import partial
from secrets import token_hex
from typing import NamedTuple

import anyio
from langchain_core.messages import ToolMessage

from callboard._calls._call import note, waiting
from callboard._canonical import digest
from callboard._documents import Document, Found, SharedDocuments, Written
from callboard._loops._protocol import EventLoop, Wakeup
from callboard.middleware._asking import ask
from callboard.middleware._result_documents import Finding, Result, document_of, json_of, message_of
from callboard.middleware._shared import Hit, Turn
from callboard.tools._vocabulary import ToolCallRequest

_ALL = "all"
_SLACK = 1.0
"""Seconds by which leases may differ."""
_SOON = 0.01
"""Seconds that pass before a call looks again for a leader whose lease is at its end."""


class Lead(NamedTuple):
    """The task to find a result out for all processes."""

    document: Document
    id: str
    stop: Callable[[], object]


class _Wait(NamedTuple):
    """Another process runs the call, and its result is waited for."""

    left: float
    """Seconds for which that process is trusted to live."""


class _Alone(NamedTuple):
    """There is a result, which cannot be had here."""


_Answer = Hit[ToolMessage] | _Wait | _Alone | None


class FleetResults:
    """Results that are kept in a store.

    Args:
        store: where.
        name: of the cache, in all processes alike.
        version: of what its tools do: results of another one are not taken.
        ttl: seconds for which a result is kept, by the clock of the store.
        size: how many are.
    """

    def __init__(self, store: SharedDocuments, name: object, version: object, ttl: float, size: int) -> None:
        self._store = store
        self._shelf = f"results-{digest([name, version])[:32]}"
        self._ttl = ttl
        self._size = size
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, Wakeup], None] = {}
        store.listen(self)

    async def enter(
        self, document: Document, request: ToolCallRequest, loop: EventLoop
    ) -> Hit[ToolMessage] | Lead | None:
        """The result that is kept or that somebody finds out meanwhile, else the task to; `None`: run without it.

        Raises:
            CallRejectedError: if the store is away, and calls are to be refused then.
            StorageError: if it cannot be used.
        """
        me = token_hex(8)
        has_waited = False
        while True:
            wakeup = loop.wakeup()
            with self._lock:
                self._waiting[document.name, wakeup] = None
            try:
                answer = await self._ask(document, me, request, loop)
                if isinstance(answer, Hit):
                    note("cache_shared") if has_waited else note("cache_hit", age=answer.age)
                if not isinstance(answer, _Wait):
                    return answer
                has_waited = True
                with waiting(), anyio.move_on_after(None if math.isinf(answer.left) else answer.left + _SOON):
                    await wakeup.wait()
            except BaseException:
                self._store.change(document, partial(_left, me))
                raise
            finally:
                with self._lock:
                    del self._waiting[document.name, wakeup]

    async def _ask(
        self, document: Document, me: str, request: ToolCallRequest, loop: EventLoop
    ) -> Hit[ToolMessage] | Lead | _Wait | None:
        done = await ask(self._store, document, partial(self._claim, me), request, loop)
        if done is None:
            note("cache_skipped", reason="the store is away")
            return None
        answer: _Answer = done.value
        if answer is None:
            return Lead(document, me, self._store.tend(document, partial(self._renew, me)))
        return None if isinstance(answer, _Alone) else answer

    def text_of(self, message: ToolMessage) -> str | None:
        """What is stored of a message; `None` if others cannot have it."""
        text = json_of(message)
        if text is None:
            return None
        document = Result(marks=[2**53] * 2, at=1e12, message=text, only_for=None).model_dump_json()
        return text if len(document.encode()) <= self._store.largest else None

    def land(self, lead: Lead, turn: Turn | str, *, keep: bool) -> None:
        """Say what became of it; waits for nothing.

        Args:
            lead: the task.
            turn: the text of a message, or what those who wait are told instead.
            keep: for later calls too; else for those who wait.
        """
        lead.stop()
        self._store.change(lead.document, partial(self._landed, lead.id, turn, keep))

    def heard(self, document: Document | None) -> None:
        """Have those look again who wait for a result."""
        with self._lock:
            waiting = list(self._waiting)
        for name, wakeup in waiting:
            if document is None or (document.shelf == self._shelf and (document.name == name or _is_mark(document))):
                wakeup.set()

    def document_of(self, tool: str, value: Hashable) -> Document | None:
        """Where the result of a call is; `None` for one that other processes cannot know.

        Args:
            tool: its name.
            value: what the result depends on.
        """
        try:
            name = digest([tool, value])
        except ValueError:
            return None
        return Document(self._shelf, name, (_ALL, _mark_of(tool)))

    def forget(self, tool: str | None, value: Hashable = None) -> None:
        """Have nobody take results any more, those of calls in flight included; waits for nothing.

        Args:
            tool: its name; `None` for all.
            value: what the result depends on; `None` for all results of the tool.
        """
        if tool is None:
            self._store.mark(self._shelf, _ALL)
        elif value is None:
            self._store.mark(self._shelf, _mark_of(tool))
        elif (document := self.document_of(tool, value)) is not None:
            self._store.change(document, _forgotten)

    # The rules. They run in a thread of the store.

    def _claim(self, me: str, found: Found) -> tuple[Written | None, _Answer]:
        known = document_of(found)
        if isinstance(known, Result) and (known.only_for is None or me in known.only_for):
            message = None if known.message is None else message_of(known.message)
            if message is not None:
                return None, Hit(message, max(0.0, found.now - known.at))
            if known.only_for is not None:
                return None, _Alone()
        # Nobody trusts a leader for longer than its lease, whichever process that may be.
        if isinstance(known, Finding) and found.left <= self._store.lease + _SLACK:
            if known.leader == me:  # it was heard, and its answer lost
                return None, None
            if me in known.waiting:
                return None, _Wait(found.left)
            joined = known.model_copy(update={"waiting": {**known.waiting, me: found.me}}).model_dump_json()
            if len(joined) > self._store.largest:  # so many wait that who comes now is told by nobody
                return None, _Wait(found.left)
            return Written(text=joined, lives=found.left), _Wait(found.left)
        finding = Finding(marks=list(found.marks), leader=me, waiting={})
        return Written(text=finding.model_dump_json(), lives=self._store.lease), None

    def _renew(self, me: str, found: Found) -> tuple[Written | None, None]:
        known = document_of(found)
        is_ours = isinstance(known, Finding) and known.leader == me
        return Written(text=found.text, lives=self._store.lease) if is_ours else None, None

    def _landed(self, me: str, turn: Turn | str, keep: bool, found: Found) -> tuple[Written | None, None]:
        known = document_of(found)
        # Whoever is not the leader any more was slow: a newer one may have said more, or all is to be forgotten.
        if not isinstance(known, Finding) or known.leader != me:
            return None, None
        tell = frozenset(known.waiting.values())
        if turn is Turn.LEAD or not (keep or known.waiting):
            return Written(text=None, tell=tell), None
        result = Result(
            marks=known.marks,
            at=found.now,
            message=turn if isinstance(turn, str) else None,
            only_for=None if keep else list(known.waiting),
        )
        return Written(
            text=result.model_dump_json(),
            lives=self._ttl if keep else self._store.lease,
            tell=tell,
            most=self._size if keep else None,
        ), None


def _left(me: str, found: Found) -> tuple[Written | None, None]:
    """Clear up behind a call that wants nothing any more, and may lead without knowing."""
    known = document_of(found)
    if not isinstance(known, Finding):
        return None, None
    if known.leader == me:
        return Written(text=None, tell=frozenset(known.waiting.values())), None
    if me not in known.waiting:
        return None, None
    others = {one: process for one, process in known.waiting.items() if one != me}
    return Written(text=known.model_copy(update={"waiting": others}).model_dump_json(), lives=found.left), None


def _forgotten(found: Found) -> tuple[Written | None, None]:
    known = document_of(found)
    tell = frozenset(known.waiting.values()) if isinstance(known, Finding) else frozenset[str]()
    return (None if found.text is None else Written(text=None, tell=tell)), None


def _is_mark(document: Document) -> bool:
    return document.name == _ALL or document.name.startswith("tool-")


def _mark_of(tool: str) -> str:
    return f"tool-{digest(tool)[:32]}"
