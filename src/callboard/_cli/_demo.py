"""Command `callboard demo`: introduction, run and result of the demo.

First come the service and the database that its tools use, then the calls to make, the tools, and the run.
"""

import json
import random
import re
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import anyio
from anyio import CancelScope
from httpx2 import AsyncClient, Limits
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from callboard import (
    AbandonedThreadWarning,
    Agent,
    CallPolicy,
    Limit,
    Statistics,
    ToolNode,
    create_react_agent,
    observe,
)
from callboard._cli._command_options import DemoOptions
from callboard._cli._screen import Calls, Screen
from callboard._cli._storage import recorded
from callboard._cli._view import QuietlyClosedConsole, result_table
from callboard.testing import ScriptedModel, calls

# Service of the demo: an HTTP server on loopback, in threads of this process, that is slow, fails and hangs on demand.

_TICK = 0.05
"""Seconds between two checks of the service for its shutdown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Behaviour of `/item/<n>`: wait for `latency` seconds, then answer with `status`."""

    latency: float
    status: HTTPStatus


def answer_for(item: int) -> Answer:
    """Return the behaviour of `/item/<item>`, the same each time.

    One in fifty takes about 1.5 s, one in fifty answers 500, one in fifty 503; the others take 20 to 200 ms.
    """
    rng = random.Random(f"0/{item}")  # noqa: S311  (the same numbers each time)
    latency = rng.uniform(0.02, 0.2)
    lot = rng.random()
    if lot < 0.02:
        return Answer(rng.uniform(1.4, 1.6), HTTPStatus.OK)
    if lot < 0.04:
        return Answer(latency, HTTPStatus.INTERNAL_SERVER_ERROR)
    if lot < 0.06:
        return Answer(latency, HTTPStatus.SERVICE_UNAVAILABLE)
    return Answer(latency, HTTPStatus.OK)


@dataclass(slots=True)
class Stats:
    """Counts of the requests that the demo's HTTP service has received."""

    served: int = 0
    abandoned: int = 0
    """Requests whose client hung up before the answer."""
    in_flight: int = 0
    peak_in_flight: int = 0


class Service(ThreadingHTTPServer):
    """Server with a daemon thread for each connection. `/hang` never answers; for `/item/<n>`, see `answer_for()`."""

    request_queue_size = 1_024

    def __init__(self) -> None:
        self.stats = Stats()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Connection)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # not `HTTPServer.server_bind`: it looks up the host name in DNS, which may hang

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a hang-up of a client is counted, and needs no traceback
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    """Client connection that serves one request after the other."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet: a second one would wait for the acknowledgement of the first
    server: Service  # pyright: ignore[reportIncompatibleVariableOverride]  (nobody else makes one)

    def do_GET(self) -> None:
        if self.path == "/hang":
            self._wait(None)
        elif item := re.fullmatch(r"/item/(\d{1,9})", self.path):
            answer = answer_for(int(item[1]))
            if self._wait(answer.latency):
                failure = {} if answer.status is HTTPStatus.OK else {"error": answer.status.phrase}
                self._send(answer.status, {"item": int(item[1]), **failure})
        else:
            self._send(HTTPStatus.NOT_FOUND, {"error": "not found"})

    def log_message(self, format: str, *args: object) -> None:
        """Write no log: standard error belongs to the demo."""

    def _wait(self, seconds: float | None) -> bool:
        """Wait, and return whether the client is still there; it sends nothing before it has its answer."""
        stats = self.server.stats
        with self.server.lock:
            stats.in_flight += 1
            stats.peak_in_flight = max(stats.peak_in_flight, stats.in_flight)
        self.connection.settimeout(seconds)
        is_there = False
        try:
            self.connection.recv(1, socket.MSG_PEEK)  # returns, or fails, when the client hangs up
        except TimeoutError:
            is_there = True
        except OSError:
            pass
        self.connection.settimeout(None)
        self.close_connection = not is_there
        with self.server.lock:
            stats.in_flight -= 1
            stats.served += is_there
            stats.abandoned += not is_there
        return is_there

    def _send(self, status: HTTPStatus, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running_service() -> Generator[Service]:
    """Run the service during the block. Blocks at the end: enter it before the event loop starts."""
    with Service() as service:
        thread = threading.Thread(target=service.serve_forever, args=[_TICK], name="demo service", daemon=True)
        thread.start()
        try:
            yield service
        finally:
            service.shutdown()
            thread.join()


# Database of the demo: a SQLite file, queried by a sync function that blocks its thread.

CITIES = ("Amsterdam", "Berlin", "Lagos", "Lima", "Osaka", "Oslo", "Porto", "Toronto")


@contextmanager
def temporary_database(*, rows: int = 5_000) -> Generator[Path]:
    """Create a file with `rows` orders, the same each time. Blocks: enter it before the event loop starts."""
    rng = random.Random(0)  # noqa: S311  (the same numbers each time)
    orders = ((number, rng.choice(CITIES), rng.randint(100, 50_000)) for number in range(1, rows + 1))
    with tempfile.TemporaryDirectory(prefix="callboard-", ignore_cleanup_errors=True) as directory:
        path = Path(directory, "orders.sqlite")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, amount INTEGER)")
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
        yield path


def query_database(path: Path, city: str) -> dict[str, int]:
    """Return the number and the total amount of a city's orders, in cents, over a new read-only connection."""
    # A new connection each time: a SQLite connection belongs to its thread, and worker threads come and go.
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        count, total = connection.execute(
            "SELECT count(*), coalesce(sum(amount), 0) FROM orders WHERE city = ?", (city,)
        ).fetchone()
    return {"count": count, "total": total}


