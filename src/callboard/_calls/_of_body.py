"""Errors of a body that look like those of the engine that ran it: told apart, however they crossed."""

from collections.abc import Generator
from contextlib import contextmanager

from callboard.exceptions import CallError


class BodyRaisedError(Exception):
    """What a body has raised that an engine, or an actor, might have said of it; never seen by users."""

    def __init__(self, error: CallError) -> None:
        self.error = error
        super().__init__(error)


@contextmanager
def marked() -> Generator[None]:
    """Mark, where a body runs, what it raises: such as that a worker of a pool of its own was killed."""
    try:
        yield
    except CallError as error:
        raise BodyRaisedError(error) from error
