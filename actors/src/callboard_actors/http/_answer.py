"""Result of a request as a tool: a text for the model, and data for the program."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from callboard_actors.http._page import Page
from callboard_actors.http._told import kind_of


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
    rest: str
    """Text after the part that the model has read, up to `max_rest` characters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a request; `str()` gives the text for the model.

    Args:
        text: for the model.
        artifact: for the program, as plain data; `None` if there is no page.
    """

    text: str
    artifact: PageArtifact | None = None

    def __str__(self) -> str:
        return self.text


def artifact_of(page: Page, rest: str) -> PageArtifact:
    """Return the data about a page for the program; `rest` is the part of its text that goes with the message."""
    return {
        "type": "file",
        "url": page.url,
        "mime_type": kind_of(page),
        "status": page.status,
        "size": page.size,
        "is_cut": page.is_cut and page.saved is None,
        "sha256": page.sha256,
        "file": None if page.saved is None else str(page.saved),
        "rest": rest,
    }
