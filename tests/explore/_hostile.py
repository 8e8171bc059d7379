"""Hostile inputs from a model, a person or a disk: texts whose meaning differs from their appearance."""

import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote, urlsplit

import anyio
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool

from callboard import CallsInterrupted, ToolNode, create_react_agent
from callboard.guards import PathIn, Url
from callboard.middleware import RequireApproval
from callboard.testing import ScriptedModel
from tests.agent._savers import complaint

from ._batches import messages_in
from ._watch import Complaint, run_on

PIECES_OF_IDS = (
    "a",
    "b",
    "|",
    "_",
    "#",
    "#1",
    "1",
    ":",
    "/",
    "\0",
    " ",
    "",
    "é",
    "e\u0301",
    "None",
    "a" * 300,
    "\ud800",
)
PIECES_OF_PATHS = (
    *(
        "..",
        ".",
        "/",
        "//",
        "\\",
        "a",
        "middleware",
        "secret",
        "%2e%2e",
        "%2f",
        "%252e",
        "~",
        "\0",
        "\n",
        "\u2215",
        "\uff0e",
    ),
    *("C:", "file://", "..;", " ", "\u200b", "a.", "%u002e", "%c0%ae", "\u2024"),
)
PIECES_OF_URLS = (
    *(
        "http://",
        "https://",
        "HTTP://",
        "file://",
        "//",
        "@",
        ":",
        "/",
        "\\",
        "?",
        "#",
        "user:pass@",
        ":80",
        ":22",
        ".",
    ),
    *("127.0.0.1", "127.1", "0x7f.1", "2130706433", "017700000001", "[::1]", "[::ffff:127.0.0.1]", "localhost", "0"),
    *("169.254.169.254", "10.0.0.1", "example.com", "localhost.", "127.0.0.1.nip.io", "\u2488", "\u3002", "%00", "%2e"),
    *(
        "\t",
        "\n",
        " ",
        "metadata.google.internal",
        "[fe80::1%25eth0]",
        "1.1.1.1",
        "\u24d4xample.com",
        "[64:ff9b::7f00:1]",
    ),
)
HISTORY = ("human", "text", "one", "two", "answer", "answer")


