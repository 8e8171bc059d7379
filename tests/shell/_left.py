"""Helpers that look for processes and output that commands leave behind."""

from pathlib import Path

import anyio

from callboard_actors.shell import Shell
from tests.process._processes import alive

__all__ = ["WAIT", "alive", "noted", "said_by"]

WAIT = 30


async def noted(path: Path, count: int = 1) -> set[int]:
    """Wait for the process ids that commands write into a file."""
    with anyio.fail_after(WAIT):
        while len(found := path.read_text().split() if path.exists() else []) < count:
            await anyio.sleep(0.01)
    return {int(pid) for pid in found}


async def said_by(shell: Shell, word: str) -> str:
    """Wait until the first job has written this text to its pipe; return the job's description."""
    while not (told := await shell.job(1)).rstrip().endswith(f"\n{word}"):
        await anyio.sleep(0.005)
    return told
