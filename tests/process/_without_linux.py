"""Program for a simulated system that has only POSIX.

Arguments: the event loop, a folder.
"""

import os
import sys
from pathlib import Path

import anyio
import pytest

from callboard.extend import Body
from callboard_actors.process import Processes, WorkerDiedError
from tests.process import _bodies as bodies


async def main(folder: Path) -> None:
    assert sys.platform == "darwin"
    async with Processes(workers=2, grace=0.2, cpu=60, files=256, max_calls=100) as pool:
        assert await pool.run(bodies.add, 1, 2) == 3
        assert (await pool.run(bodies.add_later, 1, 2))[0] == 3
        assert await pool.run(bodies.go_on, 3, 0) == 3
        await _kill(pool, folder)
        with pytest.raises(WorkerDiedError, match="exited with code 3") as caught:
            await pool.run(bodies.end_with, 3)
        assert "last words" in caught.value.output
        async with pool.seat("owner") as seat:
            assert (await seat.run_body(Body(fn=bodies.add_later, args=(1, 2), title="add")))[0] == 3
        assert await pool.run(bodies.add, 1, 2) == 3
    print("passed")


async def _kill(pool: Processes, folder: Path) -> None:
    """Cancel a call that ignores SIGTERM and has a child that does so, too."""
    async with anyio.create_task_group() as group:
        group.start_soon(pool.run, bodies.fork_a_grandchild, str(folder))
        while len(list(folder.iterdir())) < 2:
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
    with anyio.fail_after(5):
        while any(map(_is_alive, folder.iterdir())):  # init reaps the child
            await anyio.sleep(0.001)


def _is_alive(path: Path) -> bool:
    try:
        os.kill(int(path.name), 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[2]), backend=sys.argv[1])
