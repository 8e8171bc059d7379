"""Stream of a run: chunks in LangGraph's stream modes, and the queue between run and reader."""

import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from callboard._langgraph._node_scope import StreamMessagesHandler, StreamToolCallHandler
from callboard._loops._current import current_loop
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Scope

Emit = Callable[[str, Callable[[], object]], None]
"""Takes a stream mode and a function that makes the payload; called only if the mode is wanted."""

Chunk = tuple[tuple[str, ...], str, Any]
"""Namespace, stream mode and payload."""

MODES = frozenset(("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "tools"))


def emit_nothing(mode: str, payload: Callable[[], object]) -> None:
    """Drop an event, because the stream has no reader."""


class Emitter:
    """Sends the chunks of a run to a reader; `put` is callable from any thread."""

    def __init__(
        self,
        modes: Collection[str],
        namespace: tuple[str, ...],
        put: Callable[[Chunk], None],
        step: Callable[[], int],
    ) -> None:
        self._modes = modes
        self._namespace = namespace
        self._put = put
        self._step = step

    def __call__(self, mode: str, payload: Callable[[], object]) -> None:
        as_debug = "debug" in self._modes and mode in ("tasks", "checkpoints")
        if mode not in self._modes and not as_debug:
            return
        value = payload()
        if mode in self._modes:
            self._put((self._namespace, mode, value))
        if as_debug:
            self._put((self._namespace, "debug", self._debug(mode, value)))

    def _debug(self, mode: str, value: Any) -> dict[str, Any]:
        kind = "checkpoint" if mode == "checkpoints" else "task_result" if "result" in value else "task"
        return {
            "step": value["metadata"]["step"] if kind == "checkpoint" else self._step(),
            "timestamp": datetime.now(UTC).isoformat(),
            "type": kind,
            "payload": value,
        }


def printing(put: Callable[[Chunk], None] | None, modes: Collection[str]) -> Callable[[Chunk], None]:
    """Return a function that prints chunks of some modes as LangGraph does, and passes all chunks on."""

    def tell(chunk: Chunk) -> None:
        namespace, mode, payload = chunk
        if mode in modes:
            graph = f"\033[33;1m\033[1;3m[graph={namespace}]\033[0m " if namespace else ""
            print(f"\033[1m[{mode}]\033[0m {graph}{payload!r}")  # noqa: T201 (that is what was asked for)
        if put is not None:
            put(chunk)

    return tell


def together(emits: Sequence[Emit]) -> Emit:
    """Return a function that sends each event to all given receivers."""
    if len(emits) < 2:
        return emits[0] if emits else emit_nothing

    def tell(mode: str, payload: Callable[[], object]) -> None:
        for emit in emits:
            emit(mode, payload)

    return tell


class Outbox:
    """Queue of chunks between a run and its reader; filled from any thread, read by one task."""

    def __init__(self) -> None:
        self._loop = current_loop()
        self._chunks: deque[Chunk] = deque()
        self._wakeup = self._loop.wakeup()
        # Guards all fields: callback handlers put chunks from worker threads.
        self._lock = threading.Lock()
        self._closed = False

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append(chunk)
            self._wakeup.set()

    def close(self) -> None:
        """Mark the queue as complete; the reader still gets the chunks in it."""
        with self._lock:
            self._closed = True
            self._wakeup.set()

    async def get(self) -> Chunk | None:
        """Return the next chunk, or `None` after the last one."""
        while True:
            with self._lock:
                if self._chunks:
                    return self._chunks.popleft()
                if self._closed:
                    return None
                # A new wakeup under the lock: a `put` after this line sets it, so no chunk is missed.
                self._wakeup = self._loop.wakeup()
            await self._wakeup.wait()


async def chunks_of(run: Callable[[Callable[[Chunk], None]], Awaitable[object]]) -> AsyncGenerator[Chunk]:
    """Yield the chunks of a run while it goes on in a task of its own, then raise the run's error, if any.

    If the reader leaves early or is cancelled, the run is cancelled. It has ended when the generator has.
    """
    outbox = Outbox()
    loop = current_loop()
    errors: list[BaseException] = []

    async def child(scope: Scope) -> None:
        try:
            with scope:
                await run(outbox.put)
        except BaseException as error:
            errors.append(error)
        finally:
            outbox.close()

    # A task beside the generator: a generator must not hold a cancel scope over a `yield`.
    task = loop.spawn(child, DEFAULT_GRACE)
    try:
        while (chunk := await outbox.get()) is not None:
            yield chunk
    except BaseException:
        task.cancel()
        # Without limit: the run bounds its clean-up by its own grace, and nothing may outlive the generator.
        with loop.shield(float("inf")):
            await task.wait()
        raise
    await task.wait()
    try:
        if errors:
            raise errors[0]
    finally:
        # The traceback refers to this frame: break the cycle.
        errors.clear()


def handlers_for(
    modes: Collection[str], put: Callable[[Chunk], None], namespace: tuple[str, ...], *, subgraphs: bool
) -> list[Any]:
    """Return LangGraph's callback handlers for the stream modes "messages" and "tools"."""
    handlers: list[Any] = []
    if "messages" in modes:
        handlers.append(StreamMessagesHandler(put, subgraphs, parent_ns=namespace))
    if "tools" in modes:
        handlers.append(StreamToolCallHandler(put, subgraphs, parent_ns=namespace))
    return handlers


def shaped(chunk: Chunk, modes: str | Sequence[str], *, subgraphs: bool) -> Any:
    """Return a chunk in LangGraph's form: with its mode if `modes` is a list, with its namespace if `subgraphs`."""
    namespace, mode, payload = chunk
    if not isinstance(modes, str):
        return (namespace, mode, payload) if subgraphs else (mode, payload)
    return (namespace, payload) if subgraphs else payload


def as_part(chunk: Chunk, shape: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a chunk in the form of LangGraph's stream version "v2"; `shape` converts a state to its schema's class."""
    namespace, mode, payload = chunk
    part = {"type": mode, "ns": namespace, "data": payload}
    if mode != "values":
        return part
    if not isinstance(payload, dict):
        return {**part, "interrupts": ()}
    values = {key: value for key, value in payload.items() if key != "__interrupt__"}
    return {**part, "data": shape(values), "interrupts": payload.get("__interrupt__", ())}
