"""JSON data of a running command's web page, made from the command's recording in a process of its own.

Python's interpreter lock is held for half a second to read 20,000 calls; the agent's event loop would wait for it.
"""

import json
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from callboard._cli._page import LiveState, page_json
from callboard.telemetry import Recording, read_recording


class Request(NamedTuple):
    """Request for the data of the recording as it is now."""

    is_over: bool
    """`True` after the last run of the command."""
    is_long: bool
    """`True` to read nothing: the recording is too large for the page."""


class PageData:
    """Process that makes the data of a web page. Only one thread at a time may use it."""

    def __init__(self, recording: Path) -> None:
        self._recording = recording
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, unless it runs, and wait until it can take a request."""
        if self._process is None:
            command = [sys.executable, "-P", "-m", "callboard._cli._page_data", str(self._recording)]
            # A session of its own: Ctrl-C on the terminal is for the command, which then ends this process.
            self._process = subprocess.Popen(  # noqa: S603 (our own module)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._read()

    def make(self, request: Request) -> bytes:
        """Return the data as JSON; raise `RuntimeError` if the process ends without an answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended, and so has its answer
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        length = self._process.stdout.readline()
        if not length:
            self._process.wait()
            code = self._process.returncode
            self.close()
            raise RuntimeError(f"the process that makes the data of the page has ended, with exit code {code}")
        return self._process.stdout.read(int(length))

    def close(self) -> None:
        """End the process, if it has started."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()  # closes both pipes, and waits
            self._process = None


def main() -> None:
    """Answer each request on the standard input with the length of the data in a line, and the data.

    Before the first request, an empty answer tells that the process is ready.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path = Path(sys.argv[1])
    content = Recording(path=path, parts=())
    _answer(b"")
    for line in sys.stdin.buffer:
        request = Request(*json.loads(line))
        if path.exists() and not request.is_long:
            content = read_recording(path)
        live: LiveState = "running" if content.parts and content.parts[-1].closing is None else "waiting"
        if request.is_long:
            live = "long"
        if request.is_over:
            live = "ended"
        _answer(page_json(content, live).encode())


def _answer(data: bytes) -> None:
    sys.stdout.buffer.write(b"%d\n%b" % (len(data), data))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
