r"""An application: a web service with an agent for orders, whose conversations survive the process.

python order_service.py                            runs the example: approves a refund after `kill -9`, then drains
python order_service.py serve --port 8000          runs the service with a scripted model; --help lists the options
uvicorn --factory order_service:service            the same behind a server of your choice, also hypercorn on trio

export ORDERS_APPROVER_KEY=...                     a secret of those who answer questions; without it nobody can

curl localhost:8000/threads --json '{}'              # makes a thread and returns its id; here it is 1
curl localhost:8000/threads/1/messages --json '{"text": "Please refund order A-1."}'
curl -N localhost:8000/threads/1/events             # again, with -H "Last-Event-ID: NUMBER": what was missed
curl localhost:8000/threads/1/answers --json '{"ID OF THE QUESTION": {"type": "accept"}}' \
    -H "Authorization: Bearer $ORDERS_APPROVER_KEY"
curl localhost:8000/threads/1/calls                 # calls that run; one ends with calls/cancel --json '{"id": "..."}'
curl localhost:8000/threads/1/cancel --json '{}'    # the whole run ends
"""

import argparse
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, aclosing, asynccontextmanager, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from secrets import compare_digest, token_urlsafe
from typing import Any
from uuid import uuid4

import anyio
import uvicorn
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.errors import EmptyInputError, UnknownInterruptError
from langgraph.types import Command, Interrupt
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from callboard import (
    Agent,
    CallPolicy,
    ChunksDroppedError,
    Drained,
    DrainingError,
    LiveRun,
    OpenCallsError,
    RunCancelledError,
    RunNotFoundError,
    ThreadBusyError,
    create_agent,
    drain_on_signal,
    idempotency_key,
    progress,
)
from callboard.middleware import RequireApproval, Retry
from callboard.telemetry import RecordingWriter, Tracing, setup
from callboard.testing import ScriptedModel, calls

log = logging.getLogger("order_service")


# The tools


def money(cents: int) -> str:
    """Return an amount as people write it."""
    return f"{cents // 100}.{cents % 100:02} EUR"


class PaymentError(RuntimeError):
    """Error of the payment provider, after which nobody knows whether the money has moved."""


DEPOTS = ("Hull", "Bremen", "Berlin")


class Shop:
    """Orders, the carrier of the parcels, and the payment provider; in place of three real services."""

    def __init__(self, ledger: Path | None = None, seconds: float = 0.1) -> None:
        self.ledger = ledger
        self.seconds = seconds
        """Seconds that the carrier and the payment provider take."""
        self.orders = {"A-1": (4990, "P-1"), "A-2": (1200, "P-2"), "A-3": (80500, "P-3")}
        """Price in cents and parcel of each order."""
        self.breaks = {"P-2": 1, "A-2": 1}
        """Number of failures left, by parcel or order."""

    async def find_order(self, order: str) -> str:
        """Look up an order: its price and its parcel."""
        if order not in self.orders:
            return f"there is no order {order}"
        cents, parcel = self.orders[order]
        return f"{order}: {money(cents)}, paid, parcel {parcel}"

    async def track_parcel(self, parcel: str) -> str:
        """Ask the carrier where a parcel is."""
        if parcel == "P-3":
            await anyio.sleep_forever()  # the carrier does not answer
        for number, depot in enumerate(DEPOTS, 1):
            progress(f"asked {depot}", done=number, total=len(DEPOTS))
            await anyio.sleep(self.seconds)
        if self.fails(parcel):
            raise ConnectionError("the carrier was not reached")
        return f"parcel {parcel} is in {DEPOTS[-1]}"

    async def refund(self, order: str, cents: int) -> str:
        """Pay an amount in cents back to the customer."""
        if order not in self.orders:
            return f"there is no order {order}"
        progress("asked the payment provider")
        await anyio.sleep(self.seconds)
        if self.fails(order):
            raise PaymentError("the payment provider did not answer")
        if not self.pay_back(order, cents, idempotency_key()):
            return f"not refunded: {money(cents)} is more than is left of order {order}"
        return f"refunded {money(cents)} for order {order}"

    def pay_back(self, order: str, cents: int, key: str) -> bool:
        """Move money, which nobody can take back, once for each key; return whether the order had that much left.

        The key makes a repeated call harmless. A second call has another key: what is left of the order stops it.
        """
        lines = self.ledger.read_text().splitlines() if self.ledger is not None and self.ledger.exists() else []
        paid = [(name, int(amount), of) for name, amount, of in map(str.split, lines)]
        if any(of == key for _, _, of in paid):
            return True
        if not 0 < cents <= self.orders[order][0] - sum(amount for name, amount, _ in paid if name == order):
            return False
        if self.ledger is not None:
            with self.ledger.open("a") as file:
                file.write(f"{order} {cents} {key}\n")
        return True

    def fails(self, name: str) -> bool:
        self.breaks[name] = self.breaks.get(name, 0) - 1
        return self.breaks[name] >= 0


