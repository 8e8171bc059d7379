"""Actors whose states are stored with a thread, within calls and graphs, and without a thread."""

from collections.abc import Callable
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
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError
from langgraph.types import Command

from callboard import (
    Actor,
    CallPolicy,
    InMemorySnapshots,
    Supervisor,
    ToolNode,
    child,
    create_react_agent,
    handler,
    keyed,
    running,
    tool_call,
)
from callboard.testing import ScriptedModel, calls

from ._graphs import asking, chain, delegate
from ._notebooks import Lines, Notebook
from ._savers import AT, QUESTION, SAVERS, saver_of, say, scripted

pytestmark = pytest.mark.real_clock


answers = Notebook.answers


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    answers.clear()


def scribe(model: Any, *extra_tools: Any, **options: Any) -> Any:
    """An agent with a notebook."""
    return create_react_agent(model, [child(Notebook, snapshots="journal"), *extra_tools], **options)


def appending(*lines: str) -> ScriptedModel:
    """A model that asks for one line to be appended in each step."""
    return ScriptedModel([*(calls(("append", {"line": line})) for line in lines), "done"], loop=True)


def node() -> ToolNode:
    return ToolNode([child(Notebook, snapshots="journal")])


def make_supervisor() -> object:
    return Supervisor([child(Notebook, snapshots="journal")])


async def runs() -> object:
    async with running(Notebook(), snapshots="journal"):
        return None


async def by_key() -> object:
    async with keyed(Notebook, snapshots="journal"):
        return None


@pytest.mark.parametrize("make", [make_supervisor, runs, by_key])
async def test_without_an_agent_it_is_refused_where_it_is_said(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"for the tools of an agent .* snapshots=InMemorySnapshots\(\)"):
        await make()


@pytest.mark.parametrize("checkpointer", [None, False])
async def test_an_agent_without_a_checkpointer_refuses_before_the_model_is_asked(checkpointer: Any) -> None:
    model = appending("a")
    with pytest.raises(ValueError, match=r"actor Notebook has snapshots='journal', .* no checkpointer: create_react"):
        await scribe(model, checkpointer=checkpointer).ainvoke(QUESTION, AT)
    assert model.requests == []


async def test_a_node_by_itself_refuses_before_any_call_begins() -> None:
    @tool
    def plain() -> None:
        """Say so."""
        answers.append("plain")

    alone = ToolNode([plain, child(Notebook, snapshots="journal")])
    with pytest.raises(ValueError, match=r"is not run by an agent .* snapshots=InMemorySnapshots\(\)"):
        await alone.ainvoke([tool_call("plain", "1"), tool_call("append", "2", line="a")])
    assert answers == []


@pytest.mark.backends("asyncio")
async def test_a_tool_without_its_node_refuses() -> None:
    with pytest.raises(ValueError, match=r"is not run by an agent .* snapshots=InMemorySnapshots\(\)"):
        await node().tools_by_name["append"].ainvoke({"line": "a"})
    assert answers == []


@pytest.mark.backends("asyncio")
async def test_a_graph_of_langgraphs_is_no_agent() -> None:
    graph = chain(("tools", node()), saver=InMemorySaver())
    message = AIMessage("", tool_calls=[tool_call("append", "1", line="a")])
    with pytest.raises(
        ValueError, match=r"create_react_agent\(model, node, checkpointer=.* snapshots=InMemorySnapshots\(\)"
    ):
        await graph.ainvoke({"messages": [message]}, AT)
    assert answers == []


def test_what_contradicts_it_is_refused_at_once() -> None:
    """The journal stores a state after each call, so `save="at_end"` and actors without snapshots are refused."""
    assert child(Notebook, snapshots="journal").save == "each_call"
    assert child(Notebook, snapshots="journal", save="each_call").save == "each_call"
    assert child(Notebook, snapshots=InMemorySnapshots()).save == child(Notebook).save == "at_end"
    with pytest.raises(ValueError, match=r"the journal has each call, .* leave save='at_end' out"):
        child(Notebook, snapshots="journal", save="at_end")
    with pytest.raises(TypeError, match=r"async `load` and `save`, or 'journal'; got 'jurnal'"):
        child(Notebook, snapshots="jurnal")  # type: ignore[arg-type]

    class Blank(Actor):
        @handler
        async def look(self) -> None:
            """Look."""

    with pytest.raises(ValueError, match="there is nothing to save; Blank needs snapshot and restore"):
        child(Blank, snapshots="journal")


