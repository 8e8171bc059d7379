"""What a run tells while it goes on: chunks in LangGraph's stream modes, and the queue to whoever reads them."""

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
"""Takes a stream mode and what makes the payload, which is not made unless somebody wants it."""

Chunk = tuple[tuple[str, ...], str, Any]
"""A namespace, a stream mode and a payload."""

MODES = frozenset(("values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "tools"))


def emit_nothing(mode: str, payload: Callable[[], object]) -> None:
    """Drop what a run tells, because nobody reads its stream."""


class Emitter:
    """Puts a run's chunks where they are read.

    Args:
        modes: the stream modes that are wanted.
        namespace: of the run.
        put: takes each chunk; from any thread.
        step: the number of the step that the run is in.
    """

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
    """Take chunks as before, and print those of some modes as LangGraph prints them.

    Args:
        put: takes each chunk, if anybody does.
        modes: those to be printed.
    """

    def tell(chunk: Chunk) -> None:
        namespace, mode, payload = chunk
        if mode in modes:
            graph = f"\033[33;1m\033[1;3m[graph={namespace}]\033[0m " if namespace else ""
            print(f"\033[1m[{mode}]\033[0m {graph}{payload!r}")  # noqa: T201 (that is what was asked for)
        if put is not None:
            put(chunk)

    return tell


def together(emits: Sequence[Emit]) -> Emit:
    """Tell several readers what one of them is told."""
    if len(emits) < 2:
        return emits[0] if emits else emit_nothing

    def tell(mode: str, payload: Callable[[], object]) -> None:
        for emit in emits:
            emit(mode, payload)

    return tell


class Outbox:
    """Chunks on their way from a run to its reader; filled from any thread, read in one task."""

    def __init__(self) -> None:
        self._loop = current_loop()
        self._chunks: deque[Chunk] = deque()
        self._wakeup = self._loop.wakeup()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, chunk: Chunk) -> None:
        with self._lock:
            self._chunks.append(chunk)
            self._wakeup.set()

    def close(self) -> None:
        """Let the reader know that nothing more will come."""
        with self._lock:
            self._closed = True
            self._wakeup.set()

    async def get(self) -> Chunk | None:
        """The next chunk; `None` when there will be none."""
        while True:
            with self._lock:
                if self._chunks:
                    return self._chunks.popleft()
                if self._closed:
                    return None
                self._wakeup = self._loop.wakeup()
            await self._wakeup.wait()


async def chunks_of(run: Callable[[Callable[[Chunk], None]], Awaitable[object]]) -> AsyncGenerator[Chunk]:
    """The chunks of a run, while it goes on beside the reader.

    A reader that leaves early, or is cancelled, takes the run along: it is cancelled and has ended when the
    generator has.

    Args:
        run: takes where to put chunks.

    Raises:
        BaseException: what the run raised, after its last chunk.
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

    task = loop.spawn(child, DEFAULT_GRACE)
    try:
        while (chunk := await outbox.get()) is not None:
            yield chunk
    except BaseException:
        task.cancel()
        with loop.shield(float("inf")):
            await task.wait()
        raise
    await task.wait()
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()


def handlers_for(
    modes: Collection[str], put: Callable[[Chunk], None], namespace: tuple[str, ...], *, subgraphs: bool
) -> list[Any]:
    """LangGraph's own callback handlers for the modes that are made of callbacks."""
    handlers: list[Any] = []
    if "messages" in modes:
        handlers.append(StreamMessagesHandler(put, subgraphs, parent_ns=namespace))
    if "tools" in modes:
        handlers.append(StreamToolCallHandler(put, subgraphs, parent_ns=namespace))
    return handlers


def shaped(chunk: Chunk, modes: str | Sequence[str], *, subgraphs: bool) -> Any:
    """A chunk as LangGraph hands it out: with its mode if several were asked for, with its namespace likewise."""
    namespace, mode, payload = chunk
    if not isinstance(modes, str):
        return (namespace, mode, payload) if subgraphs else (mode, payload)
    return (namespace, payload) if subgraphs else payload


def as_part(chunk: Chunk, shape: Callable[[Any], Any]) -> dict[str, Any]:
    """A chunk as LangGraph's second version hands it out.

    Args:
        chunk: of any mode.
        shape: makes a state what its schema says, if that is no dict.
    """
    namespace, mode, payload = chunk
    part = {"type": mode, "ns": namespace, "data": payload}
    if mode != "values":
        return part
    if not isinstance(payload, dict):
        return {**part, "interrupts": ()}
    values = {key: value for key, value in payload.items() if key != "__interrupt__"}
    return {**part, "data": shape(values), "interrupts": payload.get("__interrupt__", ())}
