"""Request, the part of it that follows a redirect, and the decision whether it is repeated."""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast
from urllib.parse import urljoin, urlsplit

from callboard import Backoff
from callboard.extend import retry_after
from callboard_actors.http._errors import HttpError, UnreadableError, UrlRefusedError
from callboard_actors.http._page import Page

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE = frozenset({"GET", "HEAD"})
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Idempotent methods by RFC 9110, section 9.2.2."""
KEY_HEADER = "idempotency-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to a server, with method in capitals, a checked URL, and headers in lower case for its origin only."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None

    @property
    def host(self) -> str:
        """Host of the URL."""
        return urlsplit(self.url).hostname or ""

    @property
    def has_key(self) -> bool:
        """True if the request has an Idempotency-Key."""
        return KEY_HEADER in self.headers

    @property
    def is_safe(self) -> bool:
        """True if the request only reads."""
        return self.method in _SAFE and self.content is None

    def at(self, url: str, status: int) -> "Request":
        """Return the request that follows a redirect; headers are dropped if it leads to another origin."""
        headers = dict(self.headers) if origin_of(url) == origin_of(self.url) else {}
        if status == 303 or (status in (301, 302) and self.method == "POST"):
            kept = {name: value for name, value in headers.items() if not name.startswith("content-")}
            kept.pop(KEY_HEADER, None)
            method = "HEAD" if self.method == "HEAD" else "GET"
            return Request(method=method, url=url, headers=kept)
        return replace(self, url=url, headers=headers)


def redirect_of(url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Return the target of a redirect, which may be an invalid URL, or `None` if the response is no redirect."""
    location = headers.get("location")
    if status not in _REDIRECTS or not location:
        return None
    try:
        return urljoin(url, location.strip())
    except ValueError:
        return location


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL (RFC 6454)."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]


# Repetition of failed requests.

_PASSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses of failures that may pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Retry policy for requests. A server's Retry-After is a lower bound of a pause; a longer one means no retry."""

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
    answer = SimpleNamespace(retry_after=page.headers.get("retry-after"))  # in the form of a client's error
    return retry_after(cast("BaseException", answer))
