"""Run of the `callboard` command at a terminal in memory, on a virtual clock, and pictures of its screen as SVG."""

import asyncio
import io
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

import pytest

from callboard._cli._app import app
from callboard.telemetry import RecordingWriter
from callboard.testing import VirtualClockLoop
from tests.test_docs import blocks

Theme = Literal["light", "dark"]

COLUMNS, LINES = 90, 40

Part = tuple[str, str]
"""Codes of the style, such as "1;2", and a text with this style."""


class _Clocks(asyncio.DefaultEventLoopPolicy):
    """Policy that gives every event loop a virtual clock, and remembers the latest loop."""

    latest: VirtualClockLoop | None = None

    def new_event_loop(self) -> VirtualClockLoop:
        self.latest = VirtualClockLoop()
        return self.latest

    def now(self) -> float:
        return 0.0 if self.latest is None else self.latest.time()


class _Output(io.StringIO):
    """Standard output that claims to be a terminal, and stores the virtual time of each text."""

    encoding = "utf-8"

    def __init__(self, clocks: _Clocks) -> None:
        super().__init__()
        self.texts: list[tuple[float, str]] = []
        self._clocks = clocks

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.texts.append((self._clocks.now(), text))
        return len(text)


@dataclass(frozen=True, slots=True)
class Watched:
    """Output of a command, with the time of each text in seconds."""

    command: str
    texts: Sequence[tuple[float, str]]

    def screen(self, until: float) -> list[list[Part]]:
        """Return the lines on the screen at a time, below the line with the command."""
        return screen_of(f"$ {self.command}\n", *(text for time, text in self.texts if time <= until))


@contextmanager
def _virtual_clocks() -> Iterator[_Clocks]:
    """Give every event loop of the block a virtual clock."""
    clocks = _Clocks()
    before = asyncio.get_event_loop_policy()
    asyncio.set_event_loop_policy(clocks)
    try:
        yield clocks
    finally:
        asyncio.set_event_loop_policy(before)


def _writer_of(recording: Path, clocks: _Clocks) -> RecordingWriter:
    # Without redaction, which works in a thread: a virtual clock would run ahead of it.
    return RecordingWriter(recording, capture=True, redact=False, clock=clocks.now)


def record_block(page: Path, part: str, recording: Path) -> None:
    """Run the Python code of a page up to the block that contains a text, on a virtual clock, and record this block."""
    names: dict[str, object] = {}
    with _virtual_clocks() as clocks:
        for code in (block.code for block in blocks(page) if block.info == "python"):
            if part in code:
                clocks.latest = None  # the loop of the block starts at 0, and those before it may not have
                with _writer_of(recording, clocks):
                    exec(code, names)
                return
            exec(code, names)
    raise LookupError(f"no block of {page} contains {part!r}")


