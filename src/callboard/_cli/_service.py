"""A small HTTP service on loopback, in a process of its own, that is slow, fails and hangs on demand.

`python -m callboard._cli._service --seed 7` prints `listening <port>` and serves until its standard input is
closed or it gets SIGTERM. Standard input is the leash: the system closes it when the parent dies, however it
dies.

- `/item/<n>` answers after a latency that depends on the seed and `n` only; a few are slow, a few fail.
- `/hang` takes the request and never answers.
- `/stats` tells what the service has seen.
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
"""Seconds until the service sees that it is to end."""


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
        """Count a request that has come in, until it is counted out."""
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


class _Server(ThreadingHTTPServer):
    """A thread for each connection; none of them outlives the process."""

    request_queue_size = 1_024

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.stats = Stats()
        self.lock = threading.Lock()
        super().__init__((_HOST, 0), _Connection)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # and not `HTTPServer`'s, which asks a name server who it is

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that is gone is counted, and no more
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    """One client connection: one request after the other."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: the second would wait until the first is acknowledged
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
            # Whatever this was, its body was not read: the connection cannot be used on.
            self.close_connection = True
            self._send(HTTPStatus.NOT_FOUND, {"error": "not found"})

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: standard error is the parent's."""

    def _answer(self, item: int) -> None:
        answer = answer_for(self.server.seed, item)
        abandoned = self._abandoned_within(answer.latency)
        self._end(answered=not abandoned)
        if not abandoned:
            failure: dict[str, object] = {} if answer.status is HTTPStatus.OK else {"error": answer.status.phrase}
            self._send(answer.status, {"item": item, **failure})

    def _abandoned_within(self, seconds: float | None) -> bool:
        """Wait; whether the client hangs up meanwhile. It sends nothing before it has its answer."""
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
    """Run the service until its standard input ends, or a signal says so."""
    parser = argparse.ArgumentParser("python -m callboard._cli._service", description="The demo's HTTP service.")
    parser.add_argument("--seed", type=int, default=0, help="decides latencies and failures")
    seed = parser.parse_args().seed
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit())
    with _Server(seed) as server:
        threading.Thread(target=_stop_on_end_of_input, args=[server], name="end-of-input", daemon=True).start()
        print(f"listening {server.server_address[1]}", flush=True)
        # Here, and waking up by itself: a signal that comes just before a system call does not interrupt it.
        server.serve_forever(_TICK)


def _stop_on_end_of_input(server: _Server) -> None:
    # Not `sys.stdin`: a daemon thread that holds its lock at exit brings the interpreter down.
    with contextlib.suppress(OSError):
        while os.read(0, 1_024):
            pass
    server.shutdown()


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
