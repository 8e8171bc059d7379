"""Results of calls that many processes share through a document store.

Each process runs its calls by itself: a call reads the store before its body, and stores its result after it.
"""

from collections.abc import Hashable
from functools import partial
from typing import Annotated, NamedTuple

from langchain_core.messages import ToolMessage
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from callboard._calls._call import note
from callboard._langgraph._vocabulary import ToolCallRequest
from callboard._records._documents import Document, Found, SharedDocuments, Written
from callboard._util._canonical import digest
from callboard.middleware._asking import ask
from callboard.middleware._cache._local_results import Hit

# JSON form of a result. Other clients may write to the store, so reading validates everything.


class _Result(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    marks: list[int]
    """Invalidation marks of the store when the result was written. If they differ now, the result must not be used."""
    at: Annotated[float, Field(allow_inf_nan=False)]
    """Time at which the result was written, by the store's clock."""
    message: str | None
    """JSON of the result's message; `None` if the result was invalidated."""


def result_of(found: Found) -> _Result | None:
    """Return the result in a document; `None` if the result is absent, damaged or was invalidated later."""
    if found.text is None:
        return None
    try:
        result = _Result.model_validate_json(found.text)
    except ValidationError:
        return None
    return result if tuple(result.marks) == found.marks else None


def message_of(text: str) -> ToolMessage | None:
    """Return the tool message in a JSON text, or `None` if the text is not valid."""
    try:
        return ToolMessage.model_validate_json(text)
    except Exception:  # LangChain's validators may raise any error for unexpected input
        return None


def json_of(message: ToolMessage) -> str | None:
    """Return a tool message as JSON, without the ids of its call; `None` if JSON cannot express the message exactly."""
    bare = message.model_copy(update={"tool_call_id": "", "id": None})
    try:
        text = bare.model_dump_json(warnings="error")
    except (ValueError, RecursionError):  # pydantic's errors for values without a JSON form
        return None
    same = message_of(text)
    parts = [bare.content, bare.artifact, bare.additional_kwargs, bare.response_metadata]
    return text if type(message) is ToolMessage and same == bare and _is_plain(parts) else None


def _is_plain(value: object) -> bool:
    """Return whether JSON keeps all types in a value: only exact built-in types occur, and all keys are text."""
    # Comparing values is not enough: an instance of a subclass may equal the plain value that comes back.
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
"""Name of a mark in the store. Setting the mark makes all earlier results of a cache invalid."""
_LONGEST_CALL = 3600.0
"""Seconds for which the store remembers that one result was invalidated; running calls should end in this time."""


class Begun(NamedTuple):
    """Call that runs because the store had no result: its document, and the state of this document before the call."""

    document: Document
    found: Found


class StoredResults:
    """Results of calls in a document store; used from any thread and event loop."""

    def __init__(self, store: SharedDocuments, name: object, version: object, ttl: float, size: int) -> None:
        self._store = store
        self._shelf = f"results-{digest([name, version])[:32]}"
        self._ttl = ttl
        self._size = size

    async def find(self, document: Document, request: ToolCallRequest) -> Hit[ToolMessage] | Begun | None:
        """Return a call's stored result, or a `Begun` to pass to `keep()` later; `None` if the store is unreachable."""
        done = await ask(self._store, document, _look, request)
        if done is None:
            note("cache_skipped", reason="the store is away")
            return None
        return Begun(document, done.value) if isinstance(done.value, Found) else done.value

    def text_of(self, message: ToolMessage) -> str | None:
        """Return a message as JSON for the store; `None` if JSON changes the message, or is too large for the store."""
        text = json_of(message)
        if text is None:
            return None
        # Checked with the longest possible marks and time, which are known only when the result is written.
        document = _Result(marks=[2**53] * 2, at=1e12, message=text).model_dump_json()
        return text if len(document.encode()) <= self._store.largest else None

    def keep(self, begun: Begun, text: str) -> None:
        """Store the result of a call as JSON (`text`), unless it was invalidated while the call ran; never wait."""
        self._store.change(begun.document, partial(self._kept, begun.found, text))

    def document_of(self, tool: str, value: Hashable) -> Document | None:
        """Return the document for a call's result; `None` if the key has no JSON form and so cannot be shared."""
        try:
            name = digest([tool, value])
        except ValueError:
            return None
        return Document(self._shelf, name, (_ALL, _mark_of(tool)))

    def forget(self, tool: str | None, value: Hashable = None) -> None:
        """Make results invalid for all processes, also the results of calls that run now; never wait."""
        if tool is None:
            self._store.mark(self._shelf, _ALL)
        elif value is None:
            self._store.mark(self._shelf, _mark_of(tool))
        elif (document := self.document_of(tool, value)) is not None:
            self._store.change(document, _forgotten)

    def _kept(self, began: Found, text: str, found: Found) -> tuple[Written | None, None]:
        # Invalidated since the call began, or stored by another call meanwhile: this result may be older.
        known = result_of(found)
        if found.marks != began.marks or (known is not None and began.now < known.at <= found.now):
            return None, None
        result = _Result(marks=list(found.marks), at=found.now, message=text)
        return Written(text=result.model_dump_json(), lives=self._ttl, most=self._size), None


# Rules. They run in a thread of the store, and again after each conflict with another process. So they must neither
# wait nor have side effects.


def _look(found: Found) -> tuple[None, Hit[ToolMessage] | Found]:
    known = result_of(found)
    message = None if known is None or known.message is None else message_of(known.message)
    if known is None or message is None:
        return None, found
    return None, Hit(message, max(0.0, found.now - known.at))


def _forgotten(found: Found) -> tuple[Written, None]:
    """Return a document without a message, to be written in place of an invalid result."""
    # If the document was deleted instead, a running call could store its older result.
    result = _Result(marks=list(found.marks), at=found.now, message=None)
    return Written(text=result.model_dump_json(), lives=_LONGEST_CALL), None


def _mark_of(tool: str) -> str:
    return f"tool-{digest(tool)[:32]}"
