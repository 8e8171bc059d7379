"""Spans: which ones exist, their attributes, and how they describe the end of a call."""

import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
import pytest
from langchain_core.messages import AnyMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import ParentCommand
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.trace import SpanKind, StatusCode
from typing_extensions import TypedDict

import callboard.telemetry._names as names
from callboard import (
    AbandonedThreadWarning,
    CallPolicy,
    CallsInterrupted,
    Limit,
    ToolNode,
    create_agent,
    create_react_agent,
    progress,
    tool_call,
)
from callboard.middleware import Fallback, Retry
from callboard.telemetry import RecordingWriter, Tracing
from callboard.telemetry._links import link_to_call, link_to_run
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import make

from ._actors import actors_that_want_room, an_actor_that_breaks, an_actor_that_never_starts
from ._conventions import PROVIDERS, convention_violations
from ._killed import THREAD as THREAD_OF_THE_KILLED
from ._killed import agent_in
from ._traces import (
    WAIT,
    Instrumented,
    PaidModel,
    Traces,
    attributes,
    events,
    facts,
    full_reply,
    is_child,
    link_ids,
    record_traces,
    span_id,
    turns,
)

ROOT = Path(__file__).parents[2]
THREAD: Any = {"configurable": {"thread_id": "t1"}}
GO: Any = {"messages": [("user", "go")]}


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def run(node: ToolNode, *requests: Any, **options: Any) -> Traces:
    """Run one batch and return its spans."""
    return await turns(node, [calls(*requests)], **options)


def outcome(traces: Traces) -> tuple[StatusCode, str, str | None]:
    """Return the status, outcome and error type of the only call."""
    span = traces.tool()
    span_attributes = attributes(span)
    return span.status.status_code, span_attributes[names.OUTCOME], span_attributes.get(names.ERROR_TYPE)


# Calls


async def a_call(**options: Any) -> Traces:
    return await run(ToolNode([Recorder().tool("search", seconds=1)]), ("search", {"query": "tea"}), **options)


async def test_a_call_is_a_span_and_its_attempt_one_below() -> None:
    traces = await a_call()
    assert traces.names == ["attempt search", "execute_tool search"]
    attempt, call = traces.spans
    assert convention_violations(call) == []
    assert is_child(attempt, call)
    assert call.parent is None
    assert call.kind is SpanKind.INTERNAL
    batch = attributes(call)[names.BATCH]
    assert attributes(call) == {
        names.OPERATION: "execute_tool",
        names.TOOL_NAME: "search",
        names.TOOL_TYPE: "function",
        names.TOOL_DESCRIPTION: "Scripted tool search.",
        names.TOOL_CALL_ID: "call_1",
        names.BATCH: batch,
        names.OUTCOME: "ok",
        names.ATTEMPTS: 1,
    }
    assert attributes(attempt) == {names.ATTEMPT_NUMBER: 1}
    assert call.status.status_code is attempt.status.status_code is StatusCode.UNSET
    assert not call.events


async def test_calls_of_one_batch_share_its_number() -> None:
    traces = await turns(ToolNode([Recorder().tool("search")]), [calls("search", "search")], [calls("search")])
    first, second, third = [attributes(span)[names.BATCH] for span in traces.all("execute_tool")]
    assert first == second != third


async def a_timeout() -> Traces:
    return await run(ToolNode([Recorder().tool("stuck", hang=True)], timeout=2), "stuck")


async def test_a_timeout_is_an_error_of_the_call_and_of_its_attempt() -> None:
    """The model reads a message, but the call did not complete, so its span is an error."""
    traces = await a_timeout()
    assert outcome(traces) == (StatusCode.ERROR, "timeout", "timeout")
    assert traces.tool().status.description == "Tool 'stuck' did not finish within its timeout of 2 s."
    assert attributes(traces.tool())[names.TIMEOUT] == 2
    attempt = traces.one("attempt")
    assert (attempt.status.status_code, attributes(attempt)[names.ERROR_TYPE]) == (StatusCode.ERROR, "timeout")
    assert facts(traces.tool(), names.EXCEPTION) == {names.EXCEPTION_TYPE: "timeout"}


async def fell_silent() -> Traces:
    async def crawl() -> str:
        """Crawl."""
        progress("page 1", done=1)
        await anyio.sleep(100)
        return "never"

    return await run(ToolNode([crawl], policies={"crawl": CallPolicy(idle_timeout=2)}), "crawl", capture=True)


