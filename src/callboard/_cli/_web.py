"""Loopback HTTP server of `callboard run --web`: the command's trace and controls, for browsers with the secret token.

The server is a process of its own: Python's interpreter lock is held for half a second to read 20,000 calls, and the
agent's event loop would wait for it.
"""

import json
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from callboard._cli._page import LiveState, live_page, page_json
from callboard._cli._page_commands import (
    MAX_BODY,
    CommandInbox,
    CommandKind,
    CommandResult,
    CommandSender,
    parse_command,
)
from callboard._cli._signals import Stopped
from callboard.questions import printable
from callboard.telemetry import Recording, read_recording

_log = logging.getLogger("callboard")

# Data of the page.

_LONGEST = 64 * 1024 * 1024
"""Largest recording that is shown, in bytes; it bounds the memory and the time that the page takes."""
_PAUSE_FACTOR = 10
"""Making the page's data takes at most one part in this number of the time."""
_LEAST_AGE = 0.2
"""Seconds for which the data are not made again."""


class Picture:
    """JSON data of a command's web page, made from the command's recording when a browser requests the data."""

    # One document for all browsers: a browser that reads slowly, or many of them, buffer nothing in this process.

    def __init__(self, recording: Path) -> None:
        self.is_over = False
        """`True` after the last run of the command."""
        self._path = recording
        self._content = Recording(path=recording, parts=())
        self._lock = threading.Lock()
        self._next = 0.0
        self._response = (b"", "")

    def newest(self) -> tuple[bytes, str]:
        """Return the web page's current data as JSON, with an HTTP entity tag (ETag) that changes with the data."""
        with self._lock:
            if monotonic() >= self._next:
                since = monotonic()
                body = self._make()
                self._response = (body, f'"{sha256(body).hexdigest()}"')
                now = monotonic()
                self._next = now + max(_LEAST_AGE, _PAUSE_FACTOR * (now - since))
            return self._response

    def _make(self) -> bytes:
        is_long = self._path.exists() and self._path.stat().st_size > _LONGEST
        if self._path.exists() and not is_long:
            self._content = read_recording(self._path)
        parts = self._content.parts
        live: LiveState = "running" if parts and parts[-1].closing is None else "waiting"
        if is_long:
            live = "long"
        if self.is_over:
            live = "ended"
        return page_json(self._content, live).encode()

    def end(self) -> None:
        """Make the web page show that the last run of the command has ended."""
        with self._lock:
            self.is_over, self._next = True, 0.0


# Server.

_HOST = "127.0.0.1"
_MOST = 16
"""Largest number of open connections, each with a thread. A further one replaces the oldest without the token."""
_ROOM = 0.5
"""Seconds for which a further connection waits until the thread of that oldest one has ended."""
_SILENCE = 5.0
"""Seconds for which a connection may neither send nor take anything."""
_LIFE = 10.0
"""Seconds after which a connection is closed, whatever it does."""
_SIGNAL_CHECK = 0.1

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest of the policy is in the page
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}


Perform = Callable[[CommandKind, str], CommandResult]
"""Function that performs a command of the page; its parameters are the kind and the text of the command."""


