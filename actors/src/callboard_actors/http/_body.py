"""The body of an answer: as much of it as is wanted, and all of it in a file where there is a place for that."""

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
"""A Content-Length that is one."""


@dataclass(frozen=True, slots=True)
class Body:
    """What was read of an answer, without its compression."""

    data: bytes
    is_cut: bool
    size: int
    saved: Path | None = None
    sha256: str | None = None
    """Of all of it, in hexadecimal digits; `None` where it was not read to its end."""


@dataclass(frozen=True, slots=True)
class Store:
    """Where bodies are kept that are no text, or too long to be read.

    Args:
        folder: where their files are made.
        most: bytes of one; a longer one is not kept.
    """

    folder: Path
    most: int


class _Parts:
    """The parts of a body, as they come; whoever watches the call is told how far it is.

    Args:
        response: whose body it is.
    """

    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self._digest = sha256()
        length = response.headers.get("content-length", "")
        self._total = int(length) if _LENGTH.fullmatch(length) else None

    async def read(self) -> AsyncGenerator[bytes]:
        """Each part, without its compression."""
        async with aclosing(self._response.aiter_bytes()) as parts:
            async for part in parts:
                self._digest.update(part)
                came(self._response.num_bytes_downloaded, self._total)
                await checkpoint()  # one that came can be decompressed into many, and others want to go on meanwhile
                yield part

    @property
    def sha256(self) -> str:
        """Of all that has been read."""
        return self._digest.hexdigest()


async def read_body(response: httpx2.Response, most: int, store: Store | None) -> Body:
    """Read a body, part by part; `httpx2` decompresses a MiB at a time, so that nothing has to be held beside.

    Args:
        response: whose body has not been read.
        most: bytes that are wanted.
        store: where it is kept if it has more, or is no text.
    """
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
    """The file that has it all, or `None` if it is too long for one; and its bytes."""
    path = store.folder / _name(url)
    size, is_whole = len(begin), False
    try:
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
            path.unlink(missing_ok=True)


def _name(url: str) -> str:
    """A name for a file of our own: nothing of a URL leads out of the folder."""
    written = _NOT_IN_NAMES.sub("-", unquote(urlsplit(url).path).rpartition("/")[2]).strip("-.")[-_LONGEST_NAME:]
    stem, dot, suffix = written.rpartition(".")
    return f"{stem or written or 'body'}-{secrets.token_hex(4)}{dot}{suffix if dot else ''}"