async def test_an_idle_timeout_is_told_apart_from_a_timeout() -> None:
    traces = await fell_silent()
    assert outcome(traces) == (StatusCode.ERROR, "timeout", "timeout")
    assert traces.tool().status.description == "Tool 'crawl' was given up: it gave no sign of life for 2 s."
    attempt = traces.one("attempt")
    for span in (traces.tool(), attempt):
        span_attributes = attributes(span)
        assert (span_attributes[names.IDLE_TIMEOUT], names.TIMEOUT in span_attributes) == (2, False)
    assert facts(attempt, names.PROGRESS) == {"callboard.done": 1, names.MESSAGE: "page 1"}


async def out_of_budget() -> Traces:
    node = ToolNode([Recorder().tool("stuck", hang=True)], policies={"stuck": CallPolicy(budget=3)})
    return await run(node, "stuck")


async def test_a_spent_budget_is_an_error_of_the_call_and_cancels_its_attempt() -> None:
    """The budget belongs to the call, so its attempt is only cancelled."""
    traces = await out_of_budget()
    assert outcome(traces) == (StatusCode.ERROR, "deadline", "deadline")
    assert attributes(traces.tool())[names.BUDGET] == 3
    assert attributes(traces.one("attempt"))[names.OUTCOME] == "cancelled"


async def a_wait_in_vain(budget: float = 3) -> Traces:
    limit = CallPolicy(limit=Limit(concurrency=1), budget=budget)
    return await run(ToolNode([Recorder().tool("slow", seconds=2)], policies={"slow": limit}), "slow", "slow")


async def test_a_wait_for_a_place_is_on_the_call_and_one_that_was_given_up_is_an_event() -> None:
    first, second = (await a_wait_in_vain()).all("execute_tool")
    assert names.QUEUE_WAIT not in attributes(first)
    assert attributes(second)[names.QUEUE_WAIT] == pytest.approx(2)
    _, waiting = (await a_wait_in_vain(budget=1)).all("execute_tool")
    assert facts(waiting, names.GAVE_UP)[names.QUEUE_WAIT] == pytest.approx(1)


async def a_rejected_call() -> Traces:
    limit = CallPolicy(limit=Limit(concurrency=1, queue=0))
    node = ToolNode([Recorder().tool("slow", seconds=2)], policies={"slow": limit})
    return await run(node, "slow", "slow")


async def test_a_rejected_call_is_an_error_without_an_attempt() -> None:
    traces = await a_rejected_call()
    rejected, _ = sorted(traces.all("execute_tool"), key=lambda span: span.end_time or 0)
    assert rejected.status.status_code is StatusCode.ERROR
    assert attributes(rejected)[names.OUTCOME] == attributes(rejected)[names.ERROR_TYPE] == "rejected"
    assert attributes(rejected)[names.ATTEMPTS] == 0
    assert events(rejected) == [names.GAVE_UP, names.EXCEPTION]
    assert len(traces.all("attempt")) == 1


async def a_failed_call(**options: Any) -> Traces:
    node = ToolNode([Recorder().tool("broken", raises=OSError("disk"))])
    return await run(node, "broken", fails=OSError, **options)


async def test_an_error_that_nobody_handles_fails_the_call() -> None:
    """The span has the error's type, without its text."""
    traces = await a_failed_call()
    assert outcome(traces) == (StatusCode.ERROR, "error", "OSError")
    assert traces.tool().status.description is None
    assert facts(traces.tool(), names.EXCEPTION) == {names.EXCEPTION_TYPE: "OSError"}
    assert attributes(traces.one("attempt"))[names.ERROR_TYPE] == "OSError"


async def a_handled_error() -> Traces:
    node = ToolNode([Recorder().tool("broken", raises=OSError("disk"))], handle_tool_errors=True)
    return await run(node, "broken")


async def test_an_error_that_became_a_message_fails_the_call_and_its_attempt() -> None:
    """The model reads an error, and panels of error rates would show 0 for a tool that always fails."""
    traces = await a_handled_error()
    assert outcome(traces) == (StatusCode.ERROR, "error", "OSError")
    assert traces.tool().status.description is None
    assert attributes(traces.tool())[names.HANDLED] == "OSError"
    assert traces.one("attempt").status.status_code is StatusCode.ERROR


async def test_invalid_arguments_fail_the_call() -> None:
    async def search(limit: int) -> str:
        """Search."""
        return "done"

    traces = await run(ToolNode([search]), ("search", {"limit": "many"}))
    assert outcome(traces)[0] is StatusCode.ERROR
    assert attributes(traces.tool())[names.ERROR_TYPE].endswith("ToolInvocationError")


