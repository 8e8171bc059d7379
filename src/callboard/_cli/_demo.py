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
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import anyio
from anyio import CancelScope
from httpx2 import AsyncClient, Limits, TransportError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from rich.console import Console

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
from callboard._cli._call_counts import CallCounts
from callboard._cli._command_options import DemoOptions
from callboard._cli._shown_text import CommandError
from callboard._cli._storage import recorded
from callboard._cli._view import KeepUp, QuietlyClosedConsole, open_view, result_table
from callboard.testing import ScriptedModel, calls

# Service of the demo: an HTTP server on loopback, in threads of this process, that is slow, fails and hangs on demand.

_TICK = 0.05
"""Seconds between two checks of the service for its shutdown."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Behaviour of `/item/<n>`: wait for `latency` seconds, then answer with `status`."""

    latency: float
    status: HTTPStatus


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

    def __init__(self, seed: int) -> None:
        self.seed = seed
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
            answer = answer_for(self.server.seed, int(item[1]))
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
def running_service(seed: int) -> Generator[Service]:
    """Run the service during the block. Blocks at the end: enter it before the event loop starts."""
    with Service(seed) as service:
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
def temporary_database(*, seed: int, rows: int = 5_000) -> Generator[Path]:
    """Create a file with `rows` orders, determined by the seed. Blocks: enter it before the event loop starts."""
    rng = random.Random(seed)  # noqa: S311  (the same numbers each time)
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


# Calls to make, and the models that request them: a scripted or a real one.

_ONE_HANGS_IN = 25
_ARCHIVE_PAGES = 12


class ModelError(CommandError):
    """Raised if a real model is not available, or fails."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Calls that the model of the demo is to request."""

    paths: Sequence[str]
    cities: Sequence[str]
    pages: Sequence[int]

    @property
    def count(self) -> int:
        """Number of tool calls that the scripted model will request."""
        return len(self.paths) + len(self.cities) + len(self.pages)

    def __str__(self) -> str:
        return f"fetch {len(self.paths)}, query {len(self.cities)}, archive {len(self.pages)}"