# The agent


def agent_for(shop: Shop, model: str | BaseChatModel | None = None, checkpointer: str | None = "memory") -> Agent:
    """Return the agent. A refund waits for a person, and is never tried twice; the other calls may be repeated."""
    return create_agent(
        model or script(),
        [shop.find_order, shop.track_parcel, shop.refund],
        system_prompt="You help customers of a tea shop. Look an order up before you track or refund it. Be brief.",
        middleware=[
            RequireApproval(["refund"], allow=["accept", "ignore"], description=question),
            Retry(attempts=3, on=ConnectionError),
        ],
        policies={
            "find_order": CallPolicy(timeout=5, idempotent=True),
            "track_parcel": CallPolicy(timeout=5, idempotent=True),
            "refund": CallPolicy(timeout=20, on_unknown="ask"),
        },
        handle_tool_errors=True,
        checkpointer=checkpointer,
        budget=120,  # a model that hangs must not hold its thread for ever
        name="orders",
    )


def question(request: Any) -> str:
    """Return the question for the person who approves a refund."""
    args = request.tool_call["args"]  # of the model, and not validated yet
    cents = args.get("cents")
    return f"Refund {money(cents) if isinstance(cents, int) else cents} for order {args.get('order')}?"


def script() -> ScriptedModel:
    """Return a model without a provider: it looks orders up, tracks or refunds them, and tells the results."""

    def reply(messages: list[BaseMessage]) -> Any:
        last_question = max(index for index, message in enumerate(messages) if message.type == "human")
        orders = re.findall(r"A-\d+", messages[last_question].text)
        results = [outcome(message) for message in messages[last_question + 1 :] if isinstance(message, ToolMessage)]
        known_orders = [
            match for line in results if (match := re.match(r"(A-\d+): (\d+)\.(\d+) EUR, paid, parcel (\S+)", line))
        ]
        if not orders:
            return "Which order do you mean?"
        if not results:
            return calls(*(("find_order", {"order": order}) for order in orders))
        if len(results) > len(orders) or not known_orders:
            return f"{'; '.join(results[len(orders) :] or results)}."
        if "refund" in messages[last_question].text.lower():
            return calls(
                *(
                    ("refund", {"order": order_match[1], "cents": int(order_match[2] + order_match[3])})
                    for order_match in known_orders
                )
            )
        return calls(*(("track_parcel", {"parcel": order_match[4]}) for order_match in known_orders))

    def outcome(message: ToolMessage) -> str:
        return message.text if message.status == "success" else f"{message.name} was not possible"

    return ScriptedModel([reply], loop=True)


# The service

MAX_BODY = 20_000
"""Bytes of a request's body."""

MAX_RUNS = 200
"""Runs at the same time. They go on without their clients, so a limit of connections does not bound them."""

MODES = ["messages", "custom", "updates"]
"""Stream modes of the runs."""


class RefusedError(Exception):
    """A request that the service does not serve, with the status, the text and further data of the response."""


