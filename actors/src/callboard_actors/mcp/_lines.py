"""Lines of a byte stream, each of a bounded length: the messages of MCP over stdin and stdout."""


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
        *ends, rest = chunk.split(b"\n")
        lines: list[bytes] = []
        for end in ends:
            lines.append(b"".join([*self._parts, end]))
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._max_line or any(len(line) > self._max_line for line in lines):
            raise LineTooLongError
        return lines
