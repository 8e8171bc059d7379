"""A web service for containers: probes, metrics, a drain at SIGTERM, and state that all replicas share.

python service.py    serves on PORT until SIGTERM; the exit code tells whether all runs finished

HOST, PORT               the address, by default 0.0.0.0 and 8000
METRICS_PORT             the port of the metrics, by default 9464; no client should reach it
ALLOWED_HOSTS            the names by which clients reach the service, by default `localhost 127.0.0.1`
DATABASE_URL             PostgreSQL for conversations, limits and baskets; by default they live in this process
CALLBOARD_FLEET_SECRET   the secret of the fleet, at least 16 bytes; needed with DATABASE_URL
AGENT_MODEL              a model, such as `openai:gpt-5-mini`; by default a script answers
DRAIN_SECONDS            time that running calls have after SIGTERM, by default 20
"""

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import uvicorn
from circuits import Circuits
from langgraph.errors import EmptyInputError
from opentelemetry import metrics
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from callboard import (
    Actor,
    CallContext,
    CallPolicy,
    DrainingError,
    Limit,
    StorageError,
    ThreadBusyError,
    ToolNode,
    child,
    create_react_agent,
    drain_on_signal,
    handler,
    observe,
)
from callboard.middleware import CircuitBreaker
from callboard.testing import ScriptedModel, calls
from callboard_actors.postgres import PostgresFleet, PostgresLimits

DATABASE = os.environ.get("DATABASE_URL")
DRAIN = float(os.environ.get("DRAIN_SECONDS", "20"))
MAX_BODY = 20_000
"""Bytes of a request's body."""

# callboard finds this provider by itself, and records its metrics there.
metrics.set_meter_provider(MeterProvider([PrometheusMetricReader()]))
circuits = Circuits(metrics.get_meter("service"))

limits = PostgresLimits(DATABASE) if DATABASE else None
fleet = PostgresFleet(DATABASE) if DATABASE else None


@CallPolicy(timeout=60, limit=Limit(concurrency=8, queue=100, shared=limits))
async def pack(order: str, seconds: float) -> str:
    """Pack an order."""
    await anyio.sleep(seconds)
    return f"order {order} is packed"


class Basket(Actor):
    """Basket of a customer; it lives in one replica, and the other replicas send their calls there."""

    def start(self) -> None:
        self.items: list[str] = []

    def snapshot(self) -> list[str]:
        return self.items

    def restore(self, items: list[str]) -> None:
        self.items = items

    @handler
    def add(self, item: str) -> str:
        """Put an item into the customer's basket, and return its content."""
        self.items.append(item)
        return f"{self.key} has {', '.join(self.items)}"


def by_customer(call: object, context: CallContext) -> str:
    """Return the customer of a call: the thread, and not an argument, which the model could choose."""
    return str(context.config["configurable"]["thread_id"])


def script(messages: list[Any]) -> object:
    """Make the call that the user names, as in `pack 7 2.5` or `add tea`, and repeat its result."""
    if messages[-1].type != "human":
        return str(messages[-1].content)
    match messages[-1].content.split():
        case ["pack", order, seconds]:
            return calls(("pack", {"order": order, "seconds": float(seconds)}))
        case ["add", item]:
            return calls(("add", {"item": item}))
    return "Say `pack ORDER SECONDS` or `add THING`."


basket = child(Basket(), key=by_customer, idle=600.0, fleet=fleet)
node = ToolNode([pack, basket], timeout=30, middleware=[CircuitBreaker()])
agent = create_react_agent(
    os.environ.get("AGENT_MODEL") or ScriptedModel([script], loop=True),
    node,
    name="packer",
    budget=120,
    checkpointer=DATABASE or "memory",
)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        if limits is not None:
            stack.callback(limits.close)
        await stack.enter_async_context(agent)
        app.state.shutdown = await stack.enter_async_context(drain_on_signal(agent, timeout=DRAIN))
        yield


async def message_of(request: Request) -> tuple[str, bool]:
    """Return the text in the JSON of a request, and whether it gives up the open turn."""
    # Any web page may send other types than JSON without being asked: the browser of a user would send them.
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "send application/json")
    try:
        body = json.loads(await request.body())
        return str(body["text"]), body.get("give_up") is True
    except (ValueError, RecursionError, TypeError, KeyError):
        raise HTTPException(400, 'send {"text": "..."}') from None


async def chat(request: Request) -> JSONResponse:
    """Send a message to a thread; an empty text continues the thread.

    A real service checks here who sends it, and whether the thread is theirs.
    """
    text, gives_up = await message_of(request)
    turn_input = {"messages": [("user", text)]} if text else None
    config = {"configurable": {"thread_id": request.path_params["thread"]}}
    try:
        # A client, or a proxy, repeats a request after a 503. As a new message it would give up the turn that it began.
        state = await agent.aget_state(config)
        if text and not gives_up and (state.interrupts or "tools" in state.next):
            remedy = 'continue it with {"text": ""}, or give it up with "give_up": true'
            return JSONResponse({"error": f"the last turn is not over: {remedy}"}, 409)
        with observe(circuits):
            result = await agent.ainvoke(turn_input, config)
    except (DrainingError, StorageError) as error:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
    except (ThreadBusyError, EmptyInputError) as error:  # nothing to continue
        return JSONResponse({"error": str(error)}, 409)
    return JSONResponse({"answer": str(result["messages"][-1].content)})


async def ready(request: Request) -> JSONResponse:
    """Readiness: this replica takes new requests."""
    has_begun = request.app.state.shutdown.has_begun
    return JSONResponse({"ready": not has_begun}, 503 if has_begun else 200)


async def live(_: Request) -> JSONResponse:
    """Liveness: the event loop turns. A database that is away is no reason to restart this process."""
    return JSONResponse({"live": True})


# Not for the probes, which name the address of the pod. A page of another site may have a name that resolves to here.
hosts_only = Middleware(
    TrustedHostMiddleware, allowed_hosts=os.environ.get("ALLOWED_HOSTS", "localhost 127.0.0.1").split()
)
app = Starlette(
    routes=[
        Route("/ready", ready),
        Route("/live", live),
        Route("/threads/{thread}", chat, methods=["POST"], middleware=[hosts_only]),
    ],
    lifespan=lifespan,
    max_body_size=MAX_BODY,  # of the bytes that arrive: the header may lie
)


def end(number: int, _: object) -> None:
    shutdown = getattr(app.state, "shutdown", None)
    sys.exit(128 + number if shutdown is None else shutdown.exit_code)


if __name__ == "__main__":
    host = os.environ.get("HOST", "0.0.0.0")
    start_http_server(int(os.environ.get("METRICS_PORT", "9464")), addr=host)
    signal.signal(signal.SIGTERM, end)  # uvicorn has a handler of its own, and raises the signal again at its end
    uvicorn.run(
        app,
        host=host,
        port=int(os.environ.get("PORT", "8000")),
        log_level="warning",
        limit_concurrency=200,
        timeout_graceful_shutdown=int(DRAIN) + 10,  # a client that sends or reads nothing must not hold the end back
    )
