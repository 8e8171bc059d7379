"""HTTP service of the demo: a separate process on loopback that is slow, fails and hangs on demand.

`python -m callboard._cli._service --seed 7` prints `listening <port>`, and serves until its standard input is closed
or it gets SIGTERM. The operating system closes the standard input when the parent dies, even by SIGKILL. So the
service never outlives its parent.

- `/item/<n>` answers after a latency that depends only on the seed and `n`; a few items are slow, a few fail.
- `/hang` accepts the request and never answers.
- `/stats` returns the counts of requests.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

import anyio
from anyio.abc import Process

_HOST = "127.0.0.1"
_START_TIMEOUT = 20.0
_END_TIMEOUT = 2.0
_TICK = 0.05
"""Seconds between two checks of the service for a pending shutdown or signal."""


# Answers of the service


@dataclass(frozen=True, slots=True)
class Answer:
    """Behaviour of `/item/<n>`: wait for `latency` seconds, then answer with `status`."""

    latency: float
    status: HTTPStatus


@dataclass(slots=True)
class Stats:
    """Counts of requests; requests for `/stats` itself are not counted."""

    served: int = 0
    abandoned: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0

    def begin(self) -> None:
        """Count a request that begins."""
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def end(self, *, answered: bool) -> None:
        """Count a request that ends: answered, or abandoned by its client."""
        self.in_flight -= 1
        if answered:
            self.served += 1
        else:
            self.abandoned += 1


def answer_for(seed: int, item: int) -> Answer:
    """Return the behaviour of `/item/<item>`, determined by the seed and the item.

    One in fifty takes about 1.5 s, one in fifty answers 500, one in fifty 503; the others take 20 to 200 ms.
    """
    rng = random.Random(f"{seed}/{item}")  # noqa: S311  (the same numbers each time)
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


class _Server(ThreadingHTTPServer):
    """Server with a daemon thread for each connection."""

    request_queue_size = 1_024

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.stats = Stats()
        self.lock = threading.Lock()
        super().__init__((_HOST, 0), _Connection)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # not `HTTPServer.server_bind`: it looks up the host name in DNS, which may hang

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a hang-up of a client is counted, and needs no traceback
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    """Client connection that serves one request after the other."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: a second one would wait for the acknowledgement of the first
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]  (nobody else makes one)

    def do_GET(self) -> None:
        if self.path == "/stats":
            with self.server.lock:
                stats = asdict(self.server.stats)
            self._send(HTTPStatus.OK, stats)
        elif self.path == "/hang":
            self._begin()
            self._end(answered=not self._abandoned_within(None))
        elif item := re.fullmatch(r"/item/(\d{1,9})", self.path):
            self._begin()
            self._answer(int(item[1]))
        else:
            # The body of the request was not read, so the next request on this connection could not be parsed.
            self.close_connection = True
            self._send(HTTPStatus.NOT_FOUND, {"error": "not found"})

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: standard error belongs to the parent."""

    def _answer(self, item: int) -> None:
        answer = answer_for(self.server.seed, item)
        abandoned = self._abandoned_within(answer.latency)
        self._end(answered=not abandoned)
        if not abandoned:
            failure: dict[str, object] = {} if answer.status is HTTPStatus.OK else {"error": answer.status.phrase}
            self._send(answer.status, {"item": item, **failure})

    def _abandoned_within(self, seconds: float | None) -> bool:
        """Wait, and return whether the client hung up meanwhile; it sends nothing before it has its answer."""
        self.connection.settimeout(seconds)
        try:
            self.connection.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except OSError:
            pass
        finally:
            self.connection.settimeout(None)
        self.close_connection = True
        return True

    def _begin(self) -> None:
        with self.server.lock:
            self.server.stats.begin()

    def _end(self, *, answered: bool) -> None:
        with self.server.lock:
            self.server.stats.end(answered=answered)

    def _send(self, status: HTTPStatus, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Run the service until the end of its standard input, SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser("python -m callboard._cli._service", description="The demo's HTTP service.")
    parser.add_argument("--seed", type=int, default=0, help="decides latencies and failures")
    seed = parser.parse_args().seed
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit())
    with _Server(seed) as server:
        threading.Thread(target=_stop_on_end_of_input, args=[server], name="end-of-input", daemon=True).start()
        print(f"listening {server.server_address[1]}", flush=True)
        # Polls in the main thread: a signal that arrives just before a system call does not interrupt the call.
        server.serve_forever(_TICK)


def _stop_on_end_of_input(server: _Server) -> None:
    # Not `sys.stdin`: the interpreter aborts at exit if a daemon thread holds the lock of `sys.stdin`.
    with contextlib.suppress(OSError):
        while os.read(0, 1_024):
            pass
    server.shutdown()


# Functions of the parent process


@asynccontextmanager
async def running_service(seed: int) -> AsyncGenerator[str, None]:
    """Run the service in a separate process during the block, and yield its base URL."""
    process = await _start(seed)
    try:
        with anyio.fail_after(_START_TIMEOUT):
            port = await _port(process)
        yield f"http://{_HOST}:{port}"
    finally:
        with anyio.CancelScope(shield=True):  # also a cancelled demo must not leave the process behind
            await _end(process)


async def _start(seed: int) -> Process:
    # By file and not with `-m`, which would import all of callboard into the service. `-P` keeps this directory off
    # `sys.path`. A new session, so that Ctrl-C reaches only the parent, which then ends the service in order.
    command = [sys.executable, "-P", __file__, "--seed", str(seed)]
    with anyio.CancelScope(shield=True):  # a start that is cancelled half-way would leave a process without a handle
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
    # Three steps, each with a limit: end of input, SIGTERM, SIGKILL.
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
