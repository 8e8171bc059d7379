"""`HttpTools`: an HTTP client with requests as tools of a model."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio
import anyio.to_thread

from callboard import Actor, handler, remaining
from callboard_actors._util._excerpts import clean
from callboard_actors._util._numbers import check_counts
from callboard_actors.http._answer import Answer, artifact_of, told
from callboard_actors.http._client import HttpClient, Options, request_of
from callboard_actors.http._errors import HttpError
from callboard_actors.http._page import Page

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_READERS = 4
"""Threads that convert HTML at the same time; bounded, so that slow pages do not use up the process's threads."""
_MOST_TIME = 0.8
"""Share of the call's remaining time; the rest is for its answer."""


class HttpTools(Actor):
    """Web pages and services as tools.

        node = ToolNode([HttpTools(allow=["example.org"])])

    The tools are `fetch` and, if `methods` has a method that writes, `http_request`. All calls share one `HttpClient`.

    Args:
        methods: allowed methods, such as ["GET", "POST"].
        max_chars: characters of a page that a model reads at once.
        client: options of `HttpClient`, such as `allow` and `headers`.

    Raises:
        ValueError: for an unknown method, and whatever `HttpClient` raises.
    """

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, methods: Collection[str] = ("GET",), **kwargs: Any) -> Self:
            # A model does not see a tool that would refuse everything.
            writes = cls is HttpTools and not isinstance(methods, str) and not set(_WRITES).isdisjoint(methods)
            return super().__new__(_WritingTools if writes else cls, *args, methods=methods, **kwargs)

    def __init__(
        self,
        *,
        methods: Collection[str] = ("GET",),
        max_chars: int = 20_000,
        **client: Unpack[Options],
    ) -> None:
        _check(methods)
        check_counts("HttpTools", [("max_chars", max_chars, 100)])
        self._methods = tuple(methods)
        self._max_chars = max_chars
        self._description = HttpClient(**client)

    async def start(self) -> None:
        """Open the client in the actor's own task, which also closes it."""
        self._readers = anyio.CapacityLimiter(_READERS)
        self._client = await self.enter(self._description)

    @handler(group="requests")
    async def fetch(self, url: str, start: int = 0) -> Answer:
        """Read a page or a file of the web: HTML as Markdown with its links, JSON and other text as it is.

        What is long is read in pieces: the answer says with which `start` the next one is read.
        """
        return await self._asked("GET", url, start, None, {})

    async def _asked(self, method: str, url: str, start: int, body: str | None, headers: dict[str, str]) -> Answer:
        try:
            request = request_of(method, url, body, None, headers)
            page = await self._client._asked(request, share=_MOST_TIME)
        except HttpError as error:
            return Answer(str(error))
        text = await self._text(page)
        return Answer(told(page, text, start=start, most=self._max_chars), artifact_of(page))

    async def _text(self, page: Page) -> str | None:
        """Return the text of a page; for HTML that takes too long to convert, its source."""
        if not page.is_text:
            return None
        with anyio.move_on_after(_MOST_TIME * remaining()):
            return await self._cleaned(await page.readable(self._readers))
        return await self._cleaned(page.text)

    async def _cleaned(self, text: str) -> str:
        """Clean a text in a worker thread: a megabyte with many backspaces would block the event loop."""
        return await anyio.to_thread.run_sync(clean, text, abandon_on_cancel=True, limiter=self._readers)


def _check(methods: Collection[str]) -> None:
    """Raise ValueError or TypeError for an unknown method."""
    if isinstance(methods, str):
        raise TypeError(f"HttpTools(methods={methods!r}) is one text; give a list: methods=[{methods!r}]")
    if unknown := set(methods).difference(("GET", *_WRITES)):
        raise ValueError(f"HttpTools(methods=...) are of GET, {', '.join(_WRITES)}; got {unknown.pop()!r}")
    if "GET" not in methods:
        raise ValueError(f"HttpTools(methods={list(methods)!r}) lacks 'GET', which fetch is made of")


class _WritingTools(HttpTools):
    """Tools with methods that write."""

    @handler(group="requests")
    async def http_request(
        self, method: str, url: str, body: str = "", content_type: str = "application/json"
    ) -> Answer:
        """Send a request to a service of the web, and read its answer.

        Args:
            method: of HTTP, such as POST.
            url: absolute.
            body: what is sent.
            content_type: of the body.
        """
        if method not in self._methods:
            return Answer(f"Refused: {method!r:.20} is not allowed here, only {', '.join(self._methods)}.")
        headers = {"content-type": content_type} if body else {}
        try:
            return await self._asked(method, url, 0, body or None, headers)
        except ValueError as error:
            return Answer(f"Refused: {error}.")


_WritingTools.__name__ = HttpTools.__name__  # errors and traces know the actor by it
