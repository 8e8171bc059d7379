"""Program that is started without some of stdin, stdout and stderr and opens a pool.

Arguments: the event loop, the start method of workers, and the file for the findings.
"""

import sys
from pathlib import Path
from typing import Any

import anyio

from callboard_actors.process import Processes
from tests.process import _bodies as bodies


async def main(start: Any, found: str) -> None:
    async with Processes(workers=1, start=start) as pool:
        Path(found).write_text(str(await pool.run(bodies.add, 20, 22)))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[2:], backend=sys.argv[1])
