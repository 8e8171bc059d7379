"""`RecordingWriter`: observer that writes all events of calls, runs and actors to a file, in a thread of its own.

`docs/reference/recording.md` describes the format.
"""

import logging
import os
import platform
import threading
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from json import dumps
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Any, BinaryIO, Self, TypeVar

from langchain_core.messages import AIMessage
from langgraph.types import Command
from pydantic_core import to_json

import callboard.telemetry._names as names
from callboard._calls._observers import careful_observers, observe_within
from callboard._langchain._large_values import is_long, remaining_size
from callboard._records._events import ActorEvent, AskEvent, CallEvent, RunEvent
from callboard._records._policies import check_path
from callboard._util._callers import check_plain_function
from callboard.exceptions import CallCancelledError
from callboard.telemetry._capture import Capture, Redactor, repeatable, result_of, type_mark
from callboard.telemetry._recording._timeline import FORMAT
from callboard.telemetry._tracing import about_model, about_reply
from callboard.telemetry._tracker import error_type, outcome_of, outcome_of_run

# Lines


Line = dict[str, Any]
E = TypeVar("E")


class LongValue:
    """Captured value that takes long to redact, so that the thread of the writer does it."""

    def __init__(self, plain: Any, redact: Callable[[Any], Any]) -> None:
        self.size = BOUND - remaining_size(BOUND, plain)
        """Size of the value, in characters."""
        # The function may read context variables, such as the name of a tenant.
        context = copy_context()
        self.redact: Callable[[], Any] = lambda: context.run(redact, plain)


class Records:
    """Encoder that turns each event into one line of a recording."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def of_call(self, event: CallEvent, time: float) -> Line:
        """Return the recorded line for an event of a tool call; `time` is in seconds since the recording's header."""
        phase = event.phase
        entry: Line = {"t": time, "event": phase, "call": event.number}
        if phase == "begun":
            entry |= {"batch": event.batch, "tool": event.tool}
            if event.call_id is not None:
                entry["id"] = event.call_id
            if event.run is not None and event.run.number:
                entry["run"] = event.run.number
            if event.resumes is not None:  # a mark of `_links`: the span of the call, a space, the span of the run
                entry["resumes"] = event.resumes.split(" ")[0]
            if self._capture.is_on and event.call is not None:
                entry["args"] = self._capture_value(event.call.get("args"))
        elif phase == "noted":
            entry["what"] = event.note
            if event.facts:
                entry["facts"] = dict(event.facts)
            if self._capture.is_on and event.message:
                entry["message"] = self._capture_value(event.message)
        elif phase == "ended":
            entry |= {"outcome": outcome_of(event.error), "attempts": event.attempt}
            if self._capture.is_on and event.result is not None:
                entry["result"] = self._capture_value(result_of(event.result))
        elif phase in ("started", "attempt_ended"):
            entry["attempt"] = event.attempt
        if event.queue_wait and phase in ("gave_up", "started", "ended"):
            entry["waited"] = round(event.queue_wait, 6)
        if event.error is not None and phase in ("gave_up", "attempt_ended", "ended"):
            entry["error"] = error_type(event.error)
        if phase == "ended" and isinstance(event.error, CallCancelledError):
            entry |= self._cancellation(event.error)
        return entry

    def _cancellation(self, error: CallCancelledError) -> Line:
        if error.reason is None:
            return {"cancelled_by": "tool"}
        entry: Line = {"cancelled_by": "application"}
        return entry | {"reason": self._capture_value(error.reason)} if self._capture.is_on else entry

    def of_run(self, event: RunEvent, time: float) -> Line:
        """Return the recorded line for an event of an agent run; `time` is in seconds since the recording's header.

        It is empty for a note, for which the format has no line.
        """
        if event.phase == "noted":
            return {}
        entry: Line = {"t": time, "event": f"run_{event.phase}", "run": event.run.number}
        if event.phase == "begun":
            info = event.run
            facts = {"agent": info.agent, "thread": info.thread_id, "run_id": info.run_id, "namespace": info.namespace}
            if info.resumes is not None:
                facts["resumes"] = info.resumes.split(" ")[-1]
            entry |= {name: text for name, text in facts.items() if text}
            if self._capture.is_on and event.input is not None:
                kind = "command" if isinstance(event.input, Command) else "input"
                entry[kind] = self._capture_value(repeatable(event.input))
            return entry
        if event.phase == "ended":
            entry["outcome"] = outcome_of_run(event)
            if event.questions:
                entry["questions"] = event.questions
                if self._capture.is_on:
                    entry["question_ids"] = [*event.question_ids]
            return _with_error(entry, event.error)
        if event.phase == "read":
            entry |= {"event": "message_read", **event.facts}
            if self._capture.is_on:
                entry["message"] = self._capture_value(repeatable(event.input))
            return entry
        entry["event"] = f"model_{event.phase}"
        reply = event.result if isinstance(event.result, AIMessage) else None
        if self._capture.is_on and event.phase == "answered" and event.result is not None:
            entry["response" if reply is None else "reply"] = self._capture_value(repeatable(event.result))
        about = about_reply(reply, about_model(event.model))
        numbers = {"model": about.get(names.REQUEST_MODEL)}
        if event.phase == "answered":
            numbers["calls"] = len(reply.tool_calls) if reply is not None else None
            numbers["input_tokens"] = about.get(names.INPUT_TOKENS)
            numbers["output_tokens"] = about.get(names.OUTPUT_TOKENS)
        entry |= {name: number for name, number in numbers.items() if number is not None}
        return _with_error(entry, event.error)

    def _capture_value(self, value: object) -> Any:
        plain = self._capture.plain(value)
        return LongValue(plain, self._capture.redact) if is_long(plain) else self._capture.redact(plain)

    def of_actor(self, event: AskEvent | ActorEvent, time: float) -> Line:
        """Return the recorded line for an event of an actor or actor call; `time` is in seconds since the header."""
        if isinstance(event, ActorEvent):
            entry: Line = {"t": time, "event": f"actor_{event.phase}", "actor": event.actor}
            return _with_error(entry | self._key(event.key), event.error)
        entry = {"t": time, "event": f"ask_{event.phase}", "ask": event.number}
        if event.phase == "begun":
            entry |= {"actor": event.actor, "handler": event.handler, "ahead": event.ahead, **self._key(event.key)}
            return entry if event.call is None else entry | {"call": event.call}
        if event.phase == "ended":
            entry |= {"waited": round(event.waited, 6), "outcome": outcome_of(event.error)}
        return _with_error(entry, event.error)

    def _key(self, key: Hashable) -> Line:
        return {"key": self._capture_value(str(key))} if self._capture.is_on and key is not None else {}


