"""`OutputBudget`: middleware that shortens long results, and stores the whole texts, which the model can read.

A result is shortened in the text blocks of its content, at good places such as line breaks.
"""

import asyncio
import inspect
import json
import re
import secrets
import threading
import unicodedata
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast, get_args

import sniffio
from anyio import fail_after
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, ToolException
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore

from callboard._calls._call import note
from callboard._calls._thread_pool import WorkerThreads
from callboard._langgraph._vocabulary import ToolCallRequest, ToolRuntime
from callboard._loops._bridge import run_on_asyncio
from callboard._loops._deadline import remaining
from callboard._loops._entry_mode import is_sync_entry
from callboard._records._policies import check_count
from callboard._util._extras import require
from callboard._util._suggestions import suggests_options
from callboard.tools._middleware import Middleware, Order
from callboard.tools._middleware_hooks import check_tool_names, tool_names
from callboard.tools._results import CallNext, Output, entries_in, with_entries, with_facts

# Stored texts


class StoreAccess:
    """Access to LangGraph stores, by their async methods where possible, else by sync methods in at most 16 threads."""

    def __init__(self) -> None:
        self._threads = WorkerThreads("a store", 16)

    async def batch(self, store: BaseStore, ops: Sequence[PutOp | GetOp]) -> list[Any]:
        """Run operations on a store, and return their results."""
        sync, native = partial(store.batch, ops), partial(store.abatch, ops)
        if isinstance(store, InMemoryStore):
            # Never blocks, so neither a thread nor another event loop is needed.
            return sync()
        ways: list[Callable[[], Awaitable[Any]]] = [partial(run_on_asyncio, native), partial(self._threads.run, sync)]
        first, second = ways if _is_usable_here(store) else reversed(ways)
        try:
            # Some stores implement only their async or only their sync methods.
            return list(await first())
        except NotImplementedError:
            return list(await second())


def _is_usable_here(store: BaseStore) -> bool:
    """Return whether the async methods of a store work in this event loop."""
    # Sync code expects the sync methods to be used.
    if is_sync_entry() or sniffio.current_async_library() != "asyncio":
        return False
    # A store with a connection of its own works only in the event loop that made it (AsyncBatchedBaseStore).
    home = getattr(store, "_loop", None)
    return home is None or home is asyncio.get_running_loop()


Runtime = ToolRuntime[Any, Any]

_NAMESPACE = ("callboard", "outputs")
_PATIENCE = 10.0
"""Maximum seconds to store one text."""

_NOT_FOR_STORES = re.compile("[\\0\ud800-\udfff]")
"""Pattern of characters that some stores reject: NUL and lone surrogates."""

_ID_BYTES = 12
"""Random bytes of an id, 96 bits: nobody can guess an id, and a model still copies it without mistakes."""


