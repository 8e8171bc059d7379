"""`OutputBudget`: middleware that shortens long results, and stores the whole texts, which the model can read.

A result is shortened in the text blocks of its content, at good places such as line breaks. Of its images and files,
those that are too large are stored as a whole.
"""

import asyncio
import json
import math
import re
import secrets
import threading
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

import sniffio
from anyio import fail_after
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langchain._large_values import remaining_size, run_if_long
from callboard._langchain._outputs import CallNext, Output, entries_in, with_entries, with_facts
from callboard._langgraph._vocabulary import ToolCallRequest, ToolRuntime
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._deadline import remaining
from callboard._loops._entry_mode import is_sync_entry
from callboard._records._policies import CallPolicy, check_count, check_type
from callboard._util._extras import require
from callboard._util._suggestions import suggests_options
from callboard.middleware._media import Media, read_media
from callboard.tools._middleware import Middleware, Order
from callboard.tools._middleware_hooks import check_tool_names, tool_names

# Stored texts


_MAX_STORE_THREADS = 16


class StoreAccess:
    """Access to LangGraph stores, by their async methods where possible, else by sync methods in at most 16 threads."""

    def __init__(self) -> None:
        self._worker_threads = WorkerThreads("a store", _MAX_STORE_THREADS)

    async def batch(self, store: BaseStore, ops: Sequence[PutOp | GetOp]) -> list[Any]:
        """Run operations on a store, and return their results."""
        run_sync, run_async = partial(store.batch, ops), partial(store.abatch, ops)
        if isinstance(store, InMemoryStore):
            # Never blocks, so neither a thread nor another event loop is needed.
            return run_sync()
        both_ways: list[Callable[[], Awaitable[Any]]] = [
            partial(run_on_asyncio, run_async),
            partial(self._worker_threads.run, run_sync),
        ]
        preferred_way, other_way = both_ways if _has_usable_async_methods(store) else reversed(both_ways)
        try:
            # Some stores implement only their async or only their sync methods.
            return list(await preferred_way())
        except NotImplementedError:
            return list(await other_way())


def _has_usable_async_methods(store: BaseStore) -> bool:
    """Return whether the async methods of a store work in this event loop."""
    # Sync code expects the sync methods to be used.
    if is_sync_entry() or sniffio.current_async_library() != "asyncio":
        return False
    # A store with a connection of its own works only in the event loop that made it (AsyncBatchedBaseStore).
    store_loop = getattr(store, "_loop", None)
    return store_loop is None or store_loop is asyncio.get_running_loop()


Runtime = ToolRuntime[Any, Any]

Block = dict[str, Any]
"""Content block of a message, such as an image."""

_NAMESPACE = ("callboard", "outputs")
_MAX_STORE_SECONDS = 10.0
"""Maximum seconds to store one text or block."""

_REJECTED_BY_STORES = re.compile("[\\0\ud800-\udfff]")
"""Pattern of characters that some stores reject: NUL and lone surrogates."""

_ID_BYTES = 12
"""Random bytes of an id, 96 bits: nobody can guess an id, and a model still copies it without mistakes."""


class _MemoryEntry(NamedTuple):
    output: str | Block
    size: int
    """Number of characters."""


