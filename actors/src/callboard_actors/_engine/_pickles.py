"""Pickling of calls and results; names by which workers find functions.

Names of the main module are found in whichever process reads a pickle. The name of a decorated function leads to the
decorator's result. The function is found in an attribute of the result: LangChain's `@tool` keeps it as `func` or
`coroutine`, other decorators as `fn` or `__wrapped__`.
"""

import io
import pickle
import re
from types import FunctionType
from typing import Any

from callboard_actors._engine._main_module import MAIN_NAMES, load_module, missing_name_text

_MAIN_NAME_PATTERN = re.compile(rb"_main__")
"""Pattern that finds the names of the main module, `__main__` and `__mp_main__`, in a pickle."""


class _Unpickler(pickle.Unpickler):
    """Unpickler that finds objects of the main module. Reading a pickle executes it, so the sender must be trusted."""

    def find_class(self, module: str, name: str, /) -> Any:
        return find_object(module, name) if module in MAIN_NAMES else super().find_class(module, name)


def dumps(value: object) -> bytes:
    """Pickle a value with the newest protocol; any exception may be raised by the value's own code."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def loads(data: bytes | memoryview) -> Any:
    """Unpickle data of a trusted sender."""
    # Most pickles: the C function is much faster than a subclass in Python.
    if _MAIN_NAME_PATTERN.search(data) is None:
        return pickle.loads(data)  # noqa: S301 - the caller trusts the sender
    return _Unpickler(io.BytesIO(data)).load()


# Names.

_ORIGINAL_ATTRIBUTES = ("func", "coroutine", "fn", "__wrapped__")
"""Attributes in which the result of a decorator keeps the original function."""
_MAX_DEPTH = 8
"""Largest number of nested decorators that are searched for a function."""


def attribute_path_to(fn: FunctionType) -> tuple[str, ...]:
    """Return the attribute names, such as `__wrapped__`, that lead from a decorated function to the original `fn`."""
    try:
        value = find_object(fn.__module__, fn.__qualname__)
    except (ImportError, AttributeError):
        return ()
    # Without a path, pickle raises its own error for the function.
    return _search_attribute_path(value, fn, path=()) or ()


def _search_attribute_path(value: object, fn: FunctionType, path: tuple[str, ...]) -> tuple[str, ...] | None:
    if value is fn:
        return path
    # Attributes may form a cycle, or be generated without end, as by a mock.
    if len(path) == _MAX_DEPTH:
        return None
    for name in _ORIGINAL_ATTRIBUTES:
        inner = getattr(value, name, None)
        if inner is not None and (attributes := _search_attribute_path(inner, fn, path=(*path, name))) is not None:
            return attributes

    return None


def find_by_attributes(module: str, qualname: str, attributes: tuple[str, ...]) -> Any:
    """Find an object by name, then follow the attribute names from it; called in workers when unpickling."""
    value = find_object(module, qualname)
    for name in attributes:
        value = getattr(value, name)
    return value


def find_object(module: str, qualname: str) -> Any:
    """Return the object with this qualified name in a module, or raise `ImportError` or `AttributeError`."""
    value: Any = load_module(module)
    try:
        for name in qualname.split("."):
            value = getattr(value, name)
    except AttributeError as error:
        raise AttributeError(missing_name_text(qualname) if module in MAIN_NAMES else str(error)) from error
    return value
