"""Error texts about unknown names, with the known names and the most similar one of them."""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_LISTED = 40
"""Maximum number of names listed in one sentence."""
_NEARLY = 0.9
"""Minimum similarity of two method names. In a long name, it allows one wrong letter or two swapped letters."""


def no_such(kind: str, name: str, known_names: Iterable[str]) -> str:
    """Return a clause for an error about an unknown name; the clause lists known names and suggests a similar one."""
    names = sorted(known_names)
    if not names:
        return f"there is no {kind} {name!r}, and no other"
    omission = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"there is no {kind} {name!r}, only {names[:_LISTED]}{omission}{did_you_mean(name, names)}"


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return a clause for the end of an error that suggests the most similar known name; empty if none is similar."""
    by_folded = {known_name.casefold(): known_name for known_name in known_names}
    near = difflib.get_close_matches(name.casefold(), by_folded, n=1)
    return f"; did you mean {by_folded[near[0]]!r}?" if near else ""


def misspelt_in(cls: type, known_names: Collection[str]) -> str:
    """Return a "did you mean" clause if a public name of a class is almost a known name; empty otherwise."""
    for name in dir(cls):
        if not name.startswith("_") and name not in known_names:
            near = difflib.get_close_matches(name, known_names, n=1, cutoff=_NEARLY)
            if near:
                return f"; it has {name!r}, did you mean {near[0]!r}?"
    return ""


def suggests_keywords(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function, so that its TypeError for an unknown keyword suggests a similar keyword, as in Python 3.13.

    Its TypeError for too many positional arguments lists the parameters that are given by name.
    """
    return with_remedies({})(function)


def with_remedies(remedies: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator like `suggests_keywords`; `remedies` has the advice for keywords of other libraries."""

    def wrap(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                parameters = signature(function).parameters.keys() - {"self"}
                unknown = [name for name in kwargs if name not in parameters]
                if not unknown and (options := _options_after(function, args)):
                    raise TypeError(f"{error}; give options by name: {options}") from None
                if not unknown:
                    raise
                remedy = remedies.get(unknown[0])
                if remedy is None and "Did you mean" in str(error):
                    raise
                advice = did_you_mean(unknown[0], parameters) if remedy is None else f"; {remedy}"
                raise TypeError(f"{error}{advice}") from None

        return call

    return wrap


def _options_after(function: Callable[..., Any], args: Collection[object]) -> str:
    """Return the keyword-only parameters of a function that got too many positional arguments; empty otherwise."""
    parameters = signature(function).parameters.values()
    kinds = [parameter.kind for parameter in parameters]
    positional = kinds.count(Parameter.POSITIONAL_ONLY) + kinds.count(Parameter.POSITIONAL_OR_KEYWORD)
    if Parameter.VAR_POSITIONAL in kinds or len(args) <= positional:
        return ""
    return ", ".join(f"{parameter.name}=" for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY)


C = TypeVar("C", bound=type)


def suggests_options(**remedies: str) -> Callable[[C], C]:
    """Return a decorator of a class whose constructor suggests keywords; see `with_remedies`."""

    def wrap(cls: C) -> C:
        initializer: Any = vars(cls)["__init__"]
        setattr(cls, "__init__", with_remedies(remedies)(initializer))  # noqa: B010 (mypy refuses the assignment)
        return cls

    return wrap
