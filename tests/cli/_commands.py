"""Helpers that run the command in this process, as a subprocess, or at a terminal."""

import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from callboard._cli._app import app
from callboard_actors.mcp_service._command import app as mcp_app

PATIENCE = 60.0
COMMAND = (sys.executable, "-m", "callboard._cli")

_TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""Program that makes stdin the controlling terminal of its session, and becomes another program. A terminal that
controls no session sends no signal at Ctrl-C."""

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()=>].?)|\r")
_numbers = count()


def command_line() -> Any:
    """Return the group of all commands. That of the other distribution has its options, which the group passes on."""
    group: Any = typer.main.get_command(app)
    group.commands["mcp"] = typer.main.get_command(mcp_app)
    return group


class Project:
    """Directory with modules, in which commands are run.

    Args:
        directory: empty directory for the modules.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._started: list[subprocess.Popen[str]] = []

    @property
    def db(self) -> str:
        return str(self.directory / "threads.db")

    def module(self, source: str) -> str:
        name = f"trip_{os.getpid()}_{next(_numbers)}"
        (self.directory / f"{name}.py").write_text(textwrap.dedent(source))
        return name

    def call(self, *arguments: str, charset: str = "utf-8", **env: str) -> Any:
        """Run a command in this process, without a terminal."""
        path, directory = list(sys.path), Path.cwd()
        os.chdir(self.directory)
        try:
            return CliRunner(charset=charset).invoke(app, arguments, env=env, catch_exceptions=False)
        finally:
            os.chdir(directory)
            sys.path[:] = path

    def start(self, *arguments: str, program: Sequence[str] = COMMAND, **options: Any) -> "subprocess.Popen[str]":
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
        settings: dict[str, Any] = {"env": environment(), **pipes, **options}
        process = subprocess.Popen([*program, *arguments], cwd=self.directory, **settings)
        self._started.append(process)
        return process

    def close(self) -> None:
        """Close all processes, also after a failed test."""
        for process in self._started:
            with process:  # closes its pipes
                process.kill()

    @contextmanager
    def terminal(
        self, *arguments: str, program: Sequence[str] = COMMAND, term: str = "xterm", **options: Any
    ) -> "Iterator[Terminal]":
        """Start a command, or another program, in a session of its own, at the pseudo-terminal that controls it."""
        parent_end, child_end = os.openpty()
        streams: dict[str, Any] = {"stdin": child_end, "stdout": child_end, "stderr": child_end, **options}
        env = {**environment(), "TERM": term}
        # In a program of its own: `preexec_fn` is not safe in a process with threads.
        at_terminal = (sys.executable, "-S", "-c", _TAKE_TERMINAL, *program)
        process = self.start(*arguments, program=at_terminal, start_new_session=True, env=env, **streams)
        os.close(child_end)
        try:
            yield Terminal(parent_end, process)
        finally:
            os.close(parent_end)


class Terminal:
    """Pseudo-terminal: what a person sees and types."""

    def __init__(self, descriptor: int, process: "subprocess.Popen[str]") -> None:
        self.descriptor = descriptor
        self.process = process
        self.seen = ""
        self.raw = ""
        """Output with its escape sequences, which `seen` is without."""
        self._read_so_far = 0

    def until(self, text: str) -> str:
        """Wait for a new occurrence of the text, and return the output up to it."""
        deadline = time.monotonic() + PATIENCE
        while (position := self.seen.find(text, self._read_so_far)) < 0:
            assert self._more(deadline), f"{text!r} did not come, only {self.seen[self._read_so_far :]!r}"
        start, self._read_so_far = self._read_so_far, position + len(text)
        return self.seen[start : self._read_so_far]

    def type(self, line: str) -> None:
        os.write(self.descriptor, f"{line}\n".encode())

    def play(self, *script: str) -> None:
        """Wait for a text and type a line, in turn; the script may end with a text."""
        for text, line in zip_longest(script[::2], script[1::2]):
            self.until(text)
            if line is not None:
                self.type(line)

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self._more(deadline):
            pass
        return self.process.wait(PATIENCE)

    def _more(self, deadline: float) -> bool:
        readable, _, _ = select.select([self.descriptor], [], [], max(0.0, deadline - time.monotonic()))
        assert readable, f"nothing came any more after {self.seen!r}"
        try:
            chunk = os.read(self.descriptor, 65_536).decode(errors="replace")
        except OSError:  # on Linux this means that the other side is closed
            return False
        self.raw += chunk
        self.seen += _ESCAPES.sub("", chunk)
        return bool(chunk)


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PY_COLORS")}
    return {**inherited, "COLUMNS": "100", "LINES": "40", "NO_COLOR": "1", "TERM": "xterm"}


def stop(process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[int, str, str]:
    process.send_signal(number)
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors
