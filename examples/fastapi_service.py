r"""A FastAPI service in several worker processes: the agent by `Depends`, streams that stay open and are joined again.

python fastapi_service.py                      runs the example: two workers, and clients that leave and come back
uvicorn fastapi_service:app --workers 2        serves at port 8000; $CHAT_DB names the database, by default a file

curl localhost:8000/threads/1/messages --json '{"text": "A book about tea, please."}'
curl -N localhost:8000/threads/1/events        # again, with -H "Last-Event-ID: ID": what was missed

All workers share the database: conversations, open questions and the results of finished calls. A live run is in the
memory of one worker, with its tokens, the messages to it and its background calls. Another worker shows what is stored
of the run, and refuses messages to it with 409.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import anyio
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import Interrupt, StateSnapshot
from pydantic import BaseModel, Field
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from callboard import (
    Agent,
    ChunksDroppedError,
    DrainingError,
    LiveRun,
    OpenCallsError,
    RunNotFoundError,
    ThreadBusyError,
    create_agent,
    drain_on_signal,
)
from callboard.testing import ScriptedModel, calls

WORKER = uuid4().hex[:8]
"""Name of this process in the ids of events: another worker numbers the chunks of its own runs."""


# The agent: each worker has one, with connections of its own to the common database.


async def search(query: str) -> str:
    """Search the catalogue."""
    await anyio.sleep(float(os.environ.get("SEARCH_SECONDS", "2")))
    return f"one book about {query}"


def reply(messages: list[BaseMessage]) -> Any:  # stands for a model
    results = [message.text for message in messages if message.type == "tool"]
    if messages[-1].type == "human":
        return calls(("search", {"query": "tea"}))
    return calls(("search", {"query": "cups"})) if len(results) % 2 else "I found two books."


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    agent = create_agent(
        os.environ.get("CHAT_MODEL") or ScriptedModel([reply], loop=True),
        [search],
        timeout=60,
        budget=300,
        checkpointer=os.environ.get("CHAT_DB", "sqlite:///chat.db"),
    )
    async with agent, drain_on_signal(agent, timeout=20) as app.state.shutdown:
        app.state.agent = agent
        yield


# What handlers get by `Depends`.


def agent_of(request: Request) -> Agent:
    return request.app.state.agent


def thread_of(thread: str) -> str:
    """Return the thread of a request. A real service checks here whether it belongs to the user of the request."""
    return thread


def config_of(thread: Annotated[str, Depends(thread_of)]) -> Any:
    return {"configurable": {"thread_id": thread}}


AgentOfWorker = Annotated[Agent, Depends(agent_of)]
Config = Annotated[Any, Depends(config_of)]


def run_of(thread: Annotated[str, Depends(thread_of)], agent: AgentOfWorker) -> LiveRun | None:
    """Return the live run of a thread; `None` if this worker has none."""
    try:
        run = agent.live(thread)
    except RunNotFoundError:
        return None
    return None if run.is_over else run  # of the turns since then, another worker may have run some


class Message(BaseModel):
    """Message of a user."""

    text: str = Field(min_length=1, max_length=10_000)


# The handlers.

hosts = Middleware(TrustedHostMiddleware, allowed_hosts=os.environ.get("CHAT_HOSTS", "localhost 127.0.0.1").split())
app = FastAPI(lifespan=lifespan, max_body_size=50_000, middleware=[hosts])


# `thread_of` takes the thread.
@app.post("/threads/{thread}/messages", status_code=202)  # noqa: FAST003
async def send_message(message: Message, agent: AgentOfWorker, config: Config) -> dict[str, str]:
    """Send a message to the live run of a thread, or start a run with it, which goes on without its client."""
    try:
        await agent.say(message.text, config, start=True, stream_mode=["messages", "updates"])
    except OpenCallsError as error:
        raise HTTPException(409, "the last turn is not over") from error
    except ThreadBusyError as error:
        raise HTTPException(409, "another worker runs this thread: try again when it has ended") from error
    except DrainingError as error:
        raise HTTPException(503, "the service shuts down", {"Retry-After": "1"}) from error
    return {"worker": WORKER}


@app.get("/threads/{thread}")  # noqa: FAST003
async def read_thread(agent: AgentOfWorker, config: Config) -> dict[str, Any]:
    """Return the messages of a thread and its open questions, which each worker reads in the database."""
    state = await agent.aget_state(config)
    messages = [event.data for event in stored_events(state.values.get("messages", []))]
    return {
        "worker": WORKER,
        "messages": messages,
        "questions": questions_of(state.interrupts),
        "is_over": is_over(state),
    }


@app.get("/threads/{thread}/events", response_class=EventSourceResponse)
async def read_events(
    agent: AgentOfWorker,
    config: Config,
    run: Annotated[LiveRun | None, Depends(run_of)],
    last_event_id: Annotated[str | None, Header()] = None,
) -> AsyncIterable[ServerSentEvent]:
    """Stream the run of a thread. FastAPI sends a comment after 15 s without an event, so that no proxy ends it."""
    events = events_in_database(agent, config) if run is None else events_of(run, last_event_id)
    async with aclosing(events):
        async for event in events:
            yield event


# The events: `token` is a part of a message, and `message` is all of one, in place of its tokens.


async def events_of(run: LiveRun, last_event_id: str | None) -> AsyncGenerator[ServerSentEvent]:
    """Yield the events of a run of this worker, after the last one that the client has got."""
    worker, _, number = (last_event_id or "").partition(".")
    after = int(number) if worker == WORKER and re.fullmatch("[0-9]{1,18}", number) else None
    try:
        async with aclosing(run.stream(after=after)) as chunks:
            async for chunk_number, (mode, chunk) in chunks:
                if (kind_and_data := event_of(mode, chunk)) is not None:
                    kind, data = kind_and_data
                    yield ServerSentEvent(event=kind, data=data, id=f"{WORKER}.{chunk_number}")
    except ChunksDroppedError as error:
        yield ServerSentEvent(event="dropped", data="read the thread", id=f"{WORKER}.{error.oldest}")
    except DrainingError:
        yield ServerSentEvent(event="error", data="the service shuts down: resume the turn")
    except Exception:
        yield ServerSentEvent(event="error", data="the turn failed")
    else:
        yield ServerSentEvent(event="end")


async def events_in_database(agent: Agent, config: Any) -> AsyncGenerator[ServerSentEvent]:
    """Yield the messages of a thread as they are stored by another worker, until its turn is over."""
    seen = 0
    while True:
        state = await agent.aget_state(config)
        messages = state.values.get("messages", [])
        for event in stored_events(messages[seen:]):
            yield event
        seen = len(messages)
        if state.interrupts:
            yield ServerSentEvent(event="question", data=questions_of(state.interrupts))
        if is_over(state):
            yield ServerSentEvent(event="end")
            return
        await anyio.sleep(0.5)


def stored_events(messages: Sequence[BaseMessage]) -> list[ServerSentEvent]:
    return [ServerSentEvent(event="message", data=data_of(message)) for message in messages if message.text]


def event_of(mode: str, chunk: Any) -> tuple[str, Any] | None:
    """Return the kind and the data of a chunk's event; `None` for a chunk that is not for the client."""
    if mode == "updates":
        interrupts = chunk.get("__interrupt__")
        return ("question", questions_of(interrupts)) if interrupts else None
    message = chunk[0]
    if not message.text or not isinstance(message, AIMessage | ToolMessage):
        return None
    return "token" if isinstance(message, AIMessage) else "message", data_of(message)


