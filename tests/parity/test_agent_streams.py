"""create_react_agent: every chunk of every stream mode, one by one.

`told` removes callboard's intended differences: a result has its id as soon as it is streamed; the remaining steps
are those of the current run, also for calls that an earlier run has sent; and all calls begin before the first ends.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from ._dump import dump
from ._harness import QUESTION, THREAD, call, versions
from ._model import Answer, ReplayModel
from ._prebuilt import candidate, reference

MODES = ["values", "updates", "messages", "custom", "tasks", "checkpoints", "debug", "tools"]

ALL_MODES: list[Any] = [*MODES, ["updates", "values", "messages", "custom"]]
OF_SUBGRAPHS: list[Any] = ["values", "updates", "messages", "custom", "tasks", "tools", ["updates", "custom"]]


@tool
async def double(x: int) -> int:
    """Double."""
    return 2 * x


@tool
async def slow(x: int) -> int:
    """Double, later."""
    await asyncio.sleep(0.05)
    return 2 * x


@tool
async def talk(x: int) -> str:
    """Talk."""
    get_stream_writer()(f"talk {x}")
    return "talked"


@tool
async def ask(x: int) -> str:
    """Ask, when its neighbours have begun."""
    await asyncio.sleep(0.02)
    return str(interrupt(f"{x}?"))


@tool
async def fails(x: int) -> str:
    """Fail."""
    raise ValueError("bad")


@tool
async def cheer(x: int, tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Cheer."""
    message = ToolMessage("ok", tool_call_id=tool_call_id, id=f"t{x}")
    return [Command(update={"mood": "good"}), Command(update={"messages": [message]})]


@tool
async def delegate(x: int) -> str:
    """Let a graph do it."""

    def say(state: MessagesState) -> Any:
        get_stream_writer()("inside")
        return {"messages": [AIMessage("inner", id="inner")]}

    builder = StateGraph(MessagesState)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    result = await builder.compile().ainvoke({"messages": [HumanMessage("hi", id="hi")]})
    return str(result["messages"][-1].content)


TOOLS = [double, slow, talk, ask, fails, cheer, delegate]


def turn(*names: str) -> list[AIMessage]:
    calls = [call(name, {"x": number}, f"call-{number}") for number, name in enumerate(names, start=1)]
    return [AIMessage("", tool_calls=calls, id="ai-1"), AIMessage("all is done", id="ai-2")]


def agent(ns: Any, replies: Any, *, kept: bool = True, **options: Any) -> Any:
    class State(ns.AgentState):  # type: ignore[misc]
        mood: str

    options.setdefault("state_schema", State)
    saver = InMemorySaver() if kept else None
    return ns.create_react_agent(ReplayModel(*replies), TOOLS, checkpointer=saver, **options)


async def stream(compiled: Any, mode: Any, inputs: Any, **options: Any) -> list[list[Any]]:
    """Return the chunks of several runs one after the other, and the error that ended a run."""
    runs: list[list[Any]] = []
    for value in inputs:
        runs.append([])
        try:
            async for chunk in compiled.astream(value, THREAD, stream_mode=mode, **options):
                runs[-1].append(dump(chunk))
        except Exception as error:  # the outcome under comparison
            runs[-1].append(dump(error))
    return runs


def told(runs: list[list[Any]], *, counted: bool) -> list[list[Any]]:
    """Return chunks without the fields in which the two agents may differ."""
    uncounted = ("remaining_steps",) if counted else ("remaining_steps", "step", "langgraph_step")
    later = [[_without(uncounted, chunk) for chunk in chunks] for chunks in runs[1:]]
    return [_by_call([_settle(chunk) for chunk in chunks]) for chunks in [*runs[:1], *later]]


def _by_call(chunks: list[Any]) -> list[Any]:
    events = [isinstance(chunk, dict) and "event" in chunk for chunk in chunks]
    return sorted(chunks, key=lambda chunk: str(chunk["tool_call_id"])) if events and all(events) else chunks


def _without(keys: tuple[str, ...], value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(keys, item) for key, item in value.items() if key not in keys}
    return [_without(keys, item) for item in value] if isinstance(value, list) else value


