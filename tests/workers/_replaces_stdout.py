"""A module that puts something of its own where output goes, as loggers and terminals in colour do."""

import sys
from typing import Any


class _Shouted:
    """Has what `print` needs of a stream, and no more."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.upper())

    def flush(self) -> None:
        self._stream.flush()


sys.stdout = _Shouted(sys.stdout)  # type: ignore[assignment]