def service(
    agent: Agent | None = None,
    *last: "Listener",
    drain: float = 20.0,
    approver_key: str | None = None,
    user_of: Callable[[Request], str | None] | None = None,
    hosts: Sequence[str] | None = None,
) -> Starlette:
    """Return the application.

    Its defaults are $ORDERS_DB, $ORDERS_MODEL, $ORDERS_APPROVER_KEY and $ORDERS_HOSTS, names separated by spaces.

    Args:
        agent: the agent that serves all threads.
        last: what is drained after the agent, in this order: any objects with the method `drain(timeout)`.
        drain: seconds that turns have after SIGTERM.
        approver_key: secret of those who may answer questions. A customer must not approve their own refund.
        user_of: function that returns the user of a request, by the login of your service. The users have threads of
            their own then. Without it there are no users: whoever reaches the service may use every thread.
        hosts: names by which clients reach the service. A page of another site may have a name that resolves to here.
    """
    approver_key = approver_key or os.environ.get("ORDERS_APPROVER_KEY")
    hosts = hosts or os.environ.get("ORDERS_HOSTS", "localhost 127.0.0.1").split()
    agent = agent or agent_for(
        Shop(Path("refunds.txt")),
        os.environ.get("ORDERS_MODEL"),
        os.environ.get("ORDERS_DB", "sqlite:///orders.db"),
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with agent, drain_on_signal(agent, *last, timeout=drain) as app.state.shutdown:
            yield

    async def live(_: Request) -> Response:
        """Liveness check: the process answers. It goes on doing so while the service drains."""
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        """Readiness check: 503 while the service drains, so that no new clients are sent here."""
        has_begun = request.app.state.shutdown.has_begun
        return JSONResponse({"ready": not has_begun}, 503 if has_begun else 200)

    async def refusal(_: Request, error: Exception) -> Response:
        status, text, data = (*error.args, {})[:3]
        return JSONResponse({"error": text, **data}, status, {"Retry-After": "1"} if status == 503 else None)

    async def no_run(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the thread has no run here: read /threads/ID, and send a message"}, 404)

    threads = Conversations(agent, approver_key, user_of)
    thread_routes = [
        Route("/threads", threads.create, methods=["POST"]),
        Route("/threads/{thread}", threads.overview),
        Route("/threads/{thread}/messages", threads.message, methods=["POST"]),
        Route("/threads/{thread}/answers", threads.answers, methods=["POST"]),
        Route("/threads/{thread}/resume", threads.resume, methods=["POST"]),
        Route("/threads/{thread}/events", threads.events),
        Route("/threads/{thread}/calls", threads.calls),
        Route("/threads/{thread}/calls/cancel", threads.cancel_call, methods=["POST"]),
        Route("/threads/{thread}/cancel", threads.cancel, methods=["POST"]),
    ]
    # Not for the checks: a probe of Kubernetes names the address of the pod.
    hosts_only = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    handlers: Any = {RefusedError: refusal, RunNotFoundError: no_run}
    return Starlette(
        routes=[
            Route("/live", live),
            Route("/ready", ready),
            Mount("", routes=thread_routes, middleware=[hosts_only]),
        ],
        lifespan=lifespan,
        exception_handlers=handlers,
        max_body_size=MAX_BODY,  # of the bytes that arrive: the header may lie
    )


class Conversations:
    """Endpoints of the threads."""

    def __init__(self, agent: Agent, approver_key: str | None, user_of: Callable[[Request], str | None] | None) -> None:
        self.agent = agent
        self.approver_key = approver_key
        self.user_of = user_of
        self.runs: set[LiveRun] = set()

    def is_approver(self, request: Request) -> bool:
        credentials = request.headers.get("authorization", "").encode()
        return bool(self.approver_key) and compare_digest(credentials, f"Bearer {self.approver_key}".encode())

    def user(self, request: Request) -> str:
        """Return the user of a request; raise `RefusedError` without one."""
        assert self.user_of is not None
        if not (user := self.user_of(request)):
            raise RefusedError(401, "log in")
        return user

    def thread_of(self, request: Request) -> str:
        """Return the thread of a request; raise `RefusedError` if its user may not use it. An id is no secret."""
        thread = str(request.path_params["thread"])
        if self.user_of is not None and not self.is_approver(request):
            owner, _, _ = thread.rpartition(".")
            if owner != self.user(request):
                raise RefusedError(404, "there is no such thread")
        return thread

    def config_of(self, request: Request) -> Any:
        """Return the config of a run. A real service adds the user, whose orders `find_order` shows."""
        return {"configurable": {"thread_id": self.thread_of(request)}, "recursion_limit": 50}

    async def create(self, request: Request) -> Response:
        """Return the id of a new thread, which has the user in it. The thread is stored with its first message."""
        await body_of(request)
        owner = "" if self.user_of is None else f"{self.user(request)}."
        return JSONResponse({"thread": f"{owner}{uuid4().hex}"}, 201)

    def check_capacity(self, request: Request) -> None:
        """Raise `RefusedError` if the service cannot start another run."""
        self.runs.difference_update([run for run in self.runs if run.is_over])
        if request.app.state.shutdown.has_begun:
            raise RefusedError(503, "the service shuts down")
        if len(self.runs) >= MAX_RUNS:
            raise RefusedError(503, f"{MAX_RUNS} runs are live")

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Raise `RefusedError` in place of an error of the client, or of a service that shuts down."""
        try:
            yield
        except OpenCallsError as error:
            text = "the last turn is not over: answer its question, resume it, or give it up"
            raise RefusedError(409, text, open_work(error.interrupts, is_open=True)) from error
        except DrainingError as error:
            raise RefusedError(503, str(error)) from error
        except (ThreadBusyError, UnknownInterruptError, EmptyInputError) as error:
            raise RefusedError(409, str(error)) from error  # such as a second answer; or nothing to resume
        except ValueError as error:
            raise RefusedError(400, str(error)) from error  # such as a text that no database can store

    async def message(self, request: Request) -> Response:
        """Send a message to the run of a thread; without a run, start one."""
        body, config = await body_of(request), self.config_of(request)
        text, gives_up = body.get("text"), body.get("give_up", False)
        if not isinstance(text, str) or not isinstance(gives_up, bool):
            raise RefusedError(400, 'send {"text": "..."}; with "give_up": true, it gives up what is open')
        with self.refusing():
            if await self.agent.say(text, config) is None:
                self.check_capacity(request)
                # A new message would give up an open question and calls with an unknown outcome, and might pay again:
                # the client has to say so. Then the model reads which calls may have had their effect.
                run = await self.agent.say(text, config, start=True, give_up=gives_up, stream_mode=MODES)
                self.runs.add(run)
        return JSONResponse({}, 202)

    async def answers(self, request: Request) -> Response:
        if not self.is_approver(request):
            raise RefusedError(403, "only those with the key of $ORDERS_APPROVER_KEY answer questions")
        body = await body_of(request)
        # An answer without the id of its question would answer any question that is open by then.
        if not body or not all(re.fullmatch("[0-9a-f]{32}", name) for name in body):
            raise RefusedError(400, 'send {"ID OF THE QUESTION": {"type": "accept"}}')
        return await self.start_run(request, Command(resume=body))

    async def resume(self, request: Request) -> Response:
        await body_of(request)
        return await self.start_run(request, None)

    async def start_run(self, request: Request, turn_input: Any) -> Response:
        with self.refusing():
            self.check_capacity(request)
            self.runs.add(await self.agent.start(turn_input, self.config_of(request), stream_mode=MODES))
        return JSONResponse({}, 202)

    async def events(self, request: Request) -> Response:
        """Stream the run of a thread, or its last run, after the event that the client has got as its last one."""
        last_event = request.headers.get("last-event-id")
        if last_event is not None and not re.fullmatch("[0-9]{1,18}", last_event):
            raise RefusedError(400, "Last-Event-ID is the number of an event")
        run = self.agent.live(self.thread_of(request))
        return EventStream(events_of(run, int(last_event) if last_event else None))

    async def calls(self, request: Request) -> Response:
        """Return the calls of a thread that run or wait now."""
        thread = self.thread_of(request)
        calls = [call for call in self.agent.running() if call.thread_id == thread]
        rows = [{"id": call.call_id, "tool": call.tool, "seconds": call.seconds} for call in calls]
        return JSONResponse({"calls": rows})

    async def cancel_call(self, request: Request) -> Response:
        """Cancel one call: the other calls and the run go on."""
        call_id, thread = (await body_of(request)).get("id"), self.thread_of(request)
        reason = "the customer has stopped it"
        if not isinstance(call_id, str) or not await self.agent.cancel(call_id, reason, thread_id=thread):
            raise RefusedError(404, 'no such call runs: send {"id": "..."} of a running call')
        return JSONResponse({}, 202)

    async def cancel(self, request: Request) -> Response:
        """Cancel the run. Its turn can be resumed, or given up."""
        await body_of(request)
        await self.agent.live(self.thread_of(request)).cancel()
        return JSONResponse({}, 202)

    async def overview(self, request: Request) -> Response:
        """Tell a client that comes back what was said, which questions are open, and whether a turn is unfinished."""
        state = await self.agent.aget_state(self.config_of(request))
        messages = state.values.get("messages", ())
        rows = [{"id": message.id, "type": message.type, "text": message.text} for message in messages if message.text]
        return JSONResponse(plain({"messages": rows, **open_work(state.interrupts, is_open=bool(state.next))}))


def open_work(interrupts: Sequence[Interrupt], *, is_open: bool) -> dict[str, Any]:
    """Return the open questions of a thread by their ids, and whether its turn is unfinished without a question."""
    open_questions = {interrupt.id: plain(interrupt.value) for interrupt in interrupts}
    return {"questions": open_questions, "unfinished": is_open and not open_questions}


async def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request; raise `RefusedError` for any other body."""
    # Any web page may send other types than JSON without being asked: the browser of a user would send them.
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise RefusedError(415, "send application/json")
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is no JSON") from None
    if not isinstance(body, dict):
        raise RefusedError(400, "send a JSON object")
    return body


def plain(data: Any) -> Any:
    """Return data as JSON has them: a number like NaN, which a model may write, becomes a text."""
    return json.loads(json.dumps(data, default=str), parse_constant=str)


class EventStream(StreamingResponse):
    """Response with server-sent events, which closes their generator when the client leaves. Starlette's does not."""

    def __init__(self, events: AsyncGenerator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # proxies must not collect the events
        super().__init__(events, 200, headers, "text/event-stream")
        self.events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.events):
            await super().__call__(scope, receive, send)


async def events_of(run: LiveRun, after: int | None) -> AsyncGenerator[str]:
    """Yield the server-sent events of a run after the number `seen`: token, progress, result, question, and an end.

    The run goes on when its reader leaves. Each chunk is at most one event, whose id is the number of the chunk: so a
    client that was cut off after any event comes back with its id, and misses none. A page that was reloaded has no id:
    it reads the run from its beginning, and then the thread, and leaves out the messages that the thread has.
    """
    number = after
    try:
        async with aclosing(run.stream(after=after)) as chunks:
            async for number, (mode, chunk) in chunks:
                if (kind_and_data := event_of(mode, chunk)) is not None:
                    yield event(number, *kind_and_data)
    except ChunksDroppedError as error:
        # A client that comes back with this id gets all that the buffer has.
        yield event(error.oldest, "dropped", "events were dropped: read /threads/ID, and then go on with this id")
    except RunCancelledError:
        yield event(number, "cancelled", "the run was cancelled: resume its turn, or give it up")
    except DrainingError as error:
        yield event(number, "error", f"{error} Resume the turn.")  # nothing is lost
    except (UnknownInterruptError, EmptyInputError, ValidationError) as error:
        yield event(number, "error", str(error))  # a wrong answer, whose question stays open; or nothing to resume
    except Exception:
        log.exception("a turn failed")
        yield event(number, "error", "the turn failed")
    else:
        yield event(number, "end", None)


def event_of(mode: str, chunk: Any) -> tuple[str, Any] | None:
    """Return the kind and the data of a chunk's event; `None` for a chunk that is not for the client."""
    if mode == "custom":
        return "progress", chunk
    if mode == "updates":
        interrupts = chunk.get("__interrupt__")
        return ("question", {interrupt.id: interrupt.value for interrupt in interrupts}) if interrupts else None
    message = chunk[0]
    part = {"message": message.id, "text": message.text}  # the id of the message in the thread
    if isinstance(message, ToolMessage):
        return "result", {**part, "tool": message.name, "status": message.status}
    return ("token", part) if isinstance(message, AIMessage) and message.text else None


def event(number: int | None, kind: str, data: Any) -> str:
    number_line = "" if number is None else f"id: {number}\n"
    return f"{number_line}event: {kind}\ndata: {json.dumps(plain(data))}\n\n"


# The server. Started by itself, uvicorn stops listening at SIGTERM, and readiness checks find no server. Here the
# server is drained last, so that they read 503 as long as turns run.


class Listener:
    """Object that a drain tells to end the server."""

    def __init__(self) -> None:
        self.may_end = anyio.Event()

    async def drain(self, timeout: float = 0.0, /) -> Drained:
        self.may_end.set()
        return Drained()


class Uvicorn(uvicorn.Server):
    """Uvicorn that leaves signals to `drain_on_signal`."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def run_until(self, listener: Listener) -> None:
        async def end() -> None:
            await listener.may_end.wait()
            self.should_exit = True

        async with anyio.create_task_group() as group:
            group.start_soon(end)
            await self.serve()
            group.cancel_scope.cancel()


async def on_hypercorn(app: Starlette, listener: Listener, port: int) -> None:
    from hypercorn.config import Config  # pip install 'hypercorn[trio]'
    from hypercorn.trio import serve

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.graceful_timeout = 5
    await serve(app, config, shutdown_trigger=listener.may_end.wait)


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; return an exit code that says whether all turns finished."""
    agent = agent_for(Shop(options.refunds, options.carrier), options.model, options.db)
    listener = Listener()
    app = service(agent, listener, drain=options.drain)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # `drain_on_signal` receives them, and a handler keeps the loop running
    with ExitStack() as stack:
        # Around the server, whose tasks have these observers, too: that of the lifespan owns the runs.
        if options.traces:
            stack.enter_context(traces(options.traces))
        if options.record:
            stack.enter_context(RecordingWriter(options.record, append=True, capture=True))
        if options.trio:
            anyio.run(on_hypercorn, app, listener, options.port, backend="trio")
        else:
            config = uvicorn.Config(
                app,
                host="127.0.0.1",
                port=options.port,
                log_level="warning",
                limit_concurrency=200,
                timeout_graceful_shutdown=5,  # a client that sends or reads nothing must not hold the service back
            )
            anyio.run(Uvicorn(config).run_until, listener)
    return int(app.state.shutdown.exit_code)


def traces(to: str) -> AbstractContextManager[object]:
    """Send spans to the console, or to a receiver of OTLP."""
    if to != "console":
        return setup(endpoint=to, metrics=False)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: f"span {span.name}\n")))
    return Tracing(provider).on()


