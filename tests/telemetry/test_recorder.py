"""`RecordingWriter`: all events are in the file within a size limit, and its failures do not reach a call."""

import json
import os
import threading
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage, convert_to_messages
from langchain_core.tools import tool

from callboard import CallPolicy, Limit, RunEvent, RunInfo, ToolNode, create_react_agent, tool_call
from callboard.exceptions import CallCancelledError
from callboard.telemetry import RecordingWriter, read_recording
from callboard.telemetry._capture import Capture, conversation, repeatable
from callboard.telemetry._recording import _recorder as module
from callboard.testing import Recorder, ScriptedModel, calls

WAIT = 1000


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def run_calls(node: ToolNode, *requested: Any) -> Any:
    with anyio.fail_after(WAIT):
        return await node.ainvoke(list(requested))


@pytest.mark.real_clock
async def test_a_run_is_recorded_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [Recorder().tool("work")], name="bot")

    with RecordingWriter(path):
        await agent.ainvoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": "oslo"}})

    header, *lines, closed = lines_of(path)
    assert (header["event"], header["format"], header["captures"]) == ("header", "callboard/recording/1", False)
    request = ("model_asked", "model_answered")
    call = ("begun", "started", "attempt_ended", "ended")
    assert [line["event"] for line in lines] == ["run_begun", *request, *call, *request, "run_ended"]
    assert (lines[0]["agent"], lines[0]["thread"]) == ("bot", "oslo")
    assert lines[2]["calls"] == 1
    assert {line["run"] for line in lines if "run" in line} == {lines[0]["run"]}
    assert (lines[3]["tool"], lines[3]["id"], lines[6]["outcome"]) == ("work", "call_1", "ok")
    assert (closed["event"], closed["events"], closed["lost"]) == ("closed", len(lines), 0)
    assert closed["bytes"] == len(path.read_bytes().rsplit(b"\n", 2)[0]) + 1
    assert closed["overhead"] > 0


async def test_waits_retries_and_endings_are_in_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    policies = {"slow": CallPolicy(timeout=2, limit=Limit(concurrency=1, queue=1))}
    node = ToolNode([Recorder().tool("slow", seconds=5)], policies=policies)

    with RecordingWriter(path, clock=anyio.current_time):
        await run_calls(node, *(tool_call("slow", str(n)) for n in range(3)))

    lines = [line for line in lines_of(path) if "call" in line]
    ends = {line["outcome"]: line for line in lines if line["event"] == "ended"}
    starts = [(line["t"], line.get("waited", 0)) for line in lines if line["event"] == "started"]
    assert starts == [(0, 0), (pytest.approx(2), pytest.approx(2))]
    assert set(ends) == {"timeout", "rejected"}
    assert ends["timeout"]["t"] == pytest.approx(4)
    assert ends["timeout"]["error"] == "timeout"
    assert [line["error"] for line in lines if line["event"] == "gave_up"] == ["callboard._calls._gate.NoPlaceError"]


@pytest.mark.parametrize("captures", [True, False])
async def test_a_call_that_was_cancelled_alone_is_recorded_with_who_did_it_and_why(
    tmp_path: Path, captures: bool
) -> None:
    """The reason is a text of the application, so it is recorded only with arguments and results, and redacted."""
    path = tmp_path / "run.jsonl"

    async def stop() -> str:
        """Stop."""
        raise CallCancelledError("stop", None)

    node = ToolNode([Recorder().tool("slow", seconds=50), stop], handle_tool_errors=True)
    with RecordingWriter(path, capture=captures, redact=lambda value: "***" if value == "token" else value):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_calls, node, *(tool_call("slow", f"{n}") for n in range(3)), tool_call("stop", "3"))
            await anyio.sleep(2)
            for number, reason in enumerate(("not needed", "token", "")):
                assert await node.cancel(f"{number}", reason)

    recorded_calls = list(read_recording(path).calls())
    assert [recorded_call.outcome for recorded_call in recorded_calls] == ["cancelled"] * 4
    assert [recorded_call.cancelled_by for recorded_call in recorded_calls] == [*["application"] * 3, "tool"]
    reasons = {recorded_call.id: recorded_call.reason for recorded_call in recorded_calls}
    assert reasons == {
        **dict(zip("012", ("not needed", "***", "") if captures else [None] * 3, strict=True)),
        "3": None,
    }


