"""`replay`: a recording is a regression test."""

import asyncio
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import format_exception
from types import MappingProxyType
from typing import Annotated, Any

import anyio
import pytest
from langchain.agents.structured_output import ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from callboard import Agent, CallPolicy, Limit, ToolNode, create_agent, create_react_agent, tool_call
from callboard.middleware import RequireApproval, Retry
from callboard.telemetry import RecordingWriter
from callboard.testing import Recorder, ReplayDifferenceError, ScriptedModel, _kills, backend, calls, fake_tools, replay

SCRIPT = [
    calls(("search", {"query": "tea"}), ("fetch", {"query": "a.example"})),
    calls(("refund", {"query": "o1"})),
    "Refunded.",
]


def _never(query: str = "") -> str:
    """Do something."""
    raise AssertionError(f"the real tool ran with {query!r}")


def never(*names: str) -> list[StructuredTool]:
    return [StructuredTool.from_function(_never, name=name) for name in names]


def new_agent(tools: Sequence[Any] = (), of_agent: Mapping[str, Any] = MappingProxyType({}), **options: Any) -> Agent:
    """Return the agent as it is in a test, without a model and without tools that could run."""
    node = ToolNode(tools or never("search", "fetch", "refund"), **options)
    return create_react_agent(ScriptedModel([]), node, name="bot", **of_agent)


def with_changed_replies(change: Callable[[AIMessage], None]) -> Agent:
    """Return the agent with a hook that changes a copy of each reply of the model."""

    def hook(state: Any) -> Any:
        reply = state["messages"][-1].model_copy(deep=True)
        change(reply)
        return {"messages": [reply]}

    return new_agent(of_agent={"post_model_hook": hook, "version": "v1"})


def record(path: Path, run: Callable[[], Any], name: str = "asyncio", **options: Any) -> Path:
    """Record what a function does, on a virtual clock."""

    async def run_and_record() -> None:
        with RecordingWriter(path, clock=anyio.current_time, **{"capture": True, "redact": False, **options}):
            await run()

    loop, settings = backend(name)
    anyio.run(run_and_record, backend=loop, backend_options=settings)
    return path


def go(agent: Agent, *inputs: Any) -> Callable[[], Any]:
    async def run() -> None:
        for agent_input in inputs or [{"messages": [("user", "Refund me.")]}]:
            await agent.ainvoke(agent_input, {"configurable": {"thread_id": "1"}})

    return run


def slow_tools(**options: Any) -> list[Any]:
    tools = Recorder()
    return [tools.tool("search", seconds=5), tools.tool("fetch", seconds=3), tools.tool("refund", returns="done")]


@pytest.fixture(params=["asyncio", "trio"])
def name(request: pytest.FixtureRequest) -> str:
    """The backend of the replay."""
    return str(request.param)


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    agent = create_react_agent(ScriptedModel(SCRIPT), slow_tools(), name="bot")
    return record(tmp_path / "runs.jsonl", go(agent))


def differences(path: Path, agent: Agent, name: str = "asyncio", **options: Any) -> str:
    with pytest.raises(ReplayDifferenceError) as caught:
        replay(path, agent, backend=name, **options)
    assert len(format_exception(caught.value)) < 6, "or hundreds of frames of a failed run would hide the difference"
    return str(caught.value)


def test_an_unchanged_agent_behaves_as_recorded(recording: Path, name: str) -> None:
    result = replay(recording, new_agent(), backend=name)

    contents = [message.content for message in result.state["messages"]]
    assert contents == ["Refund me.", "", "tea", "a.example", "", "done", "Refunded."]
    assert result.events == 23