class StoredOutputs:
    """Whole texts of shortened results, and large blocks of results, by id; separate for each conversation thread."""

    def __init__(self, store: BaseStore | None, memory: int) -> None:
        from cachetools import LRUCache  # an extra

        self._store = store
        self._memory: LRUCache[tuple[str, str], _MemoryEntry] = LRUCache(memory, getsizeof=lambda entry: entry.size)
        # Calls of several event loops and threads share the memory, and reading reorders it.
        self._lock = threading.Lock()
        self._access = StoreAccess()

    async def store_output(self, output: str | Block, runtime: Runtime, size: int) -> str | None:
        """Store a text or a block and return its id, or `None` if neither a store nor the memory takes it.

        `size` is its number of characters.
        """
        output_id, thread_label = secrets.token_urlsafe(_ID_BYTES), _thread_label(runtime.config)
        store = self._store_for(runtime)
        if store is not None and await self._try_store_output(store, thread_label, output_id, output):
            return output_id
        try:
            with self._lock:
                self._memory[thread_label, output_id] = _MemoryEntry(output, size)
        except ValueError:  # larger than the whole memory limit
            return None
        return output_id

    async def find_output(self, output_id: str, runtime: Runtime) -> str | Block | None:
        """Return the text or block with an id; `None` if this conversation has none. Errors of the store are raised."""
        # The thread comes from the configuration, not from the model: an id of another thread finds nothing.
        thread_label = _thread_label(runtime.config)
        with self._lock:
            entry = self._memory.get((thread_label, output_id))
        if entry is not None or (store := self._store_for(runtime)) is None:
            return entry and entry.output
        refresh = (store.ttl_config or {}).get("refresh_on_read", True)
        [item] = await self._access.batch(store, [GetOp((*_NAMESPACE, thread_label), output_id, refresh)])
        if item is None:
            return None
        if "block" in item.value:
            return cast("Block", item.value["block"])
        return str(item.value["text"]) if "text" in item.value else str(json.loads(item.value["json"]))

    async def _try_store_output(self, store: BaseStore, thread_label: str, output_id: str, output: str | Block) -> bool:
        """Store an output, and return whether that succeeded. At most half of the call's remaining time is used."""
        try:
            # As the `put` of the store itself: an output expires with the store's other values.
            ttl = (store.ttl_config or {}).get("default_ttl")
            # PostgreSQL rejects NUL in JSON, and UTF-8 rejects lone surrogates.
            value: dict[str, Any] = {"block": output}
            if isinstance(output, str):
                value = {"json": json.dumps(output)} if _REJECTED_BY_STORES.search(output) else {"text": output}
            op = PutOp((*_NAMESPACE, thread_label), output_id, value, index=False, ttl=ttl)
            # A slow store must not turn a finished result into a timeout.
            with fail_after(min(_MAX_STORE_SECONDS, remaining() / 2)):
                await self._access.batch(store, [op])
        except Exception as error:
            note("store_failed", error=type(error).__name__)
            return False
        return True

    def _store_for(self, runtime: Runtime) -> BaseStore | None:
        return runtime.store if self._store is None else self._store


def _thread_label(config: RunnableConfig) -> str:
    """Return the label of a conversation thread in store namespaces."""
    # It is never empty and has no period, because stores reject both.
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        return "no thread"
    return f"thread {thread_id}".replace("%", "%25").replace(".", "%2E")


# Text blocks


def find_texts(content: object) -> list[str]:
    """Return the texts in the content of a message, one for each text block."""
    blocks = content if isinstance(content, list) else [content]
    return [text for block in blocks if (text := _text_of(block)) is not None]


def _text_of(block: object) -> str | None:
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return cast("str", block["text"])
    return None


def replace_texts(content: object, texts: list[str]) -> Any:
    """Return a message's content with new texts in its text blocks, without the blocks whose new text is empty."""
    if isinstance(content, str):
        return texts[0]
    remaining_texts = iter(texts)
    new_blocks: list[Any] = []
    for block in cast("list[Any]", content):
        if _text_of(block) is None:
            new_blocks.append(block)
        # Without empty blocks, which providers reject.
        elif text := next(remaining_texts):
            new_blocks.append(text if isinstance(block, str) else {**cast("Mapping[str, Any]", block), "text": text})
    return new_blocks


