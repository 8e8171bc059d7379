"""Random walks through a thread whose actors keep their states with it, compared with the conversation."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.types import Command, interrupt

from callboard import Actor, CallPolicy, ToolNode, child, handler
from callboard.testing import calls

from ._savers import SAVERS, saver_of, scripted

pytestmark = pytest.mark.real_clock


class Broken(Exception):
    """Error that ends the actor."""


class Notebook(Actor):
    """Lines of text."""

    fatal = (Broken,)

    async def start(self) -> None:
        self.lines: list[str] = []

    async def snapshot(self) -> list[str]:
        return self.lines

    def restore(self, snapshot: list[str]) -> None:
        self.lines = snapshot

    @handler
    async def append(self, book: str, line: str) -> str:
        """Append a line."""
        self.lines.append(line)
        return ",".join(self.lines)

    @handler
    async def read(self, book: str, line: str) -> str:
        """Read all lines."""
        return ",".join(self.lines)

    @handler
    async def fail(self, book: str, line: str) -> str:
        """Append a line, and fail."""
        self.lines.append(line)
        raise ValueError(",".join(self.lines))

    @handler
    async def crash(self, book: str, line: str) -> str:
        """Append a line, and die."""
        self.lines.append(line)
        raise Broken


def reply(sent: list[BaseMessage]) -> Any:
    """Make the calls that the user requests, such as `append a x`, or `append ab x` for two books; then say so."""
    last = sent[-1]
    if last.type != "human":
        return "done"
    name, books, line = str(last.content).split()
    if name == "ask":
        return calls(*(("append", {"book": book, "line": line}) for book in books), "ask")
    return calls(*((name, {"book": book, "line": line}) for book in books))


@tool
async def ask() -> str:
    """Ask, while the other calls of the reply have their results."""
    return str(interrupt("well?"))


def told(error: Exception) -> str:
    return f"failed: {error}"


def make(saver: Any) -> Any:
    notebook = child(Notebook, key=lambda call: call["args"]["book"], cap=1, snapshots="journal", intensity=1000)
    node = ToolNode([notebook, ask], handle_tool_errors=told, policies={"crash": CallPolicy(on_unknown="fail")})
    return scripted([reply], node, loop=True, checkpointer=saver)


def wrong(messages: list[BaseMessage]) -> list[str]:
    """Return the results that do not match the calls before them in their conversation."""
    asked = {call["id"]: call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls}
    books: dict[str, list[str]] = {}
    found: list[str] = []
    for message in messages:
        if not isinstance(message, ToolMessage) or str(message.content).startswith("Error: this call has no result"):
            continue  # the run was forked before the call had run
        if (call := asked[message.tool_call_id])["name"] == "ask":
            continue
        lines = books.setdefault(call["args"]["book"], [])
        if call["name"] in ("append", "fail"):
            lines.append(call["args"]["line"])
        said = str(message.content).split("\n\n(")[0]  # and the result says that a state was lost, if one was lost
        expected = ",".join(lines)
        expected = f"failed: {expected}" if call["name"] == "fail" else expected
        if call["name"] == "crash":
            found += [] if "had begun when" in said else [f"{call}: {said}"]
        elif said != expected:
            found.append(f"{call}: {said!r} instead of {expected!r}")
    return found


class Walk:
    """One thread, and the agent that currently runs it."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self.agent = make(saver)
        self.at: Any = {"configurable": {"thread_id": str(uuid4())}}
        self.is_open = False
        self.number = 0

    async def toggle(self) -> None:
        """Open the agent, or close it: actors of an open agent live on between runs."""
        self.is_open = not self.is_open
        await (self.agent.__aenter__() if self.is_open else self.agent.__aexit__(None, None, None))

    async def anew(self) -> None:
        """Continue with a new agent, as another process would."""
        await self.close()
        self.agent = make(self.saver)

    async def close(self) -> None:
        if self.is_open:
            await self.toggle()
        await self.agent.aclose()

    async def place(self, choice: float) -> Any:
        places = [place async for place in self.agent.aget_state_history(self.at)]
        return places[int(choice * len(places))].config if places else self.at

    async def step(self, what: str, books: str, choice: float) -> list[str]:
        """Take one step of the walk; return an error or nothing."""
        self.number += 1
        if what in ("toggle", "anew"):
            await getattr(self, what)()
            return []
        verb, _, where = what.partition(" ")
        config = await self.place(choice) if where == "past" else self.at
        if verb in ("copy", "on") and "checkpoint_id" not in config["configurable"]:
            return []  # the thread is still empty
        if verb == "copy":
            await self.agent.aupdate_state(config, None, "__copy__")
            return []
        given: Any = {"messages": [("user", f"{verb} {books} {self.number}")]}
        if verb == "update":
            # This message needs no answer; it only adds a place.
            await self.agent.aupdate_state(config, {"messages": [AIMessage("noted")]}, "agent")
            return []
        if verb == "answer":
            if not (await self.agent.aget_state(self.at)).interrupts:
                return []
            given = Command(resume="yes")
        result = await self.agent.ainvoke(None if verb == "on" else given, config)
        return wrong((result or {}).get("messages", []))


_NOW = ("append", "read", "fail", "crash", "ask", "answer", "toggle", "anew")
_STEPS = st.tuples(
    st.sampled_from(
        [*_NOW, "ask", "answer", "append past", "read past", "on past", "copy past", "update past", "update", "on"]
    ),
    st.sampled_from(["a", "b", "ab", "ba"]),
    st.floats(0, 0.999),
)


async def walked(saver: Any, steps: list[tuple[str, str, float]]) -> None:
    walk = Walk(saver)
    try:
        with anyio.fail_after(60):
            for number, step in enumerate(steps):
                problems = await walk.step(*step)
                assert problems == [], f"after step {number}, {step}"
    finally:
        await walk.close()


@pytest.fixture(params=[*SAVERS, pytest.param("postgres", marks=pytest.mark.exhaustive)])
def database(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A kind of checkpointer, and its URL if it has one."""
    return request.param, request.getfixturevalue("postgres_url") if request.param == "postgres" else ""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@example([("ask", "a", 0.0), ("read", "a", 0.0), ("on past", "a", 0.68)])
@example([("ask", "a", 0.0), ("answer", "a", 0.0), ("on past", "a", 0.35), ("answer", "a", 0.0)])
@example([("ask", "a", 0.0), ("copy past", "a", 0.0), ("on", "a", 0.0), ("answer", "a", 0.0)])
@example(
    [("toggle", "a", 0.0), ("append", "a", 0.0), ("append", "a", 0.0), ("read past", "a", 0.9), ("read", "a", 0.0)]
)
@given(st.lists(_STEPS, min_size=3, max_size=14))
def test_a_call_sees_the_state_of_the_place_where_it_runs(
    database: tuple[str, str], backend: str, steps: list[tuple[str, str, float]]
) -> None:
    """Whether the thread is forked or copied and the actors evicted or killed, their states match the conversation."""
    kind, url = database

    async def main() -> None:
        if url:
            return await walked(url, steps)
        with TemporaryDirectory() as directory:
            async with saver_of(kind, Path(directory) / "db") as saver:
                return await walked(saver, steps)

    anyio.run(main, backend=backend)
