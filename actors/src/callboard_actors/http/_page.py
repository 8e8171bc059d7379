"""An answer to a request: what a server said, as far as it was read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from callboard_actors.http._markdown import as_markdown
from callboard_actors.http._text import charset_of, decoded, is_html, is_json, is_text, media_type_of

_MOST_GROWTH = 8
"""How much longer JSON may become by line breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a server answered.

    Args:
        method: of the request.
        url: what was asked for last, after redirects.
        status: the code, such as 200.
        reason: its name, such as "OK".
        headers: with names in lower case; one that came several times has its values behind commas.
        data: the body, without its compression, and no more of it than the client reads.
        is_cut: whether there was more.
        saved: the file that has the whole body, where the client was to write one.
        size: bytes of the body that were read or saved.
        sha256: of the whole body, in hexadecimal digits; `None` where it was not read to its end.
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
        """Whether the status is one of success."""
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """What the server calls its kind of content, such as "text/html"; "" if it does not say."""
        return media_type_of(self.headers.get("content-type", ""))

    @property
    def is_text(self) -> bool:
        """Whether a reader could read it, by its media type and its first bytes."""
        return is_text(self.media_type, self.data)

    @property
    def text(self) -> str:
        """The body as text: by its byte order mark, by the charset that the server says, as UTF-8, as HTML says."""
        return decoded(self.data, charset_of(self.headers.get("content-type", "")))

    def json(self) -> Any:
        """The body as JSON.

        Raises:
            ValueError: it is none.
        """
        return json.loads(self.text)

    async def readable(self, limiter: anyio.CapacityLimiter | None = None) -> str:
        """What a reader would have of it: HTML as Markdown, JSON with line breaks, any other text as it is.

        Args:
            limiter: of the worker threads in which HTML and JSON are read; by default those of the event loop.
        """
        # Both take their time, and whoever is cancelled does not wait for them.
        if is_html(self.media_type, self.data):
            return await anyio.to_thread.run_sync(
                as_markdown, self.text, self.url, abandon_on_cancel=True, limiter=limiter
            )
        if is_json(self.media_type) and not self.is_cut:
            return await anyio.to_thread.run_sync(_pretty, self.text, abandon_on_cancel=True, limiter=limiter)
        return self.text


def _pretty(text: str) -> str:
    """JSON with line breaks, or as it is where they would make much more of it: each has an indent as deep as it is."""
    most = _MOST_GROWTH * len(text)
    written, size = list[str](), 0
    try:
        for part in json.JSONEncoder(indent=1, ensure_ascii=False).iterencode(json.loads(text)):
            written.append(part)
            size += len(part)
            if size > most:
                return text
        pretty = "".join(written)
        pretty.encode()  # fails for half a character: written out, it could be neither sent nor stored
    except (ValueError, RecursionError):
        return text
    return pretty