@pytest.mark.parametrize("as_command", [False, True])
async def test_a_tool_that_returns_an_error_message_fails_its_call(as_command: bool) -> None:
    """Tools of MCP servers report errors in this way."""

    async def search(call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Search."""
        message = ToolMessage("away", tool_call_id=call_id, status="error")
        earlier = ToolMessage("away", tool_call_id="c0", status="error")
        return Command(update=[earlier, message]) if as_command else message

    traces = await run(ToolNode([search]), "search")
    assert (traces.tool().status.status_code, attributes(traces.tool())[names.ERROR_TYPE]) == (
        StatusCode.ERROR,
        "tool_error",
    )


async def test_an_error_that_a_wrapper_replaced_by_a_result_fails_no_call() -> None:
    """The model reads a result; the attempt has failed all the same."""

    async def stale(request: Any, call_next: Any) -> Any:
        await call_next(request)
        return ToolMessage("stale, but fine", tool_call_id=request.tool_call["id"])

    tools = [Recorder().tool("broken", raises=OSError("disk"))]
    traces = await run(ToolNode(tools, awrap_tool_call=stale, handle_tool_errors=True), "broken")
    assert traces.tool().status.status_code is StatusCode.UNSET
    assert names.ERROR_TYPE not in attributes(traces.tool())
    assert traces.one("attempt").status.status_code is StatusCode.ERROR


async def test_an_older_error_in_a_command_fails_no_call() -> None:
    async def search(call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Search."""
        earlier = ToolMessage("away", tool_call_id="c0", status="error")
        return Command(update=[earlier, ToolMessage("tea", tool_call_id=call_id)])

    traces = await run(ToolNode([search]), "search")
    assert outcome(traces) == (StatusCode.UNSET, "ok", None)


async def a_retried_call() -> Traces:
    broken = Recorder().tool("shaky", raises=OSError("disk"), times=2)
    node = ToolNode([broken], middleware=[Retry(attempts=3)], policies={"shaky": CallPolicy(idempotent=True)})
    return await run(node, "shaky")


async def test_a_retried_call_has_an_attempt_span_for_each() -> None:
    traces = await a_retried_call()
    assert outcome(traces) == (StatusCode.UNSET, "ok", None)
    assert attributes(traces.tool())[names.ATTEMPTS] == 3
    attempts = traces.all("attempt")
    assert [attributes(span)[names.ATTEMPT_NUMBER] for span in attempts] == [1, 2, 3]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert all(is_child(span, traces.tool()) for span in attempts)
    assert events(traces.tool()) == ["callboard.retry", "callboard.retry"]


async def test_an_error_message_that_a_wrapper_replaced_by_another_attempt_leaves_nothing_on_the_call() -> None:
    """The error belongs to its attempt: the model reads the later result."""

    async def again(request: Any, call_next: Any) -> Any:
        message = await call_next(request)
        return await call_next(request) if message.status == "error" else message

    tools = [Recorder().tool("shaky", raises=OSError("disk"), times=1)]
    traces = await run(ToolNode(tools, awrap_tool_call=again, handle_tool_errors=True), "shaky", capture=True)
    assert outcome(traces) == (StatusCode.UNSET, "ok", None)
    assert attributes(traces.tool())[names.TOOL_RESULT] == "shaky"
    assert names.HANDLED not in attributes(traces.tool())
    assert [span.status.status_code for span in traces.all("attempt")] == [StatusCode.ERROR, StatusCode.UNSET]


async def test_a_fallback_runs_under_the_name_of_its_tool() -> None:
    recorder = Recorder()
    tools = [recorder.tool("main", raises=OSError("down")), recorder.tool("spare")]
    traces = await run(ToolNode(tools, middleware=[Fallback({"main": "spare"})]), "main")
    assert [span.name for span in traces.all("attempt")] == ["attempt main", "attempt spare"]
    assert outcome(traces)[0] is StatusCode.UNSET


async def test_an_unknown_tool_fails_its_call_without_an_attempt() -> None:
    traces = await run(ToolNode([Recorder().tool("search")]), "serach")
    assert outcome(traces) == (StatusCode.ERROR, "error", "LookupError")
    assert traces.names == ["execute_tool serach"]
    assert names.TOOL_DESCRIPTION not in attributes(traces.tool())


@pytest.mark.parametrize(
    "call", [tool_call("\ud800", "c1"), tool_call("search", "\ud800"), tool_call("search", "c1", query="\ud800")]
)
async def test_what_has_no_bytes_in_utf_8_does_not_take_an_export_along(
    call: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A model may write a lone surrogate. An exporter that cannot encode it would drop the whole batch."""
    node = ToolNode([Recorder().tool("search")])
    traces = await run(node, call, capture=True)
    assert encode_spans(traces.spans).SerializeToString()
    assert not caplog.records


async def a_cancelled_call() -> Traces:
    recorder = Recorder()
    node = ToolNode([recorder.tool("slow", hang=True)])
    with record_traces() as traces, anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(node.ainvoke, [calls("slow")])
            await recorder.wait_for("started")
            group.cancel_scope.cancel()
    return traces


async def test_a_cancelled_call_is_an_error_and_says_so() -> None:
    traces = await a_cancelled_call()
    assert outcome(traces) == (StatusCode.ERROR, "cancelled", "cancelled")
    assert names.CANCELLED in events(traces.tool())
    assert attributes(traces.one("attempt"))[names.ERROR_TYPE] == "cancelled"


async def test_a_call_that_is_cancelled_alone_is_an_error_with_the_reason() -> None:
    recorder = Recorder()
    node = ToolNode([recorder.tool("slow", hang=True)])
    with record_traces() as traces, anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group:
            group.start_soon(node.ainvoke, [tool_call("slow", "s", query="")])
            await recorder.wait_for("started")
            assert await node.cancel("s", "too long")
    assert outcome(traces) == (StatusCode.ERROR, "cancelled", "cancelled")
    assert "was cancelled by the application before it had a result: too long" in str(traces.tool().status.description)
    assert attributes(traces.one("attempt"))[names.ERROR_TYPE] == "cancelled"


async def test_the_neighbours_of_a_failed_call_are_cancelled_and_the_span_tells_them_apart() -> None:
    recorder = Recorder()
    tools = [recorder.tool("broken", raises=OSError("disk"), seconds=1), recorder.tool("slow", hang=True)]
    traces = await run(ToolNode(tools), "broken", "slow", fails=OSError)
    kinds = {span.name: attributes(span)[names.ERROR_TYPE] for span in traces.all("execute_tool")}
    assert kinds == {"execute_tool broken": "OSError", "execute_tool slow": "cancelled"}


async def test_a_command_for_the_graph_around_is_no_error() -> None:
    """A command for the parent graph is control flow, not a failure."""

    async def leave() -> str:
        raise ParentCommand(Command(goto="elsewhere", graph=Command.PARENT))

    traces = await run(ToolNode([make(leave)]), "leave", fails=ParentCommand)
    assert outcome(traces) == (StatusCode.UNSET, "ok", None)
    assert traces.one("attempt").status.status_code is StatusCode.UNSET


@pytest.mark.real_clock
async def test_an_abandoned_thread_is_told_on_its_call() -> None:
    release = threading.Event()
    node = ToolNode([Recorder().sync_tool("deaf", release=release)], timeout=0.05)
    try:
        with pytest.warns(AbandonedThreadWarning):
            traces = await run(node, "deaf")
    finally:
        release.set()
    assert "callboard.abandoned" in events(traces.tool())
    assert outcome(traces) == (StatusCode.ERROR, "timeout", "timeout")
    assert len(traces.spans) == 2


# Questions and answers


async def ask(question: str) -> str:
    """Ask a person."""
    return str(interrupt(question))


ANSWER: Any = Command(resume="yes")


async def turns_of_conversation(tools: Any, *steps: Any, inputs: Any = (GO, ANSWER), name: str = "clerk") -> Traces:
    """Run an agent in a thread, where a question of its tools is answered."""
    agent = create_react_agent(PaidModel([*steps, full_reply("done")]), tools, name=name, checkpointer=InMemorySaver())
    return await turns(agent, *inputs, config=THREAD)


async def a_question_with_answer() -> Traces:
    return await turns_of_conversation([make(ask)], calls(("ask", {"question": "may I?"})))


@pytest.mark.real_clock
async def test_a_question_is_no_error_of_the_call_its_attempt_or_its_run() -> None:
    traces = await a_question_with_answer()
    call, run_ = traces.all("execute_tool")[0], traces.all("invoke_agent")[0]
    assert attributes(call)[names.OUTCOME] == attributes(run_)[names.OUTCOME] == "interrupted"
    assert len(attributes(call)[names.INTERRUPTS]) == attributes(run_)[names.QUESTIONS] == 1
    assert events(call) == [names.INTERRUPTED]
    assert attributes(traces.all("attempt")[0])[names.OUTCOME] == "interrupted"
    assert {span.status.status_code for span in traces.spans} == {StatusCode.UNSET}


@pytest.mark.real_clock
async def test_what_resumes_links_to_what_it_resumes() -> None:
    traces = await a_question_with_answer()
    for name in ("execute_tool", "invoke_agent"):
        before, after = traces.all(name)
        assert link_ids(after) == [span_id(before)]
        assert after.links[0].context.trace_id == before.context.trace_id
        assert attributes(after)[names.RESUMED] is True
        assert not before.links
        assert names.RESUMED not in attributes(before)


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
async def test_a_call_in_a_graph_of_langgraph_links_too() -> None:
    """There is no span for the graph's run, but the thread is known."""
    builder: Any = StateGraph(State)
    builder.add_node("tools", ToolNode([make(ask)]))
    builder.add_edge(START, "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    graph_input = {"messages": [calls(("ask", {"question": "may I?"}))]}
    traces = await turns(graph, graph_input, ANSWER, config=THREAD)
    before, after = traces.all("execute_tool")
    assert link_ids(after) == [span_id(before)]
    assert attributes(after)[names.CONVERSATION] == "t1"


@pytest.mark.real_clock
async def test_each_level_links_to_its_own() -> None:
    model = PaidModel([calls(("ask", {"question": "?"})), full_reply("inner done")])
    inner = create_react_agent(model, [make(ask)], name="i")

    async def delegate() -> str:
        result = await inner.ainvoke(GO)
        return str(result["messages"][-1].content)

    traces = await turns_of_conversation([make(delegate)], calls("delegate"), name="o")
    for name in ("invoke_agent o", "execute_tool delegate", "invoke_agent i", "execute_tool ask"):
        before, after = traces.all(name)
        assert link_ids(after) == [span_id(before)], name


@pytest.mark.real_clock
async def test_a_second_question_is_linked_to_by_the_third_run() -> None:
    async def ask_twice() -> str:
        return f"{interrupt('one?')} {interrupt('two?')}"

    traces = await turns_of_conversation([make(ask_twice)], calls("ask_twice"), inputs=(GO, ANSWER, ANSWER))
    for name in ("execute_tool", "invoke_agent"):
        first, second, third = traces.all(name)
        assert (link_ids(first), link_ids(second), link_ids(third)) == ([], [span_id(first)], [span_id(second)])


async def test_a_ledger_that_the_caller_keeps_has_the_link_in_it() -> None:
    """Without a graph or an agent around the node, the caller's ledger has the link."""
    node = ToolNode([make(ask)])
    messages = [calls(("ask", {"question": "may I?"}))]
    with record_traces() as traces, anyio.fail_after(WAIT):
        with pytest.raises(CallsInterrupted) as waiting:
            await node.ainvoke(messages)
        await node.ainvoke(messages, ledger=waiting.value.ledger, resume="yes")
    before, after = traces.all("execute_tool")
    assert link_ids(after) == [span_id(before)]


@pytest.mark.real_clock
@pytest.mark.exhaustive
async def test_what_resumes_a_killed_process_links_to_its_spans(tmp_path: Path) -> None:
    """The spans of the killed process were never exported, but the new spans show which ones they continue."""
    died = await anyio.run_process(python("_killed", str(tmp_path)), cwd=ROOT, check=False)
    assert died.returncode == 9, died.stderr
    begun = dict(line.split("=") for line in (tmp_path / "spans").read_text().splitlines())

    async def pay() -> str:
        return "paid"

    with record_traces() as traces, agent_in(tmp_path, pay, full_reply("done")) as agent:
        await agent.ainvoke(None, THREAD_OF_THE_KILLED)
        await agent.ainvoke(Command(resume={"type": "accept"}), THREAD_OF_THE_KILLED)
    first_run, second_run = traces.all("invoke_agent clerk")
    assert link_ids(first_run) == [int(begun["invoke_agent clerk"])]
    call = traces.tool()
    assert link_ids(call) == [int(begun["invoke_agent clerk"])]  # stored as begun with the reply, before it had a span
    assert is_child(call, second_run)
    assert attributes(first_run)[names.RESUMED] is attributes(call)[names.RESUMED] is True


def python(module: str, *args: str) -> list[str]:
    return [sys.executable, "-m", f"tests.telemetry.{module}", *args]


def test_a_mark_that_is_none_links_to_nothing() -> None:
    """Marks are read from databases, which may contain anything."""
    odd = ("00-zz-zz-00 00-1-1-1-1", "00-0-0-00 00-0-0-00", f"00-{'f' * 40}-{'f' * 40}-01 -", "\x00 é")
    for mark in ("", "nonsense", "- -", *odd):
        assert link_to_call(mark) == link_to_run(mark) == [], mark


# Runs and requests


async def a_run(**options: Any) -> Traces:
    agent = create_react_agent(
        PaidModel([calls("search"), full_reply("done")]), [Recorder().tool("search")], name="clerk"
    )
    return await turns(agent, GO, config=THREAD, **options)


@pytest.mark.real_clock
async def test_a_run_is_a_span_with_requests_and_calls_below() -> None:
    traces = await a_run()
    [run_] = traces.all("invoke_agent clerk")
    [first, second] = traces.all("chat gpt-x")
    call = traces.tool()
    assert [convention_violations(span) for span in (run_, first, call, second)] == [[]] * 4
    assert all(is_child(span, run_) for span in (first, call, second))
    assert first.end_time <= call.start_time <= call.end_time <= second.start_time  # type: ignore[operator]
    assert (run_.kind, second.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)
    run_id = attributes(run_)[names.RUN_ID]
    assert attributes(run_) == {
        names.OPERATION: "invoke_agent",
        names.AGENT_NAME: "clerk",
        names.CONVERSATION: "t1",
        names.RUN_ID: run_id,
        names.REQUEST_MODEL: "gpt-x",
        names.INPUT_TOKENS: 7,
        names.OUTPUT_TOKENS: 3,
        names.OUTCOME: "ok",
    }
    assert attributes(call)[names.RUN_ID] == run_id
    assert attributes(call)[names.AGENT_NAME] == "clerk"
    assert attributes(second) == {
        names.OPERATION: "chat",
        names.PROVIDER: "openai",
        names.REQUEST_MODEL: "gpt-x",
        names.REQUEST_TEMPERATURE: 0.5,
        names.REQUEST_MAX_TOKENS: 64,
        names.RESPONSE_MODEL: "gpt-x-2026",
        names.RESPONSE_ID: "chatcmpl-1",
        names.FINISH_REASONS: ("stop",),
        names.INPUT_TOKENS: 7,
        names.OUTPUT_TOKENS: 3,
        names.CACHED_TOKENS: 2,
        names.CONVERSATION: "t1",
    }


@pytest.mark.real_clock
async def test_captured_messages_have_the_form_of_the_conventions() -> None:
    traces = await a_run(capture=True)
    question_text, answer_text = '{"role": "user", "parts": [{"type": "text", "content": "go"}]}', '"content": "done"'
    second = attributes(traces.all("chat")[1])
    assert second[names.INPUT_MESSAGES].startswith(f"[{question_text}")
    assert '"type": "tool_call_response"' in second[names.INPUT_MESSAGES]
    assert answer_text in second[names.OUTPUT_MESSAGES]
    assert answer_text in attributes(traces.one("invoke_agent"))[names.OUTPUT_MESSAGES]


async def a_run_that_reads(**options: Any) -> Traces:
    """Return the traces of a run that gets a word of a person, and later the result of a background call."""
    traces, agents, spoken = Traces(**options), list[Any](), anyio.Event()

    @CallPolicy(background=True)
    async def build() -> str:
        """Build."""
        await spoken.wait()
        await anyio.sleep(0.05)  # the call is in the background by then
        return "built"

    async def talk() -> str:
        """Talk."""
        await agents[0].say("hurry", {"configurable": {"thread_id": "1"}})
        spoken.set()
        return "told"

    model = PaidModel([calls("build", "talk"), full_reply("meanwhile"), full_reply("done"), full_reply("done")])
    with traces.on(), anyio.fail_after(WAIT):
        async with create_react_agent(model, [build, talk], checkpointer=InMemorySaver(), name="clerk") as agent:
            agents.append(agent)
            await agent.ainvoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": "1"}})
    return traces


@pytest.mark.real_clock
@pytest.mark.parametrize("capture", [False, True])
async def test_a_message_that_a_run_has_read_is_an_event_of_its_span(capture: bool) -> None:
    """A trace shows why a run goes on after an answer, and which background call it has heard of."""
    span = (await a_run_that_reads(capture=capture)).one("invoke_agent")

    read = [dict(event.attributes or {}) for event in span.events if event.name == "callboard.message_read"]
    handles = [event.get("callboard.background") for event in read]
    assert sorted(map(str, handles)) == ["None", "bg-call_1"]
    assert {event["callboard.point"] for event in read} <= {"turn", "end"}
    texts = [event.get(names.INPUT_MESSAGES, "") for event in read]
    assert [any(word in text for text in texts) for word in ("hurry", "built")] == [capture, capture]


def test_names_of_providers_are_those_of_the_conventions() -> None:
    assert set(names.PROVIDERS.values()) <= PROVIDERS


async def a_model_that_fails() -> Traces:
    agent = create_react_agent(PaidModel([OSError("no line")]), [Recorder().tool("search")])
    return await turns(agent, GO, fails=OSError)


@pytest.mark.real_clock
@pytest.mark.parametrize("door", ["ainvoke", "invoke"])
async def test_a_request_that_is_sent_again_is_an_event_of_its_run(door: str, tmp_path: Path) -> None:
    """A trace would show one slow request, and no reason. A recording goes on without it."""

    def fail(messages: Any) -> Any:
        raise OSError("away")

    traces = Traces()
    model = ScriptedModel([fail, "done"])
    agent = create_agent(model, [], middleware=[Retry(attempts=2, initial=0)], name="clerk")
    agent_input = {"messages": [("user", "go")]}
    with traces.on(), RecordingWriter(tmp_path / "run.jsonl"):
        if door == "ainvoke":
            await agent.ainvoke(agent_input)
        else:
            await anyio.to_thread.run_sync(agent.invoke, agent_input)
    assert facts(traces.one("invoke_agent"), "callboard.retry") == {
        "callboard.attempt": 1,
        "callboard.pause": 0.0,
        "callboard.error": "OSError",
    }
    assert "model_answered" in (tmp_path / "run.jsonl").read_text()


@pytest.mark.real_clock
async def test_a_failed_request_fails_its_run() -> None:
    """An agent without a name, and a run without a thread, have no such attributes."""
    traces = await a_model_that_fails()
    request, run_ = traces.spans
    for span in (request, run_):
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)[names.ERROR_TYPE] == "OSError"
        assert names.CONVERSATION not in attributes(span)


@pytest.mark.real_clock
async def test_a_run_whose_budget_is_spent_fails_as_a_deadline() -> None:
    recorder = Recorder()
    agent = create_react_agent(PaidModel([calls("slow")]), [recorder.tool("slow", hang=True)], budget=0.2)
    traces = await turns(agent, GO, fails=TimeoutError)
    run_ = traces.one("invoke_agent")
    assert (run_.status.status_code, attributes(run_)[names.ERROR_TYPE]) == (StatusCode.ERROR, "deadline")
    assert attributes(traces.tool())[names.OUTCOME] == "cancelled"


async def an_agent_in_a_graph() -> Traces:
    inner = create_react_agent(PaidModel([full_reply("done")]), [Recorder().tool("search")], name="inner")
    builder: Any = StateGraph(State)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    return await turns(builder.compile(checkpointer=InMemorySaver()), GO, config=THREAD)


@pytest.mark.real_clock
@pytest.mark.backends("asyncio")
async def test_an_agent_in_a_graph_says_where_it_is() -> None:
    span_attributes = attributes((await an_agent_in_a_graph()).one("invoke_agent inner"))
    assert span_attributes[names.NAMESPACE].startswith("inner:")
    assert span_attributes[names.CONVERSATION] == "t1"


SCENARIOS: list[Callable[[], Awaitable[Traces]]] = [
    *(a_call, partial(a_call, capture=True), a_timeout, fell_silent, out_of_budget, a_wait_in_vain),
    *(
        a_rejected_call,
        a_failed_call,
        partial(a_failed_call, capture=True),
        a_handled_error,
        a_retried_call,
        a_cancelled_call,
        a_question_with_answer,
    ),
    *(partial(a_run, capture=True), a_model_that_fails, an_agent_in_a_graph, a_run_that_reads),
    *(an_actor_that_breaks, actors_that_want_room, an_actor_that_never_starts),
]
ELSEWHERE = {
    names.SCOPE, names.CAPTURE_VARIABLE, names.PREFIX, names.MODALITY,
    names.TOOL_DURATION, names.AGENT_DURATION, names.AGENT_TOOL_CALLS, names.AGENT_INFERENCE_CALLS,
    names.INFERENCE_DURATION, names.USED_INPUT_TOKENS, names.USED_OUTPUT_TOKENS, names.USED_CACHED_TOKENS,
    names.REQUEST_INPUT_TOKENS, names.REQUEST_OUTPUT_TOKENS, names.QUEUE_WAIT_METRIC, names.QUEUE_LENGTH,
    names.IN_FLIGHT, names.REJECTIONS, names.TIMEOUTS, names.RETRIES, names.ABANDONED,
    names.ACTORS_ALIVE, names.MAILBOXES, names.MAILBOX_WAIT, names.ASK_DURATION, names.RESTARTS, names.EVICTIONS,
}  # fmt: skip
"""Names that are not on spans, but in metrics or the environment."""


@pytest.mark.real_clock
@pytest.mark.exhaustive
@pytest.mark.backends("asyncio")
async def test_every_name_of_spans_is_on_some_span() -> None:
    """A documented name that no span has would be a broken promise; names of the conventions have their types."""
    spans = [span for scenario in SCENARIOS for span in (await scenario()).spans]
    assert [slip for span in spans if names.OPERATION in attributes(span) for slip in convention_violations(span)] == []
    used_names = {span.name.split(" ")[0] for span in spans}
    used_names |= {key for span in spans for key in attributes(span)}
    used_names |= {event.name for span in spans for event in span.events}
    used_names |= {key for span in spans for event in span.events for key in event.attributes or {}}
    constants = {value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)}
    assert constants - ELSEWHERE <= used_names


# Models, or instrumentations, that create their own spans


def agent_with_instrumentation(tracer: Any, at_start: dict[str, str], at_end: dict[str, str]) -> Any:
    model = Instrumented([full_reply("done")], tracer=tracer, at_start=at_start, at_end=at_end)
    return create_react_agent(model, [Recorder().tool("search")], name="clerk")


OWN = [
    {names.OPERATION: "chat"},
    {names.OPERATION: "generate_content"},
    {"openinference.span.kind": "LLM"},
    {"llm.request.type": "chat"},
    {"traceloop.span.kind": "llm"},
]


@pytest.mark.real_clock
@pytest.mark.parametrize("late", [False, True], ids=["at its start", "at its end"])
@pytest.mark.parametrize("own_attributes", OWN, ids=lambda own_attributes: next(iter(own_attributes.values())))
async def test_a_model_that_makes_its_own_chat_span_gets_no_second_one(
    own_attributes: dict[str, str], late: bool
) -> None:
    traces = Traces()
    agent = agent_with_instrumentation(traces.tracer, {} if late else own_attributes, own_attributes if late else {})
    with traces.on():
        await agent.ainvoke(GO)
    assert traces.names == ["own", "invoke_agent clerk"]
    assert is_child(traces.one("own"), traces.one("invoke_agent"))
    assert attributes(traces.one("invoke_agent"))[names.INPUT_TOKENS] == 7


@pytest.mark.real_clock
async def test_another_span_of_the_model_or_one_for_another_provider_is_no_chat_span_of_ours() -> None:
    for own_attributes, is_ours in (({"http.request.method": "POST"}, True), ({names.OPERATION: "chat"}, False)):
        traces, other_traces = Traces(), Traces()
        agent = agent_with_instrumentation((traces if is_ours else other_traces).tracer, own_attributes, {})
        with traces.on(), anyio.fail_after(WAIT):
            await agent.ainvoke(GO)
        assert sorted([*traces.names, *other_traces.names]) == ["chat gpt-x", "invoke_agent clerk", "own"]
        assert ("own" in traces.names) is is_ours


# Choice of the provider


CALL = ["attempt search", "execute_tool search"]
CASES = {
    "none": [[], []],
    "ambient": [[*CALL, *CALL], []],
    "late": [[*CALL, *CALL], []],
    "explicit": [[*CALL, *CALL], []],
    "elsewhere": [CALL, CALL],
    "early": [["own", "invoke_agent clerk"], []],
    "setup": [[*CALL, *CALL], []],
    "setup and explicit": [[*CALL, *CALL], []],
}
"""Spans of two calls or of one run: those in the SDK of the process, and those elsewhere."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.exhaustive
def test_spans_are_there_by_themselves_and_never_twice(case: str) -> None:
    done = subprocess.run(python("_own_sdk", case), check=False, capture_output=True, timeout=60, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == CASES[case]


async def test_the_inner_of_two_tracings_has_the_spans() -> None:
    """Two tracings would create spans in each other's traces, so only the inner one does."""
    outer, inner = Traces(), Traces()
    node = ToolNode([Recorder().tool("search")])
    with outer.on(), anyio.fail_after(WAIT):
        await node.ainvoke([calls("search")])
        with inner.on():
            await node.ainvoke([calls("search")])
        await node.ainvoke([calls("search")])
    assert (len(outer.all("execute_tool")), len(inner.all("execute_tool"))) == (2, 1)
    assert all(span.parent is None for traces in (outer, inner) for span in traces.all("execute_tool"))


def test_a_length_below_one_is_refused() -> None:
    """A length below one would capture nothing, for which `capture=False` is clearer."""
    with pytest.raises(ValueError, match="max_length"):
        Tracing(max_length=0)


@pytest.mark.real_clock
@pytest.mark.parametrize("background", [60, True], ids=["ends in time", "goes on"])
async def test_only_the_error_of_a_call_that_goes_on_in_the_background_becomes_a_message(background: float) -> None:
    """The run goes on after it, as after a handled error in the foreground; a call that ends in time ends its run."""

    @CallPolicy(background=background)
    async def build() -> str:
        """Build."""
        await anyio.sleep(0.05)  # with `True`, the call is in the background by then
        raise ValueError("broken")

    traces = Traces()
    with traces.on(), anyio.fail_after(WAIT):
        model = ScriptedModel([calls("build"), "meanwhile", "done"])
        async with create_react_agent(model, [build], checkpointer=InMemorySaver()) as agent:
            with nullcontext() if background is True else pytest.raises(ValueError, match="broken"):
                await agent.ainvoke({"messages": [("user", "go")]}, {"configurable": {"thread_id": "1"}})
    assert outcome(traces) == (StatusCode.ERROR, "error", "ValueError")
    assert attributes(traces.tool()).get(names.HANDLED) == ("ValueError" if background is True else None)
