"""`HttpTools`: tools with which a model sends HTTP requests, and reads the responses as text."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

import anyio
import anyio.to_thread

from callboard import Actor, handler, remaining
from callboard_actors._util._excerpts import clean
from callboard_actors._util._options import check_counts
from callboard_actors.http._client import HttpClient, Options, request_of
from callboard_actors.http._page import Page
from callboard_actors.http._request import HttpError, shown, wait_asked_by

# Text of a response for a model.

_OF_AN_ERROR = 2_000
"""Maximum characters of a page that a model reads if the page has an error status."""
_LONGEST_REASON = 60
_DAY = 86_400.0
_LONGEST_READ = 10 * _LONGEST_REASON
_MEDIA_TYPE = re.compile(r"[a-z0-9.+_-]{1,40}/[a-z0-9.+_-]{1,80}")
"""Pattern of a valid media type. Other texts are dropped: a server could write instructions to the model in them."""
_ADVICE = {
    400: "The server does not understand the request: look at what it says, and change it.",
    401: "The page wants credentials that there are none of here. Ask for another page.",
    403: "The server does not let us have the page. Ask for another one.",
    404: "There is no such page: check the URL, or look for a page that has a link to it.",
    405: "The server does not know this method for this URL.",
    410: "The page is gone. Ask for another one.",
    429: "There were too many requests.",
}


def told(page: Page, text: str | None, *, start: int, most: int) -> str:
    """Return a text for a model about a page: status, URL, and up to `most` characters of its text from `start` on."""
    head = f"HTTP {page.status} {_reason_of(page)}".rstrip() + f", {shown(page.url)}"
    kind = kind_of(page) or "of no media type"
    if not page.ok:
        begin = "" if text is None else _part(text, 0, _OF_AN_ERROR, is_cut=page.is_cut)
        return f"{head}. {_advice(page)}" + (f"\n\n{begin}" if begin.strip() else "")
    if page.saved is not None and text is None:
        return f"{head} ({kind}, {page.size:,} bytes). It is no text; the file {page.saved} has it."
    if text is None:
        size = f"{'more than ' if page.is_cut else ''}{len(page.data):,} bytes"
        return f"{head} ({kind}, {size}). It is no text, and not shown."
    if not text.strip():
        return f"{head} ({kind}). It is empty."
    if start >= len(text):
        return f"{head} ({kind}). It has {len(text):,} characters, and none from start={start} on."
    where = f" The file {page.saved} has all of it." if page.saved is not None else ""
    return f"{head} ({kind}).{where}\n\n{_part(text, max(0, start), most, is_cut=page.is_cut)}"


def _reason_of(page: Page) -> str:
    """Return the reason phrase of a response ("Not Found") as one short line of plain text."""
    # A server may send any text in its place.
    line = " ".join(clean(page.reason[:_LONGEST_READ]).split())
    line = "".join(sign for sign in line if sign.isprintable())
    return line[:_LONGEST_REASON].rstrip()


def kind_of(page: Page) -> str:
    """Return the media type of a page; "" if the server sent no media type, or an invalid one."""
    return page.media_type if _MEDIA_TYPE.fullmatch(page.media_type) else ""


def _part(text: str, start: int, most: int, *, is_cut: bool) -> str:
    """Return up to `most` characters of a text from `start` on, and a note if more text follows."""
    end = start + most
    piece = text[start:end]
    if end < len(text):
        return f"{piece}\n[... {len(text) - end:,} more characters; start={end} reads on ...]"
    return f"{piece}\n[... the rest is longer than what is read of a page ...]" if is_cut else piece


def _advice(page: Page) -> str:
    wait = wait_asked_by(page)
    if wait > 0:
        when = f"in {wait:.0f} s" if wait <= _DAY else "much later"
        return f"{_ADVICE.get(page.status, 'The server is not ready.')} Try again {when}."
    if page.status in _ADVICE:
        return _ADVICE[page.status]
    return "The server has failed; try again later." if page.status >= 500 else "The server does not do what was asked."


# Result of a request.


class PageArtifact(TypedDict):
    """Metadata of a page for programs, not for the model: a LangChain content block of type "file", with more keys."""

    type: Literal["file"]
    url: str
    """URL of the last request, after redirects."""
    mime_type: str
    """Media type that the server gives; "" if it gives none, or none that is valid."""
    status: int
    """HTTP status, such as 200."""
    size: int
    """Bytes of the body that were read or saved, after decompression."""
    is_cut: bool
    """True if the body has more bytes, which were neither read nor saved."""
    sha256: str | None
    """Digest of the whole body, in hexadecimal digits; `None` if it was not read to its end."""
    file: str | None
    """Path of the file with the whole body; `None` if there is none."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Result of an HTTP request: a text for the model, and data for the program.

    Args:
        text: text for the model.
        artifact: data for the program; `None` if there was no response.
    """

    text: str
    artifact: PageArtifact | None = None

    def __str__(self) -> str:
        return self.text


def artifact_of(page: Page) -> PageArtifact:
    """Return the metadata of a page, to be stored as the artifact of the tool message."""
    return {
        "type": "file",
        "url": page.url,
        "mime_type": kind_of(page),
        "status": page.status,
        "size": page.size,
        "is_cut": page.is_cut and page.saved is None,
        "sha256": page.sha256,
        "file": None if page.saved is None else str(page.saved),
    }


# The tools.

_WRITES = ("POST", "PUT", "PATCH", "DELETE")
_READERS = 4
"""Maximum threads that convert HTML at the same time, so that slow pages do not use up the process's threads."""
_MOST_TIME = 0.8
"""Share of a tool call's remaining time that a request or a conversion may use; the rest is for the tool's answer."""


