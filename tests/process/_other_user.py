"""Program whose worker leaves a process of another user behind, which its zygote may not kill."""

import os
import time

import anyio

from callboard_actors._engine._libc import prctl
from callboard_actors.process import Processes, WorkerDiedError

_PR_CAPBSET_DROP, _CAP_KILL = 24, 5


def leave_behind() -> int:
    """Leave an orphan of another user behind; return its process id."""
    reader, writer = os.pipe()
    if not os.fork():
        if not os.fork():
            os.setsid()
            os.setuid(65534)
            os.write(writer, str(os.getpid()).encode())
            time.sleep(60)
        os._exit(0)
    return int(os.read(reader, 20))


def work() -> str:
    """Take half a second."""
    time.sleep(0.5)
    return "done"


async def main() -> None:
    """Let the worker with the orphan end while another one works."""
    # Of the zygote, a new program: root may kill any process only with this capability.
    prctl(_PR_CAPBSET_DROP, _CAP_KILL)
    async with Processes(workers=2) as pool, anyio.create_task_group() as group:
        orphan = await pool.run(leave_behind)
        results: list[str] = []

        async def keep_result() -> None:
            results.append(await pool.run(work))

        group.start_soon(keep_result)
        await anyio.sleep(0.1)
        try:
            await pool.run(os._exit, 3)
        except WorkerDiedError as error:
            print(error.reason)
    print(*results)
    os.kill(orphan, 9)


if __name__ == "__main__":
    anyio.run(main)
