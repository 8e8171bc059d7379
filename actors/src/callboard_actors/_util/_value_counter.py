"""Number of values in a JSON text, which a parser would allocate all at once."""


class ValueCounter:
    """Counter of the values in a JSON text that arrives in pieces: texts, numbers, lists, objects. Keys do not count.

    A parser holds the interpreter for about a microsecond a value, and a value may have as few as two bytes.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Set the count to that of an empty text: the next piece begins another text."""
        self.count = 1
        """Number of values so far. It is exact, or too high by one for each empty list or object."""
        self.end_line()

    def end_line(self) -> None:
        """Close an open string, and keep the count: no string of JSON goes over the end of a line."""
        self._is_in_string = False
        self._open_escape = b""
        """Backslash at the end of the last piece, which belongs to the next character."""

    def add(self, piece: bytes) -> None:
        """Count the values of another piece."""
        unescaped = (self._open_escape + piece).replace(b"\\\\", b"").replace(b'\\"', b"")
        self._open_escape = b"\\" if unescaped.endswith(b"\\") else b""
        # Every second part between two quotes lies outside of strings: the first or the second one, and so on.
        parts = unescaped.removesuffix(b"\\").split(b'"')
        outside_strings = b"".join(parts[1 if self._is_in_string else 0 :: 2])
        self._is_in_string ^= len(parts) % 2 == 0  # an odd number of quotes
        self.count += outside_strings.count(b",") + outside_strings.count(b"[") + outside_strings.count(b"{")
