"""Bytes out of a socket as they come, by the running event loop; the socket stays its owner's.

On asyncio the loop is told once to watch the socket, and reads when it can: `anyio.wait_readable` tells it anew for
every wait, after a checkpoint, which took a quarter of the time of a call of a worker. trio's own wait is quick.
"""

import asyncio
from socket import MSG_DONTWAIT, socket
from typing import Protocol

import anyio
import sniffio


class Incoming(Protocol):
    """What comes out of a socket. One task waits for it at a time."""

    async def receive(self, most: int) -> bytes:
        """Wait for bytes, at most so many.

        Raises:
            ConnectionError: nothing more will come.
        """
        ...

    def close(self) -> None:
        """Leave the socket alone; to be called before it is closed."""
        ...


def incoming(sock: socket) -> Incoming:
    """What comes out of a socket that does not block."""
    return _Watched(sock) if sniffio.current_async_library() == "asyncio" else _Awaited(sock)


class _Awaited:
    """Reads from a socket, and waits anew each time until something is there."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock

    async def receive(self, most: int) -> bytes:
        while True:
            await anyio.wait_readable(self._sock)
            try:
                return _some(self._sock, most)
            except BlockingIOError:
                continue

    def close(self) -> None: ...


class _Watched:
    """Reads from a socket by a callback, which asyncio calls as long as there is something to read."""

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self._is_watched = False
        self._most = 0
        self._waiter: asyncio.Future[bytes] | None = None

    async def receive(self, most: int) -> bytes:
        if not self._is_watched:
            self._loop.add_reader(self._sock, self._read)
            self._is_watched = True
        self._most = most
        self._waiter = self._loop.create_future()
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _read(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            # Left where it is until somebody waits, and without a watch: it would call again and again.
            self.close()
            return
        try:
            waiter.set_result(_some(self._sock, self._most))
        except BlockingIOError:
            pass
        except OSError as error:
            waiter.set_exception(error)

    def close(self) -> None:
        if self._is_watched and not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
        self._is_watched = False


def _some(sock: socket, most: int) -> bytes:
    data = sock.recv(most, MSG_DONTWAIT)
    if not data:
        raise ConnectionResetError
    return data