def cut_texts(texts: list[str], end: int, notice: str) -> list[str]:
    """Return texts in which `notice` replaces all after the first `end` characters (of the joined texts)."""
    parts: list[str] = []
    start, has_notice = 0, False
    for text in texts:
        part = text[: max(0, end - start)]
        if not has_notice and end <= start + len(text):
            part, has_notice = f"{part}{notice}" if not part or part.endswith("\n") else f"{part}\n{notice}", True
        parts.append(part)
        start += len(text) + 1  # the positions count the line break that joins two texts
    return parts


_MAX_BLOCK_SIZE = 20_000_000
"""Size as which every larger block counts, in characters."""


def _measure_blocks(blocks: Sequence[object]) -> dict[int, int]:
    """Return the number of characters of each block that is no text, by its index. Each value in it adds some more."""
    return {
        index: _MAX_BLOCK_SIZE - max(0, remaining_size(_MAX_BLOCK_SIZE, block))
        for index, block in enumerate(blocks)
        if isinstance(block, dict) and _text_of(block) is None
    }


# Places to cut

_NEARBY_DIVISOR = 5
"""Divisor (1 / 5): if the fifth of the shown text nearest to the cut has a line break, the text is cut there."""

_MAX_CHARACTER_CODE_POINTS = 32
"""Maximum code points that are kept together as one visible character; a longer sequence may be cut."""


