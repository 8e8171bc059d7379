"""`replay` says the messages that people said to a recorded run, at the same points of the run."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import Agent, CallPolicy, create_agent, create_react_agent, tool_call
from callboard.telemetry import RecordingWriter, read_recording
from callboard.testing import (
    Recorder,
    ReplayDifferenceError,
    ScriptedModel,
    backend,
    calls,
    replay,
)

AT: Any = {"configurable": {"thread_id": "1"}}
GO: Any = {"messages": [("user", "go")]}

Make = Callable[..., Agent]
AGENTS = pytest.mark.parametrize("make", [create_react_agent, create_agent])


@pytest.fixture(params=["asyncio", "trio"])
def name(request: pytest.FixtureRequest) -> str:
    """The backend of the replay."""
    return str(request.param)


def tools(*, background: bool = True) -> list[Any]:
    """Return a tool of 5 seconds, one of 20 seconds that may go on in the background, and one that asks."""
    recorder = Recorder()

    async def ask() -> str:
        """Ask a person."""
        answer = interrupt("may I?")
        await anyio.sleep(5)
        return f"{answer}"

    build = recorder.tool("build", seconds=20)
    return [recorder.tool("search", seconds=5), CallPolicy(background=True)(build) if background else build, ask]


def agent_to_record(make: Make, script: Sequence[Any], **options: Any) -> Agent:
    """Return the agent of a recording: its model takes a second for each reply."""
    return make(ScriptedModel(script, delay=1), tools(), name="bot", checkpointer=InMemorySaver(), **options)


def todays_agent(make: Make, *, background: bool = True, **options: Any) -> Agent:
    return make(ScriptedModel([]), tools(background=background), name="bot", **options)


Run = tuple[Any, Sequence[tuple[float, str]]]
"""Input of a run, and the words that a person says to it, each with its time in seconds since the input."""


def record(path: Path, agent: Agent, *runs: Run, **options: Any) -> Path:
    """Record runs of one thread, with words that a person says to them."""

    async def say(seconds: float, word: str) -> None:
        await anyio.sleep(seconds)
        assert await agent.say(word, AT) is not None

    async def main() -> None:
        with RecordingWriter(path, clock=anyio.current_time, **{"capture": True, "redact": False, **options}):
            for agent_input, words in runs:
                async with anyio.create_task_group() as group:
                    for seconds, word in words:
                        group.start_soon(say, seconds, word)
                    await agent.ainvoke(agent_input, AT)

    loop, settings = backend("asyncio")
    anyio.run(main, backend=loop, backend_options=settings)
    return path


def shape(state: Any) -> list[str]:
    """Return the messages of a state; of one about a background call only its handle."""
    handles = [message.additional_kwargs.get("callboard", {}).get("background") for message in state["messages"]]
    return [
        f"{message.type}: {message.text if handle is None else handle}"
        for message, handle in zip(state["messages"], handles, strict=True)
    ]


SCRIPT = [
    calls(tool_call("search", "c1")),
    calls(tool_call("search", "c2"), tool_call("build", "c3")),
    "It is being built.",
    calls(tool_call("search", "c4")),
    "It is built.",
    "You are welcome.",
]
WORDS = [(2.0, "hurry"), (8.0, "and cheap"), (8.5, "please"), (22.0, "how long?"), (28.5, "thanks")]
"""Said in both steps of calls, twice in the second; while the run waits for the build; and during a late reply."""
CONVERSATION = [
    *("human: go", "ai: ", "tool: search", "human: hurry", "ai: ", "tool: search", "tool: bg-c3"),
    *("human: and cheap", "human: please", "ai: It is being built.", "human: how long?", "ai: ", "tool: search"),
    *("human: bg-c3", "ai: It is built.", "human: thanks", "ai: You are welcome."),
]


@AGENTS
def test_messages_are_said_again_at_the_same_points(make: Make, tmp_path: Path, name: str) -> None:
    """Without the wait for the build, its result would come after a request that the recorded run never made."""
    path = record(tmp_path / "run.jsonl", agent_to_record(make, SCRIPT), (GO, WORDS))

    (run,) = read_recording(path).parts[0].runs
    assert [(read.time, read.point, read.requests, read.background) for read in run.messages] == [
        (6.0, "turn", 1, None),
        (12.0, "turn", 2, None),
        (12.0, "turn", 2, None),
        (22.0, "end", 3, None),
        (28.0, "turn", 4, "bg-c3"),
        (29.0, "end", 5, None),
    ]
    assert shape(replay(path, todays_agent(make), backend=name).state) == CONVERSATION


@AGENTS
def test_a_message_that_is_not_read_where_it_was_is_a_difference(make: Make, tmp_path: Path, name: str) -> None:
    path = record(tmp_path / "run.jsonl", agent_to_record(make, SCRIPT), (GO, WORDS))

    with pytest.raises(ReplayDifferenceError) as stopped:
        replay(path, todays_agent(make, interrupt_before=["tools"]), backend=name)
    assert (
        "run 1 of 'bot', after model request 1:\n"
        '  expected  reads "hurry" before a turn\n'
        "  got       reads no message of a person\n"
    ) in str(stopped.value)

    with pytest.raises(ReplayDifferenceError) as waiting:
        replay(path, todays_agent(make, background=False), backend=name)
    assert "  got       no further request to the model" in str(waiting.value)


QUESTION = [calls(tool_call("ask", "c1")), "Thanks.", "Bye."]


@AGENTS
@pytest.mark.parametrize(
    ("agent_input", "point", "conversation"),
    [
        (
            Command(resume="yes"),
            "turn",
            ["human: go", "ai: ", "tool: yes", "human: early", "human: late", "ai: Thanks."],
        ),
        (GO, "input", ["human: go", "ai: ", "tool: unanswered", "human: early", "human: go", "ai: Thanks."]),
    ],
    ids=["the question is answered", "new input"],
)
def test_a_message_that_a_run_left_unread_is_replayed_in_the_next_run(
    make: Make, tmp_path: Path, name: str, agent_input: Any, point: str, conversation: Sequence[str]
) -> None:
    """The first run stops for a question before it reads the message. The step of an answer takes new ones, too."""
    late = [] if agent_input is GO else [(2.0, "late")]
    path = record(
        tmp_path / "run.jsonl",
        agent_to_record(make, QUESTION),
        (GO, [(0.5, "early")]),
        (agent_input, late),
    )

    first, second = read_recording(path).parts[0].runs
    assert first.messages == ()
    assert [(read.point, read.requests) for read in second.messages] == [(point, 0)] * (1 + len(late))
    replayed = shape(replay(path, todays_agent(make), backend=name).state)
    assert [*replayed[:2], *replayed[3:]] == [*conversation[:2], *conversation[3:]]


@AGENTS
def test_a_recording_without_messages_of_an_earlier_version_is_replayed_as_before(
    make: Make, tmp_path: Path, name: str
) -> None:
    path = record(tmp_path / "run.jsonl", agent_to_record(make, SCRIPT[:1] + SCRIPT[-1:]), (GO, WORDS[:1]))
    lines = [line for line in path.read_text().splitlines(keepends=True) if "message_read" not in line]
    assert len(lines) == len(path.read_text().splitlines()) - 1
    path.write_text("".join(lines))

    assert shape(replay(path, todays_agent(make), backend=name).state) == [
        *("human: go", "ai: ", "tool: search", "ai: You are welcome.")
    ]


@AGENTS
@pytest.mark.exhaustive
def test_a_kill_at_any_event_loses_and_doubles_no_message(make: Make, tmp_path: Path, name: str) -> None:
    """The message is said before the reply is returned, so a later run finds it in the thread."""
    path = record(tmp_path / "run.jsonl", agent_to_record(make, SCRIPT[:1] + SCRIPT[-1:]), (GO, WORDS[:1]))
    events = replay(path, todays_agent(make), backend=name).events

    for number in range(1, events):
        state = replay(path, todays_agent(make), backend=name, kill_at=number).state
        texts = [text for text in shape(state) if not text.startswith("tool")]
        # A run after a kill between the two reads the message before it asks for the reply again.
        assert sorted(texts) == ["ai: ", "ai: You are welcome.", "human: go", "human: hurry"], number


@AGENTS
def test_a_message_is_recorded_with_arguments_only(make: Make, tmp_path: Path) -> None:
    path = record(
        *(tmp_path / "run.jsonl", agent_to_record(make, SCRIPT[:1] + SCRIPT[-1:]), (GO, WORDS[:1])),
        capture=False,
    )

    (line,) = [json.loads(line) for line in path.read_text().splitlines() if "message_read" in line]
    assert line == {"t": 6.0, "event": "message_read", "run": line["run"], "point": "turn"}


@AGENTS
def test_secrets_of_a_message_are_recorded_as_tokens_and_replayed(make: Make, tmp_path: Path, name: str) -> None:
    word = f"write to ann@example.com {'x' * 1_000_000}"
    path = record(
        *(tmp_path / "run.jsonl", agent_to_record(make, SCRIPT[:1] + SCRIPT[-1:]), (GO, [(2.0, word)])),
        redact=True,
    )

    assert "ann@example.com" not in path.read_text()
    messages = shape(replay(path, todays_agent(make), backend=name).state)
    assert messages[3].startswith("human: write to ")
    assert len(messages[3]) > 1_000_000
