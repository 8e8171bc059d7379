"""Loopback HTTP server of `callboard run --web`: shows the command's trace to browsers that send the secret token.

The server is a process of its own: Python's interpreter lock is held for half a second to read 20,000 calls, and the
agent's event loop would wait for it.
"""

import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

from callboard._cli._page import LiveState, live_page, page_json
from callboard._cli._shown_text import CommandError
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
        self._version = 0

    def newest(self) -> tuple[bytes, str]:
        """Return the web page's current data as JSON, with an HTTP entity tag (ETag) that changes with the data."""
        with self._lock:
            if monotonic() >= self._next:
                since = monotonic()
                body = self._make()
                if body != self._response[0]:
                    self._version += 1
                self._response = (body, f'"{self._version}"')
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


class _Server(ThreadingTCPServer):
    """HTTP server for the web page, in threads, so that requests do not block each other."""

    # Not `HTTPServer`, which resolves the name of the host.
    daemon_threads = False  # so that `server_close` waits for them
    request_queue_size = 32
    # On Windows, the option lets another process take the port.
    allow_reuse_address = os.name == "posix"

    def __init__(self, port: int, title: str, picture: Picture) -> None:
        self._lock = threading.Condition()
        self._open: dict[socket.socket, float] = {}
        """Open connections, and when they began. A socket is closed only after it has been removed."""
        self._owners: set[socket.socket] = set()
        """Open connections that have sent the token."""
        self.page = live_page(title).encode()
        self.picture = picture
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


class _Requests(BaseHTTPRequestHandler):
    """Handler of one HTTP connection. The connection is closed after one request."""

    timeout = _SILENCE

    @property
    def _site(self) -> _Server:
        assert isinstance(self.server, _Server)
        return self.server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        token = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if self.headers.get_all("Host") not in [[host] for host in self._site.hosts]:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif path == "/":  # without data, so that it needs no token; the token is in the fragment, which is not sent
            self._answer(HTTPStatus.OK, self._site.page, "text/html; charset=utf-8")
        elif path != "/data":
            self.send_error(HTTPStatus.NOT_FOUND)
        elif not secrets.compare_digest(token, f"Bearer {self._site.token}".encode()):
            self.send_error(HTTPStatus.UNAUTHORIZED)
        else:
            self._site.keep(self.connection)
            body, tag = self._site.picture.newest()
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, ETag=tag)
            else:
                self._answer(HTTPStatus.OK, body, "application/json", ETag=tag)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with an error, without any text of the request."""
        if code == HTTPStatus.NOT_IMPLEMENTED:  # a method without a `do_...` here
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, Allow="GET")
        else:
            self._answer(HTTPStatus(code), HTTPStatus(code).phrase.encode(), "text/plain; charset=utf-8")

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
def serve(title: str, port: int, recording: Path) -> Generator[_Server]:
    """Serve the page of a recording on loopback during the `with` block; raise `OSError` for an unusable port."""
    server = _Server(port, title, Picture(recording))
    thread = threading.Thread(target=server.serve_forever, args=(_SIGNAL_CHECK,), name="callboard page", daemon=True)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            server.close_older_than(0)


def main() -> None:
    """Serve a page until the standard input ends, as it does with the command; a line there says that no run follows.

    The first line of the output is the address of the page, or the reason why there is none.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    title, port, recording = sys.argv[1:]
    try:
        with serve(title, int(port), Path(recording)) as server:
            print(server.url, flush=True)
            for _ in sys.stdin:
                server.picture.end()
    except OSError as error:
        print(printable(error.strerror or str(error)))


# Page of a command.


class WebPage:
    """Web page of a running command: the URL of the page, and the file of the recording that the page shows."""

    def __init__(self, process: "subprocess.Popen[str]", url: str, recording: Path) -> None:
        self.url = url
        self.recording = recording
        self._process = process

    def stay(self, say: Callable[[str], Any]) -> None:
        """Continue to serve the web page after the last run of the command, until SIGINT or SIGTERM."""
        with suppress(Stopped):
            assert self._process.stdin is not None
            print(file=self._process.stdin, flush=True)
            say("The page stays. Press Ctrl-C to end.")
            while True:
                sleep(_SIGNAL_CHECK)


@contextmanager
def web_page(title: str, port: int) -> Generator[WebPage]:
    """Serve a command's web page on loopback during the `with` block; raise `CommandError` for an unusable port."""
    with TemporaryDirectory(prefix="callboard-") as folder:  # readable only by this user
        recording = Path(folder) / "calls.jsonl"
        command = [sys.executable, "-P", "-m", "callboard._cli._web", title, str(port), str(recording)]
        # A session of its own: Ctrl-C on the terminal is for the command, which then ends this process.
        with subprocess.Popen(  # noqa: S603 (our own module)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url.startswith("http://"):
                raise CommandError(f"--web cannot listen on {_HOST}:{port}: {url or 'its process has ended'}")
            yield WebPage(process, url, recording)


if __name__ == "__main__":
    main()
