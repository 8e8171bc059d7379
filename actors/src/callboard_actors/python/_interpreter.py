"""Interpreter of cells, which are pieces of Python code: runs each cell, and returns a record of its result.

It needs a process of its own, and runs no event loop but that of its cells.

`TimeLimit`, `traceback_of` and `Capture` bound time, error and output of a cell. `Interpreter` runs the cells.
"""

import ast
import asyncio
import base64
import builtins
import contextvars
import ctypes
import faulthandler
import inspect
import io
import linecache
import os
import select
import signal
import stat
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, TextIO, TypedDict, TypeVar

from callboard_actors._util._excerpts import Excerpt

# Code of a cell, compiled so that its last expression has a value and tracebacks show its lines.

T = TypeVar("T")

_MAX_CELLS = 200
"""Number of latest code cells with source lines that are kept for tracebacks."""
_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


@dataclass(frozen=True, slots=True)
class Cell:
    """Compiled code of one call of the Python tool."""

    name: str
    body: CodeType
    last: CodeType | None
    """Code of the last expression; `None` if the cell does not end with an expression."""


def name_of(number: int) -> str:
    """Return the file name under which tracebacks show a code cell."""
    return f"<cell {number}>"


def retry_after_system_error(parse: Callable[[], T]) -> T:
    """Call a parser, and call it again after a SystemError, which a garbage collection during the parsing may cause."""
    try:
        return parse()
    except SystemError:
        # In CPython 3.11: "AST constructor recursion depth mismatch" (python/cpython#106905).
        return parse()


def compile_cell(code: str, number: int) -> Cell:
    """Compile a code cell; raise SyntaxError or, for a NUL character or deep nesting, ValueError."""
    name = name_of(number)
    linecache.cache[name] = (len(code), None, f"{code}\n".splitlines(keepends=True), name)
    linecache.cache.pop(name_of(number - _MAX_CELLS), None)
    tree = retry_after_system_error(partial(ast.parse, code, name))
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        expression = tree.body.pop()
        assert isinstance(expression, ast.Expr)
        last = compile(ast.Expression(expression.value), name, "eval", flags=_FLAGS, dont_inherit=True)
    return Cell(name, compile(tree, name, "exec", flags=_FLAGS, dont_inherit=True), last)


# Figures of matplotlib, as pictures for a model.

_RESOLUTIONS = (100, 50)
"""Resolutions in dots per inch; a picture that is too large is drawn again with the lower resolution."""
_MAX_PICTURE = 1_000_000
"""Maximum size of a picture as PNG, in bytes."""


def close_figures(limit: int) -> tuple[list[str], list[str]]:
    """Close matplotlib's open figures; return them as PNG in base64, and notes about figures that are not shown."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is None or not limit:
        return [], []
    pictures: list[str] = []
    notes: list[str] = []
    numbers = list(pyplot.get_fignums())
    for number in numbers[:limit]:
        try:
            data = _draw(pyplot.figure(number))
        except Exception as error:  # matplotlib draws only now, so errors of earlier commands appear here
            notes.append(f"[figure {number} cannot be drawn: {type(error).__name__}: {error!s:.200}]")
            continue
        if data is None:
            notes.append(f"[figure {number} is not shown: as PNG it has more than {_MAX_PICTURE:,} bytes]")
        else:
            pictures.append(base64.b64encode(data).decode())
    if (omitted := len(numbers) - limit) > 0:
        notes.append(f"[{omitted} more figures are not shown; no more than {limit} are]")
    pyplot.close("all")
    return pictures, notes


def _draw(figure: Any) -> bytes | None:
    for resolution in _RESOLUTIONS:
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=resolution)
        if picture.tell() <= _MAX_PICTURE:
            return picture.getvalue()
    return None


# Time limit of a cell.


class CellTimeoutError(BaseException):
    """Raised in a code cell when its time is over; a BaseException, so that `except Exception` does not catch it."""

    __module__ = "builtins"  # the traceback is for a model, which knows no module of this package


class TimeLimit:
    """Context manager that interrupts its `with` block after a time limit, and kills the process after a grace period.

    An interrupted cell keeps its names. The kernel kills the process by SIGALRM, which works even if no Python code can
    run any more.
    """

    def __init__(self, timeout: float | None, grace: float | None) -> None:
        self._timeout = timeout
        self._grace = grace
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt another one that holds it
        self._has_ended = True
        self._is_interrupted = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        self._has_ended = False
        if self._timeout is None:
            return
        # A thread and not a signal: SIGALRM is kept for the kill, and must have no handler in Python.
        self._timer = threading.Timer(self._timeout, self.interrupt, [CellTimeoutError])
        self._timer.daemon = True
        self._timer.start()
        if self._grace is not None:
            signal.setitimer(signal.ITIMER_REAL, self._timeout + self._grace)

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the time limit, so that it interrupts no more code. If this method is interrupted, call it again."""
        with self._lock:
            self._has_ended = True
            interrupted, self._is_interrupted = self._is_interrupted, False
        if interrupted:
            # Remove an error that was requested and not raised yet, so that it cannot hit later code. It is replaced by
            # an error of this class. Clearing it instead would leave the interpreter looking for it for ever, which in
            # CPython 3.11 hangs code that sets a profile function.
            try:
                _raise_in(self._thread, _NothingError)
                while True:
                    pass
            except _NothingError:
                pass
        if self._timer is None:
            return
        self._timer.cancel()
        if self._grace is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise an error in the `with` block, unless it has ended; called from another thread or a signal handler."""
        with self._lock:
            if not self._has_ended:
                self._is_interrupted = True
                _raise_in(self._thread, error)


class _NothingError(BaseException):
    """Harmless error, raised and caught in place of an interruption that came after the end of its code."""


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


# Errors of a cell, for a model.

_MAX_TRACEBACK = 4000
"""Maximum number of characters of a traceback."""
_MAX_GROUP = 20
_MAX_VALUE = 10_000
"""Maximum number of characters of the shown value of a code cell's last expression."""


