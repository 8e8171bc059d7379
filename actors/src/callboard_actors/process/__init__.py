"""Pool of worker processes, for asyncio and trio: runs functions that may have to be killed.

    async with Processes(workers=2, preload=["json"]) as pool:
        value = await pool.run(fn, *args)

A pool is an engine: tools and actors with `runs_in=pool` run in its workers.
"""

import sys
from typing import TYPE_CHECKING

from callboard_actors._util._on_demand import on_demand

if sys.platform in ("win32", "emscripten", "wasi"):
    raise ImportError(
        f"callboard_actors.process needs a POSIX system, and this is {sys.platform}: what it kills are process groups, "
        "and what it hands to workers are file descriptors over UNIX sockets; on Windows, run it within WSL"
    )

# Loaded on first use: the zygote and every spawned worker import this package, and each import costs them time and
# memory.
if TYPE_CHECKING:
    from callboard_actors._engine._errors import ResultLostError as ResultLostError
    from callboard_actors._engine._errors import WorkerCallError as WorkerCallError
    from callboard_actors._engine._errors import WorkerDiedError as WorkerDiedError
    from callboard_actors.process._confinement._confine import Confine as Confine
    from callboard_actors.process._pool import Processes as Processes

__all__ = ["Confine", "Processes", "ResultLostError", "WorkerCallError", "WorkerDiedError"]

__getattr__ = on_demand(
    __name__,
    {
        "Confine": "callboard_actors.process._confinement._confine",
        "Processes": "callboard_actors.process._pool",
        "ResultLostError": "callboard_actors._engine._errors",
        "WorkerCallError": "callboard_actors._engine._errors",
        "WorkerDiedError": "callboard_actors._engine._errors",
    },
)
