"""Keyboard of a terminal: the lines that a person types while the event loop runs in another thread.

No function here waits for a key. So a run that ends does not wait for the person, as it would behind `input()`.
"""

import codecs
import os
import sys
import unicodedata
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_CHUNK = 4096
_DELETE_KEYS = "\x7f\x08"
_CLEAR, _DELETE_WORD, _ESCAPE = "\x15", "\x17", "\x1b"


class LineEditor:
    """Line that a person types, without a cursor: keys add to its end, or delete from its end."""

    def __init__(self) -> None:
        self.text = ""
        """Text of the unfinished line."""
        self._escape = ""
        """Beginning of the escape sequence of a key, such as an arrow; such keys have no effect."""

    def press(self, keys: str) -> list[str]:
        """Apply keys to the line, and return the lines that they finish."""
        lines: list[str] = []
        for key in keys:
            if self._escape or key == _ESCAPE:
                sequence = self._escape + key
                self._escape = sequence if _is_incomplete(sequence) else ""
            elif key in "\r\n":
                lines.append(self.text)
                self.text = ""
            else:
                self.text = _edit(self.text, key)
        return lines


def _edit(text: str, key: str) -> str:
    """Return the text after one key that does not finish the line."""
    if key in _DELETE_KEYS:
        return text[:-1]
    if key == _CLEAR:
        return ""
    if key == _DELETE_WORD:
        return text.rstrip()[: text.rstrip().rfind(" ") + 1]
    return text if unicodedata.category(key) == "Cc" else text + key


def _is_incomplete(sequence: str) -> bool:
    """Return whether an escape sequence needs further characters."""
    kind = sequence[1:2]
    if not kind:
        return True
    if kind == "[":
        return len(sequence) == 2 or not "@" <= sequence[-1] <= "~"
    return kind == "O" and len(sequence) == 2


class Keyboard:
    """Keys of a terminal in a mode without echo; the live view shows the unfinished line.

    Args:
        descriptor: file descriptor of the terminal.
        lines: lines for the run, to which finished lines are appended; commands of a page may stand between them.
    """

    # The main thread reads keys; the event loop's thread reads `text`, and takes lines out of `lines`.

    def __init__(self, descriptor: int, lines: deque[Any]) -> None:
        self.lines = lines
        self._descriptor = descriptor
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._editor = LineEditor()
        self._is_closed = False

    @property
    def text(self) -> str:
        """Text of the unfinished line."""
        return self._editor.text

    def poll(self) -> list[str]:
        """Read the keys that were pressed, without waiting, and return the lines that they finish."""
        import select

        lines: list[str] = []
        # A process in the background would be stopped if it read from its terminal.
        while not self._is_closed and is_in_foreground(self._descriptor):
            if not select.select([self._descriptor], [], [], 0)[0]:
                break
            try:
                keys = os.read(self._descriptor, _CHUNK)
            except OSError:  # the terminal has hung up
                keys = b""
            self._is_closed = not keys
            lines += self._editor.press(self._decoder.decode(keys))
        return lines


@contextmanager
def open_keyboard(lines: deque[Any], *, echo: bool) -> Generator[Keyboard | None]:
    """Read the keys of the terminal at stdin during the `with` block; yield `None` if this system cannot.

    With `echo`, the terminal shows and edits the unfinished line by itself, and only finished lines are read.
    """
    modes = terminal_modes()
    if modes is None or not is_in_foreground(sys.stdin.fileno()):
        yield None
        return
    try:
        if sys.platform != "win32" and not echo:
            import termios

            characters = [*modes[6]]
            characters[termios.VMIN], characters[termios.VTIME] = 1, 0
            flags = modes[3] & ~(termios.ICANON | termios.ECHO)  # Ctrl-C stays a signal
            # Not TCSAFLUSH: what was typed before the run began is a message, too.
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, [*modes[:3], flags, *modes[4:6], characters])
        yield Keyboard(sys.stdin.fileno(), lines)
    finally:
        restore_terminal(modes)


def terminal_modes() -> list[Any] | None:
    """Return the modes of the terminal at stdin, or `None` if there is none, or on Windows."""
    if sys.platform != "win32":
        import termios

        try:
            modes: list[Any] = termios.tcgetattr(sys.stdin.fileno())
            return modes
        except (OSError, ValueError, termios.error):  # a test replaces stdin with an object without a descriptor
            pass
    return None


def restore_terminal(modes: list[Any] | None) -> None:
    """Set the modes of the terminal at stdin again."""
    if sys.platform != "win32" and modes is not None and is_in_foreground(sys.stdin.fileno()):
        import termios

        # Not TCSADRAIN: a terminal whose output is stopped by Ctrl-S would hold up the end of the command.
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, modes)


def is_in_foreground(descriptor: int) -> bool:
    """Return whether this process may use its terminal; one in the background is stopped by the system if it does."""
    if sys.platform != "win32":
        try:
            return os.tcgetpgrp(descriptor) == os.getpgrp()
        except OSError:  # the terminal does not control this process, and sends it no signals
            pass
    return True
