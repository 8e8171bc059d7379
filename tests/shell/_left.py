"""What is left of commands."""

from pathlib import Path

import anyio
from tests.workers._processes import alive

WAIT = 30


async def noted(path: Path, count: int = 1) -> set[int]:
    """Wait for the process ids that commands write into a file."""
    with anyio.fail_after(WAIT):
        while len(found := path.read_text().split() if path.exists() else []) < count:
            await anyio.sleep(0.01)
    return {int(pid) for pid in found}


__all__ = ["WAIT", "alive", "noted"]
