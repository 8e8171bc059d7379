"""Decision whether a failed request is repeated, and when. Decides, and never waits."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from callboard import Backoff
from callboard.extend import retry_after
from callboard_actors.http._errors import HttpError, UnreadableError, UrlRefusedError
from callboard_actors.http._page import Page
from callboard_actors.http._request import IDEMPOTENT, Request

_PASSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of failures that may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Retry policy for requests.

    Args:
        retries: largest number of repetitions.
        backoff: pauses. A server's Retry-After is a lower bound; if it exceeds the longest pause, the request is not
            repeated, and its response is returned.
        honours_keys: hosts that execute requests with the same Idempotency-Key once.
        chance: returns random numbers from 0 to 1.
    """

    retries: int
    backoff: Backoff
    honours_keys: Collection[str] = ()
    chance: Callable[[], float] = field(default=random.random)

    def pause(self, request: Request, attempt: int, end: Page | HttpError) -> float | None:
        """Return the seconds until a request is repeated, or `None` if its result is final; attempts count from 1."""
        if attempt > self.retries or not self._is_worth_another(request, end):
            return None
        asked = wait_asked_by(end) if isinstance(end, Page) else 0.0
        return None if asked > self.backoff.most else max(asked, self.backoff.delay(attempt, self.chance()))

    def _is_worth_another(self, request: Request, end: Page | HttpError) -> bool:
        if isinstance(end, (UrlRefusedError, UnreadableError)):
            return False
        if isinstance(end, HttpError) and not end.was_sent:
            return True
        if isinstance(end, Page) and end.status not in _PASSES:
            return False
        return request.method in IDEMPOTENT or (request.has_key and request.host in self.honours_keys)


def wait_asked_by(page: Page) -> float:
    """Return the seconds that a server asks clients to wait; 0 if it does not."""
    return retry_after(_AskedToWaitError(page.headers.get("retry-after")))


class _AskedToWaitError(Exception):
    """Adapter to the form of client errors that `retry_after` reads."""

    def __init__(self, value: str | None) -> None:
        self.retry_after = value
        super().__init__(value)
