"""Helpers for many tests: tools made of functions, input for a node, live tasks, garbage, memory."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import sniffio
from hypothesis import settings
from langchain_core.messages import ToolMessage
from langchain_core.tools import StructuredTool

from callboard.testing import calls

UNKNOWN = (
    "Error: this call was begun, and did not come to its end; whether it had any effect is unknown. Find out before "
    "calling the tool again."
)
"""What the model reads of a call with an unknown outcome."""


class BrokenError(Exception):
    """Error of a tool, or fatal error of an actor."""


def make(fn: Callable[..., Any], name: str | None = None, description: str = "A tool of a test.") -> StructuredTool:
    """Make a tool of an async function."""
    return StructuredTool.from_function(coroutine=fn, name=name or fn.__name__, description=description)


def make_sync(fn: Callable[..., Any], name: str | None = None) -> StructuredTool:
    """Make a tool of a plain function."""
    return StructuredTool.from_function(func=fn, name=name or fn.__name__, description="A tool of a test.")


def ask(*requests: object) -> list[object]:
    """Return a conversation whose last message asks for these calls."""
    return [calls(*requests)]


def contents(result: Any) -> list[Any]:
    """Return the contents of the tool messages in a list, or in the state of an agent."""
    messages = result["messages"] if isinstance(result, dict) else result
    return [message.content for message in messages if isinstance(message, ToolMessage)]


def ending_of(message: ToolMessage) -> Any:
    """Return how callboard ended a call, such as "timeout" or "rejected"."""
    return message.additional_kwargs.get("callboard", {}).get("ended")


async def keep(results: list[Any], awaitable: Awaitable[Any]) -> None:
    """Wait for an awaitable in a task of its own, and append its result, or the exception that it raises."""
    try:
        results.append(await awaitable)
    except Exception as error:
        results.append(error)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for a condition that other tasks or threads bring about."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.005)


def run_in_threads(*threads: threading.Thread) -> None:
    """Start all threads, and wait for their ends."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def examples(factor: int) -> settings:
    """Return settings with several times the examples of the profile: 25 by default, 100 in the exhaustive run."""
    return settings(max_examples=factor * settings().max_examples)


def examples_at_length(number: int) -> settings:
    """Return settings with this number of examples in the exhaustive run, and with those of the profile otherwise."""
    usual = settings().max_examples
    return settings(max_examples=number if usual == settings.get_profile("exhaustive").max_examples else usual)


def live_tasks() -> set[Any]:
    """Return all tasks of the event loop that have not ended."""
    if sniffio.current_async_library() == "asyncio":
        return set(asyncio.all_tasks())
    import trio

    tasks, todo = set(), [trio.lowlevel.current_root_task()]
    while todo:
        task = todo.pop()
        assert task is not None
        tasks.add(task)
        todo.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
    return tasks


def litter() -> list[str]:
    """Return the types of objects that only the garbage collector can free; needs the fixture `no_collector`."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    type_names = [f"{type(item).__module__}.{type(item).__qualname__}" for item in gc.garbage]
    gc.garbage.clear()
    return type_names


def measure_bytes(module: str, *arguments: str) -> float:
    """Return the number of bytes that a module of the tests prints when it runs in a process of its own."""
    command = [sys.executable, "-m", module, *arguments]
    root = Path(__file__).parents[1]
    return float(subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True, timeout=100).stdout)


class Hold:
    """Longest time for which the process computed without a turn of the event loop, in seconds."""

    longest = 0.0

    async def watch(self) -> None:
        """Measure until the task is cancelled."""
        # Processor time of all threads: other processes of the machine do not count, and a thread that holds the
        # lock of the interpreter does.
        begin = time.process_time()
        while True:
            await anyio.sleep(0.001)
            end = time.process_time()
            self.longest, begin = max(self.longest, end - begin), end


@asynccontextmanager
async def watch_loop() -> AsyncIterator[Hold]:
    """Measure for how long the event loop is held."""
    hold = Hold()
    # Measured is what no other thread can interrupt, not how long a thread may keep the interpreter's lock (5 ms at
    # each turn of the loop), nor how long a search for garbage takes among the objects of the whole test run.
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(hold.watch)
            await anyio.sleep(0.01)
            hold.longest = 0.0
            yield hold
            await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    finally:
        sys.setswitchinterval(switch_interval)