class Outputs:
    """Whole texts of shortened results by id, separate for each conversation thread."""

    def __init__(self, store: BaseStore | None, memory: int) -> None:
        from cachetools import LRUCache  # an extra

        self._store = store
        self._memory: LRUCache[tuple[str, str], str] = LRUCache(memory, getsizeof=len)
        # Calls of several event loops and threads share the memory, and reading reorders it.
        self._lock = threading.Lock()
        self._access = StoreAccess()

    async def keep(self, text: str, runtime: Runtime) -> str | None:
        """Store a text and return its id, or `None` if neither a store nor the memory takes it."""
        output_id, thread = secrets.token_urlsafe(_ID_BYTES), _thread(runtime.config)
        store = self._store_for(runtime)
        if store is not None and await self._try_store(store, thread, output_id, text):
            return output_id
        try:
            with self._lock:
                self._memory[thread, output_id] = text
        except ValueError:  # larger than the whole memory limit
            return None
        return output_id

    async def find(self, output_id: str, runtime: Runtime) -> str | None:
        """Return the text with an id; `None` if this conversation has no such text. Errors of the store are raised."""
        # The thread comes from the configuration, not from the model: an id of another thread finds nothing.
        thread = _thread(runtime.config)
        with self._lock:
            text = self._memory.get((thread, output_id))
        if text is not None or (store := self._store_for(runtime)) is None:
            return text
        refresh = (store.ttl_config or {}).get("refresh_on_read", True)
        [item] = await self._access.batch(store, [GetOp((*_NAMESPACE, thread), output_id, refresh)])
        if item is None:
            return None
        return str(item.value["text"]) if "text" in item.value else str(json.loads(item.value["json"]))

    async def _try_store(self, store: BaseStore, thread: str, output_id: str, text: str) -> bool:
        """Store a text, and return whether that succeeded. At most half of the call's remaining time is used."""
        try:
            # As the `put` of the store itself: an output expires with the store's other values.
            ttl = (store.ttl_config or {}).get("default_ttl")
            # PostgreSQL rejects NUL in JSON, and UTF-8 rejects lone surrogates.
            value = {"json": json.dumps(text)} if _NOT_FOR_STORES.search(text) else {"text": text}
            op = PutOp((*_NAMESPACE, thread), output_id, value, index=False, ttl=ttl)
            # A slow store must not turn a finished result into a timeout.
            with fail_after(min(_PATIENCE, remaining() / 2)):
                await self._access.batch(store, [op])
        except Exception as error:
            note("store_failed", error=type(error).__name__)
            return False
        return True

    def _store_for(self, runtime: Runtime) -> BaseStore | None:
        return runtime.store if self._store is None else self._store


def _thread(config: RunnableConfig) -> str:
    """Return the label of a conversation thread in store namespaces."""
    # It is never empty and has no period, because stores reject both.
    thread_id = config.get("configurable", {}).get("thread_id")
    if thread_id is None:
        return "no thread"
    return f"thread {thread_id}".replace("%", "%25").replace(".", "%2E")


# Text blocks


def texts_of(content: object) -> list[str]:
    """Return the texts in the content of a message, one for each text block."""
    blocks = content if isinstance(content, list) else [content]
    return [text for block in blocks if (text := _text_of(block)) is not None]


def _text_of(block: object) -> str | None:
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        return cast("str", block["text"])
    return None


def with_texts(content: object, texts: list[str]) -> Any:
    """Return a message's content with new texts in its text blocks, without the blocks whose new text is empty."""
    if isinstance(content, str):
        return texts[0]
    remaining_texts = iter(texts)
    new: list[Any] = []
    for block in cast("list[Any]", content):
        if _text_of(block) is None:
            new.append(block)
        # Without empty blocks, which providers reject.
        elif text := next(remaining_texts):
            new.append(text if isinstance(block, str) else {**cast("Mapping[str, Any]", block), "text": text})
    return new


def replace_middle(texts: list[str], head: int, tail: int, notice: str) -> list[str]:
    """Return texts in which `notice` replaces the characters from `head` to `tail` (positions in the joined texts)."""
    parts: list[str] = []
    start, has_notice = 0, False
    for text in texts:
        part = text[: max(0, head - start)]
        if not has_notice and head <= start + len(text):
            part, has_notice = f"{part}{notice}" if not part or part.endswith("\n") else f"{part}\n{notice}", True
        if ending := text[max(0, tail - start) :]:
            part = f"{part}\n{ending}" if part.endswith(notice) else part + ending
        parts.append(part)
        start += len(text) + 1  # the positions count the line break that joins two texts
    return parts


# Budgets and places to cut

CountTokens = Callable[[str], int]

CHARACTERS_PER_TOKEN = 4
"""Average characters per token for English text, as in `langchain_core.messages.utils.count_tokens_approximately`."""

_MAX_CHARACTERS_PER_TOKEN = 8
"""Maximum characters per token of the budget. A longer text is over the budget, and its tokens are not counted."""

_MAX_TOKENS_PER_CHARACTER = 4
"""Maximum tokens per character: a token of a byte-level tokenizer has at least one byte, a character at most four."""

