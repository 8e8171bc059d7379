"""Writes what happens to calls, runs and actors into a file, from a thread of its own."""

import logging
import os
import platform
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from json import dumps
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import BinaryIO, Self

from pydantic_core import to_json

from callboard._actor_events import ActorEvent, AskEvent
from callboard._call_events import CallEvent, RunEvent
from callboard._calls._observers import careful_observers, observed_by
from callboard.telemetry._capture import MAX_LENGTH, Capture, Redactor
from callboard.telemetry._records import FORMAT, Line, Records

_log = logging.getLogger("callboard")

BOUND = 16 * 1024 * 1024
"""Bytes that wait to be written, at most."""


class Recorder:
    """Records the calls, runs and asks of actors that are started inside a `with` block, as lines of JSON.

    Nothing is lost as long as the disk keeps up. Lines that wait to be written have a bound; when it is reached, the
    event loop waits for the disk, `patience` seconds in all, and after that events are dropped and counted
    until there is room again. The file says at its end how many were, and what recording has cost. A disk that
    is full or gone is logged once, and changes nothing for the calls.

    Args:
        path: of the file; its folder is made if it is not there.
        append: add a part to the file, instead of replacing it.
        capture: whether arguments and results are recorded; `None` to ask the environment variable
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT.
        redact: takes secrets out of what is captured; as for `Tracing`.
        bound: bytes that may wait to be written, at least 1024.
        patience: seconds that the event loop waits for the disk, in all; while it does, nothing else runs.
        clock: seconds, from anywhere; a virtual one for tests.

    Raises:
        OSError: on entering, if the file cannot be opened.
        ValueError: for a bound that is too small.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        append: bool = False,
        capture: bool | None = None,
        redact: Redactor | bool = True,
        bound: int = BOUND,
        patience: float = 0.004,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        if bound < 1024:
            raise ValueError(f"Recorder(bound=...) must be 1024 bytes or more, got {bound!r}")
        self.path = Path(path)
        self.events = 0
        """How many events the recorder has been told."""
        self.lost = 0
        """How many of them could not be kept."""
        self.overhead = 0.0
        """Seconds that recording took in the event loop's threads."""
        self._append = append
        self._capture = Capture(capture, redact, MAX_LENGTH)
        self._records = Records(self._capture)
        self._bound = bound
        self._patience = patience
        self._clock = clock
        self._around = ExitStack()
        self._writer: _Writer
        self._since = 0.0
        self._gap = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut = self._append and _is_cut(self.path)
        self._writer = _Writer(self.path.open("ab" if self._append else "wb"), self._bound)
        if cut:
            self._writer.offer(b"\n")
        self._since = self._clock()
        self._writer.offer(_as_line(self._header()))
        self._around.enter_context(observed_by(careful_observers(self._call, self._run, self._actor)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._around.close()
        self._tell_gap()
        self._writer.close(partial(self._closing, self._now()))

    def _header(self) -> Line:
        return {
            "event": "header",
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(),
            "callboard": version("callboard"),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "captures": self._capture.wanted,
        }

    def _closing(self, now: float, written: int) -> bytes:
        return _as_line(
            {
                "t": now,
                "event": "closed",
                "events": self.events,
                "lost": self.lost,
                "bytes": written,
                "overhead": round(self.overhead, 6),
                "per_event": round(self.overhead / max(self.events, 1), 9),
            }
        )

    def _call(self, event: CallEvent) -> None:
        since = perf_counter()
        self._take(self._records.of_call(event, self._now()), since)

    def _run(self, event: RunEvent) -> None:
        since = perf_counter()
        self._take(self._records.of_run(event, self._now()), since)

    def _actor(self, event: AskEvent | ActorEvent) -> None:
        since = perf_counter()
        self._take(self._records.of_actor(event, self._now()), since)

    def _now(self) -> float:
        return round(self._clock() - self._since, 6)

    def _take(self, line: Line, since: float) -> None:
        data = _as_line(line)
        with self._lock:  # there may be event loops in several threads
            self._keep(data)
            self.events += 1
            self.overhead += perf_counter() - since

    def _keep(self, data: bytes) -> None:
        if not self._writer.has_room(len(data)) and self._patience > 0:
            since = perf_counter()
            self._writer.wait_for_room(len(data), self._patience)
            self._patience -= perf_counter() - since
        if self._writer.has_room(len(data)):
            self._tell_gap()
            self._writer.offer(data)
        else:
            self.lost += 1
            self._gap += 1

    def _tell_gap(self) -> None:
        """Say where events are missing, now that there is room to."""
        if self._gap:
            gap, self._gap = self._gap, 0
            self._writer.offer(_as_line({"t": self._now(), "event": "lost", "events": gap}))


class _Writer:
    """Takes lines from any thread, and writes them in one of its own.

    Args:
        file: to write to; closed at the end.
        bound: bytes that may wait.
    """

    def __init__(self, file: BinaryIO, bound: int) -> None:
        self._file = file
        self._bound = bound
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._written = 0
        self._closing: Callable[[int], bytes] | None = None
        self._failed = False
        self._changed = threading.Condition()
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="callboard recorder", daemon=True)
        self._thread.start()

    def has_room(self, size: int) -> bool:
        return not self._failed and (self._size + size <= self._bound)

    def wait_for_room(self, size: int, patience: float) -> None:
        """Hold the caller up until there is room, or its patience is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._failed or self._size + size <= self._bound, patience)

    def offer(self, data: bytes) -> None:
        with self._changed:
            self._lines.append(data)
            self._size += len(data)
            if len(self._lines) == 1:
                self._changed.notify_all()

    def close(self, closing: Callable[[int], bytes]) -> None:
        """Write what is left, and the last line; waits for the disk, ten seconds at most."""
        with self._changed:
            self._closing = closing
            self._changed.notify_all()
        self._thread.join(10.0)
        if self._thread.is_alive():
            _log.error("the recording's disk did not answer within 10 s; the recording is incomplete")

    def _work(self) -> None:
        try:
            with self._file:
                while (data := self._next()) is not None:
                    self._write(data)
                if self._closing is not None:
                    self._write(self._closing(self._written))
        except OSError as error:
            self._give_up(error)

    def _next(self) -> bytes | None:
        """Wait for lines, and take all that there are; `None` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closing is not None)
            data = b"".join(self._lines)
            self._lines.clear()
        return data or None

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        with self._changed:
            self._written += len(data)
            self._size = max(self._size - len(data), 0)
            self._changed.notify_all()

    def _give_up(self, error: OSError) -> None:
        _log.error("the recording cannot be written, and ends here: %s", error)
        with self._changed:
            self._failed = True
            self._lines.clear()
            self._changed.notify_all()


def _is_cut(path: Path) -> bool:
    """Whether a file ends within a line, as a killed process leaves it."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _as_line(line: Line) -> bytes:
    try:
        return to_json(line, fallback=_named) + b"\n"
    except ValueError:  # a lone surrogate, which UTF-8 has no bytes for
        return dumps(line, default=_named).encode() + b"\n"


def _named(value: object) -> str:
    return f"<{type(value).__qualname__}>"
