"""`python_tool`: tool with a Python interpreter for each conversation, in a separate process.

Its worker pool limits the time of cells from outside: a cell can disable every limit inside its process.
"""

import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from callboard import CallContext, ChildSpec, child
from callboard.extend import Body, EngineError, Seat
from callboard_actors.process import Confine, Processes
from callboard_actors.python._interpreter import Interpreter
from callboard_actors.python._python import Python

# The worker pool.

_ANSWER_TIME = 10.0
"""Seconds beyond a code cell's timeout and grace after which its process is ended from outside."""


class BoundedPool(Processes):
    """Pool of worker processes for Python interpreters; each code cell has a time limit."""

    def __init__(self, max_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._max_seconds = max_seconds

    @asynccontextmanager
    async def seat(self, title: str, /) -> AsyncGenerator[Any]:
        """Start a dedicated worker process for the duration of the `with` block; see `Processes.seat`."""
        async with super().seat(title) as seat:
            yield _BoundedSeat(seat, self._max_seconds + _ANSWER_TIME)


@dataclass(frozen=True, slots=True)
class _BoundedSeat:
    """Dedicated worker process, in which a code cell fails if the interpreter does not answer in time."""

    seat: Seat
    max_seconds: float

    async def until_ended(self) -> str:
        """Wait until the worker process has ended; return the reason of its end as text."""
        return await self.seat.until_ended()

    async def run_body(self, body: Body, /) -> Any:
        """Run a call's function in the worker process; raise EngineError if a code cell takes too long."""
        if "run_python" not in body.args[1:2]:
            return await self.seat.run_body(body)  # not a cell: for example the wait for the actor's end
        with anyio.move_on_after(self.max_seconds):
            return await self.seat.run_body(body)
        # The caller leaves the seat because of this error, and that ends the worker.
        reason = f"its interpreter did not answer within {self.max_seconds:g} s, and was ended"
        raise EngineError(body.title, body.call_id, reason, ended="unknown", recurs=True)


# The tool.

_INTENSITY = 20
"""Maximum number of restarts within a minute. It is high, because a model may kill its interpreter repeatedly."""

_MEMORY = 2 * 1024**3


def by_thread(_: Mapping[str, Any], context: CallContext) -> str:
    """Return the `thread_id` of the conversation to which a call belongs; return "" for calls without a `thread_id`."""
    return str(context.config.get("configurable", {}).get("thread_id", ""))


def python_tool(
    python: Python | None = None,
    *,
    confine: Confine | None = None,
    unrestricted: bool = False,
    preload: Sequence[str] = (),
    memory: int | None = _MEMORY,
    idle: float = 600.0,
    cap: int = 8,
) -> ChildSpec[Python]:
    """Return a tool by which a model runs Python code, for a node or an agent.

        python = python_tool(Python(packages=["numpy"]), preload=["numpy"])
        agent = create_react_agent(model, [python])

    Each conversation, identified by its `thread_id`, has an interpreter of its own, in a confined worker process. By
    default the code can load installed packages and compute. Your own modules, and files beside them, cannot be read
    unless `confine` or `preload` names them.

    Args:
        python: interpreter with other options, such as `Python(timeout=5)`.
        confine: additional permissions, as a `callboard_actors.process.Confine`.
        unrestricted: whether the code may do everything that this user may.
        preload: modules that workers load at their start, so that the first call is fast.
        memory: bytes of address space for each interpreter.
        idle: seconds without a call after which an interpreter ends, and its names are lost.
        cap: largest number of interpreters; the least recently used one ends first.

    Raises:
        ValueError: for both `confine` and `unrestricted`.
        TypeError: for a `python` that is no `Python`.
        NotImplementedError: if the code has to be confined, and the system is not Linux.
    """
    if not (python is None or isinstance(python, Python)):
        raise TypeError(f"python_tool takes a Python, such as python_tool(Python(timeout=5)); got {python!r}")
    if confine is not None and unrestricted:
        raise ValueError(
            "python_tool(...) is given both confine=... and unrestricted=True, which say what the code may do; "
            "give one of them, or none to have it confined"
        )
    if isinstance(preload, str):
        raise TypeError(f"python_tool(preload={preload!r}) is one string; give a list of names of modules")
    python = Python() if python is None else python
    if not unrestricted:
        if sys.platform != "linux":
            raise NotImplementedError(
                f"python_tool needs Linux, which confines the code, and this is {sys.platform}; run the program in a "
                "Linux container or within WSL, or give unrestricted=True and memory=None"
            )
        confine = Confine() if confine is None else confine
    modules = [Python.__module__, Interpreter.__module__, *preload]
    max_seconds = python._timeout + python._grace
    pool = BoundedPool(max_seconds, workers=1, preload=modules, memory=memory, grace=1.0, confine=confine)
    return child(
        python,
        key=by_thread,
        idle=idle,
        cap=cap,
        poison=1,
        intensity=_INTENSITY,
        stop_timeout=python._grace,
        runs_in=pool,
    )
