"""Checks of the client's options; plain functions, called by the constructor."""

import math
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from os import PathLike
from typing import TypedDict, cast
from urllib.parse import urlsplit

from callboard import Backoff, Limit
from callboard.extend import Resolver
from callboard.guards import Url
from callboard_actors.http._request import origin_of

Origin = tuple[str, str, int]
_MADE_BY_US = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
"""Header values by RFC 9110, section 5, without characters beyond ASCII, which servers read differently."""


_HEADERS_BY_HOST = "headers={'api.example.org': {'Authorization': '...'}}"


class Options(TypedDict, total=False):
    """Options of `HttpClient`, for callers that pass them on."""

    allow: Sequence[str] | None
    allow_private: bool
    ports: Collection[int] | None
    headers: Mapping[str, Mapping[str, str]] | None
    cookies: bool
    user_agent: str
    limit: Limit | None
    connections: int
    timeout: float
    connect_timeout: float
    read_timeout: float
    max_bytes: int
    downloads: str | PathLike[str] | None
    max_download: int
    max_redirects: int
    retries: int
    backoff: Backoff | None
    honours_keys: Collection[str]
    proxy: str | None
    trust_proxy: bool
    robots: bool
    resolver: Resolver
    tls: ssl.SSLContext | None


def check_numbers(*, seconds: Mapping[str, float], counts: Mapping[str, tuple[int, int]]) -> None:
    """Raise ValueError for a duration that is not positive, or a count (least, given) below its least."""
    for name, duration in seconds.items():
        if not isinstance(cast("object", duration), (int, float)) or not 0 < duration < math.inf:
            raise ValueError(f"HttpClient({name}={duration!r}) is a number of seconds, more than 0")
    for name, (least, count) in counts.items():
        if not isinstance(cast("object", count), int) or count < least:
            raise ValueError(f"HttpClient({name}={count!r}) is a whole number, at least {least}")


def check_parts(*, backoff: object, resolver: object, tls: object, headers: object) -> None:
    """Raise TypeError for an option of the wrong type, which would otherwise fail with the first page."""
    if backoff is not None and not isinstance(backoff, Backoff):
        raise TypeError(f"HttpClient(backoff={backoff!r}) is a Backoff, such as Backoff(first=0.5)")
    if not callable(resolver):
        raise TypeError(f"HttpClient(resolver={resolver!r}) is an async function of a host and a port")
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise TypeError(f"HttpClient(tls={tls!r}) is an ssl.SSLContext; leave it out to check certificates as usual")
    if headers is not None and not isinstance(headers, Mapping):
        raise TypeError(f"HttpClient(headers={type(headers).__name__}) has headers by host: {_HEADERS_BY_HOST}")


def own_headers(
    given: Mapping[str, Mapping[str, str]] | None, check: Callable[[str], str]
) -> dict[Origin, dict[str, str]]:
    """Return the headers for each origin, with names in lower case; a host without a scheme stands for https."""
    found: dict[Origin, dict[str, str]] = {}
    for where, headers in (given or {}).items():
        if not isinstance(headers, Mapping):
            raise TypeError(
                f"HttpClient(headers={{{where!r}: ...}}) has headers by host, for they are sent to no other one: "
                f"{_HEADERS_BY_HOST}"
            )
        try:
            origin = origin_of(check(where if "://" in where else f"https://{where}"))
        except ValueError as error:
            raise ValueError(f"HttpClient(headers={{{where!r}: ...}}) is for a host that is asked: {error}") from None
        lower = {name.lower(): value for name, value in headers.items()}
        check_headers(lower)
        found.setdefault(origin, {}).update(lower)
    return found


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ValueError for a header that is invalid or set by the client itself, and TypeError for a wrong type."""
    for name, value in headers.items():
        if not isinstance(cast("object", value), str):
            raise TypeError(f"the header {name!r} has a text as its value, not {type(value).__name__}")
        if name.lower() in _MADE_BY_US:
            raise ValueError(f"the header {name!r} is made by the client; leave it out")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} has signs in it that no header may have")


def hosts_of(honours_keys: Collection[str]) -> frozenset[str]:
    """Return the hosts that honour idempotency keys; raise for an entry that no request's host can match."""
    if isinstance(honours_keys, str):
        raise TypeError(f"HttpClient(honours_keys={honours_keys!r}) is one text; give a list: [{honours_keys!r}]")
    return frozenset(_host(written) for written in honours_keys)


def _host(written: str) -> str:
    try:
        url = urlsplit(Url(private=True).check(f"https://{written}") or "")
        if url.port is None and url.path + url.query + url.fragment == "":
            return str(url.hostname)
    except ValueError:
        pass
    raise ValueError(
        f"HttpClient(honours_keys=[{written!r}, ...]) takes hosts such as 'api.example.org', without scheme, port and "
        "path; for all of a domain, each of them"
    )


def proxy_of(proxy: str | None, *, trusted: bool) -> str | None:
    """Return the proxy; raise ValueError unless its user has declared to trust it."""
    if proxy is None:
        if trusted:
            raise ValueError("HttpClient(trust_proxy=True) is for a proxy; give it proxy=...")
        return None
    if not trusted:
        raise ValueError(
            "HttpClient(proxy=...): the proxy looks names up and connects, so that nobody here sees to which address. "
            "Where it keeps requests from private addresses itself, say so with trust_proxy=True"
        )
    if urlsplit(proxy).scheme not in ("http", "https") or not urlsplit(proxy).hostname:
        raise ValueError("HttpClient(proxy=...) is a URL such as 'http://proxy.example.org:3128'")
    return proxy