class HttpTools(Actor):
    """Actor with tools that read web pages and send requests to web services.

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
        """Open the HTTP client in the actor's own task. The client is closed when the actor ends."""
        self._readers = anyio.CapacityLimiter(_READERS)
        self._client = await self.enter(self._description)

    @handler(group="requests")
    async def fetch(self, url: str, start: int = 0) -> HttpAnswer:
        """Read a page or a file of the web: HTML as Markdown with its links, JSON and other text as it is.

        What is long is read in pieces: the answer says with which `start` the next one is read.
        """
        return await self._asked("GET", url, start, None, {})

    async def _asked(self, method: str, url: str, start: int, body: str | None, headers: dict[str, str]) -> HttpAnswer:
        try:
            request = request_of(method, url, body, None, headers)
            page = await self._client._asked(request, share=_MOST_TIME)
        except HttpError as error:
            return HttpAnswer(str(error))
        text = await self._text(page)
        return HttpAnswer(told(page, text, start=start, most=self._max_chars), artifact_of(page))

    async def _text(self, page: Page) -> str | None:
        """Return the readable text of a page, or `None` if its body is not text."""
        # If the conversion of HTML takes too long, the text is the HTML source.
        if not page.is_text:
            return None
        with anyio.move_on_after(_MOST_TIME * remaining()):
            return await self._cleaned(await page.readable(self._readers))
        return await self._cleaned(page.text)

    async def _cleaned(self, text: str) -> str:
        """Return a text without invisible characters, cleaned in a worker thread."""
        # A megabyte with many backspaces would block the event loop.
        return await anyio.to_thread.run_sync(clean, text, abandon_on_cancel=True, limiter=self._readers)


def _check(methods: Collection[str]) -> None:
    """Raise ValueError for an unknown method, or if GET is missing; raise TypeError for a text instead of a list."""
    if isinstance(methods, str):
        raise TypeError(f"HttpTools(methods={methods!r}) is one text; give a list: methods=[{methods!r}]")
    if unknown := set(methods).difference(("GET", *_WRITES)):
        raise ValueError(f"HttpTools(methods=...) are of GET, {', '.join(_WRITES)}; got {unknown.pop()!r}")
    if "GET" not in methods:
        raise ValueError(f"HttpTools(methods={list(methods)!r}) lacks 'GET', which fetch is made of")


class _WritingTools(HttpTools):
    """`HttpTools` with an additional tool, `http_request`, for methods that write."""

    @handler(group="requests")
    async def http_request(
        self, method: str, url: str, body: str = "", content_type: str = "application/json"
    ) -> HttpAnswer:
        """Send a request to a service of the web, and read its answer.

        Args:
            method: of HTTP, such as POST.
            url: absolute.
            body: what is sent.
            content_type: of the body.
        """
        if method not in self._methods:
            return HttpAnswer(f"Refused: {method!r:.20} is not allowed here, only {', '.join(self._methods)}.")
        headers = {"content-type": content_type} if body else {}
        try:
            return await self._asked(method, url, 0, body or None, headers)
        except ValueError as error:
            return HttpAnswer(f"Refused: {error}.")


_WritingTools.__name__ = HttpTools.__name__  # errors and traces know the actor by it