def traceback_of(error: BaseException) -> str:
    """Return a short traceback of an error in a code cell: lines of the cell's code, without frames of libraries."""
    try:
        summary = traceback.TracebackException.from_exception(error, compact=True, max_group_width=_MAX_GROUP)
        queue = [summary]
        while queue:
            inner = queue.pop()
            cell_frames = (frame for frame in inner.stack if frame.filename.startswith("<cell "))
            inner.stack = traceback.StackSummary.from_list(cell_frames)
            related = (inner.__cause__, inner.__context__, *(inner.exceptions or ()))
            queue += [other_summary for other_summary in related if other_summary is not None]
        return shorten(retry_after_system_error(lambda: "".join(summary.format())).rstrip("\n"), _MAX_TRACEBACK)
    except BaseException as problem:  # raised by the error's own `__str__` or `__class__`
        return f"{type(error).__name__}, which cannot be shown: {type(problem).__name__}"


def repr_of(value: object, limit: int) -> str:
    """Return the `repr` of a value, cut to `limit` characters, or a note if `repr` raises an error."""
    try:
        text = repr(value)
        if type(text) is not str:
            text = str.__str__(text)
    except BaseException as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    return shorten(text, limit)


def shorten(text: str, limit: int) -> str:
    """Return a text, or only its head and its tail if it has more than `limit` characters."""
    if len(text) <= limit // 4:
        return text.encode(errors="backslashreplace").decode()
    head, tail = text[: limit // 2], text[len(text) - min(len(text), limit // 2) :]
    if len(text) <= limit:
        head, tail = text, ""
    data = head.encode(errors="backslashreplace"), tail.encode(errors="backslashreplace")
    return Excerpt(data[0], len(text) - len(head) - len(tail), data[1]).text()


# Output of a cell: from `print`, from C code and from child processes, in its order.

_CHUNK = 64 * 1024
_MAX_CHUNKS_AT_END = 64
"""Maximum number of output chunks read after a code cell has ended, because another writer may never stop."""
_kept_streams: list[Any] = []
"""Objects that were `sys.stdout` or `sys.stderr` of a cell. A thread may still print to one, and CPython's `print`
holds no reference to its stream: if the stream were freed, the process would crash.
"""


class OutputBuffer:
    """Buffer that keeps the head and the tail of a code cell's output."""

    def __init__(self, limit: int) -> None:
        self._head_size = limit // 2
        self._tail_size = limit - limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._size = 0

    def add(self, data: bytes) -> None:
        """Append output; keep the head and the tail of all output, and count the omitted bytes."""
        self._size += len(data)
        head_room = self._head_size - len(self._head)
        self._head += data[:head_room]
        self._tail += data[max(0, head_room) :]
        if len(self._tail) > 2 * self._tail_size + _CHUNK:
            del self._tail[: -self._tail_size]

    def take(self) -> Excerpt:
        """Return the kept output, and empty the buffer."""
        tail = bytes(self._tail[-self._tail_size :])
        excerpt = Excerpt(bytes(self._head), self._size - len(self._head) - len(tail), tail)
        self._head.clear()
        self._tail.clear()
        self._size = 0
        return excerpt


class Capture:
    """Capture of a running cell's output, on file descriptors 1 and 2 as well as on `sys.stdout` and `sys.stderr`.

    They belong to the whole process, so a process can have one interpreter only. The output of a thread that a cell has
    left behind belongs to the cell that runs at that time. Between two cells it belongs to no cell, and goes where the
    process itself writes.
    """

    def __init__(self, limit: int) -> None:
        self._buffer = OutputBuffer(limit)
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._replaced: tuple[Any, Any, int, int] | None = None
        self._streams: dict[int, TextIO] = {}

    def begin(self) -> None:
        """Redirect stdout and stderr of this process into a pipe, whose content `end` returns."""
        if self._pipe is None or not _is_whole(self._pipe):
            self._pipe = os.pipe()
            read_end = self._pipe[0]
            os.set_blocking(read_end, False)
            threading.Thread(target=self._read, args=(read_end,), name="callboard-cell-output", daemon=True).start()
        write_end = self._pipe[1]
        self._replaced = sys.stdout, sys.stderr, _copy(1), _copy(2)
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        sys.stdout, sys.stderr = self._stream(1), self._stream(2)

    def _stream(self, fd: int) -> TextIO:
        """Return the text stream that all cells share for a file descriptor; make a new one if a cell has broken it."""
        stream = self._streams.get(fd)
        if stream is None or not _is_restored(stream):
            raw = io.FileIO(fd, "wb", closefd=False)
            stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)
            _keep_for_ever(stream)
            self._streams[fd] = stream
        return stream

    def _read(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        with suppress(OSError, ValueError):  # the pipe was closed
            while not any(event & (select.POLLNVAL | select.POLLERR) for _, event in poll.poll()):
                with self._lock:
                    if not self._take(fd):
                        return

    def _take(self, fd: int) -> bool:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        self._buffer.add(data)
        return bool(data)

    def end(self) -> Excerpt:
        """Restore the former stdout and stderr, and return the output since `begin`."""
        assert self._replaced is not None
        assert self._pipe is not None
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):  # a cell may have put any object there
                stream.flush()
            _keep_for_ever(stream)
        sys.stdout, sys.stderr, *former = self._replaced
        self._replaced = None
        for fd, copy in zip((1, 2), former, strict=True):
            os.dup2(copy, fd)
            os.close(copy)
        # Read what is left in the pipe; the lock keeps the thread from taking half of it meanwhile.
        fd = self._pipe[0]
        with self._lock, suppress(OSError):
            for _ in range(_MAX_CHUNKS_AT_END):
                before = self._buffer._size
                if not self._take(fd) or self._buffer._size == before:
                    break
            return self._buffer.take()
        return self._buffer.take()

    def close(self) -> None:
        """Close the writing end of the pipe, so that the thread that reads the pipe ends."""
        if self._pipe is not None:
            os.close(self._pipe[1])  # not the reading end: the thread still polls it
            self._pipe = None