@pytest.mark.parametrize("limit", [None, Limit(concurrency=2)])
def test_a_recording_of_the_real_clock_is_replayed_again_and_again(
    tmp_path: Path, name: str, limit: Limit | None
) -> None:
    """Times of a real run are uneven. On trio, calls begin in any order, and get permits in any order."""
    many = [calls(*((tool, {"query": str(number)}) for number in range(4) for tool in ("quick", "slow"))), "Done."]
    tools = Recorder()
    node_tools = [
        tools.sync_tool("quick", seconds=0.001),
        tools.tool("slow", seconds=lambda query: 0.012 * (1 + int(query))),
    ]
    agent = create_react_agent(ScriptedModel(many), ToolNode(node_tools, limit=limit), name="bot")
    path = tmp_path / "real.jsonl"
    with RecordingWriter(path, capture=True, redact=False):
        agent.invoke({"messages": [("user", "go")]})

    for _ in range(5):
        replay(path, new_agent(never("quick", "slow"), limit=limit), backend=name)


def search(text: str) -> str:
    """Search, with another name of the argument than before."""
    return _never(text)


def refund_another(reply: AIMessage) -> None:
    for call in reply.tool_calls:
        if call["name"] == "refund":
            call["args"] = {"query": "o2"}


CHANGES: dict[str, tuple[Callable[[], Agent], list[str]]] = {
    "a renamed tool": (
        lambda: new_agent(never("find", "fetch", "refund")),
        [
            "in 1 place:\nrun 1 of 'bot', after model request 1:\n",
            '  expected  call_1 search(query="tea"): ok\n  got       call_1 search(query="tea"): error',
            "search is not a valid tool, try one of [find, fetch, refund]",
        ],
    ),
    "a renamed argument": (
        lambda: new_agent([search, *never("fetch", "refund")]),
        ['got       call_1 search(query="tea"): error', "text: Field required"],
    ),
    "changed arguments, one by one": (
        lambda: with_changed_replies(refund_another),
        ["after model request 2", '  argument  query: "o1" -> "o2"'],
    ),
    "another order of calls in a batch": (
        lambda: with_changed_replies(lambda reply: reply.tool_calls.reverse()),
        ["in 1 place", "  expected  call_1, call_2\n  got       call_2, call_1"],
    ),
    "calls that no longer run at once": (
        lambda: new_agent(limit=Limit(concurrency=1)),
        ["  expected  no call waits for the end of another\n  got       a call waits for the end of another"],
    ),
    "a timeout shorter than the recorded call": (
        lambda: new_agent(policies={"search": CallPolicy(timeout=4)}),
        ['got       call_1 search(query="tea"): timeout'],
    ),
}
"""Change of the agent since its recording, and what is told of it. Recorded durations are kept, on a virtual clock."""


def test_a_changed_agent_is_a_difference(recording: Path, name: str) -> None:
    for change, (agent, expected) in CHANGES.items():
        report = differences(recording, agent(), name)
        assert report.startswith(f"the replay of {recording} differs in "), change
        assert [text for text in expected if text not in report] == [], change


def test_further_calls_and_missing_requests_are_differences(recording: Path, name: str) -> None:
    cut = {"messages": [("user", "Refund me.")]}
    short = create_react_agent(ScriptedModel(SCRIPT), slow_tools(), name="bot", interrupt_before=["tools"])
    path = record(recording.with_name("short.jsonl"), go(short, cut))

    report = differences(path, new_agent(), name)
    assert '  expected  no such call\n  got       call_1 search(query="tea"): error (LookupError)' in report
    assert "A run of the replay raised LookupError" in report
    assert "got       no further request to the model" in differences(
        recording, new_agent(of_agent={"interrupt_before": ["tools"]}), name
    )


def test_errors_retries_and_timeouts_happen_again(tmp_path: Path, name: str) -> None:
    """Middleware sees an error of the recorded class."""
    tools = Recorder()
    options: Any = {
        "middleware": [Retry(attempts=3, on=ConnectionError, any_tool=True)],
        "policies": {"slow": CallPolicy(timeout=2)},
    }
    script = [calls("flaky", "slow"), "Done."]
    working = [
        tools.tool("flaky", raises=ConnectionError("away"), times=2),
        tools.tool("slow", hang=True),
    ]
    agent = create_react_agent(ScriptedModel(script), ToolNode(working, **options), name="bot")
    path = record(tmp_path / "runs.jsonl", go(agent))

    replay(path, new_agent(never("flaky", "slow"), **options), backend=name)
    report = differences(path, new_agent(never("flaky", "slow"), policies=options["policies"]), name)
    assert "expected  call_1 flaky(): ok, after ConnectionError, ConnectionError" in report
    assert "A run of the replay raised ConnectionError" in report
    report = differences(path, new_agent(never("flaky", "slow"), middleware=options["middleware"]), name)
    assert "expected  call_2 slow(): timeout" in report


