"""Errors that were collected in a list, to be raised later."""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def raise_first(errors: list[E]) -> None:
    """Raise the first error in a list, if there is one, and clear the list.

    The traceback of the error refers to the frames of its callers: what these still hold would form a reference cycle.
    """
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()
