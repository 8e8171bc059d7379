"""What a tool gives of a request: a text for the model, and for the program where the rest is."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from callboard_actors.http._page import Page
from callboard_actors.http._told import kind_of


class PageArtifact(TypedDict):
    """What a program is told of a page; a content block of LangChain's, with more in it than those have."""

    type: Literal["file"]
    url: str
    """What was asked for last, after redirects."""
    mime_type: str
    """What the server calls its kind of content; "" if it does not say, or says something else."""
    status: int
    """Of HTTP, such as 200."""
    size: int
    """Bytes of the body that were read or saved, without its compression."""
    is_cut: bool
    """Whether there are more that were neither read nor saved."""
    sha256: str | None
    """Of the whole body, in hexadecimal digits; `None` where it was not read to its end."""
    file: str | None
    """The path of the file that has the whole body."""
    rest: str
    """The text that follows what the model has read, as far as `max_rest` goes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a request: as `str` what a model reads of it.

    Args:
        text: for the model.
        artifact: for the program, as plain data; `None` where there is no page.
    """

    text: str
    artifact: PageArtifact | None = None

    def __str__(self) -> str:
        return self.text


def artifact_of(page: Page, rest: str) -> PageArtifact:
    """What a program is told of a page.

    Args:
        page: the answer.
        rest: of its text, as much as goes with the message.
    """
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