def test_hooks_in_threads_do_not_spend_the_budget_of_the_run(recording: Path, name: str) -> None:
    """The virtual clock would jump to the end of the budget while a sync hook works in its thread."""

    def hook(state: Any) -> Any:
        time.sleep(0.05)
        return {}

    result = replay(recording, new_agent(of_agent={"post_model_hook": hook, "budget": 60.0}), backend=name)

    assert result.state["messages"][-1].content == "Refunded."


def test_a_conversation_with_a_question_is_replayed(tmp_path: Path, name: str) -> None:
    def refund(query: str) -> str:
        """Refund."""
        return f"{query}: {interrupt('really?')}"

    agent = create_react_agent(
        ScriptedModel([*SCRIPT, "Bye."]), [*slow_tools()[:2], refund], name="bot", checkpointer=InMemorySaver()
    )
    first, last = {"messages": [("user", "Refund me.")]}, {"messages": [("user", "Bye.")]}
    path = record(tmp_path / "runs.jsonl", go(agent, first, Command(resume="yes"), last))

    result = replay(path, new_agent(), backend=name)

    assert [message.content for message in result.state["messages"]][-4:] == ["o1: yes", "Refunded.", "Bye.", "Bye."]


def test_answers_by_id_go_to_the_open_questions(tmp_path: Path, name: str) -> None:
    """Ids of questions differ from run to run."""
    options: Any = {"middleware": [RequireApproval({"search": True, "fetch": True})]}
    node = ToolNode(slow_tools(), **options)
    agent = create_react_agent(ScriptedModel(SCRIPT), node, name="bot", checkpointer=InMemorySaver())

    async def run() -> None:
        config: Any = {"configurable": {"thread_id": "1"}}
        result = await agent.ainvoke({"messages": [("user", "Refund me.")]}, config)
        question_ids = [question.id for question in result["__interrupt__"]]
        assert len(question_ids) == 2
        answers = [{"type": "accept", "args": None}, {"type": "response", "args": "no"}]
        await agent.ainvoke(Command(resume=dict(zip(question_ids, answers, strict=True))), config)

    path = record(tmp_path / "runs.jsonl", run)
    result = replay(path, new_agent(of_agent={"checkpointer": InMemorySaver()}, **options), backend=name)

    assert [message.content for message in result.state["messages"]][2:] == ["tea", "no", "", "done", "Refunded."]


@pytest.mark.parametrize("case", ["answers together", "answers in turn", "asks twice", "older recording"])
def test_runs_with_several_questions_are_replayed_and_killed(tmp_path: Path, name: str, case: str) -> None:
    """Answers may come for any subset of the questions."""

    def ask(x: str) -> str:
        """Ask."""
        return "".join(interrupt(part) for part in x)

    requests = [tool_call("ask", "1", x="ab" if case == "asks twice" else "a"), tool_call("ask", "2", x="c")]

    def now(tool: Any = ask) -> Agent:
        model = ScriptedModel([calls(*requests), "Done."], loop=True)
        return create_react_agent(model, [tool], name="bot", checkpointer=InMemorySaver())

    async def run() -> None:
        agent, config = now(), {"configurable": {"thread_id": "1"}}
        state = await agent.ainvoke({"messages": [("user", "Go.")]}, config)
        while questions := [question.id for question in state.get("__interrupt__", ())]:
            # In turn, the last one first: the order of the questions says nothing.
            answered = questions[-1:] if case == "answers in turn" else questions
            state = await agent.ainvoke(Command(resume=dict.fromkeys(answered, "yes")), config)

    path = record(tmp_path / "runs.jsonl", run)
    if case == "older recording":
        path.write_text(path.read_text().replace('"question_ids"', '"unknown"'))
    events = replay(path, now(never("ask")[0]), backend=name).events
    for event_number in range(1, events + 1):
        replay(path, now(never("ask")[0]), backend=name, kill_at=event_number)