def data_of(message: BaseMessage) -> dict[str, Any]:
    """Return a message, or a part of it, with the id of the whole. The text of a tool's error may name hosts."""
    has_failed = isinstance(message, ToolMessage) and message.status == "error"
    return {"id": message.id, "by": message.type, "text": "the tool failed" if has_failed else message.text}


def questions_of(interrupts: Sequence[Interrupt]) -> dict[str, Any]:
    return {interrupt.id: interrupt.value for interrupt in interrupts}


def is_over(state: StateSnapshot) -> bool:
    """Return whether no run of any worker goes on with the thread: its turn has ended, or it asks a person."""
    return not state.next or bool(state.interrupts)


# The rest of the example: a client that comes to either worker, and is cut off.


class Connection(HTTPConnection):
    """Connection to one of the workers, which answers all its requests."""

    worker = ""

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        self.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        response = self.getresponse()
        return response.status, json.loads(response.read())

    def events(self, thread: str, last_id: str = "") -> Iterator[tuple[str, str, Any]]:
        """Yield the id, the kind and the data of each event; a comment has the kind "comment"."""
        self.request("GET", f"/threads/{thread}/events", headers={"Last-Event-ID": last_id} if last_id else {})
        response, fields = self.getresponse(), dict[str, str]()
        assert response.status == 200, response.read()
        for line in map(bytes.decode, response):
            name, _, value = line.rstrip("\n").partition(":")
            if not line.strip() and fields:
                kind, data = fields.get("event", "comment"), fields.get("data")
                yield fields.get("id", ""), kind, json.loads(data) if data else None
                fields = {}
            elif line.strip():
                fields[name] = value.strip()