def watch(*words: str, recording: Path | None = None, **env: str) -> Watched:
    """Run the command in this process, at a terminal and on a virtual clock.

    Equal runs give equal texts at equal times: on a virtual clock, the speed of this machine is not visible.

    Args:
        words: arguments of the command.
        recording: file for the recording; `None` for none.
        env: further variables of the environment.
    """
    environment = {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color", **env}
    with pytest.MonkeyPatch.context() as patch, _virtual_clocks() as clocks:
        output = _Output(clocks)
        for name in ("NO_COLOR", "FORCE_COLOR", "CALLBOARD_DB", "CALLBOARD_RECORDS"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdout", output)
        patch.setattr(sys, "stdin", io.StringIO())
        patch.setattr(sys, "path", [*sys.path])
        patch.chdir(Path(__file__).parent)
        with _writer_of(recording, clocks) if recording else nullcontext():
            app(words, standalone_mode=False)
    return Watched(shlex.join(("callboard", *words)), output.texts)


# The screen: only the escape sequences that Rich writes for a live view.

_TOKEN = re.compile(r"\x1b\[(?P<arguments>[0-9;?]*)(?P<command>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n]+)")


def screen_of(*texts: str) -> list[list[Part]]:
    """Return the lines on the screen of a terminal after these texts."""
    screen = _Screen()
    for text in texts:
        screen.show(text)
    return screen.lines


class _Screen:
    """Lines of a terminal without scrolling."""

    def __init__(self) -> None:
        self.lines: list[list[Part]] = [[]]
        self._row = 0
        self._style = ""

    def show(self, text: str) -> None:
        """Write a text at the cursor; the cursor is at the end or at the start of its line."""
        for token in _TOKEN.finditer(text):
            if token["text"]:
                self.lines[self._row].append((self._style, token["text"]))
            elif token["control"] == "\n":
                self._row += 1
                if self._row == len(self.lines):
                    self.lines.append([])
            elif token["command"]:
                self._obey(token["command"], token["arguments"])

    def _obey(self, command: str, arguments: str) -> None:
        if command == "m":
            self._style = "" if arguments in ("", "0") else arguments
        elif command == "A":
            self._row -= int(arguments or 1)
        elif command == "K":
            self.lines[self._row] = []
        elif (command, arguments) not in (("h", "?25"), ("l", "?25")):  # they show and hide the cursor
            raise ValueError(f"escape sequence {command!r} with {arguments!r} is not known here")


# SVG.

_COLOURS = {
    "light": {
        "back": "#ffffff",
        "line": "#d0d7de",
        "text": "#1b2129",
        "dim": "#5b6570",
        "red": "#b8203a",
        "green": "#177245",
        "yellow": "#9a6700",
    },
    "dark": {
        "back": "#14171c",
        "line": "#3a424d",
        "text": "#e4e8ed",
        "dim": "#9da7b3",
        "red": "#ff7285",
        "green": "#4cc38a",
        "yellow": "#e3b341",
    },
}
_CLASSES = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "36": "b"}
"""Class of each code of a style: bold, dim, red, green and yellow; titles, which are cyan on a terminal, are bold."""
_SIZE, _CELL, _LINE, _MARGIN = 13, 7.8, 19, 14
"""Font size, width of a cell, height of a line, and margin, in pixels."""
_WORDS = re.compile(r"\S+(?: \S+)*")
"""Words with single spaces between them. Each group has its own position, so that columns stay straight in any font."""


def svg(lines: Sequence[Sequence[Part]], theme: Theme, title: str) -> str:
    """Return a picture of the lines of a screen."""
    screen_lines = [*lines]
    while screen_lines and not any(text.strip() for _, text in screen_lines[-1]):
        screen_lines.pop()
    columns = max(COLUMNS, *(len("".join(text for _, text in line).rstrip()) for line in screen_lines))
    width, height = columns * _CELL + 2 * _MARGIN, len(screen_lines) * _LINE + 2 * _MARGIN
    colour = _COLOURS[theme]
    css = (
        f"text{{font:{_SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"fill:{colour['text']};white-space:pre}}.b{{font-weight:bold}}.d{{fill:{colour['dim']}}}.r{{fill:{colour['red']}}}"
        f".g{{fill:{colour['green']}}}.y{{fill:{colour['yellow']}}}"
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img"><title>{escape(title)}</title><style>{css}</style>'
    )
    back = (
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="8" fill="{colour["back"]}" '
        f'stroke="{colour["line"]}"/>'
    )
    parts = [head, back, *(_line(line, row) for row, line in enumerate(screen_lines)), "</svg>"]
    return "\n".join(filter(None, parts)) + "\n"


def _line(line: Sequence[Part], row: int) -> str:
    markup, column = "", 0
    for style, text in _join_styles(line):
        classes = " ".join(_CLASSES[code] for code in style.split(";") if code)
        for match in _WORDS.finditer(text):
            x, y = _MARGIN + (column + match.start()) * _CELL, _MARGIN + (row + 0.75) * _LINE
            markup += f'<text x="{x:g}" y="{y:g}" textLength="{len(match[0]) * _CELL:g}"'
            markup += (f' class="{classes}">' if classes else ">") + escape(match[0], quote=False) + "</text>"
        column += len(text)
    return markup


def _join_styles(line: Sequence[Part]) -> list[Part]:
    """Join neighbours with the same style."""
    parts: list[Part] = []
    for style, text in line:
        if parts and parts[-1][0] == style:
            parts[-1] = (style, parts[-1][1] + text)
        else:
            parts.append((style, text))
    return parts