def find_cut(text: str, limit: int) -> int:
    """Return an index, at most `limit`, where a text can end: after a nearby line break, else between characters."""
    line_break = text.rfind("\n", limit - limit // _NEARBY_DIVISOR, limit)
    if line_break >= 0:
        return line_break + 1
    # No letter is cut from its accents, and no surrogate pair in two; after too many steps, `limit` is the end.
    for end in range(limit, max(0, limit - _MAX_CHARACTER_CODE_POINTS), -1):
        last_char, next_char = text[end - 1], text[end]
        is_pair = "\ud800" <= last_char <= "\udbff" and "\udc00" <= next_char <= "\udfff"
        if not is_pair and not unicodedata.category(next_char).startswith("M"):
            return end
    return limit if limit >= _MAX_CHARACTER_CODE_POINTS else 0


# Middleware


@suggests_options()
class OutputBudget(Middleware):
    """Middleware that shortens long results and stores the whole texts; the model reads them with `read_output`.

    One line, which is not counted, replaces the removed text and shows the tool call that reads it. The text belongs to
    the conversation thread. It is kept in `store`, else in the graph's store, else in this process.

    Images, audio, video and files have a budget of their own, because their tokens do not depend on their length. One
    that is too large is stored as a whole. A line in its place has its type and size, and shows the call that returns
    it. The artifact stays as it is.

    Args:
        characters: maximum characters shown of a result, at least 1; in English, a token has about 4. A text file
            that is longer is stored.
        tools: names of the tools with this budget; `None` for all.
        exclude: names of the tools without it.
        store: LangGraph store for the texts; must outlive the runs in which they are read.
        memory: maximum characters kept in this process; the least recently read text is evicted.
        reader: name of the reading tool.
        media: maximum characters of all images, audio, video and files of a result, which are usually written in
            base64; `None` for any number. Providers refuse requests with larger ones.

    Raises:
        ValueError: if a number is out of range.
        TypeError: if an option has the wrong type.
        ImportError: if the extra `middleware` is not installed.
    """

    order = Order(
        "output",
        not_inside={
            "redact": "secrets are stored in the clear, and one that is cut in two is not recognised",
            "sanitize": "a result is stored before it is cleaned, and what its rules leave out can be read",
            "cache": "a result from the cache names a stored text that may be gone",
        },
    )

    def __init__(
        self,
        characters: int = 20_000,
        *,
        tools: Collection[str] | None = None,
        exclude: Collection[str] = (),
        store: BaseStore | None = None,
        memory: int = 10_000_000,
        reader: str = "read_output",
        media: int | None = 5_000_000,
    ) -> None:
        check_count("OutputBudget(characters)", characters, least=1)
        check_type("OutputBudget(store=...)", store, BaseStore, "InMemoryStore()")
        check_count("OutputBudget(memory=...)", memory, least=0)
        if media is not None:
            check_count("OutputBudget(media=...)", media, least=0)
        self._max_characters = characters
        self._max_media_characters = media
        self._included_tools = None if tools is None else tool_names("OutputBudget(tools=...)", tools)
        self._excluded_tools = tool_names("OutputBudget(exclude=...)", exclude)
        require("OutputBudget(...)", "cachetools", extra="middleware")
        self._outputs = StoredOutputs(store, memory)
        self._reader_name = reader
        self._worker_threads = WorkerThreads("OutputBudget")

        async def read_output(
            output_id: Annotated[str, "As in the line that says what was left out."],
            runtime: ToolRuntime,
            start: Annotated[int, "The first character to read, from 0."] = 0,
            length: Annotated[int | None, "How many characters to read."] = None,
        ) -> str | ToolMessage:
            return await self._read_output(output_id, start, length, runtime)

        self.tools = [
            _Reader.from_function(
                coroutine=read_output,
                name=reader,
                description="Read a part of a tool's result that was too long to be shown.",
                handle_tool_error=True,
            )
        ]

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if the node lacks a tool that `tools` or `exclude` names."""
        check_tool_names("OutputBudget(tools=...)", self._included_tools or (), tools)
        check_tool_names("OutputBudget(exclude=...)", self._excluded_tools, tools)

    def effect_on(self, tool: BaseTool, policy: CallPolicy) -> str:
        """Return in a few words what this middleware does with the calls of a tool."""
        if not self._has_budget(tool, tool.name):
            return "nothing, it does not shorten results of the tool"
        return (
            f"shows at most {self._max_characters:,} characters of a result; the model reads the rest with "
            f"{self._reader_name}"
        )

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call and shorten its result."""
        output = await call_next(request)
        if not self._applies_to(request):
            return output
        messages = [entry for entry in entries_in(output) if isinstance(entry, ToolMessage)]
        shortened_messages = {
            id(message): await self._shorten_message(message, request.runtime) for message in messages
        }
        return with_entries(output, lambda entry: shortened_messages.get(id(entry), entry))

    async def aerror_message(self, message: ToolMessage, request: ToolCallRequest) -> ToolMessage:
        """Shorten the error message of a tool; called after the error has passed through all middleware."""
        return await self._shorten_message(message, request.runtime) if self._applies_to(request) else message

    def _applies_to(self, request: ToolCallRequest) -> bool:
        return self._has_budget(request.tool, request.tool_call["name"])

    def _has_budget(self, tool: BaseTool | None, name: str) -> bool:
        if isinstance(tool, _Reader) or name in self._excluded_tools:
            # Never the answers of a reader, of this or another `OutputBudget`: each page would be stored again.
            return False
        return self._included_tools is None or name in self._included_tools

    async def _shorten_message(self, message: ToolMessage, runtime: Runtime) -> ToolMessage:
        # Texts first: the lines in place of blocks do not count.
        return await self._store_large_blocks(await self._shorten_texts(message, runtime), runtime)

    async def _shorten_texts(self, message: ToolMessage, runtime: Runtime) -> ToolMessage:
        texts = find_texts(message.content)
        text = "\n".join(texts)
        size = len(text)
        if size <= self._max_characters:
            return message
        end = find_cut(text, self._max_characters)
        # Stored before the line is written: the line must not offer an id that cannot be read.
        output_id = await self._outputs.store_output(text, runtime, size)
        note("output_cut", characters=size, left_out=size - end, kept=output_id is not None)
        notice = f"[... {size - end:,} of {size:,} characters left out. "
        if output_id is None:
            notice += "They could not be kept; ask for less at once.]"
        else:
            notice += f"Read them with {self._format_reader_call(output_id, end, size)}]"
        parts = cut_texts(texts, end, notice)
        message_update: dict[str, object] = {"content": replace_texts(message.content, parts)}
        if output_id is not None:
            message_update["additional_kwargs"] = with_facts(message, output_id=output_id)
        return message.model_copy(update=message_update)

    async def _store_large_blocks(self, message: ToolMessage, runtime: Runtime) -> ToolMessage:
        """Return a message in which a line stands in place of each block that is over the budget of the message."""
        content: Any = message.content
        blocks, output_ids = [] if isinstance(content, str) else [*content], list[str]()
        sizes = await run_if_long(self._worker_threads, blocks, partial(_measure_blocks, blocks))
        remaining_media_characters = math.inf if self._max_media_characters is None else self._max_media_characters
        for index, size in sizes.items():
            block, media = blocks[index], read_media(blocks[index])
            text = media.text if media.text is not None and len(media.text) > self._max_characters else None
            if text is None and size <= remaining_media_characters:
                remaining_media_characters -= size
                continue
            output_id = await self._outputs.store_output(block if text is None else text, runtime, size)
            note("media_left_out", mime_type=media.mime_type, characters=size, kept=output_id is not None)
            output_ids += [] if output_id is None else [output_id]
            notice = self._write_media_notice(media, text, size if text is None else len(text), output_id)
            blocks[index] = {"type": "text", "text": notice}
        if all(new is old for new, old in zip(blocks, content, strict=False)):
            return message
        message_update: dict[str, object] = {"content": blocks}
        if output_ids:
            message_update["additional_kwargs"] = with_facts(message, media_ids=output_ids)
        return message.model_copy(update=message_update)

    def _write_media_notice(self, media: Media, text: str | None, size: int, output_id: str | None) -> str:
        # Base64 has four characters for three bytes.
        amount = f"about {media.data_size * 3 / 4e6:,.1f} MB" if media.data_size else f"{size:,} characters"
        sentence = f"[... A file of {media.mime_type or 'unknown type'} with {amount} was left out. "
        if output_id is None:
            return f"{sentence}It could not be kept; ask for a smaller one.]"
        if text is not None:
            return f"{sentence}Read it with {self._format_reader_call(output_id, start=0, end=len(text))}]"
        return f'{sentence}Read it with {self._reader_name}(output_id="{output_id}")]'

    def _format_reader_call(self, output_id: str, start: int, end: int) -> str:
        length = min(self._max_characters, end - start)
        return f'{self._reader_name}(output_id="{output_id}", start={start}, length={length})'

    async def _read_output(self, output_id: str, start: int, length: int | None, runtime: Runtime) -> str | ToolMessage:
        try:
            output = await self._outputs.find_output(output_id, runtime)
        except Exception as error:
            note("store_failed", error=type(error).__name__)
            raise ToolException(f"The output {output_id!r} could not be read just now. Try again later.") from error
        if output is None:
            raise ToolException(
                f"There is no output {output_id!r}, or not any more. Take the output_id from the line that says what "
                "was left out, or call the tool again."
            )
        if not isinstance(output, str):
            content: Any = [{**output}]
            return ToolMessage(content=content, name=self._reader_name, tool_call_id=runtime.tool_call_id or "")
        text, size = output, len(output)
        if not 0 <= start < size:
            raise ToolException(f"There is no character {start} in this output. Take a start from 0 to {size - 1}.")
        if length is not None and length < 1:
            raise ToolException(f"A length of {length} reads nothing. Take 1 or more.")
        end = min(size, start + min(self._max_characters, self._max_characters if length is None else length))
        if end == size:
            return f"{text[start:]}\n[The end: {end - start:,} characters from {start} on, of {size:,}.]"
        return (
            f"{text[start:end]}\n[{end - start:,} characters from {start} on, of {size:,}. "
            f"Go on with {self._format_reader_call(output_id, end, size)}]"
        )


class _Reader(StructuredTool):
    """Tool with which a model reads stored texts. No `OutputBudget` shortens its answers."""
