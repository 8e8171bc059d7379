"""Body of a response: the wanted part of it in memory, and all of it in a file if there is a folder for files."""

import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio
import httpx2
from anyio.lowlevel import checkpoint

from callboard_actors.http._text import is_text, media_type_of
from callboard_actors.http._time import came

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 60
_LENGTH = re.compile(r"[0-9]{1,15}")
"""Valid Content-Length."""


@dataclass(frozen=True, slots=True)
class Body:
    """Part of a response's body that was read, after decompression."""

    data: bytes
    is_cut: bool
    size: int
    saved: Path | None = None
    sha256: str | None = None
    """Digest of the whole body, in hexadecimal digits; `None` if it was not read to its end."""


@dataclass(frozen=True, slots=True)
class Store:
    """Folder for bodies that are not text, or too long to be read.

    Args:
        folder: directory of the files.
        most: largest body that is kept, in bytes.
    """

    folder: Path
    most: int


class _Parts:
    """Parts of a body as they arrive; each one is reported as progress of the call."""

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._digest = sha256()
        length = response.headers.get("content-length", "")
        self._total = int(length) if _LENGTH.fullmatch(length) else None

    async def read(self) -> AsyncGenerator[bytes]:
        """Yield the parts after decompression."""
        async with aclosing(self._response.aiter_bytes()) as parts:
            async for part in parts:
                self._digest.update(part)
                came(self._response.num_bytes_downloaded, self._total)
                await checkpoint()  # one network part can decompress into many, and other tasks must run between them
                yield part

    @property
    def sha256(self) -> str:
        """Digest of all that has been read."""
        return self._digest.hexdigest()


async def read_body(response: httpx2.Response, most: int, store: Store | None) -> Body:
    """Read up to `most` bytes of a body; save a longer body, or one that is not text, in the store if there is one."""
    # `httpx2` decompresses at most a MiB at a time, so memory use stays bounded for any compressed body.
    body = _Parts(response)
    async with aclosing(body.read()) as parts:
        data = bytearray()
        async for part in parts:
            data += part
            if len(data) > most:
                break
        media_type = media_type_of(response.headers.get("content-type", ""))
        is_cut = len(data) > most
        if store is None or not data or (not is_cut and is_text(media_type, bytes(data))):
            return Body(bytes(data[:most]), is_cut, len(data), sha256=None if is_cut else body.sha256)
        saved, size = await _kept(store, str(response.url), bytes(data), parts)
        return Body(bytes(data[:most]), is_cut, size, saved, None if saved is None else body.sha256)


async def _kept(store: Store, url: str, begin: bytes, rest: AsyncIterator[bytes]) -> tuple[Path | None, int]:
    """Write a body to a file; return its path, or `None` if it is too long, and its size."""
    path = store.folder / _name(url)
    size, is_whole = len(begin), False
    try:
        # "x" never overwrites a file, and follows no link that exists under this name.
        async with await anyio.open_file(path, "xb") as file:
            await file.write(begin)
            async for part in rest:
                size += len(part)
                if size > store.most:
                    return None, size
                await file.write(part)
            is_whole = size <= store.most
            return (path if is_whole else None), size
    finally:
        if not is_whole:
            # Also when the task is cancelled: no partial file remains.
            path.unlink(missing_ok=True)


def _name(url: str) -> str:
    """Return a name for a file of this client; no part of a URL can lead out of the folder."""
    written = _NOT_IN_NAMES.sub("-", unquote(urlsplit(url).path).rpartition("/")[2]).strip("-.")[-_LONGEST_NAME:]
    stem, dot, suffix = written.rpartition(".")
    return f"{stem or written or 'body'}-{secrets.token_hex(4)}{dot}{suffix if dot else ''}"
