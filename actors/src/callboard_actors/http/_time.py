"""Time limit of a request: its timeout, and a share of the time that the running call has left."""

import math
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

import anyio

from callboard import progress, remaining

_LEAST = 0.1
"""Seconds that a request gets when its call has no time left."""
_here: ContextVar["Allowance | None"] = ContextVar("callboard_http_allowance", default=None)


class Allowance:
    """Time limit of one request, with its redirects, retries and waits.

    Each part of a body postpones the call's idle timeout, and with it this limit.

    Args:
        seconds: largest duration.
        share: of the time that the call has left; the rest is for its answer. 0 ignores the call's time.
    """

    def __init__(self, seconds: float, *, share: float = 0.0) -> None:
        self._begin = anyio.current_time()
        self._until = self._begin + seconds
        left = remaining() if share else math.inf
        self._reserve = None if left == math.inf else (1 - share) * left
        self._scope = anyio.CancelScope(deadline=self._end())
        self._token: Token[Allowance | None]

    def __enter__(self) -> Self:
        """Enter a block that is cancelled when the time is over; no error is raised then."""
        self._token = _here.set(self)
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        _here.reset(self._token)
        return bool(self._scope.__exit__(kind, error, traceback))

    @property
    def seconds(self) -> float:
        """Duration of the limit, as far as known now."""
        return self._scope.deadline - self._begin

    def renew(self) -> None:
        """Compute the limit again from the call's remaining time."""
        if self._reserve is not None:
            self._scope.deadline = math.inf  # otherwise `remaining()` would see this scope's own deadline
            self._scope.deadline = self._end()

    def _end(self) -> float:
        if self._reserve is None:
            return self._until
        end = anyio.current_time() + remaining() - self._reserve
        return min(self._until, max(self._begin + _LEAST, end))


def came(done: int, total: int | None) -> None:
    """Report progress of a body in bytes before decompression, and renew the limit of the request."""
    progress("bytes read", done=done, total=total)
    if (allowance := _here.get()) is not None:
        allowance.renew()
