"""Real HTTP requests by a blocking tool: a limit for each host, and a hanging page that fails one call only.

Each call runs in a worker thread. The tool passes its remaining time to the socket as a timeout, so its
thread never outlives the call. Standard library only; the servers are threads of this process on loopback.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
from langchain_core.tools import tool

from callboard import CallPolicy, Limit, ToolNode, remaining, tool_call

CALLS = 120
AT_ONCE = 6
LATENCY = 0.02


class Site(ThreadingHTTPServer):
    """Small site that counts its open requests; `/hang` never answers in time."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.in_hand = self.peak = 0
        self.closing = threading.Event()

    def count(self, step: int) -> None:
        with self.lock:
            self.in_hand += step
            self.peak = max(self.peak, self.in_hand)


class Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        if self.path == "/hang":
            self.server.closing.wait(30)
            return
        self.server.count(+1)
        time.sleep(LATENCY)
        self.server.count(-1)
        body = f"page {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def open_site() -> Iterator[Site]:
    with Site() as site:
        thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield site
        finally:
            site.closing.set()
            site.shutdown()
            thread.join()


@tool
def fetch(port: int, path: str) -> str:
    """Fetch a page, as blocking code does."""
    connection = HTTPConnection("127.0.0.1", port, timeout=0.8 * remaining())
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def by_port(call: Mapping[str, Any]) -> object:
    return call["args"]["port"]


async def main() -> None:
    node = ToolNode(
        [fetch],
        handle_tool_errors=True,
        policies={"fetch": CallPolicy(timeout=1.0, limit=Limit(concurrency=AT_ONCE, key=by_port))},
    )
    with ExitStack() as stack:
        sites = [stack.enter_context(open_site()) for _ in range(2)]
        ports = [site.server_port for site in sites]
        requested = [tool_call("fetch", "hanging", port=ports[0], path="/hang")]
        requested += [tool_call("fetch", f"c{n}", port=ports[n % 2], path=f"/{n}") for n in range(CALLS)]
        began = anyio.current_time()
        messages = (await node.ainvoke(requested))["messages"]
        took = anyio.current_time() - began

    peaks = [site.peak for site in sites]
    statuses = Counter(message.status for message in messages)
    print(f"{dict(statuses)} in {took:.2f} s, at most {peaks} requests at once per site")
    print(f"{messages[0].tool_call_id}: {messages[0].content}")
    assert [m.tool_call_id for m in messages] == [call["id"] for call in requested]
    assert statuses == {"success": CALLS, "error": 1}
    assert messages[0].status == "error"
    assert all(1 < peak <= AT_ONCE for peak in peaks)
    assert node.statistics().abandoned_threads == 0


if __name__ == "__main__":
    anyio.run(main)
