"""Faulty servers: `python -m tests.mcp._bad how` chooses one by its fault."""

import subprocess
import sys
import time
from pathlib import Path

from ._plain import main


def silent() -> None:
    """Server that never answers and has started a process that does not end with it."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(sys.argv[2]).write_text(str(child.pid))
    time.sleep(600)


def dies() -> None:
    """Server that ends at once and writes the reason."""
    sys.stderr.write("no configuration found\n")
    sys.exit(3)


def garbage() -> None:
    """Server that writes invalid messages for ever."""
    while True:
        print("Hello! This is a fine server.", flush=True)


def floods() -> None:
    """Server that writes to stderr for ever."""
    while True:
        sys.stderr.write("complaint " * 1000 + "\n")


def huge() -> None:
    """Server that answers with one message that never ends."""
    sys.stdin.readline()
    sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "result": {"x": "')
    while True:
        sys.stdout.write("x" * 65536)


def once() -> None:
    """Server that works once. When it is started again it ends, or with one more word reports the restart first."""
    started = Path(sys.argv[2])
    if not started.exists():
        started.touch()
        main("2025")
    elif len(sys.argv) == 3:
        sys.exit(4)
    else:
        main("2025", leaves=False)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
