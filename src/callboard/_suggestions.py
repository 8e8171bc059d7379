"""Names that do not exist: what there is instead, and which one may have been meant."""

import difflib
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LISTED = 40
"""Names in one sentence; of more than that, the first ones."""
_NEARLY = 0.9
"""How much of a long name is right where one letter is wrong, or two have changed places."""


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not among those known.

    Args:
        kind: what it is a name of, such as "tool".
        name: what was written.
        known: what could have been.
    """
    names = sorted(known)
    if not names:
        return f"there is no {kind} {name!r}, and no other"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"there is no {kind} {name!r}, only {names[:_LISTED]}{more}{did_you_mean(name, names)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that does not exist; empty if no other is like it."""
    by_folded = {one.casefold(): one for one in known}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""


def misspelt_in(cls: type, known: Collection[str]) -> str:
    """The end of a sentence about a class that may have misspelt the name of a method; empty if it has not.

    Args:
        cls: its public names are looked at.
        known: names of which it may have any.
    """
    for name in dir(cls):
        if not name.startswith("_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEARLY)
            if near:
                return f"; it has {name!r}, did you mean {near[0]!r}?"
    return ""


def suggests_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function say which keyword may have been meant by one that it does not know, as Python 3.13 does."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            known = signature(function).parameters.keys() - {"self"}
            unknown = [name for name in kwargs if name not in known]
            if not unknown or "Did you mean" in str(error):
                raise
            raise TypeError(f"{error}{did_you_mean(unknown[0], known)}") from None

    return call