def make_work(fetches: int, *, seed: int) -> Work:
    """Return random calls, determined by the seed; one fetch in 25 requests the page that hangs."""
    rng = random.Random(seed)  # noqa: S311 (nothing here is secret)
    paths = [f"/item/{number}" for number in range(fetches)]
    for place in rng.sample(range(fetches), fetches // _ONE_HANGS_IN):
        paths[place] = "/hang"
    return Work(
        paths=paths,
        cities=[rng.choice(CITIES) for _ in range(max(1, fetches // 5))],
        pages=range(1, min(fetches, _ARCHIVE_PAGES) + 1),
    )


def scripted_model(work: Work, base_url: str, *, seed: int) -> BaseChatModel:
    """Return a scripted model that requests all calls at once, and then reads the answers."""
    wanted: list[tuple[str, Mapping[str, object]]] = [
        *(("fetch", {"url": base_url + path}) for path in work.paths),
        *(("query", {"city": city}) for city in work.cities),
        *(("archive", {"page": page}) for page in work.pages),
    ]
    random.Random(seed).shuffle(wanted)  # noqa: S311 (as above)
    return ScriptedModel([calls(*wanted), _read_answers])


def _read_answers(messages: list[BaseMessage]) -> str:
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    failed = sum(answer.status == "error" for answer in answers)
    return f"I have read {len(answers)} answers: {len(answers) - failed} results, {failed} errors."


def real_model(name: str) -> BaseChatModel:
    """Return a model made by langchain's `init_chat_model`; raise `ModelError` if it is not available."""
    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError:
        raise ModelError(f"--model {name} needs langchain: pip install 'callboard[langchain]'") from None
    try:
        return init_chat_model(name)
    except Exception as error:  # each provider's package has its own error class for a missing key
        raise ModelError(f"--model {name}: {error}") from error


def request(work: Work, base_url: str) -> str:
    """Return the prompt for the model. The scripted model ignores it."""
    pages = ", ".join(map(str, work.pages))
    return (
        f"Make all of these {work.count} tool calls, in one reply if you can, each exactly once.\n"
        f"fetch, for each of these URLs: {', '.join(base_url + path for path in work.paths)}\n"
        f"query, for each of these cities, repeated ones too: {', '.join(work.cities)}\n"
        f"archive, for each of these pages: {pages}\n"
        "Some will fail or time out: do not repeat those. Then say in two sentences what came back."
    )


# Tools, and the policies of their calls.

TOOLS = ("fetch", "query", "archive")
"""Names of the tools, in the order of display."""

_POLICIES = {
    "fetch": CallPolicy(timeout=1.0, limit=Limit(concurrency=32)),
    "query": CallPolicy(timeout=5.0, limit=Limit(concurrency=8)),
    "archive": CallPolicy(timeout=1.0, limit=Limit(concurrency=2, queue=6)),
}
_ARCHIVE = 1_000_000
"""First item of the archive, far from the fetched items."""


class FetchError(Exception):
    """Raised if the service does not answer, or answers with an error status."""


def http_client(*, connections: int = 64) -> AsyncClient:
    """Return an HTTP client for the service."""
    # No timeout in the client: the timeout of the call cancels the request. No proxies: the service is on loopback.
    # httpx2, because httpx takes ten times as long per request.
    limits = Limits(max_connections=connections, max_keepalive_connections=connections)
    return AsyncClient(limits=limits, timeout=None, trust_env=False)


def make_node(base_url: str, client: AsyncClient, database: Path) -> ToolNode:
    """Return a node with the tools, each with a timeout and a queue."""
    get = _getter(base_url, client)

    async def fetch(url: str) -> str:
        """Fetch a page of the service, by its full URL."""
        return await get(url)

    async def archive(page: int) -> str:
        """Look up a page of the archive, by its number. Only two may read at a time, and six may wait."""
        return await get(f"{base_url}/item/{_ARCHIVE + page}")

    def query(city: str) -> dict[str, int]:
        """Count the orders of a city in the database, and add up their amounts, in cents."""
        return query_database(database, city)

    return ToolNode([fetch, query, archive], policies=_POLICIES, handle_tool_errors=_text_for_model)


def _getter(base_url: str, client: AsyncClient) -> Callable[[str], Awaitable[str]]:
    async def get(url: str) -> str:
        if not url.startswith(f"{base_url}/"):  # a real model may invent URLs
            raise FetchError(f"only pages of {base_url} can be fetched, not {url!r}")
        try:
            response = await client.get(url)
        except TransportError as error:
            raise FetchError(f"{url} did not answer: {type(error).__name__}: {error}") from error
        if response.status_code != HTTPStatus.OK:
            raise FetchError(f"{url} answered {response.status_code} {response.reason_phrase}")
        return response.text

    return get


def _text_for_model(error: Exception) -> str:
    return f"Error: {error}"


# Run: the service, the agent, the view, and cancellation by signals.

_PATIENCE = 1.0
"""Seconds to wait for the service to notice the closed connections."""


@dataclass(slots=True)
class Measurements:
    """Measurements of one run of the demo."""

    counts: CallCounts = field(default_factory=lambda: CallCounts(TOOLS))
    wall_clock: float = 0.0
    """Seconds of the agent's run, the model's replies included."""
    left_over: Sequence[str] = ()
    """Names of the tasks that were alive right after the agent's run, and not before it."""
    statistics: Statistics | None = None
    messages: Sequence[BaseMessage] = ()
    service: Stats | None = None
    stopped_by: signal.Signals | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Run of the demo."""

    run: Measurements
    view: KeepUp
    work: Work
    model: BaseChatModel | None
    options: DemoOptions
    service: Service
    database: Path

    async def play(self) -> None:
        """Run the demo to its end, or until SIGINT or SIGTERM."""
        failure: Exception | None = None
        async with anyio.create_task_group() as watchers:
            with CancelScope() as scope:
                watchers.start_soon(self.view)
                watchers.start_soon(self._cancel_on_signal, scope)
                try:
                    await self._play()
                except Exception as error:
                    failure = error  # raised below: the task group would wrap it in a group
            watchers.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _cancel_on_signal(self, scope: CancelScope) -> None:
        # asyncio on Windows cannot receive signals this way; Ctrl-C then raises KeyboardInterrupt.
        with suppress(NotImplementedError), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                self.run.stopped_by = number
                scope.cancel()
                return

    async def _play(self) -> None:
        base_url, stats = self.service.url, self.service.stats
        async with http_client() as client:
            node = make_node(base_url, client, self.database)
            model = self.model or scripted_model(self.work, base_url, seed=self.options.seed)
            try:
                with recorded(self.options.record):
                    await run_agent(self.run, create_react_agent(model, node), request(self.work, base_url))
            except CommandError:
                raise
            except Exception as error:
                if self.model is None:
                    raise
                # Any exception, because each provider's package has its own error classes.
                raise ModelError(f"the run with the model failed: {type(error).__name__}: {error}") from error
            finally:
                self.run.statistics = node.statistics()
            with anyio.move_on_after(_PATIENCE):
                while stats.in_flight:
                    await anyio.sleep(0.01)
            self.run.service = stats


async def run_agent(run: Measurements, agent: Agent, question: str) -> None:
    """Run an agent, and measure its time and the tasks that it leaves running."""
    before = set(anyio.get_running_tasks())
    since = anyio.current_time()
    try:
        with observe(run.counts, actors=run.counts.actors):
            state = await agent.ainvoke({"messages": [("user", question)]})
        run.messages = state["messages"]
    finally:
        # No await between the end of the run and this line: else a task that ends too late would not be found.
        left_over = set(anyio.get_running_tasks()) - before
        run.left_over = sorted(task.name or "unnamed" for task in left_over)
        run.wall_clock = anyio.current_time() - since


_FETCHES = 300
_FETCHES_OF_A_REAL_MODEL = 20
_WIDE = 160
"""Width of the result table in cells, if the output is not a terminal."""


def run_demo(options: DemoOptions) -> int:
    """Run the demo and return the exit code."""
    console = QuietlyClosedConsole(highlight=False, markup=False)
    console.soft_wrap = not console.is_terminal  # a file or a pipe gets whole lines, without line breaks at a width
    model = None if options.model is None else real_model(options.model)
    work = make_work(options.calls or (_FETCHES if model is None else _FETCHES_OF_A_REAL_MODEL), seed=options.seed)
    for line in _introduction(work, options):
        console.print(line)
    run = _played(options, work, model, console)
    console.print(result_table(run.counts, console.width if console.is_terminal else _WIDE))
    for line in _conclusion(run):
        console.print(line)
    return _exit_code(run)


def _played(options: DemoOptions, work: Work, model: BaseChatModel | None, console: Console) -> Measurements:
    """Run the agent, show its calls meanwhile, and return the measurements."""
    run = Measurements()
    with (
        temporary_database(seed=options.seed) as database,
        running_service(options.seed) as service,
        open_view(run.counts, console, live=options.live) as view,
    ):
        session = Session(
            run=run, view=view, work=work, model=model, options=options, service=service, database=database
        )
        with warnings.catch_warnings():
            # A signal may abandon a query half-way. The conclusion counts it as "threads left over".
            warnings.simplefilter("ignore", AbandonedThreadWarning)
            anyio.run(session.play, backend=options.backend.value)
    return run


def _introduction(work: Work, options: DemoOptions) -> Iterable[str]:
    if options.model is None:
        yield (
            f"The model is scripted: it asks for {work.count} calls at once and then reads the answers. "
            "Use --model provider:name for a real one."
        )
    else:
        yield f"The model is {options.model}: it is told to make {work.count} calls, and may make others."
    yield f"The work: {work}; on {options.backend.value}."
    yield "The tools are real: an HTTP service in threads of its own, and a SQLite file asked from worker threads."


def _conclusion(run: Measurements) -> Iterable[str]:
    if run.stopped_by is not None:
        yield f"Stopped by {run.stopped_by.name}: every call that was under way has been cancelled."
    else:
        yield _last_word(run.messages)
        yield _answers(run.messages)
        if run.service is not None:
            yield _seen_by_service(run.service)
        yield _speed(run)
    yield from _left_over(run)


def _last_word(messages: Iterable[BaseMessage]) -> str:
    said = [message.text for message in messages if isinstance(message, AIMessage)]
    return f"The model says: {said[-1] if said else 'nothing'}"


def _answers(messages: Iterable[BaseMessage]) -> str:
    asked = answered = 0
    for message in messages:
        asked += len(message.tool_calls) if isinstance(message, AIMessage) else 0
        answered += isinstance(message, ToolMessage)
    return f"answers: {answered} messages for {asked} calls"


def _seen_by_service(stats: Stats) -> str:
    return (
        f"the service saw {stats.served + stats.abandoned + stats.in_flight} requests, at most "
        f"{stats.peak_in_flight} at once; {stats.abandoned} were given up, {stats.in_flight} are still open"
    )


def _speed(run: Measurements) -> str:
    work = run.counts.total().work
    factor = work / run.wall_clock
    return f"wall clock: {run.wall_clock:.2f} s; one after the other: {work:.2f} s; {factor:.1f} times as fast"


def _left_over(run: Measurements) -> Iterable[str]:
    names = f" ({', '.join(run.left_over)})" if run.left_over else ""
    yield f"tasks left over: {len(run.left_over)}{names}"
    if run.statistics is not None:
        numbers = run.statistics
        yield (
            f"calls left over: {numbers.running} running, {numbers.waiting} waiting; "
            f"threads left over: {numbers.abandoned_threads}"
        )


def _exit_code(run: Measurements) -> int:
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    numbers = run.statistics
    still = numbers is not None and (numbers.running or numbers.waiting or numbers.abandoned_threads)
    return 1 if run.left_over or still else 0
