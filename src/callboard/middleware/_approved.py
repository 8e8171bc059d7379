"""To what a person has agreed, for a tool that does nothing that nobody was asked about."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy

_approved: ContextVar[Mapping[str, object] | None] = ContextVar("callboard_approved", default=None)


def approved_arguments() -> Mapping[str, object] | None:
    """The arguments of the running call as a person saw them and agreed to them; `None` if nobody was asked.

    For a tool that must not run unasked, whatever middleware its node has: it compares them with those that it was
    given, which a middleware further inside may have changed.
    """
    return deepcopy(_approved.get())


@contextmanager
def agreed(args: Mapping[str, object]) -> Generator[None]:
    """Let what runs within know to which arguments a person has agreed."""
    token = _approved.set(deepcopy(args))
    try:
        yield
    finally:
        _approved.reset(token)
