"""Commands of the page of `callboard run --web`: a message to the run, and the cancel of a call.

The server of the page sends each command to the process of the run as a line of JSON, and gets the result as another.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple, TextIO

CommandKind = Literal["say", "cancel"]

FIELDS: dict[str, CommandKind] = {"text": "say", "id": "cancel"}
"""Kind of a command by the only field of its JSON object."""

MAX_BODY = 20_000
"""Largest size of a command, in bytes."""


class CommandResult(NamedTuple):
    """Result of a command: whether it was performed, and a text for the person."""

    is_done: bool
    text: str


def parse_command(body: bytes, kind: CommandKind) -> str | None:
    """Return the text of a command, from a JSON object with one field; `None` for any other body."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or [FIELDS.get(name) for name in content] != [kind]:
        return None
    (text,) = content.values()
    try:
        return text if isinstance(text, str) and text.strip() and text.encode() else None
    except UnicodeEncodeError:  # a lone surrogate, which no store takes
        return None


# The process of the server.

_PATIENCE = 5.0
"""Seconds for which a request waits for the result of its command."""
_UNKNOWN = CommandResult(is_done=False, text="The run has not answered yet. Its terminal shows what becomes of it.")


class CommandSender:
    """Sender of commands to the process of the run; each request has a thread.

    Args:
        output: pipe to the process of the run.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._is_closed = False
        self._results: dict[int, SimpleQueue[CommandResult]] = {}
        """Queue for the result of each command for which a request waits, by the command's number."""

    def perform(self, kind: CommandKind, text: str) -> CommandResult:
        """Send a command, and wait for its result."""
        result: SimpleQueue[CommandResult] = SimpleQueue()
        with self._lock:
            if self._is_closed:
                return _UNKNOWN
            number = next(self._numbers)
            self._results[number] = result
            print(json.dumps([number, kind, text]), file=self._output, flush=True)
        try:
            return result.get(timeout=_PATIENCE)
        except Empty:
            return _UNKNOWN
        finally:
            self._results.pop(number, None)

    def receive(self, line: str) -> None:
        """Pass the result in a line to the request that waits for it."""
        number, is_done, text = json.loads(line)
        if (result := self._results.get(number)) is not None:
            result.put(CommandResult(is_done, text))

    def close(self) -> None:
        """Let no request wait any more: the process of the run has ended."""
        with self._lock:
            self._is_closed = True
            for result in self._results.values():
                result.put(_UNKNOWN)


# The process of the run.


@dataclass(frozen=True, slots=True)
class PageCommand:
    """Command of a person at the page.

    Args:
        text: the message, or the id of the call.
        report: function that sends the result to the page.
    """

    kind: CommandKind
    text: str
    report: Callable[[bool, str], object]


class CommandInbox:
    """Commands from the page, for the run that is going on.

    Args:
        send: function that sends a line to the server of the page.
    """

    def __init__(self, send: Callable[[str], object]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._lines: deque[Any] | None = None
        """Lines of the run that is going on; `None` between two runs."""

    def receive(self, lines: Iterable[str]) -> None:
        """Pass each command to the run, until the server of the page ends."""
        for line in lines:
            number, kind, text = json.loads(line)
            command = PageCommand(kind, text, partial(self._report, number))
            if not self._deliver(command):
                command.report(False, "No run that takes messages is going on.")

    @contextmanager
    def open(self, lines: deque[Any]) -> Generator[None]:
        """Append commands to the lines of a run during the `with` block."""
        with self._lock:
            self._lines = lines
        try:
            yield
        finally:
            with self._lock:
                self._lines = None
            for command in lines:
                if isinstance(command, PageCommand):
                    command.report(False, "The run has ended.")

    def _deliver(self, command: PageCommand) -> bool:
        """Append a command to the lines of the run; return `False` if no run is going on."""
        with self._lock:
            if self._lines is not None:
                self._lines.append(command)
            return self._lines is not None

    def _report(self, number: int, is_done: bool, text: str) -> None:
        self._send(json.dumps([number, is_done, text]))