# Calls to make, the tools, and the policies of their calls.

_ONE_HANGS_IN = 25
_ARCHIVE_PAGES = 12
_ARCHIVE = 1_000_000
"""First item of the archive, far from the fetched items."""

TOOLS = ("fetch", "query", "archive")
"""Names of the tools, in the order of display."""

_POLICIES = {
    "fetch": CallPolicy(timeout=1.0, limit=Limit(concurrency=32)),
    "query": CallPolicy(timeout=5.0, limit=Limit(concurrency=8)),
    "archive": CallPolicy(timeout=1.0, limit=Limit(concurrency=2, queue=6)),
}


def make_work(fetches: int) -> Sequence[tuple[str, Mapping[str, object]]]:
    """Return calls as pairs of tool and arguments, the same each time; one fetch in 25 requests the page that hangs."""
    rng = random.Random(0)  # noqa: S311 (nothing here is secret)
    paths = [f"/item/{number}" for number in range(fetches)]
    for place in rng.sample(range(fetches), fetches // _ONE_HANGS_IN):
        paths[place] = "/hang"
    work: list[tuple[str, Mapping[str, object]]] = [
        *(("fetch", {"path": path}) for path in paths),
        *(("query", {"city": rng.choice(CITIES)}) for _ in range(max(1, fetches // 5))),
        *(("archive", {"page": page}) for page in range(1, min(fetches, _ARCHIVE_PAGES) + 1)),
    ]
    rng.shuffle(work)
    return work


def http_client(*, connections: int = 64) -> AsyncClient:
    """Return an HTTP client for the service."""
    # No timeout in the client: the timeout of the call cancels the request. No proxies: the service is on loopback.
    # httpx2, because httpx takes ten times as long per request.
    limits = Limits(max_connections=connections, max_keepalive_connections=connections)
    return AsyncClient(limits=limits, timeout=None, trust_env=False)


def make_node(base_url: str, client: AsyncClient, database: Path) -> ToolNode:
    """Return a node with the tools, each with a timeout and a queue."""

    async def fetch(path: str) -> str:
        """Fetch a page of the service, by its path."""
        response = await client.get(base_url + path)
        return response.raise_for_status().text

    async def archive(page: int) -> str:
        """Look up a page of the archive, by its number. Only two may read at a time, and six may wait."""
        return await fetch(f"/item/{_ARCHIVE + page}")

    def query(city: str) -> dict[str, int]:
        """Count the orders of a city in the database, and add up their amounts, in cents."""
        return query_database(database, city)

    return ToolNode([fetch, query, archive], policies=_POLICIES, handle_tool_errors=True)


def _read_answers(messages: list[BaseMessage]) -> str:
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    failed = sum(answer.status == "error" for answer in answers)
    return f"I have read {len(answers)} answers: {len(answers) - failed} results, {failed} errors."


# Run: the agent, the view, and cancellation by signals.

_PATIENCE = 1.0
"""Seconds to wait for the service to notice the closed connections."""
_FETCHES = 300
_WIDE = 160
"""Width of the result table in cells, if the output is not a terminal."""


class Session:
    """Run of an agent with its measurements."""

    def __init__(self, tools: Iterable[str] = TOOLS) -> None:
        self.calls = Calls(tools)
        self.wall_clock = 0.0
        """Seconds of the agent's run, the model's replies included."""
        self.left_over: Sequence[str] = ()
        """Names of the tasks that were alive right after the agent's run, and not before it."""
        self.statistics: Statistics | None = None
        self.messages: Sequence[BaseMessage] = ()
        self.stopped_by: signal.Signals | None = None

    async def play(self, service: Service, database: Path, screen: Screen, fetches: int) -> None:
        """Run the demo to its end, or until SIGINT or SIGTERM."""
        async with anyio.create_task_group() as watchers:
            with CancelScope() as scope:
                watchers.start_soon(screen.keep_up)
                watchers.start_soon(self._cancel_on_signal, scope)
                async with http_client() as client:
                    node = make_node(service.url, client, database)
                    model = ScriptedModel([calls(*make_work(fetches)), _read_answers])
                    try:
                        await self.measure(create_react_agent(model, node))
                    finally:
                        self.statistics = node.statistics()
                    with anyio.move_on_after(_PATIENCE):
                        while service.stats.in_flight:
                            await anyio.sleep(0.01)
            watchers.cancel_scope.cancel()

    async def _cancel_on_signal(self, scope: CancelScope) -> None:
        # asyncio on Windows cannot receive signals this way; Ctrl-C then raises KeyboardInterrupt.
        with suppress(NotImplementedError), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                self.stopped_by = number
                scope.cancel()
                return

    async def measure(self, agent: Agent) -> None:
        """Run an agent, and measure its time and the tasks that it leaves running."""
        before = set(anyio.get_running_tasks())
        since = anyio.current_time()
        try:
            with observe(self.calls.counts):
                state = await agent.ainvoke({"messages": [("user", "Make all calls at once.")]})
            self.messages = state["messages"]
        finally:
            # No await between the end of the run and this line: else a task that ends too late would not be found.
            left_over = set(anyio.get_running_tasks()) - before
            self.left_over = sorted(task.name or "unnamed" for task in left_over)
            self.wall_clock = anyio.current_time() - since


def run_demo(options: DemoOptions) -> int:
    """Run the demo and return the exit code."""
    console = QuietlyClosedConsole(highlight=False, markup=False)
    console.soft_wrap = not console.is_terminal  # a file or a pipe gets whole lines, without line breaks at a width
    fetches = options.calls or _FETCHES
    for line in _introduction(fetches, options):
        console.print(line)
    session = Session()
    # Numbers of each second are useful without a terminal, too, which cannot show a table that goes away.
    screen = Screen(console, session.calls, [], live=options.live or not console.is_terminal)
    with (
        recorded(options.record),
        temporary_database() as database,
        running_service() as service,
        warnings.catch_warnings(),
    ):
        # A signal may abandon a query half-way. The conclusion counts it as "threads left over".
        warnings.simplefilter("ignore", AbandonedThreadWarning)
        anyio.run(session.play, service, database, screen, fetches, backend=options.backend.value)
    console.print(result_table(session.calls.counts, console.width if console.is_terminal else _WIDE))
    for line in _conclusion(session, service.stats):
        console.print(line)
    return _exit_code(session)


def _introduction(fetches: int, options: DemoOptions) -> Iterable[str]:
    numbers = Counter(tool for tool, _ in make_work(fetches))
    yield f"The model is scripted: it asks for {numbers.total()} calls at once and then reads the answers."
    yield f"The work: {', '.join(f'{tool} {numbers[tool]}' for tool in TOOLS)}; on {options.backend.value}."
    yield "The tools are real: an HTTP service in threads of its own, and a SQLite file asked from worker threads."


def _conclusion(session: Session, stats: Stats) -> Iterable[str]:
    if session.stopped_by is not None:
        yield f"Stopped by {session.stopped_by.name}: every call that was under way has been cancelled."
    else:
        replies = [message for message in session.messages if isinstance(message, AIMessage)]
        answers = sum(isinstance(message, ToolMessage) for message in session.messages)
        yield f"The model says: {replies[-1].text if replies else 'nothing'}"
        yield f"answers: {answers} messages for {sum(len(reply.tool_calls) for reply in replies)} calls"
        yield (
            f"the service saw {stats.served + stats.abandoned + stats.in_flight} requests, at most "
            f"{stats.peak_in_flight} at once; {stats.abandoned} were given up, {stats.in_flight} are still open"
        )
        rows = session.calls.counts.rows.values()
        work, wall = sum(sum(row.durations) - row.waited for row in rows), session.wall_clock
        yield f"wall clock: {wall:.2f} s; one after the other: {work:.2f} s; {work / wall:.1f} times as fast"
    names = f" ({', '.join(session.left_over)})" if session.left_over else ""
    yield f"tasks left over: {len(session.left_over)}{names}"
    if (numbers := session.statistics) is not None:
        yield (
            f"calls left over: {numbers.running} running, {numbers.waiting} waiting; "
            f"threads left over: {numbers.abandoned_threads}"
        )


def _exit_code(session: Session) -> int:
    if session.stopped_by is not None:
        return 128 + session.stopped_by
    numbers = session.statistics
    still = numbers is not None and (numbers.running or numbers.waiting or numbers.abandoned_threads)
    return 1 if session.left_over or still else 0
