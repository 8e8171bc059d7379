"""Process that has imported everything, whose forks run functions of the tests, and the client of it.

python -m tests.agent._forks

Each line of its input has a module and arguments for the function `in_fork` of this module, in JSON. It answers with
lines of JSON: the process id of the fork, the lines of the fork, and how the fork has ended: its exit status, or the
number of the signal that killed it. Until one more line arrives, the ended fork is a zombie.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
MODULES = (
    "agent._rival_agent",
    "agent._unknown_agent",
    "agent._crash_agent",
    "agent._crash_create_agent",
    "agent._crash_builder",
    "agent._crash_talker",
    "agent._crash_listener",
)
"""Modules that are imported before the forks."""


class Forks:
    """The process, as tests use it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.agent._forks"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.pid = 0
        """Process id of the fork."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, module: str, *arguments: object) -> None:
        """Start a fork."""
        self.tell([module, *arguments])
        self.pid = self.answer()

    def tell(self, message: object = "go on") -> None:
        assert self._process.stdin is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        return json.loads(line)

    def end(self) -> None:
        """Let a fork end that waits for that, and let its parent reap it."""
        self.tell()
        assert self.answer() == 0
        self.tell()

    def kill(self) -> None:
        """Kill the fork. Its parent does not reap it, so it remains a zombie until the next `tell`."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.answer() == signal.SIGKILL


def read_line() -> str:
    """Return the next line. It is read byte by byte, because forks share the unread input."""
    line = b""
    while not line.endswith(b"\n") and (letter := os.read(0, 1)):
        line += letter
    return line.decode()


def tell(message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    for name in MODULES:
        import_module(f"tests.{name}")
    while line := read_line():
        name, *arguments = json.loads(line)
        if child := os.fork():
            ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            tell(ended.si_status if ended else None)
            read_line()
            os.waitpid(child, 0)
            continue
        try:
            tell(os.getpid())
            import_module(f"tests.{name}").in_fork(*arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)


if __name__ == "__main__":
    main()
