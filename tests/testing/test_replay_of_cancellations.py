"""`replay` repeats the cancellations of a recording: of single calls, of runs, and by the error of another call."""

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import Agent, CallPolicy, Limit, ToolNode, create_react_agent, tool_call
from callboard.exceptions import CallCancelledError, RunCancelledError
from callboard.telemetry import RecordingWriter
from callboard.testing import ReplayDifferenceError, ScriptedModel, backend, replay

THREAD: Any = {"configurable": {"thread_id": "1"}}
TASK: Any = {"messages": [("user", "go")]}
FETCH = tool_call("fetch", "call_1", x=40)


@pytest.fixture(params=["asyncio", "trio"])
def name(request: pytest.FixtureRequest) -> str:
    """The backend of the recording and of its replay."""
    return str(request.param)


def agent_of(*script: Any, delay: float = 0, handles_errors: bool = False, **policy: Any) -> Agent:
    """Return an agent with a tool that takes `x` seconds, a tool that fails, and a tool that cancels itself."""

    async def fetch(x: int) -> str:
        """Fetch."""
        await anyio.sleep(x)
        return "page"

    async def fail() -> str:
        """Fail."""
        raise ValueError("bad")

    async def stop() -> str:
        """Stop."""
        await anyio.sleep(5)
        raise CallCancelledError("stop", None)

    policies = {name: CallPolicy(**policy) for name in ("fetch", "stop")}
    options: Any = {"handle_tool_errors": True} if handles_errors else {}
    node = ToolNode([fetch, fail, stop], policies=policies, **options)
    return create_react_agent(ScriptedModel(script, delay=delay), node, checkpointer=InMemorySaver())


def record(path: Path, name: str, agent: Agent, drive: Callable[[Agent], Awaitable[object]]) -> Path:
    async def main() -> None:
        with RecordingWriter(path, capture=True, redact=False, clock=anyio.current_time):
            async with agent:
                await drive(agent)

    loop, options = backend(name)
    anyio.run(main, backend=loop, backend_options=options)
    return path


def texts_in(state: Any) -> list[str]:
    return [message.text for message in state["messages"]]


def record_cancelled_call(path: Path, name: str, agent: Agent, call_id: str, reason: str) -> list[str]:
    """Record a run of which one call is cancelled after 20 s; return the texts of the run."""
    states: list[Any] = []

    async def drive(agent: Agent) -> None:
        run = await agent.start(TASK, THREAD)
        await anyio.sleep(20)
        assert await agent.cancel(call_id, reason)
        states.append(await run.result())

    record(path, name, agent, drive)
    return texts_in(states[0])


@pytest.mark.parametrize("is_background", [False, True], ids=["foreground", "background"])
def test_a_call_that_was_cancelled_alone_ends_with_the_recorded_message(
    tmp_path: Path, name: str, is_background: bool
) -> None:
    """The reason is in the recording, and not only in a message for the model, which an agent may write itself."""
    path = tmp_path / "run.jsonl"
    agent = agent_of([FETCH], "end", "end", background=is_background or None)
    recorded_texts = record_cancelled_call(path, name, agent, "call_1", "the user has gone")
    texts = texts_in(replay(path, agent_of(background=is_background or None), backend=name).state)
    assert texts == recorded_texts
    assert any("by the application before it had a result: the user has gone." in text for text in texts)


def test_a_reason_is_repeated_whatever_its_words_are(tmp_path: Path, name: str) -> None:
    """It is a field of the recording: words of the message for the model may be in the reason, too."""
    path, reason = tmp_path / "run.jsonl", "stopped. It did not run. Ask again later"
    record_cancelled_call(path, name, agent_of([FETCH], "end"), "call_1", reason)
    texts = texts_in(replay(path, agent_of(), backend=name).state)
    assert any(f"before it had a result: {reason}." in text for text in texts)


