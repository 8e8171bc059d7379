"""Arguments that a person approved, for tools that check the approval themselves."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy

_approved: ContextVar[Mapping[str, object] | None] = ContextVar("callboard_approved", default=None)


def approved_arguments() -> Mapping[str, object] | None:
    """Return the arguments of the running call that a person approved, or `None` if nobody was asked.

    A tool that must never run without approval compares them with the arguments that it received: a middleware
    between the approval and the tool may have changed those.
    """
    # Copies here and in `agreed()`: neither the tool nor other middleware can change the approved arguments.
    return deepcopy(_approved.get())


@contextmanager
def agreed(args: Mapping[str, object]) -> Generator[None]:
    """Make the approved arguments available to the code within the block."""
    token = _approved.set(deepcopy(args))
    try:
        yield
    finally:
        _approved.reset(token)