def _is_whole(pipe: tuple[int, int]) -> bool:
    """Return whether the two file descriptors in `pipe` are still the ends of one pipe."""
    # A cell may have closed one of them, and opened another file under its number.
    try:
        read_end, write_end = map(os.fstat, pipe)
    except OSError:
        return False
    return stat.S_ISFIFO(read_end.st_mode) and read_end.st_ino == write_end.st_ino


def _copy(fd: int) -> int:
    try:
        return os.dup(fd)
    except OSError:
        return os.open(os.devnull, os.O_RDWR)


def _is_restored(stream: Any) -> bool:
    """Undo changes that a code cell made to a stream; return `True` if the stream can be used again."""
    try:
        vars(stream).clear()
        stream.reconfigure(
            encoding="utf-8", errors="backslashreplace", newline=None, line_buffering=False, write_through=True
        )
    except Exception:  # a cell has replaced parts of it
        return False
    return not stream.closed


def _keep_for_ever(stream: Any) -> None:
    if all(stream is not kept_stream for kept_stream in _kept_streams):
        _kept_streams.append(stream)


# The interpreter.

_EMPTY = "None"
_PROBE = 0
"""Number of the empty cell that checks whether the interpreter still works."""
_PROBE_TIME = 30.0
_STAYS = "The interpreter goes on, and its names stay."


class BrokenInterpreterError(Exception):
    """Raised after a cell has changed something that the interpreter needs, such as `sys.modules`; no cell can run."""


class Record(TypedDict):
    """Result of a code cell, as plain data."""

    number: int
    output: str
    value: str | None
    """`repr` of the last expression, if its value is not None."""
    error: str
    """Short traceback, or another reason for the end of the cell; empty if it succeeded."""
    missing: str
    """Name of the module that could not be imported; empty if there is none."""
    pictures: list[str]
    """Figures that the cell has drawn, as PNG in base64."""
    notes: list[str]


