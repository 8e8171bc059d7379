"""Bounds of received messages: lines of a bounded length, and JSON texts with a bounded number of values."""

from dataclasses import dataclass

import anyio.lowlevel


@dataclass(frozen=True, slots=True)
class MessageSizes:
    """Maximum sizes of one message."""

    max_message: int
    """Maximum number of bytes."""
    max_values: int
    """Maximum number of values: texts, numbers, lists, objects."""


class LineTooLongError(Exception):
    """Raised for a line that is longer than the limit, even if its end was not received yet."""


class LineSplitter:
    """Splitter of a byte stream into lines.

    Its work grows with the number of bytes, even if they arrive in small pieces of one long line.

    Args:
        max_line: maximum length of a line, in bytes.
    """

    def __init__(self, max_line: int) -> None:
        self._max_line = max_line
        self._parts: list[bytes] = []
        """Received parts of the line without an end."""
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add received bytes; return the complete lines without their ends. Raise LineTooLongError for a long line."""
        *ends, beginning = chunk.split(b"\n")
        lines: list[bytes] = []
        for end in ends:
            lines.append(b"".join([*self._parts, end]))
            self._parts, self._size = [], 0
        self._parts.append(beginning)
        self._size += len(beginning)
        if self._size > self._max_line or any(len(line) > self._max_line for line in lines):
            raise LineTooLongError
        return lines


_PIECE = 64 * 1024
"""Number of bytes that are looked at before other tasks run."""


class TooManyValuesError(Exception):
    """Raised for a JSON text with more values than the limit."""

    def __init__(self, max_values: int) -> None:
        super().__init__(f"it sent a message of more than {max_values} values; McpBounds(max_values=...) allows more")


class ValueCounter:
    """Counter of the values in a JSON text that arrives in pieces.

    A parser holds the event loop for about a microsecond a value, and a value may have as few as two bytes.

    Args:
        max_values: maximum number of values: texts, numbers, lists, objects. Keys do not count.
    """

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self.reset()

    def reset(self) -> None:
        """Begin another text."""
        self._count = 1
        self.end_line()

    def end_line(self) -> None:
        """Begin another line of the same text. No string of JSON goes over the end of a line."""
        self._is_in_string = False
        self._escape = b""
        """Backslash at the end of the last piece, which belongs to the next character."""

    def add(self, piece: bytes) -> None:
        """Count the values of another piece; raise `TooManyValuesError` if the text has too many."""
        plain = (self._escape + piece).replace(b"\\\\", b"").replace(b'\\"', b"")
        self._escape = b"\\" if plain.endswith(b"\\") else b""
        parts = plain.removesuffix(b"\\").split(b'"')
        outside = b"".join(parts[self._is_in_string :: 2])
        self._is_in_string ^= len(parts) % 2 == 0
        self._count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        if self._count > self._max_values:
            raise TooManyValuesError(self._max_values)


async def check_values(text: bytes, max_values: int) -> None:
    """Raise `TooManyValuesError` if a JSON text has more than `max_values` values; other tasks run meanwhile."""
    if len(text) <= 2 * max_values:
        return
    counter = ValueCounter(max_values)
    for begin in range(0, len(text), _PIECE):
        counter.add(text[begin : begin + _PIECE])
        await anyio.lowlevel.checkpoint()
