"""Running IPython kernel whose cells a test runs one after the other, as a notebook does."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

WAIT = 60
"""Seconds after which a cell hangs."""


@dataclass(frozen=True)
class Cell:
    """Output of a cell."""

    text: str
    error: str
    """Type of the error, such as "KeyboardInterrupt"; empty without one."""
    traceback: str = ""


class Kernel:
    """Kernel of a notebook in a process of its own."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, *, interrupt_at: str = "") -> Cell:
        """Run a cell; interrupt it, as the button of a notebook does, once it has printed `interrupt_at`."""
        number = self._client.execute(code)
        text, error, traceback = "", "", ""
        deadline = time.monotonic() + WAIT
        while True:
            assert time.monotonic() < deadline, f"the cell hangs after {text!r}"
            try:
                message: dict[str, Any] = self._client.get_iopub_msg(timeout=1)
            except Empty:
                continue
            if message["parent_header"].get("msg_id") != number:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                text += content["text"]
                if interrupt_at and interrupt_at in text:
                    interrupt_at = ""
                    self._manager.interrupt_kernel()
            elif kind == "execute_result":
                text += content["data"]["text/plain"]
            elif kind == "error":
                error, traceback = content["ename"], f"{content['ename']}: {content['evalue']}"
            elif kind == "status" and content["execution_state"] == "idle":
                return Cell(text, error, traceback)

    def value(self, code: str) -> str:
        """Run a cell that must succeed, and return its output."""
        cell = self.run(code)
        assert not cell.error, cell.traceback
        return cell.text.strip()

    def end(self, *, now: bool) -> None:
        """Shut the kernel down, as closing a notebook does, or kill it if `now`."""
        self._manager.shutdown_kernel(now=now)


@contextmanager
def kernel(folder: Path) -> Generator[Kernel]:
    """Run a kernel in a folder; its stderr, which a notebook does not show, goes to the file `stderr`."""
    manager = KernelManager()
    with (folder / "stderr").open("w") as stderr:
        manager.start_kernel(cwd=str(folder), stderr=stderr)
        client = manager.blocking_client()
        try:
            client.start_channels()
            client.wait_for_ready(timeout=WAIT)
            yield Kernel(manager, client)
        finally:
            client.stop_channels()
            if manager.is_alive():
                manager.shutdown_kernel(now=True)
            manager.cleanup_resources()