def arguments(command_line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="order_service.py serve")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--db",
        default=os.environ.get("ORDERS_DB", "sqlite:///orders.db"),
        help="URL of the conversations, by default $ORDERS_DB. A password is better in $ORDERS_DB: `ps` shows options",
    )
    parser.add_argument("--refunds", type=Path, default=Path("refunds.txt"), help="file with a line for each refund")
    parser.add_argument("--model", help="such as openai:gpt-5.1; without it, a script plays the model")
    parser.add_argument("--traces", help="'console', or the URL of an OTLP receiver: http://localhost:4318")
    parser.add_argument("--record", type=Path, help="file for a recording with contents, from which a test is made")
    parser.add_argument("--carrier", type=float, default=0.1, help="seconds that each depot of the carrier takes")
    parser.add_argument("--drain", type=float, default=20.0, help="seconds that turns have after SIGTERM")
    parser.add_argument("--trio", action="store_true", help="hypercorn on trio instead of uvicorn")
    return parser.parse_args(command_line)


# The rest of the example: clients, `kill -9`, and SIGTERM.


KEY = token_urlsafe()


class Service:
    """The service in its own process."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        own_options = ["--port", str(self.port), "--refunds", str(folder / "refunds.txt")]
        own_options += [] if "--db" in options else ["--db", f"sqlite:///{folder / 'orders.db'}"]
        environment = {**os.environ, "ORDERS_APPROVER_KEY": KEY}
        self.process = subprocess.Popen([sys.executable, __file__, "serve", *own_options, *options], env=environment)
        until(self.is_ready)

    def is_ready(self) -> bool:
        assert self.process.poll() is None
        try:
            return self.get("/ready")[0] == 200
        except OSError:
            return False

    def get(self, path: str) -> tuple[int, Any]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def post(self, path: str, body: Any) -> None:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            assert response.status == 202, response.read()

    def events(self, thread: str, after: int | None = None) -> Iterator[tuple[int, str, Any]]:
        """Yield the events of the thread's run, each with its number."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(
                "GET", f"/threads/{thread}/events", headers={"Last-Event-ID": str(after)} if after else {}
            )
            response = connection.getresponse()
            assert response.status == 200, response.read()
            fields: dict[str, str] = {}
            for line in response:
                name, _, value = line.decode().strip().partition(": ")
                fields[name] = value
                if name == "data":
                    yield int(fields["id"]), fields["event"], json.loads(value)

    def turn(self, thread: str) -> list[tuple[str, Any]]:
        return [(kind, data) for _, kind, data in self.events(thread)]


