"""Command `callboard demo`: introduction, run and result of the demo.

The parts of this module are the service and the database that the tools use, the calls to make, the tools, and the run.
"""

import json
import math
import random
import re
import signal
import sqlite3
import tempfile
import warnings
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import anyio
from anyio import BrokenResourceError, CancelScope, EndOfStream
from anyio.abc import ByteStream, SocketAttribute
from anyio.from_thread import start_blocking_portal
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
from callboard._cli._storage import record_calls
from callboard._cli._view import open_console, result_table, text_width
from callboard.testing import ScriptedModel, calls

# Service of the demo: an HTTP server on loopback, in a thread with an event loop of its own.


@dataclass(frozen=True, slots=True)
class Answer:
    """Behaviour of the demo's service for one page: wait for `latency` seconds, then answer with `status`."""

    latency: float
    status: HTTPStatus


def answer_for(item: int) -> Answer:
    """Return how the demo's service answers requests for `/item/<item>`, which depends on `item` only."""
    # One in fifty takes about 1.5 s, one in fifty answers 500, one in fifty 503; the others take 20 to 200 ms.
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


class Service:
    """HTTP server of the demo. `answer_for()` defines its answers for `/item/<n>`; `/hang` gets no answer."""

    def __init__(self) -> None:
        self.url = ""
        self.served = self.abandoned = 0
        """Number of answered requests, and number of requests whose client hung up before the answer."""
        self.in_flight = self.peak_in_flight = 0

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[None]:
        """Serve requests on loopback while the `with` block runs; the address of the server is in `url`."""
        async with (
            await anyio.create_tcp_listener(local_host="127.0.0.1", backlog=1_024) as listener,
            anyio.create_task_group() as connections,
        ):
            port = listener.extra(SocketAttribute.local_port)  # noqa: S610  (anyio's, not Django's)
            self.url = f"http://127.0.0.1:{port}"
            connections.start_soon(listener.serve, self._serve)
            yield
            connections.cancel_scope.cancel()

    async def _serve(self, client: ByteStream) -> None:
        """Serve the requests of one connection, one after the other. Each request must fit in one packet."""
        async with client:
            with suppress(EndOfStream, BrokenResourceError):
                while True:
                    item = re.match(rb"GET /item/(\d+) ", await client.receive())
                    answer = answer_for(int(item[1])) if item else Answer(math.inf, HTTPStatus.OK)
                    if not await self._wait(client, answer.latency):
                        return
                    status, body = answer.status, json.dumps({"item": item and int(item[1])})
                    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\n\r\n"
                    await client.send(f"{head}{body}".encode())

    async def _wait(self, client: ByteStream, seconds: float) -> bool:
        """Wait for some seconds; return `True` if the client is still connected, `False` if it has disconnected."""
        # The client sends nothing before it has its answer.
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        with anyio.move_on_after(seconds) as scope, suppress(EndOfStream, BrokenResourceError):
            await client.receive()  # ends when the client hangs up
        self.in_flight -= 1
        self.served += scope.cancelled_caught
        self.abandoned += not scope.cancelled_caught
        return scope.cancelled_caught


# Database of the demo: a SQLite file, queried by a sync function that blocks its thread.

CITIES = ("Amsterdam", "Berlin", "Lagos", "Lima", "Osaka", "Oslo", "Porto", "Toronto")


@contextmanager
def temporary_database() -> Generator[Path]:
    """Yield the path of a new SQLite file with sample orders. This blocks: use it before the event loop starts."""
    rng = random.Random(0)  # noqa: S311  (the same numbers each time)
    orders = ((number, rng.choice(CITIES), rng.randint(100, 50_000)) for number in range(1, 5_001))
    with tempfile.TemporaryDirectory(prefix="callboard-", ignore_cleanup_errors=True) as directory:
        path = Path(directory, "orders.sqlite")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, city TEXT, amount INTEGER)")
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
        yield path


# Calls to make, the tools, and the policies of their calls.

