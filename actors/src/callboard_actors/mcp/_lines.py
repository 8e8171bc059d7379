"""Bounds of received messages: lines of a bounded length, and JSON texts with a bounded number of values."""

from dataclasses import dataclass

import anyio.lowlevel

from callboard_actors._util._value_counter import ValueCounter


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


async def check_values(text: bytes, max_values: int) -> None:
    """Raise `TooManyValuesError` if a JSON text has more than `max_values` values; other tasks run meanwhile."""
    if len(text) <= 2 * max_values:
        return
    counter = ValueCounter()
    for begin in range(0, len(text), _PIECE):
        counter.add(text[begin : begin + _PIECE])
        if counter.count > max_values:
            raise TooManyValuesError(max_values)
        await anyio.lowlevel.checkpoint()
