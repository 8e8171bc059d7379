"""Functions by the names under which a worker finds them, decorated ones too.

A function that is not what its own name leads to, because a decorator has put something in its place, is found
behind that: LangChain's `@tool` keeps it as `func` or `coroutine`, others as `fn` or `__wrapped__`.
"""

from types import FunctionType
from typing import Any

from callboard_actors.process._main_module import NAMES, missing, module_named

_BEHIND = ("func", "coroutine", "fn", "__wrapped__")
_DEEPEST = 8
"""Decorators on top of each other that are looked behind."""


def way_to(fn: FunctionType) -> tuple[str, ...]:
    """The attributes that lead to it from what its name leads to; none if that is it, or if there is no way."""
    try:
        found = named(fn.__module__, fn.__qualname__)
    except (ImportError, AttributeError):
        return ()
    return _way(found, fn, ()) or ()


def _way(found: object, fn: FunctionType, gone: tuple[str, ...]) -> tuple[str, ...] | None:
    if found is fn:
        return gone
    if len(gone) == _DEEPEST:
        return None
    for name in _BEHIND:
        inner = getattr(found, name, None)
        if inner is not None and (way := _way(inner, fn, (*gone, name))) is not None:
            return way
    return None


def found_behind(module: str, qualname: str, way: tuple[str, ...]) -> Any:
    """Find, in a worker, what a name leads to, by the attributes behind it."""
    found = named(module, qualname)
    for name in way:
        found = getattr(found, name)
    return found


def named(module: str, qualname: str) -> Any:
    """Find what has this name in a module.

    Raises:
        ImportError: there is no such module.
        AttributeError: there is nothing of that name in it.
    """
    found: Any = module_named(module)
    try:
        for name in qualname.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        raise AttributeError(missing(qualname) if module in NAMES else str(error)) from error
    return found