def test_a_recording_in_which_the_event_loop_was_held_says_nothing_about_queues(tmp_path: Path) -> None:
    """The last call began when the first had ended already, and found its permit free."""

    async def hold(query: str = "") -> str:
        """Hold the loop for a minute, and then work."""
        asyncio.get_running_loop()._selector.now += 60  # type: ignore[attr-defined]
        await anyio.sleep(30)
        return query

    search_tool = Recorder().tool("search", seconds=30)
    options: Any = {"policies": {"search": CallPolicy(limit=Limit(concurrency=1))}}
    script = [calls("search", "fetch", "search"), "Done."]
    fetch = StructuredTool.from_function(coroutine=hold, name="fetch")
    agent = create_react_agent(ScriptedModel(script), ToolNode([search_tool, fetch], **options), name="bot")

    replay(record(tmp_path / "runs.jsonl", go(agent)), new_agent(never("search", "fetch"), **options))


def test_a_redacted_recording_is_replayed_with_its_tokens(tmp_path: Path, name: str) -> None:
    script = [calls(("search", {"query": "ann@example.com"})), "Done, ann@example.com."]
    agent = create_react_agent(ScriptedModel(script), slow_tools(), name="bot")
    path = record(tmp_path / "runs.jsonl", go(agent), redact=True)

    assert "ann@example.com" not in path.read_text()
    assert replay(path, new_agent(), backend=name).state["messages"][-1].content.startswith("Done, ")


