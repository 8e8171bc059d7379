"""Attacks that a hostile worker makes with its socket, its output and its begun counter."""

import os
import pickle
import signal
import stat
import threading
import time
from pathlib import Path

from callboard_actors._engine._frames import HEADER, MAGIC, MAX_EVENT, Kind

CHUNK = bytes(1024 * 1024)
LONGEST_EVENT = MAX_EVENT


class Bomb:
    """Object that leaves a trace where it is unpickled, except in the process that made it."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path(self.trace),)


def frame(kind: str | int, number: int, body: bytes, length: int | None = None) -> bytes:
    """Return a frame with this name or number of its kind, and the length of its body or a false one."""
    value = Kind[kind] if isinstance(kind, str) else kind
    return HEADER.pack(MAGIC, value, number, len(body) if length is None else length) + body


def _fds(test: object) -> list[int]:
    fds = []
    for fd in range(3, 256):
        try:
            mode = os.fstat(fd).st_mode
        except OSError:
            continue
        if test(mode):  # type: ignore[operator]
            fds.append(fd)
    return fds


def _socket() -> int:
    return _fds(stat.S_ISSOCK)[0]


def send(data: bytes) -> None:
    """Send bytes and then stay silent."""
    os.write(_socket(), data)
    time.sleep(600)


def send_bomb(kind: str, number: int, trace: str) -> None:
    send(frame(kind, number, pickle.dumps(Bomb(trace))))


def send_and_return(data: bytes) -> str:
    os.write(_socket(), data)
    return "returned"


def answer_for_others(first: int, count: int) -> str:
    """Leave behind a thread that keeps sending forged replies for later calls."""
    fd = _socket()

    def forge() -> None:
        while True:
            for number in range(first, first + count):
                os.write(fd, frame("VALUE", number, b'"forged"'))
                time.sleep(0.0005)

    def wait() -> None:
        time.sleep(0.02)
        forge()

    threading.Thread(target=wait, daemon=True).start()
    return "returned"


def stay(seconds: float) -> str:
    """Leave behind a thread, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=(seconds,)).start()
    return "returned"


def flood_socket(header: bytes, size: int) -> None:
    fd = _socket()
    os.write(fd, header)
    for _ in range(size // len(CHUNK)):
        os.write(fd, CHUNK)
    time.sleep(600)


def flood_words(number: int, count: int) -> str:
    """Send messages as fast as they are read."""
    fd = _socket()
    word = frame("EVENT", number, b'{"nobody": "' + b"x" * 32_000 + b'"}')
    for _ in range(count):
        view = memoryview(word)
        while view:
            view = view[os.write(fd, view) :]
    time.sleep(600)
    return "returned"


def flood_output(size: int) -> str:
    for _ in range(size // len(CHUNK)):
        view = memoryview(CHUNK)
        while view:
            view = view[os.write(1, view) :]
    return "returned"


def close_socket() -> None:
    os.close(_socket())
    time.sleep(600)


def deny_to_have_begun(trace: str) -> None:
    """Erase the begun counter and end, so that the call is given to another worker."""
    for fd in _fds(stat.S_ISREG):
        os.pwrite(fd, bytes(8), 0)
    with Path(trace).open("a") as file:
        file.write("run\n")
    os._exit(0)


def act(trace: str, call: int, end: str) -> int:
    """Leave the trace of an effect and end in the given way, perhaps with a false begun counter."""
    with Path(trace).open("a") as file:
        file.write(f"{call}\n")
    if "denies" in end:
        _write_into_notes(0)
    if end == "claims the next call":
        _write_into_notes(call + 1)
    if end.endswith("exits"):
        os._exit(0)
    if end.endswith("is killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "raises":
        raise ValueError(end)
    return call


def _write_into_notes(number: int) -> None:
    for fd in _fds(stat.S_ISREG):
        os.pwrite(fd, number.to_bytes(8, "big"), 0)


def grow_notebook() -> int:
    """Grow the file of the begun counter, whose memory no limit counts."""
    [fd] = _fds(stat.S_ISREG)
    return os.pwrite(fd, CHUNK, 0)