async def test_a_key_that_cannot_be_written_down_is_refused() -> None:
    """Another process could not find a state under such a key."""
    notebook = child(Notebook, key=lambda _: object(), snapshots="journal")
    agent = create_react_agent(appending("a"), [notebook], checkpointer=InMemorySaver())
    with pytest.raises(ValueError, match="object") as raised:
        await agent.ainvoke(QUESTION, AT)
    assert "child(Notebook, snapshots='journal') and the key <object" in "".join(raised.value.__notes__)


async def test_an_agent_in_a_tool_has_the_states_of_its_call(saver: Any) -> None:
    """Each call is a conversation of its own; an interrupted call continues with the states of its actors."""

    def agent() -> Any:
        script = [calls(("append", {"line": "a"})), calls("ask"), calls(("append", {"line": "b"})), "done"]
        inner = scribe(ScriptedModel(script[len(answers) and 2 :]), asking("well?"))
        outer = ScriptedModel([lambda messages: "end" if messages[-1].type == "tool" else calls("inner")], loop=True)
        return create_react_agent(outer, [delegate(inner, "inner")], checkpointer=saver)

    await agent().ainvoke(QUESTION, AT)
    result = await agent().ainvoke(Command(resume="yes"), AT)
    assert result["messages"][-1].content == "end"
    assert answers == ["a", "a,b"]


async def test_an_agent_in_a_tool_without_a_checkpointer_around_it_refuses() -> None:
    """The inner conversation belongs to the outer agent, so the inner agent's own checkpointer does not help."""
    outer = scripted([calls("inner"), "end"], [delegate(scribe(appending("a")), "inner")])
    with pytest.raises(ValueError, match=r"no checkpointer: .* within a graph compile\(checkpointer="):
        await outer.ainvoke(QUESTION)
    assert answers == []


@pytest.mark.backends("asyncio")
@pytest.mark.parametrize(("checkpointer", "expected"), [(None, ["a", "a"]), (True, ["a", "a,a"])])
async def test_an_agent_in_a_graph_has_the_states_of_its_visit_or_of_all(
    checkpointer: Any, expected: list[str]
) -> None:
    """As for messages: by default each visit has its own states, and with `checkpointer=True` all visits share them."""
    graph = chain(("scribe", scribe(appending("a"), checkpointer=checkpointer)), saver=InMemorySaver())
    for _ in range(2):
        await graph.ainvoke(QUESTION, AT)
    assert answers == expected


async def test_two_agents_with_one_node_have_each_the_states_of_its_threads() -> None:
    shared = node()
    agents = [create_react_agent(appending("a"), shared, checkpointer=InMemorySaver()) for _ in range(2)]
    async with agents[0]:
        for agent in (*agents, *agents):
            await agent.ainvoke(QUESTION, AT)
    assert answers == ["a", "a", "a,a", "a,a"]


# Random walks through a thread whose actors keep their states with it, compared with the conversation.


class Broken(Exception):
    """Error that ends the actor."""


class Book(Lines):
    """Lines of text, of one book."""

    fatal = (Broken,)

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


def reply(messages: list[BaseMessage]) -> Any:
    """Make the calls that the user requests, such as `append a x`, or `append ab x` for two books; then say so."""
    last = messages[-1]
    if last.type != "human":
        return "done"
    name, books, line = str(last.content).split()
    if name == "ask":
        return calls(*(("append", {"book": book, "line": line}) for book in books), "ask")
    return calls(*((name, {"book": book, "line": line}) for book in books))


def describe_error(error: Exception) -> str:
    return f"failed: {error}"


def make(saver: Any) -> Any:
    notebook = child(Book, key=lambda call: call["args"]["book"], cap=1, snapshots="journal", intensity=1000)
    policies = {"crash": CallPolicy(on_unknown="fail")}
    node = ToolNode([notebook, asking("well?")], handle_tool_errors=describe_error, policies=policies)
    return scripted([reply], node, loop=True, checkpointer=saver)


