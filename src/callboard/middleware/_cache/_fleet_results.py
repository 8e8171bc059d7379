"""Results and single flight of identical calls over many processes, through a document store.

The document of a result names the process that finds it out, the leader, until the result is there. The leader renews
the document's lease; if it dies, the document disappears after one lease, and a waiting call becomes the leader.
"""

import math
import threading
from collections.abc import Callable, Hashable
from functools import partial
from secrets import token_hex
from typing import Annotated, Literal, NamedTuple

import anyio
from langchain_core.messages import ToolMessage
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from callboard._calls._call import note, waiting
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._loops._current import wakeup
from callboard._loops._protocol import Wakeup
from callboard._records._documents import Document, Found, SharedDocuments, Written
from callboard._util._canonical import digest
from callboard.middleware._asking import ask
from callboard.middleware._cache._shared import Hit, Turn

# JSON form of a result, or of its leader. Other clients may write to the store, so reading validates everything.


_Marks = list[int]
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Finding(BaseModel):
    """A call of some process is finding out a result, and other calls wait for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["finding"] = "finding"
    marks: _Marks
    """Invalidation marks when the leader began. If they differ now, nobody may use the result."""
    leader: str
    """Id of the only call that may store the result."""
    waiting: dict[str, str]
    """Id of each waiting call, and the process to notify for it."""


class Result(BaseModel):
    """A found result."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["result"] = "result"
    marks: _Marks
    at: _Seconds
    """Time at which it was stored, by the store's clock."""
    message: str | None
    """JSON of the message; `None` if it cannot be shared, so that waiting calls must run."""
    only_for: list[str] | None
    """Ids of the calls that waited for it; `None` if every call may use it."""


_DOCUMENT: TypeAdapter[Finding | Result] = TypeAdapter(Annotated[Finding | Result, Field(discriminator="kind")])


def document_of(found: Found) -> Finding | Result | None:
    """Return the validated document; `None` if it is absent, invalid, or made obsolete by a mark."""
    if found.text is None:
        return None
    try:
        document = _DOCUMENT.validate_json(found.text)
    except ValidationError:
        return None
    return document if tuple(document.marks) == found.marks else None


def message_of(text: str) -> ToolMessage | None:
    """Return the message of a JSON text, or `None` if the text is not valid."""
    try:
        return ToolMessage.model_validate_json(text)
    except Exception:  # LangChain's validators may raise any error for unexpected input
        return None


def json_of(message: ToolMessage) -> str | None:
    """Return the JSON of a message without its call's ids; `None` if reading it back gives a different message."""
    bare = message.model_copy(update={"tool_call_id": "", "id": None})
    try:
        text = bare.model_dump_json(warnings="error")
    except (ValueError, RecursionError):  # pydantic's errors for values without a JSON form
        return None
    same = message_of(text)
    parts = [bare.content, bare.artifact, bare.additional_kwargs, bare.response_metadata]
    return text if type(message) is ToolMessage and same == bare and _is_plain(parts) else None


def _is_plain(value: object) -> bool:
    """Return whether JSON keeps all types: exact built-in types only, and only text keys.

    Comparing values is not enough: an instance of a subclass may equal the plain value that comes back.
    """
    # An explicit stack needs no recursion for deep data. The bound limits the time; larger results are not shared.
    values, left = [value], 1_000_000
    while values and left:
        one, left = values.pop(), left - 1
        if isinstance(one, dict):
            values += [*one, *one.values()]
            if type(one) is not dict or not all(type(key) is str for key in one):
                return False
        elif type(one) is list:
            values += one
        elif one is not None and type(one) not in (str, int, float, bool):
            return False
    return not values


# Results


_ALL = "all"
"""Mark that makes all results of the cache invalid."""
_SLACK = 1.0
"""Seconds by which the leases of two processes may differ."""
_SOON = 0.01
"""Seconds after the end of a leader's lease at which a waiting call checks again."""


class Lead(NamedTuple):
    """Duty of this process to find a result for all processes."""

    document: Document
    id: str
    stop: Callable[[], object]


class _Wait(NamedTuple):
    """Another process runs the call, and this one waits for its result."""

    left: float
    """Seconds until the lease of that process ends."""


class _Alone(NamedTuple):
    """There is a result that cannot be shared, so this call runs on its own."""


_Answer = Hit[ToolMessage] | _Wait | _Alone | None