_NEAR = 5
"""Divisor (1 / 5): if the fifth of the shown text nearest to the cut has a line break, the text is cut there."""

_LONGEST_CHARACTER = 32
"""Maximum code points that are kept together as one visible character; a longer sequence may be cut."""


class Measure:
    """Size limit of a shown text, in characters, or in tokens that a function counts."""

    def __init__(self, characters: int | None, tokens: int | None, count: CountTokens | None) -> None:
        self._tokens = tokens or 0
        self._count = count
        per_token = CHARACTERS_PER_TOKEN if count is None else _MAX_CHARACTERS_PER_TOKEN
        self._characters = self._tokens * per_token if characters is None else characters
        self._threads = WorkerThreads("a counter of tokens", 4)

    @property
    def page(self) -> int:
        """Number of characters that usually fit into the size limit."""
        return self._characters if self._count is None else max(1, self._tokens * CHARACTERS_PER_TOKEN)

    async def fits(self, text: str) -> bool:
        """Return whether a text is within the size limit."""
        size = len(text)
        if size > self._characters:
            return False
        if self._count is None or size * _MAX_TOKENS_PER_CHARACTER <= self._tokens:
            # Even the most expensive text of this size fits, so the counter need not run.
            return True
        return await self.largest_fit(size, lambda length: text[:length]) == size

    async def largest_fit(self, size: int, part: Callable[[int], str], share: int = 1) -> int:
        """Return the largest n, up to `size`, for which the text `part(n)` is within the limit divided by `share`."""
        # `part(n)` has n characters, such as the first n of a text.
        size, count, tokens = min(size, self._characters // share), self._count, self._tokens // share
        if count is None:
            return size

        def search() -> int:
            if count(part(size)) <= tokens:
                return size
            # The whole does not fit. Assumes that a longer part never has fewer tokens than a shorter one.
            return bisect_right(range(1, size), tokens, key=lambda length: count(part(length)))

        try:
            return await self._threads.run(search)
        except Exception as error:
            note("count_failed", error=type(error).__name__)
            return min(size, tokens * CHARACTERS_PER_TOKEN)


def end_before(text: str, limit: int) -> int:
    """Return an index, at most `limit`, where a text can end: after a nearby line break, else between characters."""
    line_break = text.rfind("\n", limit - limit // _NEAR, limit)
    return line_break + 1 if line_break >= 0 else _between_characters(text, limit, -1)


def begin_after(text: str, limit: int) -> int:
    """Return an index, at least `limit`, where a text can begin: after a nearby line break, else between characters."""
    line_break = text.find("\n", limit, limit + (len(text) - limit) // _NEAR)
    return line_break + 1 if line_break >= 0 else _between_characters(text, limit, +1)


def _between_characters(text: str, start: int, step: int) -> int:
    """Return the position nearest to `start` that does not split a letter and its accents, or a surrogate pair."""
    # The search goes from `start` in steps of `step`; after too many steps, `start` is returned.
    position = start
    for _ in range(_LONGEST_CHARACTER):
        if not 0 < position < len(text):
            return position
        before, after = text[position - 1], text[position]
        is_pair = "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff"
        if not is_pair and not unicodedata.category(after).startswith("M"):
            return position
        position += step
    return start


# Middleware

Keep = Literal["head", "both"]

_DEFAULT = 20_000


@suggests_options()
class OutputBudget(Middleware):
    """Middleware that shortens long results and stores the whole texts; the model reads them with `read_output`.

    One line, which is not counted, replaces the removed text and shows the tool call that reads it. The text belongs to
    the conversation thread. It is kept in `store`, else in the graph's store, else in this process. The budget is for
    texts: images, other blocks and the artifact stay as they are.

    Args:
        characters: maximum characters shown of a result, at least 1; 20,000 if `tokens` is not given either.
        tokens: maximum tokens shown instead, at least 1.
        count_tokens: a function that counts the tokens of a text; it runs in a thread. Default: 4 characters per token.
        keep: "head" to show the beginning of a text, "both" to show beginning and end with half of the budget each.
        tools: names of the tools with this budget; `None` for all.
        exclude: names of the tools without it.
        store: LangGraph store for the texts; must outlive the runs in which they are read.
        memory: maximum characters kept in this process; the least recently read text is evicted.
        reader: name of the reading tool.

    Raises:
        ValueError: if a number is out of range, or both budgets are given.
        TypeError: if an option has the wrong type.
        ImportError: if the extra `middleware` is not installed.
    """

    order = Order(
        "output",
        not_inside={"redact": "secrets are stored in the clear, and one that is cut in two is not recognised"},
    )

    def __init__(
        self,
        characters: int | None = None,
        *,
        tokens: int | None = None,
        count_tokens: CountTokens | None = None,
        keep: Keep = "head",
        tools: Collection[str] | None = None,
        exclude: Collection[str] = (),
        store: BaseStore | None = None,
        memory: int = 10_000_000,
        reader: str = "read_output",
    ) -> None:
        if characters is None and tokens is None:
            characters = _DEFAULT
        if characters is not None and tokens is not None:
            raise ValueError(f"OutputBudget takes characters or tokens, got {characters!r} and {tokens!r}")
        if characters is not None:
            check_count("OutputBudget(characters)", characters, least=1)
        if tokens is not None:
            check_count("OutputBudget(tokens=...)", tokens, least=1)
        if count_tokens is not None:
            if tokens is None:
                raise ValueError(
                    "OutputBudget(count_tokens=...) is for a budget in tokens: OutputBudget(tokens=5000, ...)"
                )
            if not callable(cast("object", count_tokens)) or inspect.iscoroutinefunction(count_tokens):
                raise TypeError(
                    f"OutputBudget(count_tokens=...) takes a plain function of a text, got {count_tokens!r}"
                )
        if keep not in get_args(Keep):
            raise ValueError(f"OutputBudget(keep=...) is 'head' or 'both', got {keep!r}")
        if not (store is None or isinstance(cast("object", store), BaseStore)):
            raise TypeError(f"OutputBudget(store=...) takes a LangGraph store, such as InMemoryStore(); got {store!r}")
        check_count("OutputBudget(memory=...)", memory, least=0)
        self._measure = Measure(characters, tokens, count_tokens)
        self._keep = keep
        self._only = None if tools is None else tool_names("OutputBudget(tools=...)", tools)
        self._exclude = tool_names("OutputBudget(exclude=...)", exclude)
        require("OutputBudget(...)", "cachetools", extra="middleware")
        self._outputs = Outputs(store, memory)
        self._reader = reader
        self.tools = [_reader_tool(reader, self._read)]

    def check_tools(self, tools: Collection[str]) -> None:
        """Raise `ValueError` if the node lacks a tool that `tools` or `exclude` names."""
        check_tool_names("OutputBudget(tools=...)", self._only or (), tools)
        check_tool_names("OutputBudget(exclude=...)", self._exclude, tools)

    async def awrap_tool_call(self, request: ToolCallRequest, call_next: CallNext) -> Output:
        """Run the call and shorten its result."""
        output = await call_next(request)
        if not self._applies_to(request):
            return output
        messages = [entry for entry in entries_in(output) if isinstance(entry, ToolMessage)]
        shortened_messages = {id(message): await self._shorten(message, request.runtime) for message in messages}
        return with_entries(output, lambda entry: shortened_messages.get(id(entry), entry))

    async def aerror_message(self, message: ToolMessage, request: ToolCallRequest) -> ToolMessage:
        """Shorten the error message of a tool; called after the error has passed through all middleware."""
        return await self._shorten(message, request.runtime) if self._applies_to(request) else message

    def _applies_to(self, request: ToolCallRequest) -> bool:
        name = request.tool_call["name"]
        if isinstance(request.tool, _Reader) or name in self._exclude:
            # Never the answers of a reader, of this or another `OutputBudget`: each page would be stored again.
            return False
        return self._only is None or name in self._only

    async def _shorten(self, message: ToolMessage, runtime: Runtime) -> ToolMessage:
        texts = texts_of(message.content)
        text = "\n".join(texts)
        if await self._measure.fits(text):
            return message
        head, tail = await self._positions_to_cut(text)
        if head >= tail:  # a counter may count more tokens in the whole than in both parts: nothing to remove
            return message
        # Stored before the line is written: the line must not offer an id that cannot be read.
        output_id = await self._outputs.keep(text, runtime)
        note("output_cut", characters=len(text), left_out=tail - head, kept=output_id is not None)
        notice = f"[... {tail - head:,} of {len(text):,} characters left out. "
        if output_id is None:
            notice += "They could not be kept; ask for less at once.]"
        else:
            notice += f"Read them with {self._call(output_id, head, tail)}]"
        parts = replace_middle(texts, head, tail, notice)
        update: dict[str, object] = {"content": with_texts(message.content, parts)}
        if output_id is not None:
            update["additional_kwargs"] = with_facts(message, output_id=output_id)
        return message.model_copy(update=update)

    async def _positions_to_cut(self, text: str) -> tuple[int, int]:
        """Return two positions in a long text: the end of the shown head, and the beginning of the shown tail."""
        size = len(text)
        share = 2 if self._keep == "both" else 1
        head = end_before(text, await self._measure.largest_fit(size, lambda length: text[:length], share))
        if share == 1:
            return head, size
        tail = size - await self._measure.largest_fit(size, lambda length: text[size - length :], share)
        return head, begin_after(text, tail)

    def _call(self, output_id: str, start: int, end: int) -> str:
        length = min(self._measure.page, end - start)
        return f'{self._reader}(output_id="{output_id}", start={start}, length={length})'

    async def _read(self, output_id: str, start: int, length: int | None, runtime: Runtime) -> str:
        try:
            text = await self._outputs.find(output_id, runtime)
        except Exception as error:
            note("store_failed", error=type(error).__name__)
            raise ToolException(f"The output {output_id!r} could not be read just now. Try again later.") from error
        if text is None:
            raise ToolException(
                f"There is no output {output_id!r}, or not any more. Take the output_id from the line that says what "
                "was left out, or call the tool again."
            )
        size = len(text)
        if not 0 <= start < size:
            raise ToolException(f"There is no character {start} in this output. Take a start from 0 to {size - 1}.")
        if length is not None and length < 1:
            raise ToolException(f"A length of {length} reads nothing. Take 1 or more.")
        max_length = min(size - start, self._measure.page if length is None else length)
        # At least one character, so that a model that follows the line always makes progress.
        end = start + max(1, await self._measure.largest_fit(max_length, lambda length: text[start : start + length]))
        if end == size:
            return f"{text[start:]}\n[The end: {end - start:,} characters from {start} on, of {size:,}.]"
        return (
            f"{text[start:end]}\n[{end - start:,} characters from {start} on, of {size:,}. "
            f"Go on with {self._call(output_id, end, size)}]"
        )


class _Reader(StructuredTool):
    """Tool with which a model reads stored texts. No `OutputBudget` shortens its answers."""


def _reader_tool(name: str, read: Callable[[str, int, int | None, Runtime], Awaitable[str]]) -> BaseTool:
    async def read_output(
        output_id: Annotated[str, "As in the line that says what was left out."],
        runtime: ToolRuntime,
        start: Annotated[int, "The first character to read, from 0."] = 0,
        length: Annotated[int | None, "How many characters to read."] = None,
    ) -> str:
        return await read(output_id, start, length, runtime)

    return _Reader.from_function(
        coroutine=read_output,
        name=name,
        description="Read a part of a tool's result that was too long to be shown.",
        handle_tool_error=True,
    )
