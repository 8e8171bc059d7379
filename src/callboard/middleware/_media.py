"""Images, audio, video and files in the content of a message: their type and their text or data, in each usual form.

The forms are LangChain's content blocks (of versions 0 and 1), and those of OpenAI, Anthropic and Google. A block may
come from a stranger, so nothing of it is taken for granted.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

DATA_URL = re.compile(r"data:([^,]{0,300}),", re.IGNORECASE)
"""Beginning of a data URL. The group is the type of the data, and its parameters behind semicolons."""
DATA_KEYS = ("base64", "data", "file_data", "bytes")
URL_KEYS = ("url", "image_url", "file_url", "file_uri")
TYPE_KEYS = ("mime_type", "media_type")
_MIME_TYPE = re.compile(r"[a-z]{1,40}/[a-z0-9.+-]{1,80}")


class Media(NamedTuple):
    """Contents of an image, an audio or video file, or another file in the content of a message."""

    mime_type: str
    """Type such as "image/png"; empty if it is unknown or not written as a type."""
    text: str | None
    """Text of a text file; `None` for other data."""
    data_size: int
    """Characters of the data in base64; 0 for a text file, and for a URL or an id."""


def read_media(block: dict[str, Any]) -> Media:
    """Return what a content block contains; the fields are empty if nothing is recognised."""
    parts = list(_find_parts(block))
    # In the block itself, the type "text" is that of a plain text block.
    is_text_file = block.get("type") == "text-plain" or any(
        "text" in (part.get("source_type"), part.get("type") if part is not block else None) for part in parts
    )
    text = _first_text(parts, ("text", "data")) if is_text_file else None
    data = "" if is_text_file else _first_text(parts, DATA_KEYS) or ""
    data_size = len(data)
    mime_type = _first_text(parts, TYPE_KEYS) or ("text/plain" if is_text_file else "")
    for url in (data, _first_text(parts, URL_KEYS) or ""):
        if (match := DATA_URL.match(url)) is not None:
            data_size, mime_type = len(url) - match.end(), match[1].partition(";")[0].lower() or "text/plain"
    return Media(mime_type if _MIME_TYPE.fullmatch(mime_type) else "", text, data_size)


def _find_parts(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a block and the mappings directly in it, such as `source` of Anthropic and `file` of OpenAI."""
    yield block
    yield from (value for value in block.values() if isinstance(value, dict))


def _first_text(parts: list[dict[str, Any]], keys: tuple[str, ...]) -> str | None:
    return next((value for part in parts for key in keys if isinstance(value := part.get(key), str)), None)
