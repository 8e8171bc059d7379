"""The applications `order_service` and `support_desk`, their conversations, and a command that records them.

Run `uv run python -m tests.applications.record_services` after a change that the recordings should follow.
They have no place and no time of their making, and numbers instead of random ids.
"""

import importlib.util
import json
import re
import socket
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

import anyio
import httpx2
from starlette.applications import Starlette

from callboard.telemetry import RecordingWriter

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings"
KEY = "k" * 20
APPROVER = {"Authorization": f"Bearer {KEY}"}
Turn = list[tuple[str, Any]]
Event = tuple[int, str, Any]


@asynccontextmanager
async def serving(servers: Any, app: Any, listener: Any, backend: str) -> AsyncGenerator[str]:
    """Serve an application on a port of loopback, as `order_service` does, and yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    async def serve() -> None:
        with anyio.CancelScope(shield=True):  # a server that is cancelled does not end its lifespan
            if "trio" in backend:
                await servers.on_hypercorn(app, listener, port)
            else:
                config = servers.uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning")
                await servers.Uvicorn(config).run_until(listener)

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            listener.may_end.set()


def example(name: str) -> ModuleType:
    """Return a fresh module of an example, which a test may change."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(events: Iterable[tuple[str, Any]]) -> str:
    """Return the text of the tokens."""
    return "".join(data["text"] for kind, data in events if kind == "token")


class Client:
    """Client of the order service."""

    def __init__(self, app: Starlette, http: httpx2.AsyncClient) -> None:
        self.app = app
        self.http = http

    async def post(self, path: str, body: Any, thread: str = "ann") -> Turn:
        """Send a request that starts a run, and return the events of the run."""
        response = await self.http.post(f"/threads/{thread}/{path}", json=body)
        assert response.status_code == 202, response.text
        return [(kind, data) async for _, kind, data in self.events(thread)]

    async def events(self, thread: str = "ann", seen: int | None = None) -> AsyncGenerator[Event]:
        """Yield the events of a run after the number `seen`, and -1 for the end of a run without chunks."""
        headers = {} if seen is None else {"Last-Event-ID": str(seen)}
        async with self.http.stream("GET", f"/threads/{thread}/events", headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            fields: dict[str, str] = {}
            async for line in response.aiter_lines():
                name, _, value = line.partition(": ")
                fields[name] = value
                if name == "data":
                    yield int(fields.get("id", -1)), fields["event"], json.loads(value)

    async def say(self, text: str, thread: str = "ann") -> Turn:
        return await self.post("messages", {"text": text}, thread)

    async def answer(self, turn: Turn, answer: dict[str, Any], thread: str = "ann") -> Turn:
        [(question, _)] = dict(turn)["question"].items()
        return await self.post("answers", {question: answer}, thread)


@asynccontextmanager
async def order_service(user_of: Callable[[Any], str | None] | None = None, **options: Any) -> AsyncGenerator[Client]:
    """Yield a client of the service, with a new shop and conversations in memory."""
    module = example("order_service")
    app = module.service(module.agent_for(module.Shop(**options)), approver_key=KEY, user_of=user_of)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost", headers=APPROVER) as http,
    ):
        yield Client(app, http)


async def track_orders() -> None:
    async with order_service() as client:
        await client.say("Where are orders A-1 and A-2?")


async def approve_refund() -> None:
    async with order_service() as client:
        await client.answer(await client.say("Please refund order A-1."), {"type": "accept"})


async def deny_refund() -> None:
    async with order_service() as client:
        await client.answer(await client.say("Please refund order A-1."), {"type": "ignore", "args": "already paid"})


async def broken() -> None:
    """Ask for calls that fail: a carrier that does not answer, and a refund that loses its connection."""
    async with order_service() as client:
        await client.say("Where is order A-3?")
        await client.answer(await client.say("Please refund order A-2."), {"type": "accept"})


async def two_customers() -> None:
    module = example("support_desk")
    async with module.agent_for() as agent:
        for thread, text in [
            ("ann/1", "My kettle leaks."),
            ("bob/1", "My cup is broken."),
            ("ann/2", "Note: call after five."),
            ("ann/1", "What is open?"),
            ("bob/1", "Close: 1."),
        ]:
            user_input = {"messages": [("user", text)]}
            await agent.ainvoke(user_input, {"configurable": {"thread_id": thread}})


CONVERSATIONS: dict[str, Callable[[], Awaitable[None]]] = {
    "order_answered": track_orders,
    "order_refund_approved": approve_refund,
    "order_refund_denied": deny_refund,
    "order_failures": broken,
    "support_two_customers": two_customers,
}


def record(path: Path, conversation: Callable[[], Awaitable[None]], backend: str = "asyncio") -> None:
    """Record a conversation, on the real clock: LangChain runs parts of hooks around a model in threads."""
    with RecordingWriter(path, capture=True):
        anyio.run(conversation, backend=backend)
    path.write_text(_tidy(path.read_text()))


_UNIQUE = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32}\b")


def _as_unique_id(original: str, number: int) -> str:
    """Return a number in the form of a random id: a replay looks at the length of a question's id."""
    digits = f"{number:0{len(original.replace('-', ''))}x}"
    return digits if "-" not in original else str(UUID(digits))


def _tidy(text: str) -> str:
    """Return a recording without its place and time, and with numbers instead of random ids."""
    numbers = count(1)
    number = cache(lambda original: _as_unique_id(original, next(numbers)))
    lines = [json.loads(line) for line in _UNIQUE.sub(lambda original: number(original[0]), text).splitlines()]
    for line in lines[1:]:
        line["t"] = round(line["t"], 2)
    lines[0] |= {"started": "2026-01-01T00:00:00+00:00", "pid": 1, "python": "3"}
    lines[-1] |= {"overhead": 0.0, "per_event": 0.0, "bytes": 0}
    return "".join(f"{json.dumps(line)}\n" for line in lines)


if __name__ == "__main__":
    for each in sys.argv[1:] or CONVERSATIONS:
        record(RECORDINGS / f"{each}.jsonl", CONVERSATIONS[each])