class FleetResults:
    """Results that are kept in a store; used from any thread and event loop."""

    def __init__(self, store: SharedDocuments, name: object, version: object, ttl: float, size: int) -> None:
        self._store = store
        self._shelf = f"results-{digest([name, version])[:32]}"
        self._ttl = ttl
        self._size = size
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, Wakeup], None] = {}
        store.listen(self)

    async def enter(self, document: Document, request: ToolCallRequest) -> Hit[ToolMessage] | Lead | None:
        """Return a result, kept or just found by another process, or the duty to find it; `None`: run without store."""
        me = token_hex(8)
        has_waited = False
        while True:
            awake = wakeup()
            # Registered before the question is asked: a result that lands in between wakes this call, too.
            with self._lock:
                self._waiting[document.name, awake] = None
            try:
                answer = await self._ask(document, me, request)
                if isinstance(answer, Hit):
                    note("cache_shared") if has_waited else note("cache_hit", age=answer.age)
                if not isinstance(answer, _Wait):
                    return answer
                has_waited = True
                # The leader may die without a notification; so wait no longer than its lease, then look again.
                with waiting(), anyio.move_on_after(None if math.isinf(answer.left) else answer.left + _SOON):
                    await awake.wait()
            except BaseException:
                # A cancelled task does not know whether its claim was made, and may lead without knowing it.
                self._store.change(document, partial(_left, me))
                raise
            finally:
                with self._lock:
                    del self._waiting[document.name, awake]

    async def _ask(
        self, document: Document, me: str, request: ToolCallRequest
    ) -> Hit[ToolMessage] | Lead | _Wait | None:
        done = await ask(self._store, document, partial(self._claim, me), request)
        if done is None:
            note("cache_skipped", reason="the store is away")
            return None
        answer: _Answer = done.value
        if answer is None:
            return Lead(document, me, self._store.tend(document, partial(self._renew, me)))
        return None if isinstance(answer, _Alone) else answer

    def text_of(self, message: ToolMessage) -> str | None:
        """Return the JSON of a message to store; `None` if JSON changes it, or it is too large for the store."""
        text = json_of(message)
        if text is None:
            return None
        # Checked with the longest possible marks and time, which are known only when the result lands.
        document = Result(marks=[2**53] * 2, at=1e12, message=text, only_for=None).model_dump_json()
        return text if len(document.encode()) <= self._store.largest else None

    def land(self, lead: Lead, turn: Turn | str, *, keep: bool) -> None:
        """Report the result of a lead; never waits. Without `keep`, only the calls that wait now may use it."""
        lead.stop()
        self._store.change(lead.document, partial(self._landed, lead.id, turn, keep))

    def heard(self, document: Document | None) -> None:
        """Wake waiting calls, so that they look at their document again."""
        with self._lock:
            waiting = list(self._waiting)
        for name, awake in waiting:
            if document is None or (document.shelf == self._shelf and (document.name == name or _is_mark(document))):
                awake.set()

    def document_of(self, tool: str, value: Hashable) -> Document | None:
        """Return the document for a call's result; `None` if its key has no JSON form for other processes."""
        try:
            name = digest([tool, value])
        except ValueError:
            return None
        return Document(self._shelf, name, (_ALL, _mark_of(tool)))

    def forget(self, tool: str | None, value: Hashable = None) -> None:
        """Make results invalid for all processes, those of running calls included; never waits."""
        if tool is None:
            self._store.mark(self._shelf, _ALL)
        elif value is None:
            self._store.mark(self._shelf, _mark_of(tool))
        elif (document := self.document_of(tool, value)) is not None:
            self._store.change(document, _forgotten)

    # Rules. They run in a thread of the store, and again after each conflict with another process. So they must
    # neither wait nor have side effects.

    def _claim(self, me: str, found: Found) -> tuple[Written | None, _Answer]:
        known = document_of(found)
        if isinstance(known, Result) and (known.only_for is None or me in known.only_for):
            message = None if known.message is None else message_of(known.message)
            if message is not None:
                return None, Hit(message, max(0.0, found.now - known.at))
            if known.only_for is not None:
                return None, _Alone()
        # A lease that is longer than any leader could have set was written by another client: do not trust it, or
        # this call would wait for a leader that never existed.
        if isinstance(known, Finding) and found.left <= self._store.lease + _SLACK:
            if known.leader == me:  # an earlier claim was made, but its answer got lost
                return None, None
            if me in known.waiting:
                return None, _Wait(found.left)
            joined = known.model_copy(update={"waiting": {**known.waiting, me: found.me}}).model_dump_json()
            if len(joined) > self._store.largest:  # too many waiting calls to list this one; it checks by time only
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
        # This leader lost its lease. A newer leader may have landed already, or the results were invalidated; either
        # way this result must not be stored.
        if not isinstance(known, Finding) or known.leader != me:
            return None, None
        tell = frozenset(known.waiting.values())
        if turn is Turn.LEAD or not (keep or known.waiting):
            return Written(text=None, tell=tell), None
        result = Result(
            # The marks at the beginning of the call, not those of now: if results were invalidated while it ran,
            # readers see old marks and ignore the result.
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
    """Remove a cancelled call from the document, as leader or as waiting call."""
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