class _Server(ThreadingTCPServer):
    """HTTP server for the web page, in threads, so that requests do not block each other."""

    # Not `HTTPServer`, which resolves the name of the host.
    daemon_threads = False  # so that `server_close` waits for them
    request_queue_size = 32
    # On Windows, the option lets another process take the port.
    allow_reuse_address = os.name == "posix"

    def __init__(self, port: int, title: str, picture: Picture, perform: Perform | None) -> None:
        self._lock = threading.Condition()
        self._open: dict[socket.socket, float] = {}
        """Open connections, and when they began. A socket is closed only after it has been removed."""
        self._owners: set[socket.socket] = set()
        """Open connections that have sent the token."""
        self.page = live_page(title, has_controls=perform is not None).encode()
        self.picture = picture
        self.perform = perform
        """Function for the commands of the page; `None` for a page without controls."""
        self.token = secrets.token_urlsafe(24)
        super().__init__((_HOST, port), _Requests)
        bound_port: int = self.server_address[1]
        self.url = f"http://{_HOST}:{bound_port}/#{self.token}"
        # Only these: a page of another site may make its own name resolve to this address (DNS rebinding).
        self.hosts = (f"{_HOST}:{bound_port}", f"localhost:{bound_port}")

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            # Connections that only wait would otherwise keep the owner out: anybody at this machine can open them.
            if len(self._open) >= _MOST:
                self._shut_down(next((connection for connection in self._open if connection not in self._owners), None))
            if has_room := self._lock.wait_for(lambda: len(self._open) < _MOST, _ROOM):
                self._open[request] = monotonic()
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._owners.discard(request)
            self._lock.notify()
        super().close_request(request)

    def keep(self, request: socket.socket) -> None:
        """Mark a connection that has sent the token, so that it is not closed in favour of a new connection."""
        with self._lock:
            self._owners.add(request)

    def service_actions(self) -> None:
        """Close connections that are too old; `serve_forever` calls this several times a second."""
        self.close_older_than(_LIFE)

    def close_older_than(self, age: float) -> None:
        with self._lock:
            for connection, since in self._open.items():
                if monotonic() - since >= age:
                    self._shut_down(connection)

    def _shut_down(self, connection: socket.socket | None) -> None:
        if connection is not None:
            with suppress(OSError):  # its thread then fails to read or to write
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a request, unless it is an OSError, which means that the connection was closed."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            _log.error("the page of the run failed to answer", exc_info=error)


_COMMANDS: dict[str, CommandKind] = {"/say": "say", "/cancel": "cancel"}
_METHODS = {"/": "GET", "/data": "GET", **dict.fromkeys(_COMMANDS, "POST")}
"""Method of each path."""


