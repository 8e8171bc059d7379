"""HTTP requests: data and errors of a request, redirects, and the retry policy."""

import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast
from urllib.parse import urljoin, urlsplit

from callboard import Backoff, CallboardError
from callboard.extend import retry_after
from callboard_actors._util._excerpts import clean
from callboard_actors.http._page import Page

# Errors.

_LONGEST_URL = 300


class HttpError(CallboardError):
    """Raised for a request that got no response, with the reason and with advice for a model.

    `reason` is a clause that continues "GET ... has no answer: "; `advice` is a complete sentence.

    `url` is that of the last request, after redirects. `was_sent` tells whether the server may have received it.
    """

    _what = "has no answer"

    def __init__(self, method: str, url: str, reason: str, advice: str, *, was_sent: bool) -> None:
        self.method = method
        self.url = url
        self.reason = reason
        self.advice = advice
        self.was_sent = was_sent
        super().__init__(f"{method} {shown(url)} {self._what}: {reason}. {advice}")


class UrlRefusedError(HttpError):
    """Raised for a request that was not sent, because its URL or address is not allowed."""

    _what = "was not sent"

    def __init__(self, method: str, url: str, reason: str, advice: str = "Ask for another URL.") -> None:
        super().__init__(method, url, reason, advice, was_sent=False)


class UnreadableError(HttpError):
    """Raised for a response that cannot be read. A repeated request would fail in the same way."""

    _what = "has an answer that cannot be read"

    def __init__(self, method: str, url: str, reason: str) -> None:
        super().__init__(method, url, reason, "Try another page.", was_sent=True)


class AddressRefusedError(Exception):
    """Raised if a host name has an IP address that is not allowed. No connection was made."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__("its host has an address that is not public")
        # Not in the text, which a model reads: it must not learn addresses of a network. Tracebacks show this note.
        self.remedy = f"The address of {host!r} is {address}; HttpClient(allow=[..., {address!r}]) lets it through."


def shown(url: str) -> str:
    """Return a URL as it is quoted in error texts: without invisible characters, and cut if it is very long."""
    url = clean(url)
    return url if len(url) <= _LONGEST_URL else f"{url[:_LONGEST_URL]}..."


# Requests.

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE = frozenset({"GET", "HEAD"})
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Idempotent methods by RFC 9110, section 9.2.2."""
KEY_HEADER = "idempotency-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to a server, with the method in capitals and header names in lower case.

    The URL was checked. The headers are sent to the origin of the URL only.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None

    @property
    def host(self) -> str:
        """Host name or address in the URL."""
        return urlsplit(self.url).hostname or ""

    @property
    def has_key(self) -> bool:
        """True if the request has an Idempotency-Key."""
        return KEY_HEADER in self.headers

    @property
    def is_safe(self) -> bool:
        """True if the request only reads: its method is safe, and it has no body."""
        return self.method in _SAFE and self.content is None

    def at(self, url: str, status: int) -> "Request":
        """Return the request to send after a redirect to `url`; `status` is the HTTP status of the redirect."""
        headers = dict(self.headers) if origin_of(url) == origin_of(self.url) else {}
        if status == 303 or (status in (301, 302) and self.method == "POST"):
            kept = {name: value for name, value in headers.items() if not name.startswith("content-")}
            kept.pop(KEY_HEADER, None)
            method = "HEAD" if self.method == "HEAD" else "GET"
            return Request(method=method, url=url, headers=kept)
        return replace(self, url=url, headers=headers)


def redirect_of(url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Return the URL to which a response redirects, or `None` if the response is not a redirect."""
    # The server chose this URL, so it may be invalid.
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
"""Status codes of temporary failures, after which the request may be sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Retry policy for HTTP requests: which failed requests are repeated, how often, and after which pauses.

    The pause is at least as long as the server's Retry-After asks for. If that is more than the longest pause,
    there is no retry.
    """

    retries: int
    backoff: Backoff
    honours_keys: Collection[str] = ()
    chance: Callable[[], float] = field(default=random.random)

    def pause(self, request: Request, attempt: int, end: Page | HttpError) -> float | None:
        """Return the seconds to wait after attempt number `attempt`; `None` if the request is not to be repeated."""
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
    """Return the seconds that a response asks clients to wait (Retry-After); 0 without such a header."""
    answer = SimpleNamespace(retry_after=page.headers.get("retry-after"))  # in the form of a client's error
    return retry_after(cast("BaseException", answer))
