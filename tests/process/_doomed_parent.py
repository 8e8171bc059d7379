"""Program with a pool whose workers are busy; the test kills it.

Arguments: the event loop, a folder, a mode, and the start method of workers if it is not the default.
"""

import multiprocessing
import sys
import time
from typing import Any

import anyio

from callboard_actors.process import Processes
from tests.process import _bodies as bodies
from tests.process._processes import confine_here


async def main(folder: str, mode: str, start: Any = None) -> None:
    confine = confine_here(write=[folder], processes=True) if mode == "confined" else None
    pool = Processes(workers=3, start=start, grace=0.3, confine=confine)
    async with pool, anyio.create_task_group() as group:
        if mode == "forks":
            # The fork holds a copy of every socket, so that none of them closes when this program is killed.
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(5,), daemon=True).start()
        group.start_soon(pool.run, bodies.fork_a_grandchild, folder)
        group.start_soon(pool.run, bodies.ignore_sigterm, folder)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
