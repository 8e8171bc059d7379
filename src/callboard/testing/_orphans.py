"""Checks for orphans of a test: tasks, threads and child processes that the test leaves running."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import anyio
import anyio.lowlevel

from callboard._calls._blocks import has_to_be_entered
from callboard._loops._watchdog import current_frames

_TURNS = 10
"""Turns of the event loop in which ended tasks may disappear."""
_PATIENCE = 1.0
"""Seconds in which threads and processes that are told to end may do so."""
_POOLS = ("callboard._loops", "trio._core._thread_cache", "anyio._backends._asyncio", "concurrent.futures.thread")
"""Modules in which an idle worker thread waits for its next job."""
_SERVICES = ("callboard watchdog", "callboard-asyncio")
"""Names of threads that serve the whole process."""


class OrphansError(AssertionError):
    """Raised if a test has left tasks, threads or child processes running."""


async def check_tasks(ids: set[int]) -> None:
    """Raise `OrphansError` if tasks whose ids are not in `ids` still run after a few rounds of the event loop."""
    __tracebackhide__ = True  # for pytest
    for _ in range(_TURNS):
        if not _new_tasks(ids):
            return
        await anyio.lowlevel.checkpoint()
    if orphans := _new_tasks(ids):
        raise OrphansError(_text("tasks", orphans))


def task_ids() -> set[int]:
    """Return the ids of all tasks of the running event loop."""
    return {task.id for task in anyio.get_running_tasks()}


def _new_tasks(ids: set[int]) -> list[str]:
    return sorted(f"{task.name or task.id}" for task in anyio.get_running_tasks() if task.id not in ids)


@has_to_be_entered("with callboard.testing.no_orphans():")
@contextmanager
def no_orphans() -> Generator[None]:
    """Raise `OrphansError` at the end of the `with` block if threads or child processes begun inside still run.

    Waits up to a second for them. Idle worker threads of callboard, anyio, trio and `concurrent.futures` are no
    orphans. Child processes are found on Linux; elsewhere those of `multiprocessing` are.
    """
    __tracebackhide__ = True  # for pytest
    before = {**_threads(), **_processes()}
    yield
    end = time.monotonic() + _PATIENCE
    while True:
        current = {kind: find() for kind, find in _KINDS.items()}
        orphans = {kind: [name for key, name in names.items() if key not in before] for kind, names in current.items()}
        if not any(orphans.values()):
            return
        if time.monotonic() > end:
            raise OrphansError("; ".join(_text(kind, names) for kind, names in orphans.items() if names))
        time.sleep(0.01)


def _threads() -> dict[object, str]:
    threads = [thread for thread in threading.enumerate() if thread.name not in _SERVICES]
    with current_frames() as frames:
        return {thread: thread.name for thread in threads if not _is_idle(frames.get(thread.ident or 0))}


def _is_idle(frame: FrameType | None) -> bool:
    """Return whether the thread with this stack frame is an idle worker thread of a pool."""
    while frame is not None and frame.f_globals.get("__name__") in ("threading", "queue"):
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith(_POOLS)


def _processes() -> dict[object, str]:
    processes: dict[object, str] = {
        child.pid: f"{child.name} (pid {child.pid})" for child in multiprocessing.active_children()
    }
    for path in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            if command := _command(pid):
                processes.setdefault(pid, f"{command} (pid {pid})")
    return processes


def _command(pid: int) -> str:
    """Return the command line of a process; empty for an ended process or `multiprocessing`'s resource tracker."""
    folder = Path(f"/proc/{pid}")
    try:
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        has_ended = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return ""
    return "" if has_ended or "multiprocessing.resource_tracker" in command else command or "a process"


_KINDS: Mapping[str, Callable[[], Mapping[object, str]]] = {"threads": _threads, "processes": _processes}


def _text(kind: str, names: list[str]) -> str:
    return f"{kind} that the test has left running: {', '.join(names)}"
