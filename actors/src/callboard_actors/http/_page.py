"""Response to a request, as far as it was read."""

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
"""Largest ratio of JSON with line breaks to JSON without."""


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
