"""A small HTTP service on loopback, in a process of its own, that is slow, fails and hangs on demand.

`python -m callboard._cli._service --seed 7` prints `listening <port>` and serves until its standard input is
closed or it gets SIGTERM. Standard input is the leash: the system closes it when the parent dies, however it
dies.

- `/item/<n>` answers after a latency that depends on the seed and `n` only; a few are slow, a few fail.
- `/hang` takes the request and never answers.
- `/stats` tells what the service has seen.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus

import anyio
from anyio.abc import Process

_HOST = "127.0.0.1"
_LONGEST_HEAD = 16_384
_BACKLOG = 1_024
_START_TIMEOUT = 20.0
_END_TIMEOUT = 2.0


# What the service answers


@dataclass(frozen=True, slots=True)
class Answer:
    """What `/item/<n>` does: wait for `latency` seconds, then answer with `status`."""

    latency: float
    status: HTTPStatus


@dataclass(slots=True)
class Stats:
    """What the service has seen; requests for `/stats` itself are not counted."""

    served: int = 0
    abandoned: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0

    def begin(self) -> None:
        """Count a request in."""
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def end(self, *, answered: bool) -> None:
        """Count a request out: answered, or abandoned by its client."""
        self.in_flight -= 1
        if answered:
            self.served += 1
        else:
            self.abandoned += 1


def answer_for(seed: int, item: int) -> Answer:
    """Decide what `/item/<item>` does, always the same for the same seed and item.

    One in fifty takes about 1.5 s, one in fifty answers 500, one in fifty 503; the others take 20 to 200 ms.
    """
    rng = random.Random(f"{seed}/{item}")  # noqa: S311  (to be the same each time)
    latency = rng.uniform(0.02, 0.2)
    lot = rng.random()
    if lot < 0.02:
        return Answer(rng.uniform(1.4, 1.6), HTTPStatus.OK)
    if lot < 0.04:
        return Answer(latency, HTTPStatus.INTERNAL_SERVER_ERROR)
    if lot < 0.06:
        return Answer(latency, HTTPStatus.SERVICE_UNAVAILABLE)
    return Answer(latency, HTTPStatus.OK)


# The service, in its own process


class _Connection(asyncio.Protocol):
    """One client connection: one request after the other, answered by a timer, no task."""

    def __init__(self, seed: int, stats: Stats, connections: set["_Connection"]) -> None:
        self._seed = seed
        self._stats = stats
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._busy:
            self._busy = False
            self._stats.end(answered=False)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._next_request()

    def abort(self) -> None:
        """Drop the connection without an answer."""
        if self._transport is not None:
            self._transport.abort()

    def _next_request(self) -> None:
        if self._busy:
            return
        head, blank_line, rest = self._received.partition(b"\r\n\r\n")
        if blank_line:
            self._received = rest
            self._dispatch(head.decode("latin-1").split("\r\n", 1)[0])
        elif len(self._received) > _LONGEST_HEAD:
            self.abort()

    def _dispatch(self, request_line: str) -> None:
        if request_line == "GET /stats HTTP/1.1":
            self._send(HTTPStatus.OK, asdict(self._stats))
        elif request_line == "GET /hang HTTP/1.1":
            self._begin()
        elif item := re.fullmatch(r"GET /item/(\d{1,9}) HTTP/1\.1", request_line):
            self._begin()
            self._answer_later(int(item[1]))
        else:
            # Whatever this was, its body was not read: the connection cannot be used on.
            self._send(HTTPStatus.NOT_FOUND, {"error": "not found"}, close=True)

    def _begin(self) -> None:
        self._busy = True
        self._stats.begin()

    def _answer_later(self, item: int) -> None:
        answer = answer_for(self._seed, item)
        self._timer = asyncio.get_running_loop().call_later(answer.latency, self._answer, item, answer.status)

    def _answer(self, item: int, status: HTTPStatus) -> None:
        self._busy = False
        self._stats.end(answered=True)
        failure: dict[str, object] = {} if status is HTTPStatus.OK else {"error": status.phrase}
        self._send(status, {"item": item, **failure})

    def _send(self, status: HTTPStatus, content: dict[str, object], *, close: bool = False) -> None:
        if self._transport is None:
            return
        self._transport.write(_response(status, content, close=close))
        if close:
            self._transport.close()
        else:
            self._next_request()


def _response(status: HTTPStatus, content: dict[str, object], *, close: bool) -> bytes:
    body = json.dumps(content).encode()
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        lines.append("Retry-After: 1")
    if close:
        lines.append("Connection: close")
    return "\r\n".join([*lines, "", ""]).encode() + body


async def _serve(seed: int) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    _stop_on_signal(loop, stopped)
    _stop_on_end_of_input(loop, stopped)
    stats = Stats()
    connections: set[_Connection] = set()
    server = await loop.create_server(lambda: _Connection(seed, stats, connections), _HOST, 0, backlog=_BACKLOG)
    print(f"listening {server.sockets[0].getsockname()[1]}", flush=True)
    await stopped.wait()
    server.close()
    for connection in tuple(connections):
        connection.abort()


def _stop_on_signal(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    with contextlib.suppress(NotImplementedError):  # Windows: SIGTERM ends the process there anyway
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)


def _stop_on_end_of_input(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    def watch() -> None:
        # Not `sys.stdin`: a daemon thread that holds its lock at exit brings the interpreter down.
        with contextlib.suppress(OSError):
            while os.read(0, 1_024):
                pass
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(stopped.set)

    # A thread, because not every event loop can wait for every kind of standard input.
    threading.Thread(target=watch, name="end-of-input", daemon=True).start()


def main() -> None:
    """Run the service until its standard input ends."""
    parser = argparse.ArgumentParser("python -m callboard._cli._service", description="The demo's HTTP service.")
    parser.add_argument("--seed", type=int, default=0, help="decides latencies and failures")
    asyncio.run(_serve(parser.parse_args().seed))


# The parent's side


@asynccontextmanager
async def running_service(seed: int) -> AsyncGenerator[str, None]:
    """Run the service in its own process for the length of the block; the value is its base URL."""
    process = await _start(seed)
    try:
        with anyio.fail_after(_START_TIMEOUT):
            port = await _port(process)
        yield f"http://{_HOST}:{port}"
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)


async def _start(seed: int) -> Process:
    # By its file, not with `-m`: that would import the whole of callboard into the service first. `-P` keeps
    # this folder off its path. A session of its own: Ctrl-C is for the parent, which then ends the service.
    command = [sys.executable, "-P", __file__, "--seed", str(seed)]
    with anyio.CancelScope(shield=True):  # a start cancelled half-way would leave a process that nobody holds
        return await anyio.open_process(command, stderr=None, start_new_session=True)
    raise AssertionError("the scope above is never cancelled")


async def _port(process: Process) -> int:
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        try:
            line += await process.stdout.receive()
        except anyio.EndOfStream:
            raise RuntimeError("the demo's HTTP service ended before it listened") from None
    return int(line.split()[1])


async def _end(process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError, anyio.BrokenResourceError):
        await process.stdin.aclose()
    if not await _ended(process):
        process.terminate()
        if not await _ended(process):
            process.kill()
    await process.aclose()


async def _ended(process: Process) -> bool:
    with anyio.move_on_after(_END_TIMEOUT):
        await process.wait()
    return process.returncode is not None


if __name__ == "__main__":
    main()