def _with_error(entry: Line, error: BaseException | None) -> Line:
    if error is not None:
        entry["error"] = error_type(error)
    return entry


# RecordingWriter


_log = logging.getLogger("callboard")

BOUND = 16 * 1024 * 1024
"""Limit for data that is not written yet, in bytes. Above it, events are dropped and counted."""


class RecordingWriter:
    """Observer that writes a file of JSON lines about tool calls, runs and actor calls that begin in its `with` block.

    A full or missing disk is logged once, and does not affect calls.

    Args:
        path: file to write; its folder is made if it is missing.
        append: add a part to the file, instead of replacing the file.
        capture: as for `Tracing`.
        redact: as for `Tracing`.
        clock: function that returns seconds, with any origin; a virtual clock for tests.
        everywhere: as for `observe`.

    Raises `OSError` on entering, if the file cannot be opened, and `TypeError` for a `path` that is no path, and for a
    `redact` or a `clock` that is no plain function.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        append: bool = False,
        capture: bool | None = None,
        redact: Redactor | bool = True,
        clock: Callable[[], float] = perf_counter,
        everywhere: bool = False,
    ) -> None:
        check_plain_function("RecordingWriter(clock=...)", clock, "no argument")
        check_path("RecordingWriter(path=...)", path, "run.jsonl")
        self.path = Path(path)
        self.events = 0
        """Number of events received."""
        self.lost = 0
        """Number of received events that were dropped."""
        self.overhead = 0.0
        """Seconds that recording took in the threads of event loops."""
        self._append = append
        self._capture = Capture(capture, redact)
        self._clock = clock
        self._everywhere = everywhere
        self._observation = ExitStack()
        self._writer: _Writer
        self._started_at = 0.0
        self._dropped_since_line = 0  # events dropped since the last line that was kept
        # Set by `__exit__`. Calls that outlive the block still send events, which the ended writer would never write.
        self._is_over = False
        self._lock = threading.Lock()  # guards the counters and the order of lines

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        is_cut = self._append and _ends_within_line(self.path)
        # Results of calls are for this user alone.
        opener = partial(os.open, mode=0o600)
        self._writer = _Writer(open(self.path, "ab" if self._append else "wb", opener=opener))
        if is_cut:  # a killed process left half a line: the new header must begin on a line of its own
            self._writer.offer(b"\n")
        self._started_at = self._clock()
        self._is_over = False
        header = {
            "event": "header",
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(),
            "callboard": version("callboard"),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "captures": self._capture.is_on,
        }
        self._writer.offer(_as_line(header))
        take, records = self._take, Records(self._capture)
        observers = careful_observers(
            partial(take, records.of_call), partial(take, records.of_run), partial(take, records.of_actor)
        )
        self._observation.enter_context(observe_within(observers, everywhere=self._everywhere))
        return self

    def __exit__(self, *_: object) -> None:
        self._observation.close()  # first: from now on no new call is recorded
        with self._lock:
            self._write_dropped_count()
            self._is_over = True
            # The counters as they are now: they go on counting the events of calls that outlive the block.
            closing = {
                "t": self._now(),
                "event": "closed",
                "events": self.events,
                "lost": self.lost,
                "overhead": round(self.overhead, 6),
                "per_event": round(self.overhead / max(self.events, 1), 9),
            }
        self._writer.close(closing)

    def _now(self) -> float:
        return round(self._clock() - self._started_at, 6)

    def _take(self, encode: Callable[[E, float], Line], event: E) -> None:
        since = perf_counter()  # not `self._clock`: on a virtual clock recording would seem to cost nothing
        entry = encode(event, self._now())
        if not entry:
            return
        data = LongLine(entry) if any(isinstance(value, LongValue) for value in entry.values()) else _as_line(entry)
        with self._lock:  # several threads may run event loops
            if self._is_over:
                self.lost += 1
            elif not self._writer.has_room(len(data)):
                self.lost += 1
                self._dropped_since_line += 1
            else:
                self._write_dropped_count()
                self._writer.offer(data)
            self.events += 1
            self.overhead += perf_counter() - since

    def _write_dropped_count(self) -> None:
        """Write a line with the number of events that were dropped since the last written line."""
        if self._dropped_since_line:
            dropped, self._dropped_since_line = self._dropped_since_line, 0
            self._writer.offer(_as_line({"t": self._now(), "event": "lost", "events": dropped}))


class LongLine:
    """Line with captured values that the thread of the writer redacts."""

    def __init__(self, entry: Line) -> None:
        self._entry = entry

    def __len__(self) -> int:
        return sum(value.size for value in self._entry.values() if isinstance(value, LongValue))

    def encode_values(self) -> bytes:
        """Redact the values, and return the line as it is written."""
        values = self._entry.items()
        return _as_line({key: value.redact() if isinstance(value, LongValue) else value for key, value in values})


class _Writer:
    """Bounded queue of lines, and the thread that writes them to a file and closes the file at the end.

    The caller of `offer` and `has_room` lets one thread at a time call them.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._queue: SimpleQueue[bytes | LongLine] = SimpleQueue()
        self._closing: Line | None = None
        # Bytes that were offered, and bytes of them that are on disk. Each number has one writing thread, so no lock is
        # needed: the difference is too large at worst, and the bound holds.
        self._offered = 0
        self._done = 0
        self._written = 0  # with the closing line
        self._failed = False
        # A daemon: a disk that never answers must not keep the process from ending.
        self._thread = threading.Thread(target=self._write_lines, name="callboard recorder", daemon=True)
        self._thread.start()

    def has_room(self, size: int) -> bool:
        return not self._failed and self._offered - self._done + size <= BOUND

    def offer(self, data: bytes | LongLine) -> None:
        self._offered += len(data)
        self._queue.put(data)

    def close(self, closing: Line) -> None:
        """Write the queued lines, then `closing` with the number of bytes; wait for the disk for 10 seconds."""
        self._closing = closing
        self._queue.put(b"")  # wakes the thread
        self._thread.join(10.0)
        if self._thread.is_alive():
            _log.error("the recording's disk did not answer within 10 s; the recording is incomplete")

    def _write_lines(self) -> None:
        try:
            with self._file:
                while self._closing is None or not self._queue.empty():
                    # As many as there are now share a write: an event loop may add more meanwhile.
                    lines = [self._queue.get(), *(self._queue.get() for _ in range(self._queue.qsize()))]
                    self._write(b"".join(line if isinstance(line, bytes) else line.encode_values() for line in lines))
                    self._done += sum(map(len, lines))
                self._write(_as_line({**self._closing, "bytes": self._written}))
        except OSError as error:
            _log.error("the recording cannot be written, and ends here: %s", error)
            self._failed = True  # from now on `has_room()` is false: every event counts as lost

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        self._written += len(data)


def _ends_within_line(path: Path) -> bool:
    """Return whether a file ends in the middle of a line, as after a killed process."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def _as_line(entry: Line) -> bytes:
    try:
        return to_json(entry, fallback=type_mark) + b"\n"
    except ValueError:  # a lone surrogate; UTF-8 cannot encode it, an escape in ASCII can
        return dumps(entry, default=type_mark).encode() + b"\n"
