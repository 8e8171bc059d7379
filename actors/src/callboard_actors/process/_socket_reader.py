"""Receiver of bytes from a socket, on asyncio or trio. The caller opens and closes the socket."""

import asyncio
from contextlib import suppress
from socket import MSG_DONTWAIT, socket

import anyio
import sniffio
from anyio.abc import ObjectReceiveStream

_CHUNK = 256 * 1024
"""Maximum number of bytes that are received at once; a socket seldom holds more."""


class Incoming(ObjectReceiveStream[bytes]):
    """Receiver of the bytes of a socket, which may be a blocking one. Only one task may wait at a time."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._is_on_asyncio = sniffio.current_async_library() == "asyncio"

    async def receive(self) -> bytes:
        """Wait for data, and return what has arrived; raise `ConnectionError` if the other end has closed."""
        data: bytes | None = None
        while data is None:
            # `anyio.wait_readable` took a quarter of the time of a call; asyncio itself takes no blocking sockets.
            if self._is_on_asyncio and not self._sock.getblocking():
                data = await asyncio.get_running_loop().sock_recv(self._sock, _CHUNK)
            else:
                await anyio.wait_readable(self._sock)
                with suppress(BlockingIOError):
                    data = self._sock.recv(_CHUNK, MSG_DONTWAIT)
        if not data:
            raise ConnectionResetError
        return data

    async def aclose(self) -> None:
        """Do nothing: whoever has opened the socket closes it."""
