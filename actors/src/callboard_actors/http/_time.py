"""How long a request may take: so many seconds, and where it is made by a tool, no more than its call has left."""

import math
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Self

import anyio

from callboard import progress, remaining

_LEAST = 0.1
"""Seconds that a request has of a call which has none left."""
_here: ContextVar["Allowance | None"] = ContextVar("callboard_http_allowance", default=None)


class Allowance:
    """The time of one request, with its redirects, retries and waits.

    The idle timeout of a call is put off by each part of a body, and then so is this.

    Args:
        seconds: at most.
        share: of the time that the call has left; the rest is for its answer. 0 if its time is none of ours.
    """

    def __init__(self, seconds: float, *, share: float = 0.0) -> None:
        self._begin = anyio.current_time()
        self._until = self._begin + seconds
        left = remaining() if share else math.inf
        self._reserve = None if left == math.inf else (1 - share) * left
        self._scope = anyio.CancelScope(deadline=self._end())
        self._token: Token[Allowance | None]

    def __enter__(self) -> Self:
        """Begin a block that ends when the time is over; then nothing is raised."""
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
        """How long it was until its end, as far as that is known now."""
        return self._scope.deadline - self._begin

    def renew(self) -> None:
        """Look again how much there is."""
        if self._reserve is not None:
            self._scope.deadline = math.inf  # or what is left would be what is left of this
            self._scope.deadline = self._end()

    def _end(self) -> float:
        if self._reserve is None:
            return self._until
        end = anyio.current_time() + remaining() - self._reserve
        return min(self._until, max(self._begin + _LEAST, end))


def came(done: int, total: int | None) -> None:
    """Say that a part of a body came, and how much there is now.

    Args:
        done: bytes, as they came.
        total: of them, if that is known.
    """
    progress("bytes read", done=done, total=total)
    if (allowance := _here.get()) is not None:
        allowance.renew()
