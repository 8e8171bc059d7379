"""An application: a research agent that reads web sites, with a limit for each host, and keeps notes on an MCP server.

python research_agent.py                                             runs the example with a scripted model
python research_agent.py --model openai:gpt-5.1 "Which tea keeps?"   a real model
python research_agent.py --record runs/research.jsonl                also records the run, for a test that replays it
callboard run research_agent:agent "Which tea keeps?" --live         the same agent, watched live; $MODEL names a model

The sites are two small HTTP servers on this machine. A site gets one request at a time, and both are read at once. One
page never answers: the model reads that there is no answer, and goes on with the other pages. The notes are kept by an
MCP server in its own process, which `callboard mcp` makes of two functions below.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
from langchain_core.language_models import BaseChatModel

from callboard import Agent, CallPolicy, Limit, create_agent
from callboard.telemetry import RecordingWriter
from callboard.testing import ScriptedModel, calls
from callboard_actors.http import fetch_tool
from callboard_actors.mcp import McpServer

CALLBOARD = str(Path(sys.executable).with_name("callboard"))
FOLDER = Path(os.environ.get("RESEARCH", "."))
QUESTIONS = ("Which tea keeps for two years?", "And what does it cost?")
PROMPT = "You answer questions from web pages. Keep a note with its source of each fact, then answer from your notes."


# The notes, as an MCP server: `callboard mcp research_agent:NOTES`


def keep_note(text: str, source: str) -> str:
    """Keep a note, with the URL of the page that says so."""
    with (FOLDER / "notes.jsonl").open("a") as notes:
        notes.write(json.dumps({"text": text, "source": source}) + "\n")
    return "Kept."


def read_notes() -> str:
    """Read all notes, in the order in which they were kept."""
    notes = [json.loads(line) for line in (FOLDER / "notes.jsonl").read_text().splitlines()]
    return "\n".join(f"{note['text']} ({note['source']})" for note in notes)


NOTES = [keep_note, read_notes]


# The agent: `callboard run research_agent:agent "Which tea keeps for two years?"`


def host_of(call: Mapping[str, Any]) -> str:
    """Return the host of the URL of a call, which the model wrote: it may be any text."""
    try:
        return (urlsplit(str(call["args"].get("url", ""))).hostname or "").rstrip(".")
    except ValueError:
        return ""


def research(
    model: str | BaseChatModel, notes: Sequence[Any], prompt: str = PROMPT, ports: Sequence[int] = (80, 443)
) -> Agent:
    """Return the agent with its tools for pages, and with tools that keep notes.

    `ports` are those of URLs. With any port, a page could send the agent to the other servers of this machine.
    """
    one_at_a_time = Limit(concurrency=1, key=host_of)
    return create_agent(
        model,
        [fetch_tool(hosts=["*", "127.0.0.1", "127.0.0.2"], ports=ports, timeout=1.0), *notes],
        system_prompt=prompt,
        policies={
            "fetch": CallPolicy(timeout=10.0, limit=one_at_a_time, idempotent=True),
            "read_notes": CallPolicy(timeout=10.0, idempotent=True),
        },
        checkpointer="memory",
        name="research",
        budget=300.0,
    )


@asynccontextmanager
async def agent(model: str | BaseChatModel | None = None, folder: Path = FOLDER) -> AsyncGenerator[Agent]:
    """Yield the agent, with its sites and its MCP server running."""
    command = [CALLBOARD, "mcp", "research_agent:NOTES", "--app-dir", str(Path(__file__).parent)]
    with serve("127.0.0.1", GROWERS) as growers, serve("127.0.0.2", SHOPS) as shops:
        async with McpServer(command, env={"RESEARCH": str(folder)}, name="notes") as notes:
            model = model or os.environ.get("MODEL") or script(growers, shops)
            prompt = f"{PROMPT}\nBegin with {growers.url}/ and {shops.url}/."
            ports = (443, growers.server_port, shops.server_port)
            async with research(model, [notes], prompt, ports) as opened:
                yield opened


# The rest of the example: two sites, and a script for the model

LATENCY = 0.03
GROWERS = {
    "/": "<h1>Growers</h1><ul><li><a href='/white'>white</a><li><a href='/green'>green</a></ul>",
    "/white": "<h1>White</h1><p>White tea keeps for two years.</p>",
    "/green": "<h1>Green</h1><p>Green tea keeps for one year.</p>",
}
SHOPS = {
    "/": "<h1>Shops</h1><ul><li><a href='/prices'>prices</a><li><a href='/archive'>archive</a></ul>",
    "/prices": "<h1>Prices</h1><p>White tea: 9. Green tea: 5.</p>",
    "/archive": "",  # never answers
}


class Site(ThreadingHTTPServer):
    """Site that counts its open requests."""

    def __init__(self, address: str, pages: Mapping[str, str]) -> None:
        super().__init__((address, 0), Page)
        self.pages = pages
        self.url = f"http://{address}:{self.server_port}"
        self.closing = threading.Event()
        self.lock = threading.Lock()
        self.open = self.peak = 0

    def count(self, step: int) -> None:
        with self.lock:
            self.open += step
            self.peak = max(self.peak, self.open)


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path, "Nothing here.").encode()
        if not page:
            self.server.closing.wait(30)
            return
        self.server.count(+1)
        time.sleep(LATENCY)
        self.server.count(-1)
        self.send_response(200 if self.path in self.server.pages else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def serve(address: str, pages: Mapping[str, str]) -> Iterator[Site]:
    with Site(address, pages) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        yield site
        site.closing.set()
        site.shutdown()
        peaks[address] = site.peak


peaks: dict[str, int] = {}
"""Largest number of open requests of each site that has closed."""


def script(growers: Site, shops: Site) -> ScriptedModel:
    """Return a scripted model: it follows the links of the sites, and answers both questions from its notes."""
    facts = {"White tea keeps for two years.": f"{growers.url}/white", "White tea: 9.": f"{shops.url}/prices"}

    def note(messages: list[Any]) -> Any:
        read = "\n".join(message.text for message in messages if message.type == "tool")
        assert all(fact in read for fact in facts), read
        return calls(*(("keep_note", {"text": fact, "source": source}) for fact, source in facts.items()))

    return ScriptedModel(
        [
            calls(("fetch", {"url": f"{growers.url}/"}), ("fetch", {"url": f"{shops.url}/"})),
            calls(
                *(("fetch", {"url": f"{growers.url}/{page}"}) for page in ("white", "green")),
                *(("fetch", {"url": f"{shops.url}/{page}"}) for page in ("prices", "archive")),
            ),
            note,
            calls("read_notes"),
            lambda messages: f"White tea. My notes:\n{messages[-1].text}",
            calls("read_notes"),
            "It costs 9.",
        ]
    )


async def answer(questions: Sequence[str], model: str | BaseChatModel | None, folder: Path) -> dict[str, Any]:
    """Return the last state of a conversation with one question or more."""
    async with agent(model, folder) as opened:
        for question in questions:
            turn_input = {"messages": [("user", question)]}
            state = await opened.ainvoke(turn_input, {"configurable": {"thread_id": "tea"}})
    return state


def story(folder: Path, backend: str) -> None:
    state = anyio.run(answer, QUESTIONS, None, folder, backend=backend)

    results = [message for message in state["messages"] if message.type == "tool"]
    print(
        *(f"{result.status:7}  {result.name:10}  {result.text[:90]!r}" for result in results),
        state["messages"][-1].text,
        sep="\n",
    )
    assert [result.name for result in results] == [*["fetch"] * 6, "keep_note", "keep_note", "read_notes", "read_notes"]
    assert "has no response" in results[5].text
    assert peaks == {"127.0.0.1": 1, "127.0.0.2": 1}
    assert len((folder / "notes.jsonl").read_text().splitlines()) == 2
    assert "White tea keeps for two years." in results[-1].text
    assert state["messages"][-1].text == "It costs 9."


def main() -> None:
    parser = argparse.ArgumentParser(description="Research on two sites, with notes on an MCP server")
    parser.add_argument("question", nargs="?", default=QUESTIONS[0])
    parser.add_argument("--model", help="such as openai:gpt-5.1; without it, a script plays the model")
    parser.add_argument("--record", metavar="FILE", help="record the run with its contents, without secrets")
    options = parser.parse_args()
    with RecordingWriter(options.record, capture=True) if options.record else nullcontext():
        if options.model is not None:
            state = anyio.run(answer, [options.question], options.model, FOLDER)
            print(state["messages"][-1].text)
            return
        for backend in ("asyncio",) if options.record else ("asyncio", "trio"):
            with tempfile.TemporaryDirectory() as name:
                story(Path(name), backend)


if __name__ == "__main__":
    main()
