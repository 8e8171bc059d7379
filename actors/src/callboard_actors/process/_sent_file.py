"""Open file that the pool has sent with a call, for the function of this call."""

from contextvars import ContextVar

_sent: ContextVar[int] = ContextVar("callboard_sent_file")


def set_sent_file(fd: int) -> None:
    """Store the descriptor in the current context, which is the call's."""
    _sent.set(fd)


def sent_file() -> int:
    """Return the descriptor of the file sent with this call; the worker closes it after the call.

    Raises:
        LookupError: no file was sent with this call.
    """
    return _sent.get()