def until(holds: Callable[[], bool]) -> None:
    late = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < late
        time.sleep(0.02)


def text(events: Sequence[tuple[str, Any]]) -> str:
    return "".join(data["text"] for kind, data in events if kind == "token")


def story(folder: Path, *options: str) -> None:
    service = Service(folder, *options, "--carrier", "60")
    service.post("/threads/ann/messages", {"text": "Please refund order A-1."})
    open_questions = dict(service.turn("ann"))["question"]
    [(question_id, [question])] = open_questions.items()
    print("a question:", question["description"])
    service.post("/threads/bob/messages", {"text": "Where is order A-1?"})
    report = next(data["message"] for _, kind, data in service.events("bob") if kind == "progress")
    service.process.kill()  # the carrier takes a minute
    print("killed while the carrier is asked:", report, "- exit code", service.process.wait(30))

    service = Service(folder, *options, "--carrier", "0.3")
    assert service.get("/threads/ann")[1]["questions"] == open_questions  # the kill lost no question
    service.post("/threads/ann/answers", {question_id: {"type": "accept"}})
    answered = service.turn("ann")
    print("approved in the next process:", text(answered))
    assert text(answered) == "refunded 49.90 EUR for order A-1."
    assert service.get("/threads/bob")[1]["unfinished"]
    service.post("/threads/bob/resume", {})
    resumed = service.turn("bob")
    print("resumed in the next process:", text(resumed))
    assert [data["tool"] for kind, data in resumed if kind == "result"] == ["track_parcel"]  # no second look-up

    service.post("/threads/cat/messages", {"text": "Where is order A-1?"})
    number = next(number for number, kind, _ in service.events("cat") if kind == "progress")  # and leaves the run
    service.post("/threads/cat/messages", {"text": "And where is order A-2?"})
    service.process.terminate()
    until(lambda: service.get("/ready")[0] == 503)
    live = service.get("/live")[0]
    remaining_events = [(kind, data) for _, kind, data in service.events("cat", number)]
    print("said during the run:", text(remaining_events))
    print(
        f"SIGTERM: ready 503, live {live}, the turn ends with {remaining_events[-1][0]!r},"
        f" exit code {service.process.wait(30)}"
    )
    assert (live, remaining_events[-1][0], service.process.returncode) == (200, "end", 0)
    [line] = (folder / "refunds.txt").read_text().splitlines()
    assert line.startswith("A-1 4990 ")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(arguments(sys.argv[2:])))
    with tempfile.TemporaryDirectory() as name:
        story(Path(name), *sys.argv[1:])
