"""Parents of spans: in tasks, threads, nested agents, other processes, and concurrent runs."""

import json
import sys
from collections import Counter
from contextlib import aclosing, suppress
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import ToolCall
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt
from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan

from callboard import CallPolicy, Limit, ToolNode, create_react_agent, tool_call
from callboard.middleware import Retry
from callboard.telemetry import carrier, continue_trace
from callboard.testing import calls
from tests.helpers import make, make_sync

from ._traces import WAIT, PaidModel, Traces, attributes, full_reply, ids, is_child, span_id

GO: Any = {"messages": [("user", "go")]}


class Workshop:
    """Tools that open their own span inside each call, named after the call."""

    def __init__(self, traces: Traces) -> None:
        self._tracer = traces.tracer
        self._fails = Counter[str]()

    def _span(self, name: str) -> Any:
        return self._tracer.start_as_current_span(f"own {name}")

    async def quick(self, name: str) -> str:
        with self._span(name):
            await anyio.lowlevel.checkpoint()
        return name

    async def slow(self, name: str) -> str:
        with self._span(name):
            await anyio.sleep(1 + len(name) % 3)
        return name

    def threaded(self, name: str) -> str:
        with self._span(name):
            return name

    async def shaky(self, name: str) -> str:
        with self._span(name):
            await anyio.sleep(0.5)
            self._fails[name] += 1
            if self._fails[name] < 3:
                raise OSError(name)
        return name

    async def stuck(self, name: str) -> str:
        with self._span(name):
            await anyio.sleep_forever()
        return name

    async def nested(self, name: str) -> str:
        node = ToolNode([make(self.quick), make(self.slow)])
        with self._span(name):
            below = [tool_call(tool, f"{name}-{tool}", name=f"{name}-{tool}") for tool in ("quick", "slow")]
            await node.ainvoke([calls(*below)])
        return name

    async def spread(self, name: str) -> str:
        with self._span(name):
            async with anyio.create_task_group() as group:
                for part in ("a", "b"):
                    group.start_soon(self.slow, f"{name}-{part}")
        return name

    async def delegated(self, name: str) -> str:
        step = calls(*(tool_call("quick", f"{name}-{n}", name=f"{name}-{n}") for n in range(2)))
        agent = create_react_agent(PaidModel([step, full_reply(name)]), [make(self.quick)], name=name)
        with self._span(name):
            await agent.ainvoke(GO)
        return name

    def node(self, **options: Any) -> ToolNode:
        asynchronous = [make(fn) for fn in (self.quick, self.slow, self.shaky, self.stuck, self.nested, self.spread)]
        return ToolNode(
            [*asynchronous, make(self.delegated), make_sync(self.threaded)],
            policies={"stuck": CallPolicy(timeout=2), "shaky": CallPolicy(idempotent=True)},
            middleware=[twice, Retry(initial=0.1)],
            handle_tool_errors=True,
            limit=Limit(concurrency=150),
            **options,
        )


async def twice(request: Any, call_next: Any) -> Any:
    """Middleware that starts two attempts at once for calls with such names."""
    if "twice" not in request.tool_call["args"]["name"]:
        return await call_next(request)
    results: list[Any] = []

    async def attempt() -> None:
        results.append(await call_next(request))

    async with anyio.create_task_group() as group:
        group.start_soon(attempt)
        group.start_soon(attempt)
    return results[0]


def check(traces: Traces, root: ReadableSpan, names: list[str]) -> None:
    """Check that each span is below its own attempt, call, run or batch."""
    spans = {span_id(span): span for span in traces.spans}
    called = {attributes(span)["gen_ai.tool.call.id"]: span for span in traces.all("execute_tool")}
    assert {f"own {name}" for name in names} <= set(traces.names)
    for span in traces.spans:
        kind, _, name = span.name.partition(" ")
        assert span.end_time is not None
        if span is root:
            assert span.parent is None
            continue
        assert span.parent is not None, span.name
        assert span.context.trace_id == root.context.trace_id  # type: ignore[union-attr]
        parent = spans[span.parent.span_id]
        outer, _, suffix = name.rpartition("-")
        if kind == "attempt":
            assert parent.name == f"execute_tool {name}"
        elif kind == "chat":
            assert parent.name.startswith("invoke_agent")
        elif kind == "invoke_agent":
            assert parent.name == f"own {name}"
        elif kind == "own" and name in called:
            assert parent.name.startswith("attempt")
            assert is_child(parent, called[name])
        elif kind == "own":  # a task inside a call
            assert (parent.name, suffix in "ab") == (f"own {outer}", True)
        else:
            outer = attributes(span)["gen_ai.tool.call.id"].rpartition("-")[0]
            expected = f"own {outer}" if outer else root.name
            assert parent.name in (expected, f"invoke_agent {outer}")


async def run_all(requests: list[tuple[str, str]], **options: Any) -> tuple[Traces, ReadableSpan]:
    """Run tool calls with unique names below one span."""
    traces = Traces()
    node = Workshop(traces).node(**options)
    tool_calls: list[ToolCall] = [tool_call(tool, name, name=name) for tool, name in requests]
    with traces.on(), traces.tracer.start_as_current_span("root") as root, anyio.fail_after(WAIT * 10):
        before = context.get_current()
        messages = await node.ainvoke([calls(*tool_calls)])
        assert context.get_current() == before
        assert trace.get_current_span() is root
    assert [message.tool_call_id for message in messages] == [name for _, name in requests]
    return traces, traces.one("root")


def label(tool: str, number: int, *, twice: bool) -> str:
    """Return a unique name for a call. Nested calls get unique names only if they are made once."""
    return f"{tool}{number}{'twice' if twice and tool not in ('nested', 'delegated') else ''}"


