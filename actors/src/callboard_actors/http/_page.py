"""Response to a request, as far as it was read, and its text for a model.

HTML becomes Markdown, which models read best. Scripts and invisible parts are left out, and links are made absolute.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import anyio
import anyio.to_thread

from callboard_actors.http._text import charset_of, decoded, is_html, is_json, is_text, media_type_of

# HTML as Markdown.

_UNSEEN = ["script", "style", "noscript", "template", "svg", "iframe", "object", "head", "datalist"]
_MOST_ELEMENTS = 50_000
"""Elements of a page; a page with more becomes plain text, because an element takes about 50 microseconds."""
_MOST_TAGS = 2 * _MOST_ELEMENTS
"""Tags of a page that are parsed. The garbage collector stops all threads while it visits the elements, so a page with
more tags would block the event loop.
"""
_TOO_MANY = "[... the page has too many elements; what follows is not read ...]"
_MOST_ANCESTORS = 2_000_000
"""Largest sum of nesting depths over all elements, because the converter visits all ancestors of each element."""
_MOST_GROWTH = 8
"""Largest ratio of Markdown, or of JSON with line breaks, to its source.

In Markdown, each line of nested quotes repeats the signs of all quotes around it; in JSON, it is indented.
"""
_ALWAYS = 10_000
"""Characters of Markdown that are allowed in any case."""
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]{0,200}>")
_HIDDEN = '[hidden], [aria-hidden="true"], [style*="display:none"], [style*="display: none"]'


def as_markdown(html: str, base: str) -> str:
    """Return a page as Markdown, with its title as the first heading; `base` is its URL, for relative links."""
    from bs4 import BeautifulSoup

    from callboard_actors.http._converter import Converter, TooLongError

    html = _DECLARATION.sub("", html)
    if "<" not in html:
        return html.strip()  # BeautifulSoup would take it for a file name, and warn
    if len(parts := html.split("<", _MOST_TAGS + 1)) > _MOST_TAGS + 1:
        return f"{as_markdown('<'.join(parts[:-1]), base)}\n\n{_TOO_MANY}"
    # Not Python's own parser: with a tag that never ends, its time grows with the square of the text after the tag.
    soup = BeautifulSoup(html, "lxml")
    title = "" if soup.title is None else soup.title.get_text(" ", strip=True)
    for unseen in [*soup(_UNSEEN), *soup.select(_HIDDEN)]:
        unseen.decompose()
    for link in soup.select("a[href]"):
        link["href"] = _whole(base, str(link["href"]))
    try:
        if _takes_long(soup.find_all(limit=_MOST_ELEMENTS)):
            text = soup.get_text("\n")
        else:
            text = Converter(max(_ALWAYS, _MOST_GROWTH * len(html))).convert_soup(soup)
    except (RecursionError, TooLongError):  # nested as no author nests
        text = soup.get_text("\n")
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    while "\n\n\n" in lines:
        lines = lines.replace("\n\n\n", "\n\n")
    body = lines.strip()
    return f"# {title}\n\n{body}" if title and title not in body[: len(title) + 8] else body


def _takes_long(elements: Sequence[Any]) -> bool:
    """Return whether a page has more elements, or deeper nesting, than allowed. Parents come before their children."""
    depths: dict[int, int] = {}
    for element in elements:
        depths[id(element)] = depths.get(id(element.parent), 0) + 1
    return len(elements) == _MOST_ELEMENTS or sum(depths.values()) > _MOST_ANCESTORS


def _whole(base: str, link: str) -> str:
    try:
        return urljoin(base, link.strip())
    except ValueError:
        return link


# The response.


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Response of a server.

    Args:
        method: of the request.
        url: of the last request, after redirects.
        status: HTTP status, such as 200.
        reason: name of the status, such as "OK".
        headers: with names in lower case; several values of one header are joined by commas.
        data: body after decompression, up to the bytes that the client reads.
        is_cut: whether the body has more bytes.
        saved: file with the whole body, if the client was to write one.
        size: bytes of the body that were read or saved.
        sha256: digest of the whole body, in hexadecimal digits; `None` if it was not read to its end.
    """

    method: str
    url: str
    status: int
    reason: str
    headers: Mapping[str, str]
    data: bytes
    is_cut: bool = False
    saved: Path | None = None
    size: int = 0
    sha256: str | None = None

    @property
    def ok(self) -> bool:
        """True if the status is one of success."""
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """Media type that the server gives, such as "text/html"; "" if it gives none."""
        return media_type_of(self.headers.get("content-type", ""))

    @property
    def is_text(self) -> bool:
        """True if the body is text, by its media type and its first bytes."""
        return is_text(self.media_type, self.data)

    @property
    def text(self) -> str:
        """Body as text, decoded by byte order mark, the server's charset, UTF-8, or the charset declared in HTML."""
        return decoded(self.data, charset_of(self.headers.get("content-type", "")))

    def json(self) -> Any:
        """Return the body as JSON.

        Raises:
            ValueError: if it is not JSON.
        """
        return json.loads(self.text)

    async def readable(self, limiter: anyio.CapacityLimiter | None = None) -> str:
        """Return the page as a reader sees it: HTML as Markdown, JSON with line breaks, any other text unchanged.

        Args:
            limiter: of the worker threads that parse HTML and JSON; by default that of the event loop.
        """
        # Parsing may take long, and a cancelled caller does not wait for its thread.
        if is_html(self.media_type, self.data):
            return await anyio.to_thread.run_sync(
                as_markdown, self.text, self.url, abandon_on_cancel=True, limiter=limiter
            )
        if is_json(self.media_type) and not self.is_cut:
            return await anyio.to_thread.run_sync(_pretty, self.text, abandon_on_cancel=True, limiter=limiter)
        return self.text


def _pretty(text: str) -> str:
    """Return JSON with line breaks, or unchanged if deep nesting would make it much longer."""
    most = _MOST_GROWTH * len(text)
    written, size = list[str](), 0
    try:
        for part in json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(json.loads(text)):
            written.append(part)
            size += len(part)
            if size > most:
                return text
        pretty = "".join(written)
        pretty.encode()  # fails for half a surrogate pair, which could be neither sent nor stored
    except (ValueError, RecursionError):
        return text
    return pretty
