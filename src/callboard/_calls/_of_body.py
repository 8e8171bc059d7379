"""Marking of errors that a body raised, to distinguish them from errors of the engine that ran the body."""

from collections.abc import Generator
from contextlib import contextmanager

from callboard.exceptions import CallError


class BodyRaisedError(Exception):
    """Wrapper of a `CallError` that a body raised itself; removed before users see the error."""

    def __init__(self, error: CallError) -> None:
        self.error = error
        super().__init__(error)


@contextmanager
def marked() -> Generator[None]:
    """Wrap a `CallError` that the body raises, for use in the process that runs the body."""
    # For example, a body that uses an engine of its own may raise that engine's `EngineError`.
    try:
        yield
    except CallError as error:
        raise BodyRaisedError(error) from error