def wrong(messages: list[BaseMessage]) -> list[str]:
    """Return the results that do not match the calls before them in their conversation."""
    calls_by_id = {
        call["id"]: call for message in messages if isinstance(message, AIMessage) for call in message.tool_calls
    }
    books: dict[str, list[str]] = {}
    mismatches: list[str] = []
    for message in messages:
        if not isinstance(message, ToolMessage) or str(message.content).startswith("Error: this call has no result"):
            continue  # the run was forked before the call had run
        if (call := calls_by_id[message.tool_call_id])["name"] == "ask":
            continue
        lines = books.setdefault(call["args"]["book"], [])
        if call["name"] in ("append", "fail"):
            lines.append(call["args"]["line"])
        content = str(message.content).split("\n\n(")[0]  # and the result says that a state was lost, if one was lost
        expected = ",".join(lines)
        expected = f"failed: {expected}" if call["name"] == "fail" else expected
        if call["name"] == "crash":
            mismatches += [] if "had begun when" in content else [f"{call}: {content}"]
        elif content != expected:
            mismatches.append(f"{call}: {content!r} instead of {expected!r}")
    return mismatches


class Walk:
    """One thread, and the agent that currently runs it."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self.agent = make(saver)
        self.thread_config: Any = {"configurable": {"thread_id": str(uuid4())}}
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

    async def pick_config(self, choice: float) -> Any:
        snapshots = [snapshot async for snapshot in self.agent.aget_state_history(self.thread_config)]
        return snapshots[int(choice * len(snapshots))].config if snapshots else self.thread_config

    async def step(self, action: str, books: str, choice: float) -> list[str]:
        """Take one step of the walk; return an error or nothing."""
        self.number += 1
        if action in ("toggle", "anew"):
            await getattr(self, action)()
            return []
        verb, _, position = action.partition(" ")
        config = await self.pick_config(choice) if position == "past" else self.thread_config
        if verb in ("copy", "on") and "checkpoint_id" not in config["configurable"]:
            return []  # the thread is still empty
        if verb == "copy":
            await self.agent.aupdate_state(config, None, "__copy__")
            return []
        agent_input: Any = say(f"{verb} {books} {self.number}")
        if verb == "update":
            # This message needs no answer; it only adds a place.
            await self.agent.aupdate_state(config, {"messages": [AIMessage("noted")]}, "agent")
            return []
        if verb == "answer":
            if not (await self.agent.aget_state(self.thread_config)).interrupts:
                return []
            agent_input = Command(resume="yes")
        if verb == "on":
            state = await self.agent.aget_state(config)
            if not state.next and not state.values.get("messages"):  # before an update of a thread without input
                with pytest.raises(EmptyInputError):
                    await self.agent.ainvoke(None, config)
                return []
        result = await self.agent.ainvoke(None if verb == "on" else agent_input, config)
        return wrong((result or {}).get("messages", []))


_NOW = ("append", "read", "fail", "crash", "ask", "answer", "toggle", "anew")
_STEPS = st.tuples(
    st.sampled_from(
        [*_NOW, "ask", "answer", "append past", "read past", "on past", "copy past", "update past", "update", "on"]
    ),
    st.sampled_from(["a", "b", "ab", "ba"]),
    st.floats(0, 0.999),
)


async def take_walk(saver: Any, steps: list[tuple[str, str, float]]) -> None:
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
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@example([("ask", "a", 0.0), ("read", "a", 0.0), ("on past", "a", 0.68)])
@example([("ask", "a", 0.0), ("answer", "a", 0.0), ("on past", "a", 0.35), ("answer", "a", 0.0)])
@example([("ask", "a", 0.0), ("copy past", "a", 0.0), ("on", "a", 0.0), ("answer", "a", 0.0)])
@example([("ask", "a", 0.0), ("copy past", "a", 0.0), ("append", "a", 0.0)])
@example(
    [("toggle", "a", 0.0), ("append", "a", 0.0), ("append", "a", 0.0), ("read past", "a", 0.9), ("read", "a", 0.0)]
)
@given(st.lists(_STEPS, min_size=3, max_size=14))
def test_a_call_sees_the_state_of_the_place_where_it_runs(
    database: tuple[str, str], backend: str, steps: list[tuple[str, str, float]]
) -> None:
    kind, url = database

    async def main() -> None:
        if url:
            return await take_walk(url, steps)
        with TemporaryDirectory() as directory:
            async with saver_of(kind, Path(directory) / "db") as saver:
                return await take_walk(saver, steps)

    anyio.run(main, backend=backend)
