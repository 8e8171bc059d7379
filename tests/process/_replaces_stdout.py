"""Module that replaces `sys.stdout`, as loggers and coloured terminals do."""

import sys
from typing import Any


class _Shouted:
    """Stream that has only the methods that `print` needs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.upper())

    def flush(self) -> None:
        self._stream.flush()


sys.stdout = _Shouted(sys.stdout)  # type: ignore[assignment]