def test_a_recording_without_the_reason_is_replayed_with_an_empty_one(tmp_path: Path, name: str) -> None:
    """Recordings of callboard 0.1.0 have only the message for the model."""
    path = tmp_path / "run.jsonl"
    record_cancelled_call(path, name, agent_of([FETCH], "end"), "call_1", "the user has gone")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    new_fields = ("cancelled_by", "reason")
    older_lines = [{key: value for key, value in line.items() if key not in new_fields} for line in lines]
    assert older_lines != lines
    path.write_text("".join(f"{json.dumps(line)}\n" for line in older_lines))
    state = replay(path, agent_of(), backend=name).state
    assert any("by the application before it had a result. Whether" in text for text in texts_in(state))


@pytest.mark.parametrize("is_background", [False, True], ids=["foreground", "background"])
def test_a_call_that_cancelled_itself_does_it_again(tmp_path: Path, name: str, is_background: bool) -> None:
    states: list[Any] = []

    async def drive(agent: Agent) -> None:
        states.append(await agent.ainvoke(TASK, THREAD))

    script = [[tool_call("stop", "call_1")], "end", "end"]
    options: Any = {"handles_errors": True, "background": is_background or None}
    path = record(tmp_path / "run.jsonl", name, agent_of(*script, **options), drive)
    state = replay(path, agent_of(**options), backend=name).state
    assert texts_in(state) == texts_in(states[0])
    assert any("cancelled itself before it had a result" in text for text in texts_in(state))


def test_a_call_that_was_cancelled_in_a_queue_does_not_begin(tmp_path: Path, name: str) -> None:
    path, limit = tmp_path / "run.jsonl", Limit(concurrency=1)
    agent = agent_of([FETCH, tool_call("fetch", "call_2", x=40)], "end", limit=limit)
    recorded_texts = record_cancelled_call(path, name, agent, "call_2", "not needed")
    assert '"attempt":1' in path.read_text()
    # On trio, either call may be the one that waits.
    assert texts_in(replay(path, agent_of(limit=limit), backend=name).state) == recorded_texts


@pytest.mark.parametrize("seconds", [5, 20], ids=["in a request to the model", "in a call"])
def test_a_run_that_was_cancelled_ends_where_it_ended_and_goes_on_as_it_did(
    tmp_path: Path, name: str, seconds: float
) -> None:
    states: list[Any] = []

    async def drive(agent: Agent) -> None:
        run = await agent.start(TASK, THREAD)
        await anyio.sleep(seconds)
        await run.cancel()
        with pytest.raises(RunCancelledError):
            await run.result()
        states.append(await agent.ainvoke(None, THREAD))

    agent = agent_of([FETCH], "end", "end", "end", delay=10)
    path = record(tmp_path / "run.jsonl", name, agent, drive)
    assert '"outcome":"cancelled"' in path.read_text()
    state = replay(path, agent_of(), backend=name).state
    assert texts_in(state) == texts_in(states[0])


@pytest.mark.parametrize("number_of_others", [1, 3])
def test_an_error_that_ended_the_run_beside_other_calls_ends_it_again(
    tmp_path: Path, name: str, number_of_others: int
) -> None:
    """Whether the other calls begin before the error depends on the event loop, and is no difference."""

    async def drive(agent: Agent) -> None:
        with suppress(ValueError):
            await agent.ainvoke(TASK, THREAD)

    reply = [
        tool_call("fail", "call_0"),
        *(tool_call("fetch", f"call_{n}", x=1) for n in range(1, 1 + number_of_others)),
    ]
    path = record(tmp_path / "run.jsonl", name, agent_of(reply, "end"), drive)
    for replay_name in ("asyncio", "trio"):
        assert replay(path, agent_of(), backend=replay_name).state is None
    with pytest.raises(ReplayDifferenceError, match="expected  error"):
        replay(path, agent_of(handles_errors=True), backend=name)


def test_a_cancel_that_a_replay_cannot_repeat_is_named(tmp_path: Path, name: str) -> None:
    """The recording has no time of it: the run waited for a background call."""

    async def drive(agent: Agent) -> None:
        run = await agent.start(TASK, THREAD)
        await anyio.sleep(20)
        await run.cancel()

    path = record(tmp_path / "run.jsonl", name, agent_of([FETCH], "meanwhile", "end", background=True), drive)
    with pytest.raises(ValueError, match="such as for a background call: a replay cannot repeat that"):
        replay(path, agent_of(background=True), backend=name)
