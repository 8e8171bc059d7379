"""What a worker says: words of its calls, in any thread, and their replies."""

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from socket import socket
from typing import Any

from callboard_actors.process._frames import MAX_TOLD, Kind, frame


class Voice:
    """The worker's end of its socket, for writing.

    A call is heard from when it begins until it has its reply; afterwards its words are dropped, and so are those of
    processes that it has forked, which have a copy of the socket.
    """

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        self._open: set[int] = set()
        self._lock = threading.RLock()
        self._due = deque[bytes]()
        self._sending = False

    def begin(self, number: int) -> Callable[[dict[str, Any]], None]:
        """Open a call; returns by what it tells."""
        self._open.add(number)
        return partial(self._tell, number)

    def _tell(self, number: int, told: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return
        data = frame(Kind.TOLD, number, _encoded(told))
        with self._lock:
            if number in self._open:
                self._send(data)

    def reply(self, number: int, kind: Kind, body: bytes) -> None:
        """Send what has come of a call, after which nothing more is said of it."""
        if os.getpid() != self._pid:
            os._exit(0)  # a fork has come back out of the call, which is not its own
        with self._lock:
            self._open.discard(number)
            self._send(frame(kind, number, body))

    def _send(self, data: bytes) -> None:
        self._due.append(data)
        if self._sending:
            return  # a handler of a signal speaks; the sentence that it has interrupted is ended first
        self._sending = True
        try:
            while self._due:
                self._sock.sendall(self._due.popleft())
        finally:
            self._sending = False


def _encoded(told: dict[str, Any]) -> bytes:
    """Writes what is said as JSON within its bound, with shorter texts if need be."""
    data = json.dumps(told).encode()
    most = MAX_TOLD // 4
    while len(data) > MAX_TOLD:
        shorter = {kind: [one[:most] if isinstance(one, str) else one for one in said] for kind, said in told.items()}
        data = json.dumps(shorter).encode()
        most //= 2
    return data
