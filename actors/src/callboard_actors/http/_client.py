"""`HttpClient`: HTTP requests with checked addresses, limits per host, and safe retries."""

import json as _json
import os
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict, cast
from urllib.parse import urlsplit

import anyio
import httpx2

from callboard import Backoff, Limit, idempotency_key
from callboard.extend import LimitGuard, Resolver, system_resolver
from callboard.guards import Url
from callboard_actors._util._options import check_counts, check_durations
from callboard_actors.http._page import Page
from callboard_actors.http._request import (
    IDEMPOTENT,
    KEY_HEADER,
    HttpError,
    Repeats,
    Request,
    UrlRefusedError,
    origin_of,
    redirect_of,
)
from callboard_actors.http._wire import Allowance, PoolOptions, Store, client_of, lost, rules_of, send

# Checks of options.

Origin = tuple[str, str, int]
_MADE_BY_US = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
"""Pattern of an allowed header value (RFC 9110, section 5). Only ASCII: servers read other characters differently."""


_CONNECTIONS = 100
"""Maximum number of open connections of a client."""
_MAX_REDIRECTS = 5
"""Maximum number of redirects of one request."""
_HEADERS_BY_HOST = "headers={'api.example.org': {'Authorization': '...'}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpBounds:
    """Limits of time and size for the requests of an `HttpClient`.

    Raises:
        TypeError: if a number of seconds is not a number.
        ValueError: if a number is out of range.
    """

    connect_timeout: float = 10.0
    """Maximum seconds to open a connection."""
    read_timeout: float = 20.0
    """Maximum seconds without any data from the server."""
    max_bytes: int = 1_000_000
    """Maximum bytes of a response body that are read, counted after decompression."""
    max_download: int = 100_000_000
    """Maximum bytes of a response body that is saved in the folder for downloads."""

    def __post_init__(self) -> None:
        check_durations("HttpBounds", connect_timeout=self.connect_timeout, read_timeout=self.read_timeout)
        check_counts("HttpBounds", [("max_bytes", self.max_bytes, 1), ("max_download", self.max_download, 1)])


class Options(TypedDict, total=False):
    """Keyword arguments of `HttpClient`, as a type for functions that pass them on."""

    allow: Sequence[str] | None
    allow_private: bool
    ports: Collection[int] | None
    headers: Mapping[str, Mapping[str, str]] | None
    cookies: bool
    limit: Limit | None
    timeout: float
    downloads: str | PathLike[str] | None
    retries: int
    backoff: Backoff | None
    honours_keys: Collection[str]
    trusted_proxy: str | None
    bounds: HttpBounds | None
    resolver: Resolver
    tls: ssl.SSLContext | None


def check_parts(*, bounds: object, backoff: object, resolver: object, tls: object, headers: object) -> None:
    """Raise TypeError if an option of `HttpClient` has the wrong type."""
    # Without this check, the first request would fail instead.
    if not isinstance(bounds, HttpBounds):
        raise TypeError(f"HttpClient(bounds={bounds!r}) is an HttpBounds, such as HttpBounds(max_bytes=1000)")
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
    """Return the option `headers` as a dict from origin to headers, with header names in lower case."""
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
        found.setdefault(origin, {}).update(checked_headers(headers))
    return found


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with lower-case names; raise an error for invalid headers, or those that `HttpClient` sets."""
    lower = {name.lower(): value for name, value in headers.items()}
    for name, value in lower.items():
        if not isinstance(cast("object", value), str):
            raise TypeError(f"the header {name!r} has a text as its value, not {type(value).__name__}")
        if name in _MADE_BY_US:
            raise ValueError(f"the header {name!r} is made by the client; leave it out")
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} has signs in it that no header may have")
    return lower


def _host(written: str) -> str:
    """Return a host name of the option `honours_keys` in normal form; raise ValueError for any other text."""
    with suppress(ValueError):
        url = urlsplit(Url(private=True).check(f"https://{written}") or "")
        if url.port is None and url.path + url.query + url.fragment == "":
            return str(url.hostname)
    raise ValueError(
        f"HttpClient(honours_keys=[{written!r}, ...]) takes hosts such as 'api.example.org', without scheme, port and "
        "path; for all of a domain, each of them"
    )


# Idempotency keys: a server recognises a repeated request by its key.


def with_key(request: Request) -> Request:
    """Add an Idempotency-Key header to a tool call's request, if its method (such as POST) is not idempotent."""
    if request.method in IDEMPOTENT or request.has_key:
        return request
    try:
        call = idempotency_key()
    except (RuntimeError, ValueError):  # outside of a call, or in a call for which no key can be made
        return request
    # Equal each time that the call makes this request, also after a crash. Another request has another key.
    parts = (call, request.method, request.url)
    digest = sha256(b"\0".join([*(part.encode() for part in parts), request.content or b""])).hexdigest()
    return replace(request, headers={**request.headers, KEY_HEADER: digest})


