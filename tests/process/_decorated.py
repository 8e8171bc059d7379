"""Functions behind decorators, as users write them."""

import functools
from collections.abc import Callable
from typing import Any


class Wrapped:
    """Object that a framework puts in the place of a function."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn


def log_calls(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        return fn(*args)

    return inner


@Wrapped
def double(number: int) -> int:
    return 2 * number


@Wrapped
@log_calls
def triple(number: int) -> int:
    return 3 * number


class Counter:
    """Stateful object that can be pickled."""

    def __init__(self, start: int) -> None:
        self.start = start

    def plus(self, number: int) -> int:
        return self.start + number
