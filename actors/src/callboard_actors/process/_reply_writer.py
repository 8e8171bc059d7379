"""Sending side of a worker's socket: events of its calls, from any thread, and their replies."""

import json
import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from socket import socket
from typing import Any

from callboard_actors._engine._frames import MAX_TOLD, Kind, frame


class ReplyWriter:
    """Writer of events and replies to the pool.

    Events are sent from the beginning of a call until its reply, and dropped afterwards. Events of processes that a
    call has forked are dropped, too: such a process has a copy of the socket.
    """

    def __init__(self, sock: socket) -> None:
        self._sock = sock
        self._pid = os.getpid()
        # Calls without a reply; an event after the reply would be a protocol error at the pool.
        self._open: set[int] = set()
        # Reentrant: a signal handler that sends an event may interrupt a thread that holds the lock.
        self._lock = threading.RLock()
        self._due = deque[bytes]()
        # Guarded by the lock. True only while a thread is in `_send`, which the handler of a signal may enter again.
        self._sending = False

    def begin(self, number: int) -> Callable[[dict[str, Any]], None]:
        """Open a call, and return the function that sends its events."""
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
        """Send the reply of a call, and close the call for events."""
        if os.getpid() != self._pid:
            os._exit(0)  # a process forked by the call has returned from it; the call is not its own
        with self._lock:
            self._open.discard(number)
            self._send(frame(kind, number, body))

    def _send(self, data: bytes) -> None:
        self._due.append(data)
        if self._sending:
            return  # in a signal handler: the interrupted `_send` completes its frame first, then sends this one
        self._sending = True
        try:
            while self._due:
                self._sock.sendall(self._due.popleft())
        finally:
            self._sending = False


def _encoded(told: dict[str, Any]) -> bytes:
    """Encode an event as JSON of at most `MAX_TOLD` bytes; shorten its texts if necessary."""
    data = json.dumps(told).encode()
    most = MAX_TOLD // 4
    while len(data) > MAX_TOLD:
        shorter = {kind: [one[:most] if isinstance(one, str) else one for one in said] for kind, said in told.items()}
        data = json.dumps(shorter).encode()
        most //= 2
    return data
