"""Pickles in which names of the main module are found in whichever process reads them."""

import io
import pickle
import re
from typing import Any

from callboard_actors._engine._main_module import NAMES
from callboard_actors._engine._names import named

_MARK = re.compile(rb"_main__")
"""Common part of both names of the main module."""


class _Unpickler(pickle.Unpickler):
    """Unpickler that finds names of the main module. Reading a pickle executes it, so the sender must be trusted."""

    def find_class(self, module: str, name: str, /) -> Any:
        return named(module, name) if module in NAMES else super().find_class(module, name)


def dumps(value: object) -> bytes:
    """Pickle a value with the newest protocol; any exception may be raised by the value's own code."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Unpickle data of a trusted sender."""
    # Most pickles: the C function is much faster than a subclass in Python.
    if _MARK.search(data) is None:
        return pickle.loads(data)  # noqa: S301 - the caller trusts the sender
    return _Unpickler(io.BytesIO(data)).load()