PLAIN = ("quick", "slow", "shaky", "stuck", "nested", "spread")


@settings(max_examples=settings().max_examples // 3)
@given(data=st.data())
async def test_no_span_is_below_the_wrong_one_in_any_mixture(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.tuples(st.sampled_from(PLAIN), st.booleans()), max_size=12))
    requests = [(tool, label(tool, n, twice=is_twice)) for n, (tool, is_twice) in enumerate(kinds)]
    traces, root = await run_all(requests)
    check(traces, root, [name for _, name in requests])


@pytest.mark.real_clock
@pytest.mark.parametrize("ending", ["well", "error", "model error", "question", "cancelled"])
async def test_a_run_leaves_its_caller_where_it_was(ending: str, caplog: pytest.LogCaptureFixture) -> None:
    traces = Traces()

    async def work() -> str:
        if ending == "error":
            raise OSError("disk")
        if ending == "cancelled":
            group.cancel_scope.cancel()
            await anyio.sleep_forever()
        return str(interrupt("may I?")) if ending == "question" else "done"

    script = [OSError("no line")] if ending == "model error" else [calls("work"), full_reply("done")]
    agent = create_react_agent(PaidModel(script), [make(work)], checkpointer=InMemorySaver())
    with traces.on(), traces.tracer.start_as_current_span("caller") as caller:
        before = context.get_current()
        async with anyio.create_task_group() as group:
            try:
                with suppress(OSError):
                    await agent.ainvoke(GO, {"configurable": {"thread_id": "1"}})
            finally:
                assert (context.get_current(), trace.get_current_span()) == (before, caller)
    assert is_child(traces.one("invoke_agent"), traces.one("caller"))
    assert not caplog.records


@pytest.mark.real_clock
async def test_a_stream_that_is_abandoned_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    traces = Traces()
    shop = Workshop(traces)
    for leaves_after in (0, 1, 2, 99):
        model = PaidModel([calls(tool_call("quick", "c1", name="c1")), full_reply("done")])
        agent = create_react_agent(model, [make(shop.quick)], name="clerk")
        with traces.on(), traces.tracer.start_as_current_span("reader") as reader, anyio.fail_after(WAIT):
            chunks = 0
            async with aclosing(agent.astream(GO)) as stream:
                async for _ in stream:
                    assert trace.get_current_span() is reader
                    chunks += 1
                    if chunks > leaves_after:
                        break
            assert trace.get_current_span() is reader
    readers, runs = traces.all("reader"), traces.all("invoke_agent")
    assert [is_child(run, reader) for run, reader in zip(runs, readers, strict=True)] == [True] * 4
    assert not caplog.records


@pytest.mark.real_clock
async def test_spans_of_a_sync_link_and_of_what_it_starts_are_below_the_call() -> None:
    """A sync middleware runs in a thread and returns to the loop for the tool, and the parent must not get lost."""
    traces = Traces()

    def link(request: Any, call_next: Any) -> Any:
        with traces.tracer.start_as_current_span(f"link {request.tool_call['id']}"):
            return call_next(request)

    node = ToolNode([make(Workshop(traces).quick)], middleware=[link])
    with traces.on():
        await node.ainvoke([calls(*(tool_call("quick", f"c{n}", name=f"c{n}") for n in range(6)))])
    for n in range(6):
        [call] = [span for span in traces.all("execute_tool") if attributes(span)["gen_ai.tool.call.id"] == f"c{n}"]
        [outer], [inner] = ([span for span in traces.spans if span.name == f"{kind} c{n}"] for kind in ("link", "own"))
        [attempt] = [span for span in traces.all("attempt") if is_child(inner, span)]
        assert is_child(outer, call)
        assert is_child(attempt, outer)


@pytest.mark.real_clock
async def test_an_agent_in_sync_code_is_below_its_caller() -> None:
    traces = Traces()
    agent = create_react_agent(PaidModel([full_reply("done")]), [], name="clerk")
    with traces.on(), traces.tracer.start_as_current_span("caller") as caller:
        agent.invoke(GO)
        assert trace.get_current_span() is caller
    assert is_child(traces.one("invoke_agent"), traces.one("caller"))
    assert is_child(traces.one("chat"), traces.one("invoke_agent"))


# Other processes


WORKER = """
import json, sys
from callboard.telemetry import carrier, continue_trace
with continue_trace(json.load(sys.stdin)):
    print(carrier()["traceparent"])
"""


@pytest.mark.real_clock
async def test_a_worker_process_goes_on_with_the_trace_of_the_call() -> None:
    traces = Traces()

    async def crunch() -> str:
        done = await anyio.run_process([sys.executable, "-c", WORKER], input=json.dumps(carrier()).encode())
        return done.stdout.decode()

    with traces.on():
        [message] = await ToolNode([make(crunch)]).ainvoke([calls("crunch")])
    assert message.content.split("-")[1:3] == [*ids(traces.one("attempt"))]


def test_what_is_carried_may_be_anything() -> None:
    """A carrier that cannot be parsed gives no trace and no error."""
    for carried in (None, {}, {"traceparent": "nonsense"}, {"traceparent": 7, "progressToken": 1}, {"x": object()}):
        with continue_trace(carried):  # type: ignore[arg-type]
            assert carrier() == {}


def test_what_is_continued_ends_with_its_block() -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    with pytest.raises(ValueError, match="out"), continue_trace({"traceparent": parent}):
        assert carrier()["traceparent"] == parent
        raise ValueError("out")
    assert carrier() == {}
