"""Request, and the part of it that follows a redirect."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin, urlsplit

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE = frozenset({"GET", "HEAD"})
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Idempotent methods by RFC 9110, section 9.2.2."""
KEY_HEADER = "idempotency-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to a server.

    Args:
        method: in capitals.
        url: in the form that the rules return.
        headers: with names in lower case; for this origin only.
        content: body.
    """

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