_ONE_HANGS_IN = 25
_ARCHIVE_PAGES = 12
_ARCHIVE = 1_000_000
"""Number of the first page of the archive. It is larger than the number of any page that the tool `fetch` gets."""

TOOLS = ("fetch", "query", "archive")
"""Names of the demo's tools, in the order in which they are displayed."""

_POLICIES = {
    "fetch": CallPolicy(timeout=1.0, limit=Limit(concurrency=32)),
    "query": CallPolicy(timeout=5.0, limit=Limit(concurrency=8)),
    "archive": CallPolicy(timeout=1.0, limit=Limit(concurrency=2, queue=6)),
}


def make_calls(fetches: int) -> Sequence[tuple[str, Mapping[str, object]]]:
    """Return the calls of the demo as pairs of tool name and arguments. The calls are the same in each run."""
    # One fetch in 25 requests the page that never answers.
    rng = random.Random(0)  # noqa: S311 (nothing here is secret)
    paths = [f"/item/{number}" for number in range(fetches)]
    for index in rng.sample(range(fetches), fetches // _ONE_HANGS_IN):
        paths[index] = "/hang"
    calls: list[tuple[str, Mapping[str, object]]] = [
        *(("fetch", {"path": path}) for path in paths),
        *(("query", {"city": rng.choice(CITIES)}) for _ in range(max(1, fetches // 5))),
        *(("archive", {"page": page}) for page in range(1, min(fetches, _ARCHIVE_PAGES) + 1)),
    ]
    rng.shuffle(calls)
    return calls


def make_node(base_url: str, client: AsyncClient, database: Path) -> ToolNode:
    """Return a tools node with the tools of the demo, each with a timeout and a queue."""

    async def fetch(path: str) -> str:
        """Fetch a page of the service, by its path."""
        response = await client.get(base_url + path)
        return response.raise_for_status().text

    async def archive(page: int) -> str:
        """Look up a page of the archive, by its number. Only two calls may read at a time, and six calls may wait."""
        return await fetch(f"/item/{_ARCHIVE + page}")

    def query(city: str) -> dict[str, int]:
        """Count the orders of a city in the database, and add up their amounts, in cents."""
        # A new connection each time: a SQLite connection belongs to its thread, and worker threads come and go.
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            count, total = connection.execute(
                "SELECT count(*), coalesce(sum(amount), 0) FROM orders WHERE city = ?", (city,)
            ).fetchone()
        return {"count": count, "total": total}

    return ToolNode([fetch, query, archive], policies=_POLICIES, handle_tool_errors=True)


def _read_answers(messages: list[BaseMessage]) -> str:
    answers = [message for message in messages if isinstance(message, ToolMessage)]
    failed = sum(answer.status == "error" for answer in answers)
    return f"I have read {len(answers)} answers: {len(answers) - failed} results, {failed} errors."


# Run: the agent, the view, and cancellation by signals.

_PATIENCE = 1.0
"""Seconds to wait until the service has noticed that connections were closed."""
_FETCHES = 300
_CONNECTIONS = 64


class Session:
    """Run of the demo's agent, with measurements: duration, counts of calls, and tasks that are left running."""

    def __init__(self, tools: Iterable[str] = TOOLS) -> None:
        self.calls = Calls(tools)
        self.wall_clock = 0.0
        """Duration of the agent's run in seconds, including the replies of the model."""
        self.left_over: Sequence[str] = ()
        """Names of tasks that the agent's run left running: tasks that exist right after the run, but not before it."""
        self.statistics: Statistics | None = None
        self.messages: Sequence[BaseMessage] = ()
        self.stopped_by: signal.Signals | None = None

    async def play(self, service: Service, database: Path, screen: Screen, fetches: int) -> None:
        """Run the agent of the demo to its end, or until SIGINT or SIGTERM."""
        failure: Exception | None = None
        async with anyio.create_task_group() as watchers:
            with CancelScope() as scope:
                watchers.start_soon(screen.keep_up)
                watchers.start_soon(self._cancel_on_signal, scope)
                try:
                    await self._play(service, database, fetches)
                except Exception as error:
                    failure = error  # raised below: the task group would wrap it in a group
            watchers.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _play(self, service: Service, database: Path, fetches: int) -> None:
        # No timeout in the client: the timeout of the call cancels the request. No proxies: the service is on loopback.
        # httpx2, because httpx takes ten times as long per request.
        limits = Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
        async with AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
            node = make_node(service.url, client, database)
            model = ScriptedModel([calls(*make_calls(fetches)), _read_answers])
            try:
                await self.measure(create_react_agent(model, node))
            finally:
                self.statistics = node.statistics()
            with anyio.move_on_after(_PATIENCE):
                while service.in_flight:
                    await anyio.sleep(0.01)

    async def _cancel_on_signal(self, scope: CancelScope) -> None:
        # asyncio on Windows cannot receive signals this way; Ctrl-C then raises KeyboardInterrupt.
        with suppress(NotImplementedError), anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                self.stopped_by = number
                scope.cancel()
                return

    async def measure(self, agent: Agent) -> None:
        """Run an agent, and store the duration of the run and the names of tasks that still run after its end."""
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
    """Run the demo, print its result, and return the exit code of the command."""
    console = open_console()
    fetches = options.calls or _FETCHES
    numbers = Counter(tool for tool, _ in make_calls(fetches))
    counts_text = ", ".join(f"{tool} {numbers[tool]}" for tool in TOOLS)
    console.print(f"The model is scripted: it asks for {numbers.total()} calls at once and then reads the answers.")
    console.print(f"The work: {counts_text}; on {options.backend}.")
    console.print(
        "The tools are real: an HTTP service in a thread of its own, and a SQLite file asked from worker threads."
    )
    session, service = Session(), Service()
    # Numbers of each second are useful without a terminal, too, which cannot show a table that goes away.
    screen = Screen(console, session.calls, [], live=options.live or not console.is_terminal)
    with (
        record_calls(options.record),
        temporary_database() as database,
        start_blocking_portal() as other_loop,
        other_loop.wrap_async_context_manager(service.listening()),
        warnings.catch_warnings(),
    ):
        # A signal may abandon a query half-way. The conclusion counts it as "threads left over".
        warnings.simplefilter("ignore", AbandonedThreadWarning)
        anyio.run(session.play, service, database, screen, fetches, backend=options.backend)
    console.print(result_table(session.calls.counts, text_width(console)))
    for text in _conclusion(session, service):
        console.print(text)
    if session.stopped_by is not None:
        return 128 + session.stopped_by
    statistics = session.statistics
    is_busy = statistics is not None and (statistics.running or statistics.waiting or statistics.abandoned_threads)
    return 1 if session.left_over or is_busy else 0


def _conclusion(session: Session, service: Service) -> Iterable[str]:
    if session.stopped_by is not None:
        yield f"Stopped by {session.stopped_by.name}: every call that was under way has been cancelled."
    else:
        replies = [message for message in session.messages if isinstance(message, AIMessage)]
        answers = sum(isinstance(message, ToolMessage) for message in session.messages)
        yield f"The model says: {replies[-1].text if replies else 'nothing'}"
        yield f"answers: {answers} messages for {sum(len(reply.tool_calls) for reply in replies)} calls"
        yield (
            f"the service saw {service.served + service.abandoned + service.in_flight} requests, at most "
            f"{service.peak_in_flight} at once; {service.abandoned} were given up, {service.in_flight} are still open"
        )
        rows = session.calls.counts.rows.values()
        tool_time, wall = sum(sum(row.durations) - row.waited for row in rows), session.wall_clock
        yield f"wall clock: {wall:.2f} s; one after the other: {tool_time:.2f} s; {tool_time / wall:.1f} times as fast"
    names = f" ({', '.join(session.left_over)})" if session.left_over else ""
    yield f"tasks left over: {len(session.left_over)}{names}"
    if (numbers := session.statistics) is not None:
        yield (
            f"calls left over: {numbers.running} running, {numbers.waiting} waiting; "
            f"threads left over: {numbers.abandoned_threads}"
        )
