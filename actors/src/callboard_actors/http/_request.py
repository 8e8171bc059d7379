"""A request, from hop to hop: what of it goes on to where a redirect leads."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urljoin, urlsplit

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_SAFE = frozenset({"GET", "HEAD"})
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""RFC 9110, section 9.2.2."""
KEY_HEADER = "idempotency-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a server.

    Args:
        method: in capitals.
        url: as the rules have written it.
        headers: with names in lower case; for this origin only.
        content: the body.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    content: bytes | None = None

    @property
    def host(self) -> str:
        """The host of its URL."""
        return urlsplit(self.url).hostname or ""

    @property
    def has_key(self) -> bool:
        """Whether it has an Idempotency-Key."""
        return KEY_HEADER in self.headers

    @property
    def is_safe(self) -> bool:
        """Whether it only reads."""
        return self.method in _SAFE and self.content is None

    def at(self, url: str, status: int) -> "Request":
        """What is asked at the end of a redirect; headers stay behind where it leads to another origin."""
        headers = dict(self.headers) if origin_of(url) == origin_of(self.url) else {}
        if status == 303 or (status in (301, 302) and self.method == "POST"):
            kept = {name: value for name, value in headers.items() if not name.startswith("content-")}
            kept.pop(KEY_HEADER, None)
            method = "HEAD" if self.method == "HEAD" else "GET"
            return Request(method=method, url=url, headers=kept)
        return replace(self, url=url, headers=headers)


def redirect_of(url: str, status: int, headers: Mapping[str, str]) -> str | None:
    """Where an answer leads, which may be no URL at all, or `None` if it is one to be read."""
    location = headers.get("location")
    if status not in _REDIRECTS or not location:
        return None
    try:
        return urljoin(url, location.strip())
    except ValueError:
        return location


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL (RFC 6454)."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}[parts.scheme]