@contextmanager
def workers(folder: Path, seconds: float) -> Iterator[int]:
    """Run two workers, whose searches take `seconds`; yield their port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "fastapi_service:app", "--workers", "2", "--port", str(port)]
    # On a busy machine, uvicorn would end a worker that still imports, and the client's connections.
    command += ["--log-level", "warning", "--timeout-worker-healthcheck", "60", "--timeout-keep-alive", "60"]
    environment = {"CHAT_DB": f"sqlite:///{folder / 'chat.db'}", "SEARCH_SECONDS": str(seconds)}
    process = subprocess.Popen(command, cwd=Path(__file__).parent, env={**os.environ, **environment})
    try:
        yield port
    finally:
        process.terminate()
        process.wait(60)


def connect(port: int, is_right: Callable[[str], bool]) -> Connection:
    """Return a connection to a worker of which `is_right` is true. The system chooses the worker of each connection."""
    until = time.monotonic() + 90
    while time.monotonic() < until:
        connection = Connection("127.0.0.1", port, timeout=30)
        with suppress(OSError):  # no worker is up
            connection.worker = connection.ask("GET", "/threads/none")[1]["worker"]
        if connection.worker and is_right(connection.worker):
            return connection
        connection.close()
        time.sleep(0.05)
    raise RuntimeError(f"no such worker answers at port {port}")


def texts(events: Iterable[tuple[str, str, Any]]) -> list[str]:
    """Return the texts of the agent's messages and results, as a client shows them."""
    by_message: dict[str, str] = {}
    for _, kind, data in events:
        if kind in ("token", "message") and data["by"] != "human":
            before = by_message.get(data["id"], "") if kind == "token" else ""
            by_message[data["id"]] = before + data["text"]
    return list(by_message.values())


def story(folder: Path) -> None:
    all_texts = ["one book about tea", "one book about cups", "I found two books."]
    with (
        workers(folder, seconds=1.0) as port,
        closing(connect(port, bool)) as first,
        closing(connect(port, lambda worker: worker == first.worker)) as again,
        closing(connect(port, lambda worker: worker != first.worker)) as second,
    ):
        assert first.ask("POST", "/threads/1/messages", {"text": "Books about tea and cups, please."})[0] == 202
        status, refusal = second.ask("POST", "/threads/1/messages", {"text": "Hello?"})
        print("the other worker:", status, refusal["detail"])
        assert status == 409

        event = next(first.events("1"))
        first.close()
        events = [event, *again.events("1", event[0])]
        print("a client that was cut off, and came back:", texts(events))
        assert texts(events) == all_texts

        events = list(second.events("1"))
        print("a client of the other worker:", texts(events))
        assert texts(events) == all_texts


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        story(Path(directory))