def _settle(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"^\d{4}-\d\d-\d\dT.*$", "<time>", value)
    if isinstance(value, list):
        return [_settle(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("message") == "ToolMessage" and value["id"] is None:
        value = {**value, "id": "<random>"}
    return {key: _settle(item) for key, item in value.items()}


class Story(NamedTuple):
    """Runs of an agent, and the streams in which both agents must tell the same."""

    replies: Any
    inputs: Sequence[Any] = (QUESTION,)
    agent: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}
    stream: Mapping[str, Any] = {}
    modes: Sequence[Any] = ALL_MODES
    versions: Sequence[Any] = ("v1", "v2")
    shows: Mapping[Any, str] = {}
    """Text that the chunks of a mode must contain."""
    counted: bool = True
    """`True` if step numbers are compared."""

    def of(self, ns: Any, version: str) -> Any:
        return agent(ns, self.replies, version=version, **self.agent).with_config(self.config)


def before(state: Any) -> Any:
    get_stream_writer()("before")
    return {"llm_input_messages": state["messages"][-1:]}


def after(state: Any) -> Any:
    return {"mood": "calm"} if len(state["messages"]) < 3 else None


AGAIN = {"messages": [HumanMessage("more", id="h2")]}
ANSWERED = (QUESTION, Command(resume="yes"))
STRUCTURED = [*turn("double"), AIMessage("", tool_calls=[call("Answer", {"number": 2}, "s")], id="ai-3")]
NAMES = [(), ("double",), ("double", "slow"), ("slow", "double"), ("talk",), ("cheer", "slow")]
QUIET = ("messages", "custom", "tools", "checkpoints")
"""Modes that do not show questions."""

STORIES: dict[str, Story] = {
    **{
        f"a run of {'+'.join(names) or 'nothing'}, {label}": Story(turn(*names), agent={"kept": is_kept})
        for names in NAMES
        for label, is_kept in (("kept", True), ("in memory", False))
    },
    "a second run of a thread": Story(
        [*turn("double"), AIMessage("again", id="ai-3")], (QUESTION, AGAIN), counted=False
    ),
    "a failed call": Story(turn("fails")),
    "a question and its answer": Story(
        turn("ask"), ANSWERED, shows={str(mode): "1?" for mode in ALL_MODES if mode not in QUIET}
    ),
    # LangGraph's v1 runs the finished call again, which promise 10 forbids.
    "a question beside a finished call": Story(turn("ask", "double"), ANSWERED, versions=("v2",)),
    # LangGraph's v1 streams only the first question, which promise 5 forbids.
    "two questions": Story(
        turn("ask", "ask"),
        modes=[mode for mode in MODES if mode not in ("messages", "tools")],
        versions=("v2",),
        shows=dict.fromkeys(("values", "updates", "tasks", "debug"), "2?"),
    ),
    **{
        f"{when} {node}": Story(turn("double"), (QUESTION, None, None), agent={when: [node]})
        for when in ("interrupt_before", "interrupt_after")
        for node in ("agent", "tools")
    },
    **{
        f"a limit of {limit} steps": Story(turn("double"), config={"recursion_limit": limit}, versions=("v2",))
        for limit in (1, 2, 3, 4)
    },
    # In v1, LangGraph's own agent fails after its post-model hook.
    "hooks": Story(turn("double"), agent={"pre_model_hook": before, "post_model_hook": after}, versions=("v2",)),
    "a structured response": Story(
        STRUCTURED,
        agent={"response_format": Answer, "state_schema": None},
        modes=["values", "updates", "tasks", "messages"],
    ),
    **{
        f"subgraphs of {name}, {label}": Story(
            turn(name),
            agent={"kept": is_kept},
            stream={"subgraphs": True},
            modes=OF_SUBGRAPHS,
            shows={str(mode): "tools:" for mode in OF_SUBGRAPHS if name == "delegate" and mode != "tools"},
        )
        for name in ("talk", "delegate")
        for label, is_kept in (("kept", True), ("in memory", False))
    },
    "parts": Story(turn("ask"), ANSWERED, stream={"version": "v2"}),
    **{
        f"output keys {keys}": Story(turn("cheer"), stream={"output_keys": keys}, modes=["values", "updates"])
        for keys in ("messages", "mood", ["messages"], ["mood", "messages"])
    },
    "a value of the user beside the place of a checkpoint": Story(
        turn("double"),
        config={"configurable": {"user": "ann"}},
        modes=["checkpoints", "debug"],
        shows={"checkpoints": "ann", "debug": "ann"},
    ),
    "metadata and tags of the user": Story(
        turn("double"),
        config={"metadata": {"team": "blue"}, "tags": ["a"]},
        modes=["tasks", "messages"],
        shows={"tasks": "blue", "messages": "blue"},
    ),
}
TOLD = [(label, mode, v) for label, story in STORIES.items() for mode in story.modes for v in story.versions]


@pytest.mark.parametrize(("label", "mode", "version"), TOLD, ids=str)
def test_a_stream_tells_the_same(label: str, mode: Any, version: str) -> None:
    story = STORIES[label]
    runs = [
        asyncio.run(stream(story.of(ns, version), mode, story.inputs, **story.stream))
        for ns in (reference(), candidate())
    ]
    expected, actual = (told(chunks, counted=story.counted) for chunks in runs)
    assert actual == expected, f"\ncallboard: {actual}\nlanggraph: {expected}"
    assert story.shows.get(str(mode), "") in str(expected)


@versions
def test_the_checkpoint_of_an_input_is_told_first_and_can_be_gone_back_to(version: str) -> None:
    """A run can be repeated from this checkpoint, with another model or another prompt."""
    stored_agent = agent(candidate(), [*turn("double"), AIMessage("again", id="ai-3")], version=version)
    second_input = {"messages": [HumanMessage("more", id="h2")]}

    async def places(value: Any) -> list[Any]:
        return [chunk async for chunk in stored_agent.astream(value, THREAD, stream_mode="checkpoints")]

    (first, *_), (second, *_) = asyncio.run(places(QUESTION)), asyncio.run(places(second_input))
    assert [first["metadata"]["step"], second["metadata"]["step"]] == [-1, 4]
    for checkpoint, message_count in ((first, 0), (second, 4)):
        snapshot = asyncio.run(stored_agent.aget_state(checkpoint["config"]))
        assert (snapshot.next, len(snapshot.values.get("messages", []))) == (("__start__",), message_count)
        assert snapshot.metadata["source"] == checkpoint["metadata"]["source"] == "input"


@versions
def test_checkpoints_that_are_stored_at_the_end_are_told_as_those_that_are_stored_at_once(version: str) -> None:
    """After the run, a reader can go back to each of them; LangGraph streams all, but stores only the last one."""

    async def places(ns: Any, mode: str, durability: str) -> tuple[Any, list[Any]]:
        stored_agent = agent(ns, turn("double"), version=version)
        return stored_agent, [
            chunk async for chunk in stored_agent.astream(QUESTION, THREAD, stream_mode=mode, durability=durability)
        ]

    def comparable(chunks: list[Any]) -> list[Any]:
        return [_without(("parent_config", "timestamp"), _settle(dump(chunk))) for chunk in chunks]

    for mode in ("checkpoints", "debug"):
        stored_agent, late = asyncio.run(places(candidate(), mode, "exit"))
        _, at_once = asyncio.run(places(candidate(), mode, "sync"))
        assert comparable(late) == comparable(at_once)
        for checkpoint in late if mode == "checkpoints" else ():
            assert asyncio.run(stored_agent.aget_state(checkpoint["config"])).metadata == checkpoint["metadata"]


@versions
@pytest.mark.parametrize("mode", OF_SUBGRAPHS, ids=str)
@pytest.mark.parametrize("inside", [True, False], ids=["subgraphs", "no subgraphs"])
@pytest.mark.parametrize("outer_subgraphs", [True, False], ids=["watched", "unwatched"])
def test_an_agent_that_a_node_streams_tells_the_same(
    outer_subgraphs: bool, inside: bool, mode: Any, version: str
) -> None:
    """The function in the node and the reader of the surrounding graph both get the same chunks."""

    def run(ns: Any) -> Any:
        inner_chunks: list[Any] = []

        async def node(state: MessagesState) -> Any:
            inner_agent = agent(ns, turn("talk"), kept=False, version=version)
            async for chunk in inner_agent.astream(state, stream_mode=mode, subgraphs=inside):
                inner_chunks.append(dump(chunk))  # noqa: PERF401 (an error must not lose them)
            return {"messages": [AIMessage("node", id="node")]}

        builder = StateGraph(MessagesState)
        builder.add_node("clerk", node)
        builder.add_edge(START, "clerk")
        told_around = asyncio.run(stream(builder.compile(), mode, [QUESTION], subgraphs=outer_subgraphs))
        return told([inner_chunks, *told_around], counted=False)

    assert run(candidate()) == run(reference())


@versions
@pytest.mark.parametrize("mode", ["values", ["values", "updates"]], ids=str)
def test_an_inner_agent_sends_no_state_after_its_questions(mode: Any, version: str) -> None:
    """A call that has finished beside a question changes the state of an outermost agent only."""

    def run(ns: Any) -> Any:
        builder = StateGraph(MessagesState)
        builder.add_node("clerk", agent(ns, turn("double", "ask"), kept=False, version=version))
        builder.add_edge(START, "clerk")
        graph = builder.compile(checkpointer=InMemorySaver())
        return told(asyncio.run(stream(graph, mode, [QUESTION, Command(resume="yes")], subgraphs=True)), counted=False)

    assert run(candidate()) == run(reference())


@versions
@pytest.mark.parametrize(
    ("agent_options", "options"),
    [({"debug": True}, {}), ({}, {"debug": True}), ({}, {"print_mode": ["custom", "updates"]})],
    ids=["debug", "debug of a run", "print_mode"],
)
def test_the_terminal_shows_the_same(
    agent_options: Any, options: Any, version: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for ns in (reference(), candidate()):
        asyncio.run(agent(ns, turn("talk"), version=version, kept=False, **agent_options).ainvoke(QUESTION, **options))
        outputs.append(re.sub(r", id='[^']*'", "", capsys.readouterr().out))
    assert outputs[1] == outputs[0]


@versions
@pytest.mark.parametrize(
    "options",
    [
        {"stream_mode": "updates"},
        {"stream_mode": ["updates", "values"]},
        {"stream_mode": "values", "version": "v2"},
        {"stream_mode": "updates", "version": "v2"},
        {"output_keys": "messages"},
        {"output_keys": ["mood"]},
    ],
    ids=str,
)
def test_invoking_with_these_gives_the_same(options: Any, version: str) -> None:
    def invoke(ns: Any) -> Any:
        return _settle(
            dump(asyncio.run(agent(ns, turn("cheer"), version=version).ainvoke(QUESTION, THREAD, **options)))
        )

    assert invoke(candidate()) == invoke(reference())


@versions
@pytest.mark.parametrize("names", [("double",), ("double", "slow"), ("cheer",)], ids="+".join)
def test_events_tell_the_same(names: Any, version: str) -> None:
    """Names, kinds, tags, inputs and outputs are equal, except that LangGraph also has runs for prompts and edges.

    A result has its id as soon as it is told, and calls may begin and end in another order.
    """

    async def events(ns: Any) -> list[Any]:
        clerk = agent(ns, turn(*names), version=version, name="clerk", kept=False)
        streamed = [event async for event in clerk.astream_events(QUESTION, version="v2")]
        return [
            _event(event) for event in streamed if event["name"] in ("clerk", "agent", "tools", *names, "ReplayModel")
        ]

    actual, expected = asyncio.run(events(candidate())), asyncio.run(events(reference()))
    assert sorted(actual, key=str) == sorted(expected, key=str)
    assert [kind for kind in actual if kind[1] != "tools" and kind[1] not in names] == [
        kind for kind in expected if kind[1] != "tools" and kind[1] not in names
    ]
    assert any(event[:3] == ("on_chain_stream", "tools", ["graph:step:2"]) for event in actual)


def _event(event: Any) -> tuple[Any, ...]:
    tags = [tag for tag in event["tags"] if tag.startswith("graph:step")]
    data = {key: value for key, value in event["data"].items() if key in ("chunk", "output")}
    if event["name"] in ("clerk", "ReplayModel"):
        data = {}
    return (
        event["event"],
        event["name"],
        tags,
        re.sub(r"'id': ('[-0-9a-f]{36}'|None)", "'id': '<random>'", str(dump(data))),
    )