def test_a_run_that_does_not_begin_is_a_difference(recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a run there is nothing to compare, which must not count as equal."""

    async def refuse(*args: Any, **options: Any) -> Any:
        raise RuntimeError("not today")

    monkeypatch.setattr(Agent, "ainvoke", refuse)
    report = differences(recording, new_agent())

    assert "run 1: it did not begin" in report
    assert 'A run of the replay raised RuntimeError: "not today"' in report


def test_a_command_as_a_result_has_to_be_real(tmp_path: Path) -> None:
    """The recording has no complete copy of it."""

    def leave(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Leave."""
        return Command(update={"messages": [ToolMessage("gone", tool_call_id=tool_call_id)]})

    agent = create_react_agent(ScriptedModel([calls("leave"), "Done."]), [leave], name="bot")
    path = record(tmp_path / "runs.jsonl", go(agent))

    with pytest.raises(ReplayDifferenceError, match=r"returned a Command.*let the tool run: real=\['leave'\]"):
        replay(path, agent)
    assert replay(path, agent, real=["leave"]).state["messages"][-1].content == "Done."


class Receipt(BaseModel):
    order: str
    amount: int


@pytest.mark.parametrize("response_format", [Receipt, ("Be brief.", Receipt), {"title": "Receipt", "type": "object"}])
def test_a_structured_response_is_replayed_in_the_form_of_its_schema(
    tmp_path: Path, name: str, response_format: Any
) -> None:
    """The last request of such an agent has a response in place of a reply."""

    class Model(ScriptedModel):
        def with_structured_output(self, schema: Any, **options: Any) -> Any:
            result = {"order": "o1", "amount": 3}
            return RunnableLambda(lambda _: Receipt(**result) if schema is Receipt else result)

    options: Any = {"name": "bot", "response_format": response_format}
    path = record(tmp_path / "runs.jsonl", go(create_react_agent(Model(SCRIPT), slow_tools(), **options)))
    now = create_react_agent(ScriptedModel([]), never("search", "fetch", "refund"), **options)

    expected = {"order": "o1", "amount": 3} if isinstance(response_format, dict) else Receipt(order="o1", amount=3)
    result = replay(path, now, backend=name)
    assert result.state["structured_response"] == expected
    killed = replay(path, now, backend=name, kill_at=result.events - 2)
    assert killed.state["structured_response"] == expected


def test_a_response_that_no_longer_fits_the_schema_is_a_difference(tmp_path: Path, name: str) -> None:
    class Longer(Receipt):
        currency: str

    class Model(ScriptedModel):
        def with_structured_output(self, schema: Any, **options: Any) -> Any:
            return RunnableLambda(lambda _: Receipt(order="o1", amount=3))

    agent = create_react_agent(Model(SCRIPT), slow_tools(), name="bot", response_format=Receipt)
    path = record(tmp_path / "runs.jsonl", go(agent))

    report = differences(path, new_agent(of_agent={"response_format": Longer}), name)

    assert "model request 4:\n  expected  a request to the model (ok)" in report
    assert "ValidationError" in report


def test_a_structured_response_of_create_agent_is_replayed(tmp_path: Path, name: str) -> None:
    """LangChain's node makes it of the calls of a reply; the first call does not fit the schema, and is answered."""
    script = [*SCRIPT[:2], calls(("Receipt", {"order": "o1"})), calls(("Receipt", {"order": "o1", "amount": 3}))]
    form = ToolStrategy(Receipt)
    agent = create_agent(ScriptedModel(script), slow_tools(), name="bot", response_format=form)
    path = record(tmp_path / "runs.jsonl", go(agent))
    now = create_agent(ScriptedModel([]), never("search", "fetch", "refund"), name="bot", response_format=form)

    result = replay(path, now, backend=name)
    assert result.state["structured_response"] == Receipt(order="o1", amount=3)
    killed = replay(path, now, backend=name, kill_at=result.events - 2)
    assert killed.state["structured_response"] == Receipt(order="o1", amount=3)


def test_an_agent_within_a_tool_is_replayed_by_the_tools_result_or_for_real(tmp_path: Path, name: str) -> None:
    def outer(model: ScriptedModel, inner: Agent) -> Agent:
        async def ask(query: str) -> str:
            """Ask the inner agent."""
            result = await inner.ainvoke({"messages": [("user", query)]})
            return str(result["messages"][-1].content)

        return create_react_agent(model, [ask], name="outer")

    script = [calls(("ask", {"query": "o1"})), "It says so."]
    path = record(
        tmp_path / "runs.jsonl",
        go(outer(ScriptedModel(script), create_react_agent(ScriptedModel(SCRIPT), slow_tools(), name="bot"))),
    )

    for real in ((), ("ask",)):
        result = replay(path, outer(ScriptedModel([]), new_agent()), backend=name, real=real)
        assert [message.content for message in result.state["messages"]][2:] == ["Refunded.", "It says so."]


def test_real_tools_run_by_choice(recording: Path, name: str) -> None:
    tools = Recorder()
    replay(recording, new_agent([*never("search", "fetch"), tools.tool("refund")]), real=["refund"], backend=name)

    assert tools.order == ["refund(o1)"]


@pytest.mark.exhaustive
def test_a_kill_at_any_event_loses_and_repeats_nothing(recording: Path, name: str) -> None:
    """After the kill, another run goes on with what the thread has."""
    events = replay(recording, new_agent(), backend=name).events
    ends = {
        replay(recording, new_agent(), backend=name, kill_at=event_number).state["messages"][-1].content
        for event_number in range(1, events + 1)
    }

    assert ends == {"Refunded."}


@pytest.mark.exhaustive
def test_a_kill_at_any_event_around_a_question_loses_and_repeats_nothing(tmp_path: Path, name: str) -> None:
    """A run that goes on after the kill may only ask the stored question again, without a request or a call."""
    options: Any = {"middleware": [RequireApproval(["refund"])]}
    node = ToolNode(slow_tools(), **options)
    agent = create_react_agent(ScriptedModel(SCRIPT), node, name="bot", checkpointer=InMemorySaver())
    first = {"messages": [("user", "Refund me.")]}
    path = record(tmp_path / "runs.jsonl", go(agent, first, Command(resume={"type": "accept"})))

    def now() -> Agent:
        return new_agent(of_agent={"checkpointer": InMemorySaver()}, **options)

    count = replay(path, now(), backend=name).events
    ends = [
        replay(path, now(), backend=name, kill_at=event_number).state["messages"]
        for event_number in range(1, count + 1)
    ]

    certain_ends = [messages for messages in ends if "is unknown" not in messages[5].content]
    assert len(ends) - len(certain_ends) < 6  # killed between the beginning and the end of the refund
    assert {messages[-1].content for messages in certain_ends} == {"Refunded."}


def test_a_kill_after_which_a_finished_call_runs_again_is_told(
    recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpointer that stores nothing breaks the promise; without this test, the one above could pass by chance."""
    monkeypatch.setattr(_kills, "_copy", lambda saver: InMemorySaver())

    report = differences(recording, new_agent(), kill_at=15)

    assert "the call call_1 of search had finished, and ran again" in report


def test_a_recording_that_cannot_be_replayed_says_why(tmp_path: Path, recording: Path) -> None:
    agent = create_react_agent(ScriptedModel(["Hi."]), slow_tools(), name="bot")
    plain = record(tmp_path / "plain.jsonl", go(agent), capture=False)
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(recording.read_text().splitlines(keepends=True)[:9]))
    empty = record(tmp_path / "empty.jsonl", anyio.lowlevel.checkpoint)

    with pytest.raises(ValueError, match=r"no arguments, results and replies.*`callboard run --capture`"):
        replay(plain, new_agent())
    with pytest.raises(ValueError, match="ends within a run of the agent 'bot'"):
        replay(cut, new_agent())
    with pytest.raises(ValueError, match="has no run of an agent"):
        replay(empty, new_agent())
    with pytest.raises(ValueError, match="from 1 to 23; got 24"):
        replay(recording, new_agent(), kill_at=24)
    with pytest.raises(TypeError, match="takes an agent of callboard"):
        replay(recording, "bot")  # type: ignore[arg-type]


def test_a_replay_imports_no_module_that_the_recording_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A recording is data, often of somebody else: an import would run any file on the path of the program."""

    options: Any = {"middleware": [Retry(attempts=2, on=Exception, any_tool=True)]}
    tools = [Recorder().tool("flaky", raises=ConnectionError("away"), times=1)]
    agent = create_react_agent(ScriptedModel([calls("flaky"), "Done."]), ToolNode(tools, **options), name="bot")
    path = record(tmp_path / "run.jsonl", go(agent), name)
    text = path.read_text()
    assert '"ConnectionError"' in text
    path.write_text(text.replace('"ConnectionError"', '"deploy_to_production.ConnectionError"'))
    (tmp_path / "deploy_to_production.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(str(tmp_path))

    replay(path, new_agent(never("flaky"), **options), backend=name)
    assert "deploy_to_production" not in sys.modules


def test_results_are_compared_by_choice(recording: Path, name: str) -> None:
    """Results of real tools may depend on the time; those that do not are part of the agent's behaviour."""
    search, fetch = never("search", "fetch")

    def refund(query: str) -> str:
        """Refund."""
        return "x" * 300 + "done"

    replay(recording, new_agent([search, fetch, refund]), real=["refund"], backend=name)
    report = differences(recording, new_agent([search, fetch, refund]), name, real=["refund"], results=True)
    assert 'after model request 2, result of call_3 refund:\n  expected  "done"\n  got       "xxx' in report
    replay(recording, new_agent(), results=True, backend=name)


def test_a_difference_of_long_results_is_shown_where_it_is(tmp_path: Path) -> None:
    def search(query: str) -> str:
        """Search."""
        return "tea " * 200 + word

    word = "hot"
    agent = create_react_agent(ScriptedModel([*SCRIPT[:1], "Done."]), [search, *never("fetch")], name="bot")
    path = tmp_path / "runs.jsonl"
    with RecordingWriter(path, capture=True), fake_tools({"fetch": "a"}, real=["search"]):
        agent.invoke({"messages": [("user", "go")]})
    replay(path, agent, real=["search"], results=True)
    word = "hotter"
    assert 'tea hotter"' in differences(path, agent, real=["search"], results=True)
    word = "cold"
    report = differences(path, agent, real=["search"], results=True)

    assert re.search(r'expected  \.\.\."(\w* )?(tea )+hot"\n  got       \.\.\."(\w* )?(tea )+cold"', report)