# The client.

_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})
PER_HOST = Limit(concurrency=8)


class HttpClient:
    """HTTP client for URLs that may come from a model; it connects only to addresses that were checked.

        async with HttpClient() as http:
            page = await http.get("https://example.org/")

    Every connection, also after a redirect and for a retry, goes to an address that was checked.

    Args:
        allow: allowed hosts ("example.org", "*.example.org", "*" for any public one) and networks ("10.0.0.0/8");
            `None` for any public host. All addresses of a host name must be public, or in a network of the list.
        allow_private: whether every address is allowed, those of this machine included.
        ports: allowed ports; `None` for any.
        headers: by host, for https, or by origin ("http://127.0.0.1:8000"); sent to that host or origin only.
        cookies: whether cookies are kept, for all users of this client.
        limit: on requests at the same time, for each host unless the limit has another key; `None` for no limit.
        timeout: seconds for a request, with its redirects, retries and waits.
        downloads: folder for bodies that are longer than is read, or not text.
        retries: how often a failed request is repeated, if that does no harm.
        backoff: pauses before the repetitions; Retry-After is respected up to the longest pause.
        honours_keys: hosts that execute requests with the same Idempotency-Key once. No POST is repeated to others.
        trusted_proxy: URL of a proxy that itself refuses private addresses; this client cannot check them then.
            Proxies of the environment are not used.
        bounds: other limits of time and size.
        resolver: async function from a host and a port to addresses.
        tls: context for https; by default with the system's certificates.

    Raises:
        ValueError: for a number out of range, or an invalid host.
    """

    def __init__(
        self,
        *,
        allow: Sequence[str] | None = None,
        allow_private: bool = False,
        ports: Collection[int] | None = None,
        headers: Mapping[str, Mapping[str, str]] | None = None,
        cookies: bool = False,
        limit: Limit | None = PER_HOST,
        timeout: float = 60.0,
        downloads: str | os.PathLike[str] | None = None,
        retries: int = 2,
        backoff: Backoff | None = None,
        honours_keys: Collection[str] = (),
        trusted_proxy: str | None = None,
        bounds: HttpBounds | None = None,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_durations("HttpClient", timeout=timeout)
        check_counts("HttpClient", [("retries", retries, 0)])
        bounds = HttpBounds() if bounds is None else bounds
        check_parts(bounds=bounds, backoff=backoff, resolver=resolver, tls=tls, headers=headers)
        self._rules = rules_of(allow, private=allow_private, ports=ports)
        self._headers = own_headers(headers, self._rules.check)
        if isinstance(honours_keys, str):
            raise TypeError(f"HttpClient(honours_keys={honours_keys!r}) is one text; give a list: [{honours_keys!r}]")
        proxy = None if trusted_proxy is None else urlsplit(trusted_proxy)
        if proxy is not None and (proxy.scheme not in ("http", "https") or not proxy.hostname):
            raise ValueError("HttpClient(trusted_proxy=...) is a URL such as 'http://proxy.example.org:3128'")
        self._pool = PoolOptions(tls=tls, connections=_CONNECTIONS, proxy=trusted_proxy)
        self._resolver = resolver
        self._places = None if limit is None else LimitGuard(_per_host(limit), "HTTP requests")
        self._repeats = Repeats(
            retries=retries,
            backoff=backoff or Backoff(first=0.5, jitter=1.0),
            honours_keys=frozenset(map(_host, honours_keys)),
        )
        self._timeout, self._bounds = timeout, bounds
        self._store = None if downloads is None else Store(Path(downloads).absolute(), bounds.max_download)
        self._cookies = cookies
        self._client: httpx2.AsyncClient | None = None

    def __repr__(self) -> str:
        # Without the arguments: they may contain passwords.
        return "HttpClient(...)"

    async def __aenter__(self) -> Self:
        """Open the client for this event loop.

        Raises:
            RuntimeError: if it is open already.
            NotADirectoryError: if the folder for downloads does not exist.
        """
        if self._client is not None:
            raise RuntimeError("the HttpClient is open already; make another one for another event loop")
        if self._store is not None and not self._store.folder.is_dir():
            raise NotADirectoryError(f"HttpClient(downloads={str(self._store.folder)!r}): there is no such folder")
        timeouts = httpx2.Timeout(self._bounds.read_timeout, connect=self._bounds.connect_timeout, pool=None)
        client = client_of(self._rules, self._resolver, timeouts, pool=self._pool, cookies=self._cookies)
        self._client = await client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close all connections; requests that are still running fail."""
        client, self._client = self._client, None
        assert client is not None
        await client.__aexit__(kind, error, traceback)

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Page:
        """Send a GET request; see `request`."""
        return await self.request("GET", url, headers=headers)

    async def post(
        self,
        url: str,
        *,
        content: str | bytes | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Send a POST request; see `request`."""
        return await self.request("POST", url, content=content, json=json, headers=headers)

    async def request(
        self,
        method: str,
        url: str,
        *,
        content: str | bytes | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Send a request and follow redirects. Send a failed request again if a repetition does no harm.

        Args:
            method: such as "GET".
            url: absolute.
            content: body of the request.
            json: the same, as a value to be written as JSON.
            headers: of this request; not sent to another origin after a redirect.

        Raises:
            HttpError: if there is no response. A response with an error status is a `Page`.
            CallRejectedError: if the queue of the client's limit is full.
            RuntimeError: if the client is not open.
            TypeError: if the URL is not a string.
        """
        return await self._asked(request_of(method, url, content, json, headers or {}))

    async def _asked(self, request: Request, *, share: float = 0.0) -> Page:
        """Send a request and follow its redirects, within the client's timeout."""
        # With a `share` above 0, the request may also use no more than this share of the time that the running call has
        # left.
        if self._client is None:
            raise RuntimeError("the HttpClient is not open; use it within `async with`")
        request = with_key(request)
        with Allowance(self._timeout, share=share) as allowance:
            return await self._through_redirects(request)
        raise lost(request, f"it was not there within {allowance.seconds:.3g} s", was_sent=True)

    async def _through_redirects(self, request: Request) -> Page:
        request = replace(request, url=self._checked(request.method, request.url))
        for _ in range(_MAX_REDIRECTS + 1):
            page = await self._with_retries(request)
            if (target := redirect_of(page.url, page.status, page.headers)) is None:
                return page
            # The target passes the same URL rules; its address is checked again when it is connected to.
            request = self._redirected(request, page.status, target)
        raise HttpError(
            request.method,
            request.url,
            f"there were more than {_MAX_REDIRECTS} redirects",
            "Ask for the page itself, if you know where it is.",
            was_sent=True,
        )

    def _checked(self, method: str, url: str) -> str:
        try:
            return self._rules.check(url)
        except ValueError as refused:
            raise UrlRefusedError(method, url, str(refused), self._rules.allowed) from None

    def _redirected(self, request: Request, status: int, target: str) -> Request:
        url = self._checked(request.method, target)
        following = request.at(url, status)
        # A body or a method that writes was meant for one server, and must not be forwarded to another one.
        if not following.is_safe and origin_of(url) != origin_of(request.url):
            raise HttpError(
                request.method,
                request.url,
                "it leads to another server, which would be sent what was meant for this one",
                "Ask that server, if it is the right one.",
                was_sent=True,
            )
        return following

    async def _with_retries(self, request: Request) -> Page:
        attempt = 0
        while True:
            attempt += 1
            end: Page | HttpError
            try:
                end = await self._in_turn(request)
            except HttpError as error:
                end = error
            pause = self._repeats.pause(request, attempt, end)
            # A pause beyond the deadline would only replace this error by a timeout, which says less.
            if pause is None or pause >= anyio.current_effective_deadline() - anyio.current_time():
                if isinstance(end, HttpError):
                    raise end
                return end
            await anyio.sleep(pause)

    async def _in_turn(self, request: Request) -> Page:
        assert self._client is not None
        # By the origin of this hop: credentials never follow a redirect to another origin.
        own = self._headers.get(origin_of(request.url), {})
        headers = {"user-agent": "callboard", **own, **request.headers}
        call = {"name": request.method, "args": {"url": request.url}, "id": None}
        async with nullcontext() if self._places is None else self._places.place(call):
            return await send(self._client, request, headers, self._bounds.max_bytes, self._store)


def _per_host(limit: Limit) -> Limit:
    if not isinstance(cast("object", limit), Limit) or limit.key is not None:
        return limit  # `LimitGuard` refuses a value that is not a Limit
    return replace(limit, key=lambda call: urlsplit(call["args"]["url"]).hostname)


def request_of(method: str, url: str, content: str | bytes | None, json: Any, headers: Mapping[str, str]) -> Request:
    """Return a `Request` made from the arguments of `HttpClient.request`."""
    if not isinstance(cast("object", url), str):
        raise TypeError(f"HttpClient.request(url={url!r}) is a text, such as 'https://example.org/'")
    if method not in _METHODS:
        raise ValueError(f"HttpClient.request(method={method!r}) is one of {', '.join(sorted(_METHODS))}")
    if content is not None and json is not None:
        raise ValueError("HttpClient.request(content=..., json=...) has two bodies; leave one of them out")
    lower = checked_headers(headers)
    if json is not None:
        content = _json.dumps(json)
        lower.setdefault("content-type", "application/json")
    body = content.encode() if isinstance(content, str) else content
    return Request(method=method, url=url, headers=lower, content=body)
