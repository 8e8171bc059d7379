"""A web service with graceful shutdown: SIGTERM arrives in the middle of a booking, and the client gets its answer.

python drained_service.py                             runs the example: starts the service, and ends it twice
python drained_service.py serve DIRECTORY PORT [SECONDS]   runs the service; bookings have SECONDS to finish

The second service is killed. The third one knows that a booking had begun: it asks a person, and does not book again.
"""

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import anyio
import uvicorn
from langgraph.errors import EmptyInputError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from callboard import Agent, CallPolicy, DrainingError, ToolNode, create_react_agent, drain_on_signal
from callboard.testing import ScriptedModel, calls

MAX_BODY = 20_000
"""Bytes of a request's body."""


def agent_in(directory: Path) -> Agent:
    """Return an agent that books; its model follows a script."""
    bookings = directory / "bookings"

    async def book(hotel: str, seconds: float) -> str:
        """Book a room, which takes so long, and which nobody can take back."""
        with bookings.open("a") as file:
            file.write(f"{hotel} is asked\n")
        await anyio.sleep(seconds)
        with bookings.open("a") as file:
            file.write(f"{hotel} is booked\n")
        return "booked"

    def say(messages: list) -> object:
        """Book the room that the user names, as in "Minerva 2.5", and tell the result."""
        if messages[-1].type != "human":
            return f"It is {messages[-1].content}."
        hotel, seconds = messages[-1].content.split()
        return calls(("book", {"hotel": hotel, "seconds": float(seconds)}))

    node = ToolNode([book], policies={"book": CallPolicy(on_unknown="ask")})
    return create_react_agent(ScriptedModel([say], loop=True), node, checkpointer=f"sqlite:///{directory / 'agent.db'}")


async def text_of(request: Request) -> str:
    """Return the text in the JSON of a request; raise HTTPException for another type."""
    # Any web page may send other types than JSON without being asked: the browser of a user would send them.
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HTTPException(415, "send application/json")
    try:
        return str(json.loads(await request.body())["text"])
    except (ValueError, RecursionError, TypeError, KeyError):
        raise HTTPException(400, 'send {"text": "..."}') from None


def service(directory: Path, seconds: float) -> Starlette:
    """Return the application."""
    agent = agent_in(directory)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        async with agent, drain_on_signal(agent, timeout=seconds) as app.state.shutdown:
            yield

    async def ready(_: Request) -> JSONResponse:
        """Readiness check for a load balancer: fails while the service is draining."""
        has_begun = app.state.shutdown.has_begun
        return JSONResponse({"ready": not has_begun}, 503 if has_begun else 200)

    async def chat(request: Request) -> JSONResponse:
        """Send a message to a thread; an empty text continues the thread."""
        text = await text_of(request)
        turn_input = {"messages": [("user", text)]} if text else None
        config = {"configurable": {"thread_id": request.path_params["thread"]}}
        # A client, or a proxy, repeats a request after a 503. As a new message it would give up the turn that it began.
        state = await agent.aget_state(config)
        if text and (state.interrupts or "tools" in state.next):
            return JSONResponse({"error": 'the last turn is not over: continue it with {"text": ""}'}, 409)
        try:
            result = await agent.ainvoke(turn_input, config)
        except DrainingError as error:
            return JSONResponse({"error": str(error), "begun": error.begun}, 503, {"Retry-After": "1"})
        except EmptyInputError as error:
            return JSONResponse({"error": str(error)}, 409)  # nothing to continue
        questions = [str(interrupt.value) for interrupt in result.get("__interrupt__", ())]
        return JSONResponse({"answer": str(result["messages"][-1].content), "questions": questions})

    # A page of another site may have a name that resolves to here. A load balancer's check may name an address.
    hosts_only = Middleware(TrustedHostMiddleware, allowed_hosts=["localhost", "127.0.0.1"])
    routes = [Route("/ready", ready), Route("/{thread}", chat, methods=["POST"], middleware=[hosts_only])]
    # The bytes that arrive are counted: the header may lie.
    app = Starlette(routes=routes, lifespan=lifespan, max_body_size=MAX_BODY)
    return app


def serve(directory: Path, port: int, seconds: float) -> None:
    """Serve until SIGTERM; the exit code tells whether all runs finished."""
    app = service(directory, seconds)

    def end(number: int, _: object) -> None:
        shutdown = getattr(app.state, "shutdown", None)
        sys.exit(128 + number if shutdown is None else shutdown.exit_code)

    signal.signal(signal.SIGTERM, end)  # uvicorn has a handler of its own, and raises the signal again at its end
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


# The rest of the example: a client, and the end of each service.


def start(directory: Path, port: int, seconds: float = 20.0) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, __file__, "serve", str(directory), str(port), str(seconds)])
    for _ in range(600):
        try:
            if ask(port, "GET", "/ready")[0] == 200:
                return process
        except OSError:
            time.sleep(0.05)
    process.kill()
    raise RuntimeError("the service did not start")


def ask(port: int, method: str, path: str, text: str = "") -> tuple[int, dict]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        body = json.dumps({"text": text}) if method == "POST" else None
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def until_asked(directory: Path, hotel: str) -> None:
    bookings = directory / "bookings"
    while not bookings.exists() or f"{hotel} is asked" not in bookings.read_text():
        time.sleep(0.01)


def story(directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]

    process, answers = start(directory, port), []
    client = Thread(target=lambda: answers.append(ask(port, "POST", "/rome", "Minerva 1.0")))
    client.start()
    until_asked(directory, "Minerva")
    process.terminate()
    client.join()
    print("asked before SIGTERM:", answers[0], "- exit code", process.wait())
    assert answers[0] == (200, {"answer": "It is booked.", "questions": []})
    assert process.returncode == 0

    process = start(directory, port)

    def lose_connection() -> None:
        try:
            ask(port, "POST", "/oslo", "Bristol 60.0")
        except OSError:
            answers.append("its connection is lost")

    client = Thread(target=lose_connection)
    client.start()
    until_asked(directory, "Bristol")
    process.kill()
    client.join()
    print("asked before kill -9:", answers[1], "- exit code", process.wait())

    process = start(directory, port)
    status, found = ask(port, "POST", "/oslo")
    process.terminate()
    print("asked again:", found["questions"], "- exit code", process.wait())
    assert status == 200
    assert len(found["questions"]) == 1
    assert (directory / "bookings").read_text().count("Bristol") == 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(Path(sys.argv[2]), int(sys.argv[3]), float((sys.argv[4:] or ["20"])[0]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            story(Path(folder))
