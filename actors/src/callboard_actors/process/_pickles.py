"""Pickles: what is of the main module there, is of the main module here where it is read."""

import io
import pickle
import re
from typing import Any

from callboard_actors.process._main_module import NAMES
from callboard_actors.process._names import named

_MARK = re.compile(rb"_main__")
"""What the names of the main module have in common."""


class _Unpickler(pickle.Unpickler):
    """Finds what the main module of the pool's program has where the worker has loaded that. Runs what it reads."""

    def find_class(self, module: str, name: str, /) -> Any:
        return named(module, name) if module in NAMES else super().find_class(module, name)


def dumps(value: object) -> bytes:
    """Pickle a value, in the newest protocol.

    Raises:
        Exception: if the value cannot be.
    """
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Read a pickle of somebody who is trusted."""
    if _MARK.search(data) is None:
        return pickle.loads(data)  # noqa: S301 - the caller trusts whoever sent it
    return _Unpickler(io.BytesIO(data)).load()
