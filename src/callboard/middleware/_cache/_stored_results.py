"""Results of calls in a LangGraph cache, which many processes may share.

Each process runs its calls by itself: a call reads the store before its body, and stores its result after it.
A cache cannot delete single values of other processes in time: a call that runs there would store its older result
afterwards. So each result names the *mark* of its tool, a random text that was valid when its call began. An
invalidation replaces the mark, and thereby makes all earlier results of the tool useless.
"""

import math
import re
import time
from collections.abc import Hashable
from functools import partial
from typing import Annotated, Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import ToolMessage
from langgraph.cache.base import BaseCache, FullKey
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._large_values import run_if_long
from callboard._util._canonical import digest
from callboard.middleware._cache._local_results import Hit
from callboard.middleware._cache._text_store import MAX_TEXT_BYTES, TextStore

# Text of a message: a line of JSON and, if the content is a text, this text as it is


_MAX_PARTS = 20_000
"""Maximum number of commas and opening brackets in the JSON of a message. Parsing more holds the GIL for too long."""


def parse_message(text: str) -> ToolMessage | None:
    """Return the tool message in a text of `serialize_message`, or `None` if the text is not valid."""
    fields, has_content, content = text.partition("\n")
    if sum(map(fields.count, ",[{")) > _MAX_PARTS:
        return None
    try:
        message = ToolMessage.model_validate_json(fields)
    except Exception:  # LangChain's validators may raise any error for unexpected input
        return None
    if has_content:
        message.content = content
    return message


def serialize_message(message: ToolMessage) -> str | None:
    """Return a tool message as text, without the ids of its call; `None` if JSON cannot express the message exactly."""
    content = message.content
    is_text = isinstance(content, str)
    # A long text needs no parsing, so its commas do not count.
    message_without_ids = message.model_copy(
        update={"tool_call_id": "", "id": None, "content": "" if is_text else content}
    )
    try:
        fields = message_without_ids.model_dump_json(warnings="error")
    except (ValueError, RecursionError):  # pydantic's errors for values without a JSON form
        return None
    extras = (
        message_without_ids.artifact,
        message_without_ids.additional_kwargs,
        message_without_ids.response_metadata,
    )
    parts = [content, *extras]
    if type(message) is not ToolMessage or parse_message(fields) != message_without_ids:
        return None
    if not _has_plain_json_types(parts):
        return None
    return f"{fields}\n{content}" if is_text else fields


_MAX_VALUES = 1_000_000


def _has_plain_json_types(value: object) -> bool:
    """Return whether JSON keeps all types in a value: only exact built-in types occur, and all keys are text."""
    # Comparing values is not enough: an instance of a subclass may equal the plain value that comes back.
    # An explicit stack needs no recursion for deep data. The bound limits the time; larger results are not stored.
    values, remaining_steps = [value], _MAX_VALUES
    while values and remaining_steps:
        item, remaining_steps = values.pop(), remaining_steps - 1
        if isinstance(item, dict):
            values += [*item, *item.values()]
            if type(item) is not dict or not all(type(key) is str for key in item):
                return False
        elif type(item) is list:
            values += item
        elif item is not None and type(item) not in (str, int, float, bool):
            return False
    return not values


# Results


class _Header(BaseModel):
    """First line of a stored result; the text of the message follows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mark: str
    """Mark of the tool when the call began; if it differs now, the result must not be used."""
    at: Annotated[float, Field(allow_inf_nan=False)]
    """Time at which the result was written, by the clock of the process that wrote it, in seconds since 1970."""


_MAX_HEADER_CHARS = 200
_MAX_STORE_TTL = 1e9
"""Time to live in seconds above which results do not expire in a store."""
_NO_EXPIRY = None
_MARK = re.compile("[0-9a-f]{32}")


class Address(NamedTuple):
    """Keys of a result in the store, and of the mark of its tool."""

    result_key: FullKey
    mark_key: FullKey


class PendingResult(NamedTuple):
    """Call that runs because the store had no result: its address, and the mark of its tool when it began."""

    address: Address
    tool_mark: str


class StoredResults:
    """Results of calls in a LangGraph cache; used from any thread and event loop."""

    def __init__(self, cache: BaseCache[Any], version: object, ttl: float) -> None:
        self._store = TextStore(cache)
        self._namespace = ("callboard", digest(version)[:32])
        self._ttl = ttl
        # In whole seconds, for the store; `age` is compared with `ttl` itself. A store would overflow in year 10,000.
        self._store_ttl = None if ttl > _MAX_STORE_TTL else math.ceil(ttl)
        self._worker_threads = WorkerThreads("Cache")

    async def find_result(self, address: Address) -> Hit[ToolMessage] | PendingResult | None:
        """Return a call's stored result, or a `PendingResult`; `None` if the store cannot be used."""
        texts = await self._store.read(address)
        if texts is None:
            note("cache_skipped", reason="the store is away")
            return None
        tool_mark = texts.get(address.mark_key, "")
        if not _MARK.fullmatch(tool_mark):  # the store has no mark, or something else in its place
            tool_mark = uuid4().hex
            # Before the body: a mark that is written later could replace that of an invalidation in between.
            if not await self._store.write({address.mark_key: (tool_mark, _NO_EXPIRY)}):
                note("cache_skipped", reason="the store is away")
                return None
        text = texts.get(address.result_key)
        hit = None
        if text is not None:
            hit = await run_if_long(self._worker_threads, text, partial(self._read_hit, text, tool_mark))
        return hit or PendingResult(address, tool_mark)

    def _read_hit(self, text: str, tool_mark: str) -> Hit[ToolMessage] | None:
        """Return the result in a stored text; `None` if the text is damaged, outdated or was invalidated."""
        # Other programs may write to the store, so reading validates everything.
        header_text, _, message_text = text.partition("\n")
        if len(header_text) > _MAX_HEADER_CHARS:
            return None
        try:
            header = _Header.model_validate_json(header_text)
        except ValidationError:
            return None
        age = max(0.0, time.time() - header.at)
        message = parse_message(message_text) if header.mark == tool_mark and age < self._ttl else None
        return None if message is None else Hit(message, age)

    def serialize_message(self, message: ToolMessage) -> str | None:
        """Return a message as text for the store; `None` if JSON changes the message, or is too large for the store."""
        text = serialize_message(message)
        try:
            return text if text is not None and len(text.encode()) <= MAX_TEXT_BYTES - _MAX_HEADER_CHARS else None
        except UnicodeEncodeError:  # a lone surrogate
            return None

    async def store_result(self, pending_result: PendingResult, text: str) -> None:
        """Store the result of a call as `text`; it is useless if it was invalidated while the call ran."""
        header = _Header(mark=pending_result.tool_mark, at=time.time())
        if not await self._store.write(
            {pending_result.address.result_key: (f"{header.model_dump_json()}\n{text}", self._store_ttl)}
        ):
            note("cache_skipped", reason="the store is away")

    def make_address(self, tool: str, value: Hashable) -> Address | None:
        """Return the keys for a call's result; `None` if the cache's key has no JSON form, and so cannot be shared."""
        try:
            name = digest([tool, value])
        except ValueError:
            return None
        return Address((self._namespace, f"result-{name}"), self._mark_key_of(tool))

    def forget(self, tool: str) -> None:
        """Make the results of a tool invalid for all processes, also those of calls that run now; never wait."""
        self._store.write_later(self._mark_key_of(tool), uuid4().hex)

    def _mark_key_of(self, tool: str) -> FullKey:
        return self._namespace, f"tool-{digest(tool)}"
