"""Open file that the pool has sent with a call, as the function of the call finds it in its worker."""

from contextvars import ContextVar

_sent: ContextVar[int] = ContextVar("callboard_sent_file")


def set_sent_file(fd: int) -> None:
    """Keep the descriptor for the call that runs in this context."""
    _sent.set(fd)


def sent_file() -> int:
    """Return the descriptor that came with this call; the worker closes it after the call.

    Raises:
        LookupError: no file was sent with this call.
    """
    return _sent.get()