class Interpreter:
    """Interpreter that runs one code cell after another in a namespace of its own.

    `max_output` is in bytes, `pictures` the number of figures of a cell. `grace` is the time in seconds between the
    interruption of a late cell and the end of the process; `None` never ends it.
    """

    def __init__(
        self,
        *,
        keeps_state: bool = True,
        max_output: int = 20_000,
        pictures: int = 4,
        grace: float | None = None,
    ) -> None:
        self._keeps_state = keeps_state
        self._pictures = pictures
        self._grace = grace
        self._number = 0
        self._capture = Capture(max_output)
        self._limit: TimeLimit | None = None
        self._context = contextvars.Context()
        self._runner: asyncio.Runner | None = None
        self._module = _fresh_main()
        self._builtins = dict(vars(builtins))
        self._modules = {name: module for name, module in sys.modules.items() if name != "__main__"}
        os.environ.setdefault("MPLBACKEND", "Agg")

    def close(self) -> None:
        """Cancel the tasks that cells have left running, close the cells' event loop, and end the capture of output."""
        if self._runner is not None:
            self._runner.close()
        self._capture.close()

    def interrupt(self) -> None:
        """Interrupt the running code cell with a KeyboardInterrupt; called from another thread or a signal handler."""
        if self._limit is not None:
            self._limit.interrupt(KeyboardInterrupt)

    def run(self, code: str, timeout: float | None = None) -> Record:
        """Run the code of a cell, and return a record of its result, including an error that the code has raised."""
        self._number += 1
        record = self._run_captured(code, self._number, timeout)
        # Checked now, so that the error belongs to the cell that caused it and not to the next one.
        if error := self._run_captured(_EMPTY, _PROBE, _PROBE_TIME)["error"]:
            raise BrokenInterpreterError(f"after this cell not even an empty one runs: {error}")
        return record

    def _run_captured(self, code: str, number: int, timeout: float | None) -> Record:
        record = Record(number=number, output="", value=None, error="", missing="", pictures=[], notes=[])
        if not self._keeps_state:
            self._module = _fresh_main()
        recursion_limit = sys.getrecursionlimit()
        self._capture.begin()
        try:
            self._run(code, timeout, record)
        finally:
            sys.setrecursionlimit(recursion_limit)
            record["output"] = self._capture.end().text()
        return record

    def _run(self, code: str, timeout: float | None, record: Record) -> None:
        modules = sys.modules
        main, modules["__main__"] = modules["__main__"], self._module
        limit = TimeLimit(timeout, self._grace)
        if record["number"] != _PROBE:  # a late interruption must not hit the probe
            self._limit = limit
        try:
            cell = compile_cell(code, record["number"])
            with limit:
                value = self._evaluate(cell.body)
                if cell.last is not None:
                    value = self._evaluate(cell.last)
                if value is not None:
                    record["value"] = repr_of(value, _MAX_VALUE)
                record["pictures"], record["notes"] = close_figures(self._pictures)
        except CellTimeoutError as error:
            record["error"] = f"{traceback_of(error)}\n[interrupted after its {round(timeout or 0.0, 1):g} s. {_STAYS}]"
        except SystemExit as error:
            record["error"] = f"SystemExit({repr_of(error.code, 200)}) [the cell ended there. {_STAYS}]"
        except KeyboardInterrupt as error:
            record["error"] = f"{traceback_of(error)}\n[the cell ended there. {_STAYS}]"
        except BaseException as error:
            record["error"] = traceback_of(error)
            if isinstance(error, ModuleNotFoundError) and isinstance(error.name, str):
                record["missing"] = error.name
        finally:
            limit.end()
            modules["__main__"] = main
            for name, module in self._modules.items():  # a cell may have deleted modules that this process needs
                modules.setdefault(name, module)

    def _evaluate(self, code: types.CodeType) -> object:
        names, directory, original_builtins = vars(self._module), builtins.__dict__, self._builtins
        names["__builtins__"] = builtins
        run, evaluate = self._context.run, eval
        is_coroutine = bool(code.co_flags & inspect.CO_COROUTINE)
        try:
            if not is_coroutine:
                return run(evaluate, code, names)
            if self._runner is None:
                self._runner = asyncio.Runner()
            return self._runner.run(evaluate(code, names), context=self._context)
        finally:
            directory.update(original_builtins)  # before any builtin is used: the cell may have deleted them


def _fresh_main() -> types.ModuleType:
    """Return a new `__main__` module for the cells, so that objects which the cells define can be pickled."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    return module


def prepare_process() -> None:
    """Prepare this process for code cells: a crash prints a traceback, and two misleading warnings are silenced."""
    # The traceback is printed to the original stderr.
    faulthandler.enable(file=os.dup(2), all_threads=False)
    warnings.filterwarnings("ignore", message=".*non-interactive, and thus cannot be shown")
    # That warning would be about threads of this package, which no child needs.
    warnings.filterwarnings("ignore", message=".*is multi-threaded, use of fork", category=DeprecationWarning)
