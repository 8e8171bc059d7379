"""Conversion of a page to text, as a program of its own: the page arrives on stdin, and the text leaves on stdout.

The caller ends the process if it takes too long. No page can hold the event loop or use up the memory of the agent.
"""

import codecs
import json
import re
import sys
from contextlib import suppress
from typing import Any, TypedDict
from urllib.parse import urljoin

from callboard_actors._util._excerpts import clean_text

# Media types and charsets.

_TEXTUAL = re.compile(
    r"text/.*|application/(json|.*\+json|.*json-seq|ndjson|xml|.*\+xml|(x-)?javascript|ecmascript|(x-)?yaml|toml|sql"
    r"|graphql|x-www-form-urlencoded|x-sh)|image/svg\+xml|message/.*"
)
_HTML = ("text/html", "application/xhtml+xml")
_BEGINS_AS_HTML = re.compile(rb"<(!doctype\s+html|html|head|body)\b", re.IGNORECASE)
_CHARSET = re.compile(r";\s*charset\s*=\s*[\"']?([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE)
_DECLARED = re.compile(
    rb"<(?:meta|\?xml)\b[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([A-Za-z0-9_:.-]{2,40})", re.IGNORECASE
)
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_SNIFFED_BYTES = 2048
"""First bytes of a body by which its kind and its charset are recognised."""


def media_type_of(content_type: str) -> str:
    """Return the media type in a Content-Type header, in lower case, without parameters such as the charset."""
    return content_type.partition(";")[0].strip().lower()


def is_text(media_type: str, data: bytes) -> bool:
    """Return whether a body is text: by its media type or, without a media type, by its first bytes."""
    begin = data[:_SNIFFED_BYTES]
    if b"\0" in begin and not begin.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    if media_type and media_type != "application/octet-stream":
        return _TEXTUAL.fullmatch(media_type) is not None
    controls = sum(byte < 32 and byte not in b"\t\n\r\x0c\x1b" for byte in begin)
    return controls * 20 <= len(begin)


def decode(data: bytes, content_type: str) -> str:
    """Return a body as text.

    The charset is that of the byte order mark, else that of the server, else UTF-8, else the one declared in HTML.
    """
    mark = next((charset for mark, charset in _BYTE_ORDER_MARKS if data.startswith(mark)), None)
    charset = _CHARSET.search(content_type)
    declared = _DECLARED.search(data[:_SNIFFED_BYTES])
    charsets = (mark, charset and charset[1], "utf-8", declared and declared[1].decode("ascii"))
    for name in charsets:
        if name is not None:
            # The bytes may end in the middle of a character, which is then left out.
            with suppress(Exception):  # the server names the codec, and Python has some that are not of text
                text: object = codecs.getincrementaldecoder(name)().decode(data)
                if isinstance(text, str):
                    return text.encode(errors="replace").decode()  # no model can be sent half a surrogate pair
    return data.decode("windows-1252", errors="replace")


# HTML as Markdown.

_HIDDEN_ELEMENTS = "script, style, noscript, template, svg, math, iframe, object, datalist, img, [hidden]"
_HIDING_STYLES = ("display:none", "visibility:hidden")


def as_markdown(html: str, base: str) -> str:
    """Return an HTML page as Markdown, with its title as heading, and with absolute links."""
    from justhtml import Decide, Drop, Edit, JustHTML

    def complete_link(node: Any) -> None:
        with suppress(ValueError):  # no URL: it stays as it is written
            node.attrs["href"] = urljoin(base, (node.attrs["href"] or "").strip())

    def drop_if_hidden(node: Any) -> Any:
        style = "".join((node.attrs.get("style") or "").lower().split())
        is_hidden = (node.attrs.get("aria-hidden") or "").strip().lower() == "true"
        return Decide.DROP if is_hidden or any(hiding in style for hiding in _HIDING_STYLES) else Decide.KEEP

    hidden = Decide("[style], [aria-hidden]", drop_if_hidden)  # a selector would compare the case of letters and spaces
    page = JustHTML(html, transforms=[Drop(_HIDDEN_ELEMENTS), hidden, Edit("a[href]", complete_link)])
    title_element = page.query_one("title")
    title = "" if title_element is None else title_element.to_text().strip()
    body = page.to_markdown().strip()
    return f"# {title}\n\n{body}" if title and title not in body[: len(title) + 8] else body


# The program.


class Task(TypedDict):
    """First line on stdin, as JSON; the body of the page follows."""

    url: str
    content_type: str
    start: int
    """First character of the text that is wanted."""
    max_chars: int


class Part(TypedDict):
    """Output on stdout, as JSON."""

    text: str | None
    """Part of the text of the page; `None` if the page is not text."""
    total: int
    """Characters of the whole text."""


def read_part(task: Task, body: bytes) -> Part:
    """Return the part of a page's text that the task asks for."""
    media_type = media_type_of(task["content_type"])
    if not is_text(media_type, body):
        return {"text": None, "total": 0}
    text = decode(body, task["content_type"])
    if media_type in _HTML or (not media_type and _BEGINS_AS_HTML.search(body[:_SNIFFED_BYTES])):
        text = as_markdown(text, task["url"])
    text = clean_text(text)
    start = max(0, task["start"])
    return {"text": text[start : start + task["max_chars"]], "total": len(text)}


_MEMORY = 1024**3
"""Maximum bytes of address space of the process."""
_PROCESSOR_TIME = 30
"""Maximum seconds of processor time, for a process whose caller was killed."""


def main() -> None:
    """Convert the page on stdin, and write its text to stdout."""
    with suppress(ImportError, ValueError, OSError):  # Windows has no such limits, and macOS does not keep all
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (_PROCESSOR_TIME, _PROCESSOR_TIME))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    task = json.loads(sys.stdin.buffer.readline())
    part = read_part(task, sys.stdin.buffer.read())
    sys.stdout.buffer.write(json.dumps(part).encode())
