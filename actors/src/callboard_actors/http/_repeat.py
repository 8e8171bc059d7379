"""Whether a request that has failed may be made again, and when. Decides, and never waits."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from callboard import Backoff
from callboard.web import retry_after
from callboard_actors.http._errors import HttpError, UnreadableError, UrlRefusedError
from callboard_actors.http._page import Page
from callboard_actors.http._request import IDEMPOTENT, Request

_PASSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of what may be well in a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often a request is made again, and after which pause.

    Args:
        retries: how often.
        backoff: how long the pauses are. What a server says in Retry-After is a lower bound, and where it is longer
            than the longest pause, there is none: the answer is handed on.
        honours_keys: hosts that do a request with an Idempotency-Key once, however often it comes.
        chance: gives numbers from 0 to 1.
    """

    retries: int
    backoff: Backoff
    honours_keys: Collection[str] = ()
    chance: Callable[[], float] = field(default=random.random)

    def pause(self, request: Request, attempt: int, end: Page | HttpError) -> float | None:
        """Seconds until a request is made again, or `None` if its end stands.

        Args:
            request: what was asked.
            attempt: which one it was, from 1.
            end: what came of it.
        """
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
    """Seconds that a server asks to wait before it is asked again; 0 if it does not."""
    return retry_after(_AskedToWaitError(page.headers.get("retry-after")))


class _AskedToWaitError(Exception):
    """What `retry_after` reads: errors of clients have it so."""

    def __init__(self, value: str | None) -> None:
        self.retry_after = value
        super().__init__(value)