@dataclass(frozen=True)
class Ids:
    """Calls with these ids, each of which has to be approved."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class PathText:
    """A path that a model has written."""

    text: str


@dataclass(frozen=True)
class UrlText:
    """A URL that a model has written."""

    text: str


@dataclass(frozen=True)
class History:
    """A message history from outside, with calls that have no answer."""

    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Damage:
    """A damaged database."""

    seed: int
    use: str = "state"


Hostile = Ids | PathText | UrlText | History | Damage


def draw(chance: Random) -> Hostile:
    """Draw one of the hostile inputs."""
    kind = chance.choice(("ids", "path", "path", "url", "url", "history", "damage"))
    if kind == "ids":
        return Ids(tuple(_text(chance, PIECES_OF_IDS, 3) for _ in range(chance.randint(1, 4))))
    if kind == "path":
        return PathText(_text(chance, PIECES_OF_PATHS, 7))
    if kind == "url":
        return UrlText(chance.choice(("http://", "http://", "")) + _text(chance, PIECES_OF_URLS, 5))
    if kind == "history":
        return History(tuple(chance.choice(HISTORY) for _ in range(chance.randint(1, 8))))
    return Damage(chance.randrange(10**6), chance.choice(("state", "history", "resume", "go", "update")))


def _text(chance: Random, pieces: tuple[str, ...], most: int) -> str:
    return "".join(chance.choice(pieces) for _ in range(chance.randint(0, most)))


async def one_approval_runs_one_call(plan: Ids) -> list[str]:
    """Promises 2 and 5: whatever the ids, each call needs its own approval, and one approval runs only that call."""
    ran: list[int] = []

    async def act(number: int) -> str:
        ran.append(number)
        return str(number)

    tool = StructuredTool.from_function(coroutine=act, name="act", description="Act.")
    node = ToolNode([tool], middleware=[RequireApproval()])
    batch = [
        {"name": "act", "args": {"number": place}, "id": one, "type": "tool_call"} for place, one in enumerate(plan.ids)
    ]
    options: dict[str, Any] = {}
    for done in range(len(batch) + 1):
        try:
            result = await node.ainvoke(batch, **options)
        except CallsInterrupted as waiting:
            if len(ran) != done or len(waiting.interrupts) != len(batch) - done:
                return [f"{len(waiting.interrupts)} questions are open and {ran} ran after {done} approvals"]
            first = waiting.interrupts[0]
            options = {"ledger": waiting.ledger, "resume": {first.id: {"type": "accept", "args": None}}}
        else:
            contents = [(message.tool_call_id, message.content) for message in messages_in(result)]
            wanted = [(one, str(place)) for place, one in enumerate(plan.ids)]
            return [] if contents == wanted and ran == [*range(len(batch))] else [f"{contents} after {ran} ran"]
    return ["the calls go on asking"]


async def a_path_stays_below_its_root(plan: PathText) -> list[str]:
    """Each accepted path is below its root, even after a library has decoded it once more."""
    root = _root()
    try:
        real = PathIn(root).check(plan.text)
    except ValueError:
        return []
    readings = [real, unquote(str(real)), os.path.realpath(str(real))]
    return [f"{plan.text!r} became {one!r}" for one in readings if not _is_below(os.path.normpath(str(one)), root)]


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root + os.sep)


@cache
def _root() -> str:
    folder = os.path.realpath(tempfile.mkdtemp())
    root = Path(folder, "root")
    (root / "a").mkdir(parents=True)
    Path(folder, "secret").write_text("secret")
    (root / "middleware").symlink_to(folder)
    return str(root)


async def an_url_leads_to_a_public_host(plan: UrlText) -> list[str]:
    """Each accepted URL leads to a public host, also as other parsers and the C library read its address."""
    try:
        url = str(Url().check(plan.text))
    except ValueError:
        return []
    host = (urlsplit(url).hostname or "").rstrip(".")
    wrong = (
        urlsplit(url).scheme not in ("http", "https") or not host or host == "localhost" or host.endswith(".internal")
    )
    try:
        address = ipaddress.ip_address(host) if ":" in host else ipaddress.ip_address(socket.inet_aton(host))
        wrong = wrong or not address.is_global
    except (OSError, ValueError):
        pass  # a domain name
    return [f"{plan.text!r} became {url!r}"] if wrong else []


async def a_history_is_repaired(plan: History) -> list[str]:
    """Promise 2: in each request, the answer to a call follows directly after the message with the call."""
    model = ScriptedModel(["fine"], loop=True)
    await create_react_agent(model, ToolNode([])).ainvoke({"messages": _messages(plan.kinds)})
    return [wrong for request in model.requests if (wrong := complaint(request))]


def _messages(kinds: tuple[str, ...]) -> list[BaseMessage]:
    made: list[BaseMessage] = [HumanMessage("go", id="first")]
    owed: list[str] = []
    for place, kind in enumerate(kinds):
        if kind == "answer":
            if owed:
                made.append(ToolMessage("so", tool_call_id=owed.pop(0), id=f"m{place}"))
            continue
        owed = [f"c{place}-{number}" for number in range({"one": 1, "two": 2}.get(kind, 0))]
        asked = [{"name": "x", "args": {}, "id": one} for one in owed]
        made.append(
            HumanMessage(kind, id=f"m{place}") if kind == "human" else AIMessage(kind, id=f"m{place}", tool_calls=asked)
        )
    return [*made, HumanMessage("and now?", id="last")]


def a_damaged_database_says_so(plan: Damage) -> list[str]:
    """A damaged database is read correctly or raises `StorageError`; no other error comes out."""
    from tests.agent._damage import DAMAGES
    from tests.agent.test_damaged_databases import USES, agent_on, said_of

    chance = Random(plan.seed)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(shutil.copy(_whole(), folder))
        damage = chance.choice(DAMAGES)
        what = damage(file, chance)
        agent = agent_on(file)
        try:
            said_of(USES[plan.use], agent)
        except Exception as error:
            return [f"{error!r} after {what[:200]}"]
        finally:
            anyio.run(agent.aclose)
    return []


@cache
def _whole() -> Path:
    from tests.agent._savers import AT, QUESTION
    from tests.agent.test_damaged_databases import agent_on

    file = Path(tempfile.mkdtemp(), "agent.db")
    agent = agent_on(file)
    agent.invoke(QUESTION, AT)
    agent.invoke(QUESTION, AT)
    anyio.run(agent.aclose)
    return file


PROMISES: dict[type, Callable[[Any], Any]] = {
    Ids: one_approval_runs_one_call,
    PathText: a_path_stays_below_its_root,
    UrlText: an_url_leads_to_a_public_host,
    History: a_history_is_repaired,
}


def play(plan: Hostile, backend: str) -> list[Complaint]:
    """Play the input on a backend; return the broken promises."""
    if isinstance(plan, Damage):
        return [Complaint(a_damaged_database_says_so.__name__, what) for what in a_damaged_database_says_so(plan)]
    promise = PROMISES[type(plan)]

    async def main() -> list[Complaint]:
        return [Complaint(promise.__name__, what) for what in await promise(plan)]

    # On trio a model without tools runs across a bridge, which ignores a virtual clock.
    return run_on(backend, main, real_clock=isinstance(plan, History))
