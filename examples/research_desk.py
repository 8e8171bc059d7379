"""An application: an agent that answers from a web site, a database and files, all at once.

python research_desk.py     runs the example: the agent is watched live, killed in the middle, and resumed

All parts but the model are real: the site is HTTP, the stock a read-only database, and the files come from an MCP
server in its own process, which `callboard mcp` makes of two functions below. The model follows a script; put another
model into `desk`, and talk to it with `callboard run research_desk:desk "..."`.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

from database import policy_of, read_sqlite

from callboard import Agent, CallPolicy, ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.http import fetch_tool
from callboard_actors.mcp import McpServer
from callboard_actors.process import Confine

CALLBOARD = str(Path(sys.executable).with_name("callboard"))
HERE = Path(__file__).parent
FOLDER = Path(os.environ.get("DESK", "."))
SITE = os.environ.get("DESK_SITE", "http://127.0.0.1:8000")


# The files, as an MCP server: `callboard mcp research_desk:FILES`


def list_notes() -> list[str]:
    """The names of the notes."""
    return sorted(path.name for path in (FOLDER / "notes").iterdir())


def read_note(name: str) -> str:
    """Read a note."""
    if name not in list_notes():
        raise ValueError(f"there is no note {name!r}, but {', '.join(list_notes())}")
    (FOLDER / "server").write_text(str(os.getpid()))
    return (FOLDER / "notes" / name).read_text()


FILES = [list_notes, read_note]


# The agent: `callboard run research_desk:desk "Can we serve tea tonight?"`


@asynccontextmanager
async def desk() -> AsyncGenerator[Agent]:
    """Yield the agent, with its MCP server running."""
    command = [CALLBOARD, "mcp", "research_desk:FILES", "--app-dir", str(HERE)]
    async with McpServer(command, env={"DESK": str(FOLDER)}, name="files", prefix="files_") as files:
        read_only = CallPolicy(timeout=20, idempotent=True)  # such calls run again after a crash
        confine = Confine(read=[FOLDER / "stock"], environment={"DATABASE": str(FOLDER / "stock" / "stock.db")})
        node = ToolNode(
            [fetch_tool(hosts=["127.0.0.1"]), read_sqlite, files],
            policies={"fetch": read_only, "read_sqlite": policy_of(confine), "files_read_note": read_only},
        )
        yield create_react_agent(script(), node)


def script() -> ScriptedModel:
    """Return a scripted model: it calls tools of all three sources at once, and answers from their results."""
    question = "select name, grams from stock where grams < :least order by name"

    def answer(messages: list) -> str:
        results = "\n".join(message.text for message in messages if message.type == "tool")
        for fact in ("Tea at five", '"Assam", 40', "Never without milk", "Three guests"):
            assert fact in results, results
        return "Yes: Assam is short, tea is at five, and never without milk."

    def ask(messages: list) -> object:
        if messages[-1].type == "tool":
            return answer(messages)
        return calls(
            ("fetch", {"url": f"{SITE}/today"}),
            ("read_sqlite", {"statement": question, "parameters": {"least": 100}}),
            ("files_read_note", {"name": "milk.txt"}),
            ("fetch", {"url": f"{SITE}/guests"}),
        )

    return ScriptedModel([ask], loop=True)


# The rest of the example: a web site, a stock database, notes, and `kill -9`.


class Site(ThreadingHTTPServer):
    """Site with two pages; the second page is answered only after its release."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.requests: list[str] = []
        self.let_go = Event()
        Thread(target=self.serve_forever, daemon=True).start()


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path == "/guests":
            self.server.let_go.wait(30)
        page = b"<h1>Today</h1><p>Tea at five.</p>" if self.path == "/today" else b"<p>Three guests.</p>"
        try:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        except OSError:
            pass  # the client was killed

    def log_message(self, *_: object) -> None:
        pass


def furnish(folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "milk.txt").write_text("Never without milk.")
    (folder / "stock").mkdir()  # the worker process reads the whole folder of its database
    with closing(sqlite3.connect(folder / "stock" / "stock.db")) as stock, stock:
        stock.execute("create table stock (name text, grams integer)")
        stock.executemany("insert into stock values (?, ?)", [("Assam", 40), ("Ceylon", 900)])


def run(folder: Path, site: Site, *words: str) -> "subprocess.Popen[str]":
    command = [CALLBOARD, "run", "research_desk:desk", *words, "--app-dir", str(HERE), "--live"]
    place_options = ["--db", str(folder / "desk.db"), "--thread", "tea"]
    env = {**os.environ, "DESK": str(folder), "DESK_SITE": f"http://127.0.0.1:{site.server_port}"}
    return subprocess.Popen([*command, *place_options], env=env, text=True, stdout=subprocess.PIPE)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(is_so: Callable[[], bool]) -> None:
    late = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < late
        time.sleep(0.02)


def story(folder: Path) -> None:
    furnish(folder)
    site = Site()
    recording = Path(os.environ.get("CALLBOARD_RECORDS", folder / "desk.db.calls")) / "tea.jsonl"

    agent = run(folder, site, "Can we serve tea tonight?")
    until(lambda: recording.exists() and recording.read_text().count('"ended"') >= 3)
    agent.kill()
    watched, _ = agent.communicate()
    until(lambda: not is_there(int((folder / "server").read_text())))  # the MCP server does not outlive its agent
    print("killed, with three answers of four:", watched, sep="\n")
    assert agent.returncode == -9
    assert sorted(site.requests) == ["/guests", "/today"]

    site.let_go.set()
    agent = run(folder, site, "--resume", "--backend", "trio")
    watched, _ = agent.communicate(timeout=60)
    print("resumed, on trio:", watched, sep="\n")
    assert agent.returncode == 0
    assert "Yes: Assam is short" in watched
    assert sorted(site.requests) == ["/guests", "/guests", "/today"]  # finished calls did not run again
    site.shutdown()
    site.server_close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        story(Path(name))