class _Requests(BaseHTTPRequestHandler):
    """Handler of one HTTP connection. The connection is closed after one request."""

    timeout = _SILENCE

    @property
    def _site(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def do_GET(self) -> None:
        if (refusal := self._refusal()) is not None:
            self._refuse(refusal)
        elif self._path == "/":
            self._answer(HTTPStatus.OK, self._site.page, "text/html; charset=utf-8")
        else:
            self._site.keep(self.connection)
            body, tag = self._site.picture.newest()
            is_known = self.headers.get("If-None-Match") == tag
            status = HTTPStatus.NOT_MODIFIED if is_known else HTTPStatus.OK
            self._answer(status, b"" if is_known else body, None if is_known else "application/json", ETag=tag)

    def do_POST(self) -> None:
        refusal = self._refusal() or self._refusal_of_body()
        if refusal is not None:
            self._refuse(refusal)
            return
        self._site.keep(self.connection)
        kind = _COMMANDS[self._path]
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        text = parse_command(body, kind) if len(body) == length else None  # a client may have left in the middle
        if text is None:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return
        assert self._site.perform is not None  # otherwise the path is not found
        result = self._site.perform(kind, text)
        status = HTTPStatus.OK if result.is_done else HTTPStatus.CONFLICT
        self._answer(status, json.dumps({"text": result.text}).encode(), "application/json")

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    def _refusal(self) -> HTTPStatus | None:
        """Return the status of a request that is refused for its host, path, method or token; `None` if it is not."""
        token = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if self.headers.get_all("Host") not in [[host] for host in self._site.hosts]:
            return HTTPStatus.FORBIDDEN
        if self._path not in _METHODS or (self._path in _COMMANDS and self._site.perform is None):
            return HTTPStatus.NOT_FOUND
        if self.command != _METHODS[self._path]:
            return HTTPStatus.METHOD_NOT_ALLOWED
        # The page is without data, so that it needs no token; the token is in the fragment, which is not sent.
        if self._path != "/" and not secrets.compare_digest(token, f"Bearer {self._site.token}".encode()):
            return HTTPStatus.UNAUTHORIZED
        return None

    def _refusal_of_body(self) -> HTTPStatus | None:
        """Return the status of a command that is refused for its origin, or for the type or length of its body."""
        lengths = self.headers.get_all("Content-Length", [])
        # Browsers send the origin with each POST, and pages cannot change it. Other clients send none.
        if self.headers.get_all("Origin", []) not in [[], *([f"http://{host}"] for host in self._site.hosts)]:
            return HTTPStatus.FORBIDDEN
        if self.headers.get_all("Content-Type") != ["application/json"]:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        if len(lengths) != 1 or "Transfer-Encoding" in self.headers or not re.fullmatch("[0-9]{1,9}", lengths[0]):
            return HTTPStatus.LENGTH_REQUIRED
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if int(lengths[0]) > MAX_BODY else None

    def _refuse(self, status: HTTPStatus) -> None:
        allowed = {"Allow": _METHODS.get(self._path, "GET")} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._answer(status, status.phrase.encode(), "text/plain; charset=utf-8", **allowed)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with an error, without any text of the request."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # a method without a `do_...` here
            code = HTTPStatus.METHOD_NOT_ALLOWED
        self._refuse(HTTPStatus(code))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because log lines would disturb the output of the run on the terminal."""

    def _answer(self, code: HTTPStatus, body: bytes = b"", kind: str | None = None, **headers: str) -> None:
        self.send_response_only(code)
        for name, value in {**_HEADERS, **headers, **({"Content-Type": kind} if kind else {})}.items():
            self.send_header(name, value)
        if code != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serve(title: str, port: int, recording: Path, perform: Perform | None = None) -> Generator[_Server]:
    """Serve the page of a recording on loopback during the `with` block; raise `OSError` for an unusable port."""
    server = _Server(port, title, Picture(recording), perform)
    thread = threading.Thread(target=server.serve_forever, args=(_SIGNAL_CHECK,), name="callboard page", daemon=True)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.close_older_than(0)


def main() -> None:
    """Serve a page until the standard input ends, as it does with the command; an empty line says that no run follows.

    The first line of the output is the address of the page, or the reason why there is none. The other lines are
    commands of the page, and those of the input are their results.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    title, port, recording, controls = sys.argv[1:]
    sender = CommandSender(sys.stdout)
    try:
        with serve(title, int(port), Path(recording), sender.perform if controls else None) as server:
            print(server.url, flush=True)
            for line in sys.stdin:
                if line.strip():
                    sender.receive(line)
                else:
                    server.picture.end()
            sender.close()
    except OSError as error:
        with suppress(BrokenPipeError):  # the program has ended while this process started
            print(printable(error.strerror or str(error)), flush=True)


# Page of a command.


class WebPage:
    """Web page of a running command: its URL, the file of the recording that it shows, and its commands."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, recording: Path) -> None:
        self.url = url
        self.recording = recording
        self.inbox = CommandInbox(self._send)
        self._process = process
        self._lock = threading.Lock()

    def stay(self, say: Callable[[str], Any]) -> None:
        """Continue to serve the web page after the last run of the command, until SIGINT or SIGTERM."""
        with suppress(Stopped):
            self._send("")
            say("The page stays. Press Ctrl-C to end.")
            while True:
                sleep(_SIGNAL_CHECK)

    def close(self) -> None:
        """End the server, by the end of its standard input."""
        assert self._process.stdin is not None
        with self._lock, suppress(OSError):  # the server has ended, and left text unread that a close would write
            self._process.stdin.close()

    def _send(self, line: str) -> None:
        """Send a line to the server; threads of commands and of the run do so."""
        assert self._process.stdin is not None
        with self._lock, suppress(OSError, ValueError):  # the server has ended, or its pipe is closed
            print(line, file=self._process.stdin, flush=True)


@contextmanager
def web_page(title: str, port: int, *, has_controls: bool = False) -> Generator[WebPage]:
    """Serve a program's web page on loopback during the `with` block; raise `OSError` for an unusable port.

    With controls, the page sends commands to the inbox of the `WebPage`.
    """
    with TemporaryDirectory(prefix="callboard-") as folder:  # readable only by this user
        recording = Path(folder) / "calls.jsonl"
        controls = "controls" if has_controls else ""
        command = [sys.executable, "-P", "-m", "callboard._cli._web", title, str(port), str(recording), controls]
        # A session of its own: Ctrl-C on the terminal is for the command, which then ends this process.
        with subprocess.Popen(  # noqa: S603 (our own module)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url.startswith("http://"):
                raise OSError(f"cannot listen on {_HOST}:{port}: {url or 'its process has ended'}")
            page = WebPage(process, url, recording)
            receiver = threading.Thread(target=page.inbox.receive, args=(process.stdout,), daemon=True)
            receiver.start()
            try:
                yield page
            finally:
                page.close()
                receiver.join()


if __name__ == "__main__":
    main()
