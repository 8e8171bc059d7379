"""`Logs`: one line for each important decision, on the application's loggers, and silent by default."""

import io
import json
import logging
import sys
import threading
from typing import Any

import anyio
import pytest
from langgraph.types import interrupt
from opentelemetry.sdk.trace import TracerProvider

from callboard import (
    AbandonedThreadWarning,
    CallPolicy,
    CallsInterrupted,
    Limit,
    ToolNode,
    create_react_agent,
    tool_call,
)
from callboard.middleware import Retry
from callboard.telemetry import Tracing, setup
from callboard.testing import Recorder, ScriptedModel, calls

WAIT = 1000


Lines = pytest.LogCaptureFixture


@pytest.fixture
def lines(caplog: Lines) -> Lines:
    caplog.set_level(logging.DEBUG, "callboard.calls")
    return caplog


def levels_and_texts(lines: Lines) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in lines.records]


def the(lines: Lines, text: str) -> Any:
    [only_record] = [record for record in lines.records if record.getMessage() == text]
    return only_record


async def run_calls(node: ToolNode, *requested: Any, **options: Any) -> Any:
    with anyio.fail_after(WAIT):
        return await node.ainvoke(list(requested), **options)


async def test_a_level_turns_them_on(lines: Lines) -> None:
    await run_calls(ToolNode([Recorder().tool("work", seconds=2)]), tool_call("work", "call_1"))
    assert levels_and_texts(lines) == [
        ("DEBUG", "call started"),
        ("DEBUG", "attempt started"),
        ("INFO", "call finished"),
    ]
    finished = the(lines, "call finished")
    assert (finished.tool, finished.call_id, finished.attempts) == ("work", "call_1", 1)
    assert finished.duration == pytest.approx(2)


async def test_timeouts_rejections_failures_and_retries_have_lines_of_their_own(lines: Lines) -> None:
    """Problems that need attention are logged as warnings."""
    recorder, policy = Recorder(), CallPolicy(timeout=2, limit=Limit(concurrency=1, queue=0))
    flaky = recorder.tool("flaky", raises=OSError("no"), times=1)
    tools = [recorder.tool("slow", seconds=9), flaky, recorder.tool("broken", raises=ValueError("no"))]
    retry = Retry(attempts=2, any_tool=True, on=OSError, initial=0.1)
    node = ToolNode(tools, policies={"slow": policy}, middleware=[retry], handle_tool_errors=True)
    await run_calls(
        node, tool_call("slow", "1"), tool_call("slow", "2"), tool_call("flaky", "3"), tool_call("broken", "4")
    )
    assert {("WARNING", f"call {word}") for word in ("timed out", "rejected", "failed")} <= set(levels_and_texts(lines))


async def test_a_question_and_its_answer_are_an_interrupted_and_a_resumed_call(lines: Lines) -> None:
    async def ask() -> str:
        """Ask."""
        return str(interrupt("?"))

    node = ToolNode([ask])
    with Tracing(TracerProvider()).on():
        with pytest.raises(CallsInterrupted) as asking:
            await run_calls(node, tool_call("ask", "call_1"))
        await run_calls(node, tool_call("ask", "call_1"), ledger=asking.value.ledger, resume="yes")
    texts = [text for _, text in levels_and_texts(lines) if text != "attempt started"]
    assert texts == [f"call {word}" for word in ("started", "interrupted", "resumed", "finished")]


@pytest.mark.real_clock
async def test_a_run_is_bound_to_its_thread_and_every_call_to_its_run(lines: Lines) -> None:
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [Recorder().tool("work")], name="bot")

    with Tracing(TracerProvider()).on():
        await agent.ainvoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": "oslo"}})

    run, call = the(lines, "run finished"), the(lines, "call finished")
    assert run.thread_id == call.thread_id == "oslo"
    assert run.agent == call.agent == "bot"
    assert run.run_id == call.run_id
    assert run.trace_id == call.trace_id
    assert run.span_id != call.span_id


@pytest.mark.real_clock
async def test_a_lost_thread_is_a_warning(lines: Lines) -> None:
    """A warning is the only sign of an abandoned thread."""
    release = threading.Event()
    node = ToolNode([Recorder().sync_tool("stuck", release=release)], timeout=0.1)
    try:
        with pytest.warns(AbandonedThreadWarning):
            await run_calls(node, tool_call("stuck", "call_1"))
    finally:
        release.set()

    assert ("WARNING", "thread abandoned") in levels_and_texts(lines)


async def test_logs_are_off_by_default(caplog: Lines, capfd: pytest.CaptureFixture[str]) -> None:
    """A library must not log unless the application asks for it."""
    await run_calls(ToolNode([Recorder().tool("slow", seconds=9)], timeout=1), tool_call("slow", "call_1"))
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["json", "console"])
async def test_lines_are_for_machines_or_for_people(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with setup(traces=False, metrics=False, logs=kind):
        await run_calls(ToolNode([Recorder().tool("slow", seconds=9)], timeout=1), tool_call("slow", "call_1"))

    [line] = stream.getvalue().splitlines()
    if kind == "json":
        fields = json.loads(line)
        assert (fields["event"], fields["level"], fields["tool"]) == ("call timed out", "warning", "slow")
        assert fields["error_type"] == "timeout"
        assert "timestamp" in fields
    else:
        assert "call timed out" in line
        assert "slow" in line
