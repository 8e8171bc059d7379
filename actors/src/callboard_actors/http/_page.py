"""`Page`: response to an HTTP request, and conversion of the response body to text or Markdown."""

import codecs
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import anyio
import anyio.to_thread

# Media types and charsets of bodies.

_TEXTUAL = re.compile(
    r"text/.*|application/(json|.*\+json|.*json-seq|ndjson|xml|.*\+xml|(x-)?javascript|ecmascript|(x-)?yaml|toml|sql"
    r"|graphql|x-www-form-urlencoded|x-sh)|image/svg\+xml|message/.*"
)
_JSON = re.compile(r"application/json|.*\+json")
_HTML = ("text/html", "application/xhtml+xml")
_BEGINS_AS_HTML = re.compile(rb"\s*(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body)\b", re.IGNORECASE | re.DOTALL)
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)\b[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE
)
_OF_THE_WEB = re.compile(
    r"(us-)?ascii|utf-?(8|16)(-?[lb]e)?|iso-?8859-?\d+|latin-?\d+|windows-?\d+|cp\d+|big5(-hkscs)?|euc-?(jp|kr)|gbk"
    r"|gb2312|gb18030|hz-gb-2312|shift[_-]?jis|sjis|iso-2022-jp|koi8-?[ru]|macintosh|tis-620"
)
"""Pattern of the charsets that are decoded. Some other codecs of Python take quadratic time."""
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_LOOKED_AT = 2048
_LONGEST_TYPE = 1024
"""Maximum characters of a Content-Type that are parsed: the time grows with the square of its length."""


def media_type_of(content_type: str) -> str:
    """Return the media type in a Content-Type header, in lower case, without parameters such as the charset."""
    return content_type.partition(";")[0].strip().lower()


def is_text(media_type: str, data: bytes) -> bool:
    """Return whether a response body is text: by its media type or, without a media type, by its first bytes."""
    begin = data[:_LOOKED_AT]
    if b"\0" in begin and not begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    if media_type and media_type != "application/octet-stream":
        return _TEXTUAL.fullmatch(media_type) is not None
    controls = sum(byte < 32 and byte not in b"\t\n\r\x0c\x1b" for byte in begin)
    return controls * 20 <= len(begin)


def decoded(data: bytes, charset: str | None) -> str:
    """Return a response body as text; undecodable bytes become replacement characters."""
    mark = next((name for mark, name in _MARKS if data.startswith(mark)), None)
    declared = _DECLARED.search(data[:_LOOKED_AT])
    for name in (mark, charset, "utf-8", None if declared is None else declared[1].decode("ascii")):
        if name is not None and (text := _as(name, data)) is not None:
            return text
    return data.decode("windows-1252", errors="replace")


def _as(charset: str, data: bytes) -> str | None:
    """Decode bytes by a charset; return `None` if the charset is not supported, or the bytes are not valid in it."""
    # The bytes may end in the middle of a character, which is then left out.
    if charset != "utf-8-sig" and not _OF_THE_WEB.fullmatch(charset.lower()):
        return None
    try:
        return codecs.getincrementaldecoder(charset)().decode(data)
    except (LookupError, ValueError):
        return None


# HTML as Markdown.

_UNSEEN = ["script", "style", "noscript", "template", "svg", "iframe", "object", "head", "datalist"]
_MOST_ELEMENTS = 50_000
"""Maximum elements of a page that is converted to Markdown. A page with more becomes plain text.

The conversion of an element takes about 50 microseconds.
"""
_MOST_TAGS = 2 * _MOST_ELEMENTS
"""Maximum tags of a page that are parsed.

The garbage collector stops all threads while it visits the elements, so a page with more tags would block the event
loop.
"""
_TOO_MANY = "[... the page has too many elements; what follows is not read ...]"
_MOST_ANCESTORS = 2_000_000
"""Maximum sum of the nesting depths of all elements: the converter visits all ancestors of each element."""
_MOST_GROWTH = 8
"""Maximum ratio of the length of a result (Markdown, or JSON with line breaks) to the length of its source.

In Markdown, each line of nested quotes repeats the signs of all quotes around it; in JSON, it is indented.
"""
_ALWAYS = 10_000
"""Length of Markdown in characters that is allowed for any page, however short its HTML is."""
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]{0,200}>")
_HIDDEN = '[hidden], [aria-hidden="true"], [style*="display:none"], [style*="display: none"]'


def as_markdown(html: str, base: str) -> str:
    """Return an HTML page as Markdown with its title as heading; a page that is too large becomes plain text."""
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
    """Return whether a page has so many elements, or such deep nesting, that its conversion would take too long."""
    # `elements` are in document order: a parent comes before its children.
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
    """Response of a server. `data` is the body, or its first bytes if the body is longer than the client reads.

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
        """True if the HTTP status means success (200 to 299)."""
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """Media type that the server gives, such as "text/html"; "" if it gives none."""
        return media_type_of(self.headers.get("content-type", ""))

    @property
    def is_text(self) -> bool:
        """True if the response body is text, by its media type and its first bytes."""
        return is_text(self.media_type, self.data)

    @property
    def text(self) -> str:
        """Response body as text.

        The charset is that of the byte order mark, else that of the server, else UTF-8, else the one declared
        in HTML.
        """
        message = Message()
        message["content-type"] = self.headers.get("content-type", "")[:_LONGEST_TYPE]
        return decoded(self.data, message.get_content_charset())

    def json(self) -> Any:
        """Return the response body, parsed as JSON; raise ValueError if it is not JSON."""
        return json.loads(self.text)

    async def readable(self, limiter: anyio.CapacityLimiter | None = None) -> str:
        """Return the response body as readable text: HTML as Markdown, JSON with line breaks, other text unchanged.

        Args:
            limiter: of the worker threads that parse HTML and JSON; by default that of the event loop.
        """
        kind = self.media_type
        if kind in _HTML or (not kind and _BEGINS_AS_HTML.match(self.data[:_LOOKED_AT])):
            parse = partial(as_markdown, self.text, self.url)
        elif _JSON.fullmatch(kind) and not self.is_cut:
            parse = partial(_pretty, self.text)
        else:
            return self.text
        # Parsing may take long, and a cancelled caller does not wait for its thread.
        return await anyio.to_thread.run_sync(parse, abandon_on_cancel=True, limiter=limiter)


def _pretty(text: str) -> str:
    """Return a JSON text with line breaks; unchanged if deep nesting would make it much longer."""
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
