"""Result of a request as a tool: a text for the model, and data for the program."""

import re
from dataclasses import dataclass
from typing import Literal, TypedDict

from callboard_actors._util._excerpts import clean
from callboard_actors.http._errors import shown
from callboard_actors.http._page import Page
from callboard_actors.http._request import wait_asked_by

# Text of a response for a model.

_OF_AN_ERROR = 2_000
"""Characters that are shown of a page with an error status."""
_LONGEST_REASON = 60
_DAY = 86_400.0
_LONGEST_READ = 10 * _LONGEST_REASON
_MEDIA_TYPE = re.compile(r"[a-z0-9.+_-]{1,40}/[a-z0-9.+_-]{1,80}")
"""Valid media type. Any other text in its place would let a server write to the model."""
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
    """Return the text of a page for a model, from character `start` on; `text` is `None` if the page is not text."""
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
    """Return the reason phrase as one short line of plain text; a server may send any text in its place."""
    line = " ".join(clean(page.reason[:_LONGEST_READ]).split())
    line = "".join(sign for sign in line if sign.isprintable())
    return line[:_LONGEST_REASON].rstrip()


def kind_of(page: Page) -> str:
    """Return the media type; "" if the server sends another text in its place."""
    return page.media_type if _MEDIA_TYPE.fullmatch(page.media_type) else ""


def _part(text: str, start: int, most: int, *, is_cut: bool) -> str:
    """Return a part of a text, with a note about the rest."""
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
    """Data about a page for the program: a content block of LangChain with additional keys."""

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
class Answer:
    """Result of a request: a text for the model, and plain data for the program, unless there is no page."""

    text: str
    artifact: PageArtifact | None = None

    def __str__(self) -> str:
        return self.text


def artifact_of(page: Page) -> PageArtifact:
    """Return the data about a page for the program."""
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