async def test_a_call_that_was_cancelled_with_others_was_cancelled_by_nobody(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    node = ToolNode([Recorder().tool("slow", seconds=50)])
    with RecordingWriter(path, capture=True):
        with anyio.move_on_after(2):
            await run_calls(node, tool_call("slow", "call_1"))
    (recorded_call,) = read_recording(path).calls()
    assert (recorded_call.outcome, recorded_call.cancelled_by, recorded_call.reason) == ("cancelled", None, None)


async def test_a_part_after_a_line_that_was_cut_begins_a_line(tmp_path: Path) -> None:
    """A killed process may leave half a line, which must not merge with the next header."""
    path, node = tmp_path / "run.jsonl", ToolNode([Recorder().tool("work")])
    path.write_text('{"t":1,"eve')
    with RecordingWriter(path, append=True):
        await run_calls(node, tool_call("work", "call_1"))
    cut, *later_lines = path.read_text().splitlines()
    assert cut == '{"t":1,"eve'
    assert json.loads(later_lines[0])["event"] == "header"


async def test_what_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    """Models write lone surrogates, and tools return any object."""
    path, node = tmp_path / "run.jsonl", ToolNode([Recorder().tool("work", returns="fine")])
    with RecordingWriter(path, capture=True, redact=False):
        await run_calls(node, tool_call("work", "call_1", query="\ud800"))
    assert len(lines_of(path)) == 6


@pytest.mark.real_clock
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes on this system")
@pytest.mark.exhaustive
async def test_a_disk_that_is_stuck_loses_events_and_says_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded, calls continue, and the file has the number of lost events. A pipe without a reader blocks."""
    monkeypatch.setattr(module, "BOUND", 4096)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    node = ToolNode([Recorder().tool("work")])
    read = bytearray()

    with RecordingWriter(path) as recorder:
        for turn in range(5):
            result = await run_calls(node, *(tool_call("work", f"{turn}-{n}") for n in range(500)))
            assert len(result["messages"]) == 500
        waiting = recorder._writer._offered - recorder._writer._done
        draining = threading.Thread(target=_drain, args=(reader, read))
        draining.start()
    draining.join(30)

    lines = [json.loads(line) for line in read.splitlines()]
    gaps = sum(line["events"] for line in lines if line["event"] == "lost")
    assert waiting <= 4096 + 65536, "what is on its way to the pipe was taken out of the queue at once"
    assert recorder.lost == gaps == lines[-1]["lost"] > 0
    assert recorder.events == 10_000
    assert sum("call" in line for line in lines) + recorder.lost == 10_000


def _drain(reader: int, read: bytearray) -> None:
    os.set_blocking(reader, True)
    while data := os.read(reader, 65536):
        read += data
    os.close(reader)


@pytest.mark.real_clock
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full on this system")  # noqa: PTH110
async def test_a_full_disk_is_reported_once_and_changes_no_call(caplog: pytest.LogCaptureFixture) -> None:
    """/dev/full fails each write, which must be reported once."""
    node = ToolNode([Recorder().tool("work")])
    with RecordingWriter("/dev/full") as recorder:
        for turn in range(3):
            result = await run_calls(node, *(tool_call("work", f"{turn}-{n}") for n in range(20)))
            assert len(result["messages"]) == 20
    assert recorder.events == 240
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "cannot be written" in caplog.text


def test_the_message_of_a_reply_with_no_usage_is_no_obstacle() -> None:
    """Not every model reports its usage."""
    event = RunEvent(phase="answered", run=RunInfo(number=1, agent="a", run_id="r"), time=1.0, result=AIMessage("hi"))
    line = module.Records(Capture(is_on=False)).of_run(event, 1.0)
    assert line == {"t": 1.0, "event": "model_answered", "run": 1, "calls": 0}
    assert module.BOUND == 16 * 1024 * 1024


def test_a_message_with_half_a_surrogate_pair_is_recorded() -> None:
    """`say` refuses it, and a middleware may still put it into the conversation."""
    info, facts = RunInfo(number=1, agent="a", run_id="r"), {"point": "end", "background": "bg-1"}
    event = RunEvent(phase="read", run=info, time=1.0, input=HumanMessage("\ud800", id="1"), facts=facts)
    line = module.Records(Capture(is_on=True, redact=False)).of_run(event, 1.0)
    assert json.loads(module._as_line(line))["message"] == {"role": "human", "content": "\ud800", "id": "1"}
    assert (line["event"], line["point"], line["background"]) == ("message_read", "end", "bg-1")


@pytest.mark.real_clock
async def test_events_after_the_end_of_a_recording_are_lost_and_not_kept(tmp_path: Path) -> None:
    """A call may outlive the block. Its late events must neither stay in memory nor count as recorded."""
    path = tmp_path / "run.jsonl"
    started, may_end = anyio.Event(), anyio.Event()

    @tool
    async def work() -> str:
        """Wait."""
        started.set()
        await may_end.wait()
        return "done"

    async with anyio.create_task_group() as group:
        with RecordingWriter(path) as recorder:
            group.start_soon(run_calls, ToolNode([work]), tool_call("work"))
            await started.wait()
        may_end.set()

    *_, closing = lines = lines_of(path)
    assert [line["event"] for line in lines] == ["header", "begun", "started", "closed"]
    assert (closing["events"], closing["lost"]) == (2, 0)
    assert (recorder.events, recorder.lost) == (4, 2)
    assert recorder._writer._queue.empty()


@pytest.mark.real_clock
async def test_inputs_and_replies_are_recorded_with_arguments_only(tmp_path: Path) -> None:
    """A replay needs them; LangChain reads them as messages."""
    agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [Recorder().tool("work")])
    lines = []
    for capture in (False, True):
        with RecordingWriter(tmp_path / "run.jsonl", capture=capture, redact=False), anyio.fail_after(WAIT):
            await agent.ainvoke({"messages": [HumanMessage("go", id="1"), ("user", "now")]})
        lines.append(lines_of(tmp_path / "run.jsonl"))
        agent = create_react_agent(ScriptedModel([calls("work"), "done"]), [Recorder().tool("work")])

    assert not [line for line in lines[0] if {"input", "reply"} & line.keys()]
    messages, *replies = [line.get("input") or line["reply"] for line in lines[1] if {"input", "reply"} & line.keys()]
    assert messages == {"messages": [{"role": "human", "content": "go", "id": "1"}, ["user", "now"]]}
    assert [(reply["role"], reply["content"], len(reply["tool_calls"])) for reply in replies] == [
        ("ai", "", 1),
        ("ai", "done", 0),
    ]
    assert convert_to_messages([replies[0]])[0].tool_calls == calls("work").tool_calls


async def test_recorded_values_are_complete(tmp_path: Path) -> None:
    """`what-is-recorded.md` promises it: the page about spans names a limit, and recordings have none."""
    path, node = tmp_path / "run.jsonl", ToolNode([Recorder().tool("work")])
    with RecordingWriter(path, capture=True, redact=False):
        await run_calls(node, tool_call("work", "call_1", query="x" * 20_000))
    values = [line.get("args") or line["result"] for line in lines_of(path) if {"args", "result"} & line.keys()]
    assert values == [{"query": "x" * 20_000}, "x" * 20_000]


tenant = ContextVar("tenant", default="nobody")


@pytest.mark.real_clock
async def test_long_values_are_redacted_in_the_thread_of_the_writer_in_the_context_of_the_call(tmp_path: Path) -> None:
    """A redaction of a megabyte would hold the event loop; the lines keep their order."""
    threads = set[int]()

    def redact(value: Any) -> Any:
        threads.add(threading.get_ident())
        return [tenant.get(), len(value)]

    async def page(size: int) -> str:
        """A page."""
        return "x" * size

    path, node = tmp_path / "run.jsonl", ToolNode([page])
    with RecordingWriter(path, capture=True, redact=redact):
        tenant.set("ada")
        await run_calls(node, tool_call("page", "call_1", size=1_000_000))
        await run_calls(node, tool_call("page", "call_2", size=10))
    lines = lines_of(path)
    assert [line["result"] for line in lines if "result" in line] == [["ada", 1_000_000], ["ada", 10]]
    assert [line["t"] for line in lines[1:]] == sorted(line["t"] for line in lines[1:])
    assert len(threads) == 2


def test_a_streamed_message_is_recorded_as_one_that_langchain_reads() -> None:
    """The `type` of a chunk is `AIMessageChunk`, which `convert_to_messages` refuses."""
    written = repeatable({"messages": [AIMessageChunk("hi", id="1"), ToolMessage("x", tool_call_id="2")]})

    assert [message.type for message in convert_to_messages(written["messages"])] == ["ai", "tool"]


# The input of a run, which is captured in each form that callers may use.


ASKED = [{"role": "user", "parts": [{"type": "text", "content": "What is tea?"}]}]


@pytest.mark.parametrize(
    "messages",
    [
        "What is tea?",
        ("user", "What is tea?"),
        HumanMessage("What is tea?"),
        {"role": "user", "content": "What is tea?"},
        ["What is tea?"],
        [("user", "What is tea?")],
        [{"role": "user", "content": "What is tea?"}],
        (HumanMessage("What is tea?"),),
    ],
    ids=repr,
)
def test_a_message_is_read_in_every_form_that_an_agent_takes(messages: Any) -> None:
    """LangGraph's reducer accepts all of these forms."""
    assert conversation({"messages": messages}) == ASKED


@pytest.mark.parametrize(
    "value", [None, {}, {"messages": None}, {"messages": [object(), 3]}, {"messages": object()}, 3]
)
def test_what_is_no_message_is_left_out(value: Any) -> None:
    """A state may contain anything under `messages`, and a span must not fail for it."""
    assert conversation(value) == []


@pytest.mark.parametrize("function", [RecordingWriter, read_recording])
def test_what_is_no_path_is_refused_by_name(function: Any) -> None:
    with pytest.raises(TypeError, match=rf"{function.__name__}\(path=...\) is a path, such as 'run.jsonl'; got 3"):
        function(3)
