"""Claims: the outcome of a call that began and never reported is unknown, and its policy decides what happens."""

import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import langgraph.prebuilt
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from callboard import CallPolicy, Limit, Rate, ToolNode, create_react_agent
from callboard.middleware import Fallback, RequireApproval, Retry
from callboard.testing import Recorder, ScriptedModel, calls
from tests.helpers import UNKNOWN, make

from ._forks import Forks
from ._savers import (
    AT,
    ON_DISK,
    QUESTION,
    SAVERS,
    Recording,
    complaint,
    copy_of,
    saver_of,
    savers_that_tell,
    say,
    scripted,
    shape,
)
from ._unknown_agent import ENTRIES, Case, Life, Log, agent_in

pytestmark = pytest.mark.real_clock

ROOT = Path(__file__).parents[2]
ACCEPT, IGNORE = {"type": "accept"}, {"type": "ignore"}
BEGUN = ("after claim", "in body", "before write")
"""Points at which the journal has only the claim of a call."""


Resumed = Callable[..., Any]


@pytest.fixture(scope="module")
def killed(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    """Return the directory of a case, written by an agent that was killed."""
    directory = tmp_path_factory.mktemp("killed")

    @cache
    def of(case: Case) -> Path:
        (case_directory := directory / str(case)).mkdir()
        forks.begin("agent._unknown_agent", str(case_directory), *astuple(case))
        assert forks.answer() == signal.SIGKILL
        forks.tell()
        return case_directory

    return of


@pytest.fixture
def resumed(killed: Callable[[Case], Path], tmp_path: Path) -> Resumed:
    """Resume a killed case; return the agent and the log of both lives."""

    @asynccontextmanager
    async def resumed(case: Case, policy: str = "ask", **options: Any) -> AsyncGenerator[tuple[Any, Log]]:
        directory = shutil.copytree(killed(case), tmp_path / str(case))
        log = Log(directory / "log")
        async with saver_of(case.saver, directory / "db") as saver:
            yield agent_in(Life(log), saver, case.batch, policy, **options), log

    return resumed


def questions_in(result: Any) -> list[Any]:
    return list(result.get("__interrupt__", ()))


RUNS = [
    *(pytest.param(Case(saver, "before claim"), policy, marks=pytest.mark.exhaustive)
      for saver in ON_DISK for policy in ("ask", "fail", "rerun")),
    (Case("sqlite", "before claim", policy="default"), "default"),
    (Case("sqlite", "before claim", durability="exit"), "ask"),
    *((Case("sqlite", point, policy="rerun"), "rerun") for point in ("in body", "before write")),
]  # fmt: skip
"""Killed before the claim, or where the policy says so, the call runs at the next start of the run."""

KEPT = [
    *((Case(saver, "after write"), policy) for saver in ON_DISK for policy in ("ask", "fail", "rerun")),
    (Case("sqlite", "after write", policy="default"), "default"),
]
"""Promise 10: a stored result is kept under every policy."""

FAILS = [
    *((Case(saver, point), "fail") for saver in ON_DISK for point in BEGUN),
    *((Case("sqlite", point, durability=durability), "fail")
      for point in ("after claim", "in body") for durability in ("sync", "exit")),
    *((Case("sqlite", point, policy="default"), "default") for point in BEGUN),
]  # fmt: skip
"""A claim is stored at once, whatever the durability: a claim that is stored late would not survive the crash."""


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("case", "policy"), RUNS, ids=str)
async def test_killed_before_its_claim_a_call_simply_runs(
    resumed: Resumed, case: Case, policy: str, version: str
) -> None:
    """With durability "exit", a run that was killed before any claim has left nothing and starts again."""
    async with resumed(case, policy, version=version) as (agent, log):
        before = log.lines
        run_input = QUESTION if case.durability == "exit" else None
        result = await agent.ainvoke(run_input, AT, durability=case.durability)
    assert shape(result) == ["human:go", "ai:", "tool:p1 is paid", "ai:done"]
    assert log.lines == [*before, "pay p1"]


@pytest.mark.parametrize(
    ("case", "policy", "tool_text"),
    [*((*variant, "p1 is paid") for variant in KEPT), *((*variant, UNKNOWN) for variant in FAILS)],
    ids=str,
)
async def test_killed_after_its_claim_a_call_does_not_run_again(
    resumed: Resumed, case: Case, policy: str, tool_text: str
) -> None:
    async with resumed(case, policy) as (agent, log):
        before = log.lines
        first = await agent.ainvoke(None, AT, durability=case.durability)
        result = await agent.ainvoke(say("and now?"), AT, durability=case.durability)

    tool_messages = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    status = "error" if tool_text == UNKNOWN else "success"
    assert shape(first) == ["human:go", "ai:", f"tool:{tool_text}", "ai:done"]
    assert [(message.tool_call_id, message.status, message.content) for message in tool_messages] == [
        ("p1", status, tool_text)
    ]
    assert log.lines == before


@pytest.mark.parametrize("point", BEGUN)
@pytest.mark.parametrize("saver", ON_DISK)
async def test_one_that_was_begun_is_asked_about_and_accepted(resumed: Resumed, saver: str, point: str) -> None:
    async with resumed(Case(saver, point)) as (agent, log):
        before = log.lines
        interrupted_state = await agent.ainvoke(None, AT)
        assert log.lines == before
        result = await agent.ainvoke(Command(resume=ACCEPT), AT)

    (question,) = questions_in(interrupted_state)
    assert question.value[0]["action_request"] == {"action": "pay", "args": {"name": "p1"}}
    assert shape(result) == ["human:go", "ai:", "tool:p1 is paid", "ai:done"]
    assert log.lines == [*before, "pay p1"]


@pytest.mark.parametrize(
    ("answer", "tool_text", "status"),
    [
        ({"type": "response", "args": "it was paid"}, "it was paid", "success"),
        ([{"type": "response", "args": "it was paid"}], "it was paid", "success"),
        (IGNORE, UNKNOWN, "error"),
        ([IGNORE], UNKNOWN, "error"),
    ],
    ids=repr,
)
async def test_a_person_may_answer_in_its_place(resumed: Resumed, answer: Any, tool_text: str, status: str) -> None:
    async with resumed(Case("sqlite", "in body")) as (agent, log):
        await agent.ainvoke(None, AT)
        result = await agent.ainvoke(Command(resume=answer), AT)
    assert shape(result) == ["human:go", "ai:", f"tool:{tool_text}", "ai:done"]
    assert result["messages"][2].status == status
    assert log.lines == ["pay p1"]


@pytest.mark.parametrize("answer", ["yes", {"type": "edit"}, {"type": "approve"}, [], [ACCEPT, ACCEPT], 1, {"args": 1}])
async def test_an_invalid_answer_is_refused_and_the_question_stays(resumed: Resumed, answer: Any) -> None:
    async with resumed(Case("sqlite", "in body")) as (agent, log):
        (question,) = questions_in(await agent.ainvoke(None, AT))
        with pytest.raises(ValueError, match="'type': 'accept'"):
            await agent.ainvoke(Command(resume={question.id: answer}), AT)
        state = await agent.aget_state(AT)
        assert log.lines == ["pay p1"]
        result = await agent.ainvoke(Command(resume=ACCEPT), AT)
    assert state.interrupts == (question,)
    assert shape(result)[2:] == ["tool:p1 is paid", "ai:done"]


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("saver", ON_DISK)
async def test_several_at_once_beside_finished_and_interrupted_ones(resumed: Resumed, saver: str, version: str) -> None:
    async with resumed(Case(saver, "in body", "many"), version=version) as (agent, log):
        before = log.lines
        interrupted_state = await agent.ainvoke(None, AT)
        assert log.lines == [*before, "safe s1"]
        about = {q.value if isinstance(q.value, str) else q.value[0]["action_request"]["args"]["name"]: q.id
                 for q in questions_in(interrupted_state)}  # fmt: skip
        partly = await agent.ainvoke(Command(resume={about["p2"]: {"type": "response", "args": "by hand"}}), AT)
        with pytest.raises(ValueError, match="'p1'"):
            await agent.ainvoke(Command(resume={about["p1"]: "what?", about["may I?"]: "yes"}), AT)
        result = await agent.ainvoke(Command(resume={about["may I?"]: "yes", about["p1"]: ACCEPT}), AT)
    assert sorted(about) == ["may I?", "p1", "p2"]
    assert len(set(about.values())) == 3
    assert {question.id for question in questions_in(partly)} == {about["p1"], about["may I?"]}
    expected = ["tool:a1 is done", "tool:p1 is paid", "tool:q1: yes", "tool:by hand", "tool:s1 is safe", "ai:done"]
    assert shape(result) == ["human:go", "ai:", *expected]
    assert complaint(result["messages"]) is None
    assert log.lines == [*before, "safe s1", "pay p1"]


async def test_a_new_message_instead_of_an_answer_leaves_the_body_alone(resumed: Resumed) -> None:
    async with resumed(Case("sqlite", "in body")) as (agent, log):
        await agent.ainvoke(None, AT)
        result = await agent.ainvoke(say("never mind"), AT)

    tool = result["messages"][2]
    assert complaint(result["messages"]) is None
    assert tool.status == "error"
    assert "whether it had any effect is unknown" in tool.content
    assert log.lines == ["pay p1"]


async def test_killed_after_its_answer_a_call_is_unknown_like_any_other(resumed: Resumed) -> None:
    """An answer given earlier is used up: a second "yes", or one delivered twice, permits no second payment."""
    async with resumed(Case("sqlite", "in body", "asking")) as (agent, log):
        stored = agent.checkpointer.get_tuple(AT).pending_writes
        entries = [entry for _, channel, value in stored if channel == ENTRIES for entry in value]
        own_question_ids = [entry["records"]["c1"]["pending"][0].id for entry in entries if entry["kind"] == "asked"]
        interrupted_state = await agent.ainvoke(None, AT)
        (question,) = questions_in(interrupted_state)
        first = await agent.ainvoke(Command(resume=ACCEPT), AT)
        result = await agent.ainvoke(Command(resume="yes"), AT)
    assert own_question_ids
    assert question.id not in own_question_ids
    assert question.value[0]["action_request"]["action"] == "careful"
    assert [earlier_question.value for earlier_question in questions_in(first)] == ["may I pay?"]
    assert shape(result)[2:] == ["tool:c1: yes", "ai:done"]
    assert log.lines == ["careful c1", "careful c1"]


def node_of(*tools: Any, policy: Any = "ask", **options: Any) -> ToolNode:
    """A node whose tools may each run only once."""
    names = [getattr(tool, "name", None) or tool.__name__ for tool in tools]
    return ToolNode(list(tools), policies={name: CallPolicy(on_unknown=policy) for name in names}, **options)


@pytest.mark.parametrize(
    "policy",
    [CallPolicy(on_unknown="rerun"), CallPolicy(idempotent=True), CallPolicy(on_unknown="ask", idempotent=True)],
    ids=["rerun", "idempotent", "idempotent, ask"],
)
async def test_what_may_run_twice_is_not_claimed(policy: CallPolicy) -> None:
    """Repeatable calls write no claim, and claims of other calls are stored with the reply, in the same write."""

    async def writes(node: Any) -> tuple[int, list[str]]:
        saver = Recording()
        agent = scripted([calls("work", "work"), "done"], node, checkpointer=saver)
        await agent.ainvoke(QUESTION, AT)
        return saver.batches, saver.kinds

    tool = Recorder().tool("work")
    plain = await writes([tool])
    repeatable = await writes(ToolNode([tool], policies={"work": policy}))
    assert repeatable[0] == plain[0]
    assert plain[1].count("claim") == 2
    assert "claim" not in repeatable[1]


@pytest.mark.parametrize("kind", ON_DISK)
async def test_the_claims_of_a_batch_share_their_writes(kind: str, tmp_path: Path) -> None:
    """A hundred calls that start together need only a few writes."""
    kinds: list[list[str]] = []

    def count(event: str, value: Any) -> None:
        if event == "before write":
            kinds.append([entry["kind"] for channel, entries in value if channel == ENTRIES for entry in entries])

    recorder = Recorder()
    model = ScriptedModel([calls(*["pay"] * 100), "done"])
    async with saver_of(kind, tmp_path / "db", **savers_that_tell(count)) as saver:
        agent = create_react_agent(model, node_of(recorder.tool("pay", seconds=1.0)), checkpointer=saver)
        await agent.ainvoke(QUESTION, AT)
    assert [kinds_of_write.count("claim") for kinds_of_write in kinds if "claim" in kinds_of_write] == [100]
    # How many results share a write depends on how fast the disk is: one write for each would be a hundred more.
    assert len(kinds) <= 30
    assert recorder.peak == 100


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("policy", ["ask", "fail"])
async def test_a_call_that_asked_is_interrupted_and_not_unknown(kind: str, policy: str, tmp_path: Path) -> None:
    runs = list[str]()

    async def careful(query: str = "") -> str:
        """Ask twice, then pay."""
        answers = [interrupt("may I?"), interrupt("really?")]
        runs.append("paid")
        return "-".join(answers)

    async with saver_of(kind, tmp_path / "db") as saver:

        def agent() -> Any:
            script = ScriptedModel([lambda messages: calls("careful") if len(messages) == 1 else "done"], loop=True)
            return create_react_agent(script, node_of(careful, policy=policy), checkpointer=saver)

        first = await agent().ainvoke(QUESTION, AT)
        first_repeated = await agent().ainvoke(None, AT)
        second = await agent().ainvoke(Command(resume="yes"), AT)
        second_repeated = await agent().ainvoke(None, AT)
        result = await agent().ainvoke(Command(resume="really"), AT)

    question_values = [
        [question.value for question in questions_in(state)]
        for state in (first, first_repeated, second, second_repeated)
    ]
    assert question_values == [["may I?"], ["may I?"], ["really?"], ["really?"]]
    assert shape(result)[2:] == ["tool:yes-really", "ai:done"]
    assert runs == ["paid"]


REPLACED: dict[str, Callable[[], Any]] = {
    "by a fallback": lambda: Fallback({"find": "pay"}),
    "by a person": lambda: RequireApproval(["find"], other_tools=True),
}


@pytest.mark.parametrize("on_unknown", [None, "ask"])
@pytest.mark.parametrize("replaced", REPLACED)
async def test_the_policy_of_the_tool_that_began_decides_and_not_that_of_the_called_one(
    replaced: str, on_unknown: Any
) -> None:
    """A search may run again after a kill; the payment that ran in its place must not."""
    saver, paid, copies = InMemorySaver(), list[str](), list[InMemorySaver]()

    async def find() -> str:
        """Find."""
        raise ConnectionError("away")

    async def pay() -> str:
        """Pay."""
        paid.append("once")
        copies.append(copy_of(saver))
        return "paid"

    def agent_on(saver: InMemorySaver) -> Any:
        policies = {"find": CallPolicy(idempotent=True), "pay": CallPolicy(on_unknown=on_unknown)}
        node = ToolNode([make(find), make(pay)], middleware=[REPLACED[replaced]()], policies=policies)
        return scripted(
            [lambda messages: calls("find") if len(messages) == 1 else "end"], node, loop=True, checkpointer=saver
        )

    result = await agent_on(saver).ainvoke(QUESTION, AT)
    for question in questions_in(result):
        edit = {"type": "edit", "args": {"action": "pay", "args": {}}}
        await agent_on(saver).ainvoke(Command(resume={question.id: edit}), AT)
    resumed = await agent_on(copies[0]).ainvoke(None, AT)

    assert paid == ["once"]
    if on_unknown is None:
        assert shape(resumed)[2:] == [f"tool:{UNKNOWN}", "ai:end"]
    else:
        [question] = questions_in(resumed)
        assert question.value[0]["action_request"]["action"] == "pay"


@pytest.mark.parametrize("handles", [True, False])
async def test_an_error_in_the_body_is_an_outcome(handles: bool) -> None:
    recorder = Recorder()
    tool = recorder.tool("pay", raises=ConnectionError("lost"), times=1)
    node = node_of(tool, handle_tool_errors=handles)
    agent = scripted([calls("pay"), "done"], node, checkpointer=InMemorySaver())
    if handles:
        result = await agent.ainvoke(QUESTION, AT)
    else:
        with pytest.raises(ConnectionError, match="lost"):
            await agent.ainvoke(QUESTION, AT)
        result = await agent.ainvoke(None, AT)
    assert not questions_in(result)
    assert ("lost" in result["messages"][2].content) == handles
    assert recorder.count("started") == (1 if handles else 2)


async def test_a_retry_within_the_call_is_no_second_call() -> None:
    """The middleware knows how each attempt ended, so the retry needs no new claim."""
    recorder, saver = Recorder(), Recording()
    tool = recorder.tool("pay", raises=ConnectionError("lost"), times=2)
    node = node_of(tool, middleware=[Retry(attempts=3, initial=0.001, any_tool=True)])
    agent = scripted([calls("pay"), "done"], node, checkpointer=saver)
    result = await agent.ainvoke(QUESTION, AT)
    assert not questions_in(result)
    assert result["messages"][-1].content == "done"
    assert recorder.count("started") == 3
    assert saver.kinds.count("claim") <= 3


async def test_a_body_that_a_failing_neighbour_cancelled_is_unknown() -> None:
    recorder = Recorder()
    failed: list[bool] = []

    async def boom(query: str = "") -> str:
        """Fail, once."""
        if not failed:
            await recorder.wait_for("started", tool="pay")
            failed.append(True)
            raise ValueError("boom")
        return "fine"

    once = CallPolicy(on_unknown="ask", limit=Limit(concurrency=1))
    pay = recorder.tool("pay", seconds=lambda query: 60 if recorder.count("started", "pay") == 1 else 0)
    node = ToolNode([pay, boom], policies={"pay": once}, grace=0.1)
    batch = calls(("pay", {"query": "a"}), ("pay", {"query": "b"}), "boom")
    agent = scripted([batch, "done"], node, checkpointer=InMemorySaver())
    with pytest.raises(ValueError, match="boom"):
        await agent.ainvoke(QUESTION, AT)
    interrupted_state = await agent.ainvoke(None, AT)
    result = await agent.ainvoke(Command(resume={"type": "response", "args": "a, by hand"}), AT)

    (question,) = questions_in(interrupted_state)
    assert question.value[0]["action_request"]["args"] == {"query": "a"}
    assert shape(result)[2:] == ["tool:a, by hand", "tool:b", "tool:fine", "ai:done"]
    assert recorder.order == ["pay(a)", "pay(b)"]


async def test_a_claim_that_cannot_be_stored_keeps_the_body_from_running() -> None:
    recorder, saver = Recorder(), Recording(fails_at="claim")
    agent = scripted([calls("pay"), "done"], node_of(recorder.tool("pay")), checkpointer=saver)
    with pytest.raises(OSError, match="the disk is full"):
        await agent.ainvoke(QUESTION, AT)
    assert recorder.count("started") == 0
    result = await agent.ainvoke(None, AT)
    assert shape(result)[2:] == ["tool:pay", "ai:done"]
    assert recorder.count("started") == 1


# After a crash, a body with an unknown outcome runs again only if it is marked as safe to repeat.


SAFE: Any = {"idempotent": True}


class Work:
    """Tools that record their starts; the process is killed after a number of them."""

    def __init__(self, killed_at: int = 0) -> None:
        self.begun: list[str] = []
        self.saver = Recording()
        self.saver_at_kill: InMemorySaver | None = None
        self._killed_at = killed_at

    async def work(self, query: str = "") -> str:
        """Work."""
        self.begun.append(query)
        if len(self.begun) == self._killed_at:
            self.saver_at_kill = copy_of(self.saver)
        return f"did {query}"

    def tool(self, **options: Any) -> BaseTool:
        return StructuredTool.from_function(coroutine=self.work, name="work", **options)


def batch(*queries: str) -> Any:
    return calls(*(("work", {"query": query}) for query in queries))


def tool_texts(result: Any) -> list[str]:
    return [message.text for message in result["messages"] if isinstance(message, ToolMessage)]


async def rerun_after_kill(
    tools: Callable[[Work], Any], *queries: str, killed_at: int = 1, **options: Any
) -> tuple[Any, Work]:
    """Resume a run whose process was killed as a body began; return the results, and the executions afterwards."""
    before, after = Work(killed_at), Work()
    model = ScriptedModel([batch(*queries), "done"])
    await create_react_agent(model, tools(before), checkpointer=before.saver, **options).ainvoke(QUESTION, AT)
    agent = scripted(["done"], tools(after), checkpointer=before.saver_at_kill, **options)
    return tool_texts(await agent.ainvoke(None, AT)), after


REPEATED: dict[str, tuple[Callable[[Work], Any], dict[str, Any]]] = {
    "policy": (lambda work: ToolNode([work.tool()], policies={"work": CallPolicy(idempotent=True)}), {}),
    "metadata": (lambda work: [work.tool(metadata=SAFE)], {}),
    "node": (lambda work: ToolNode([work.tool()], on_unknown="rerun"), {}),
    "rerun": (lambda work: ToolNode([work.tool()], policies={"work": CallPolicy(on_unknown="rerun")}), {}),
    "metadata and policy": (
        lambda work: ToolNode([work.tool(metadata=SAFE)], policies={"work": CallPolicy(timeout=9)}),
        {},
    ),
    "agent of LangGraph's node": (lambda work: langgraph.prebuilt.ToolNode([work.tool()]), {"on_unknown": "rerun"}),
    "agent": (lambda work: [work.tool()], {"on_unknown": "rerun"}),
}


@pytest.mark.parametrize("said_by", REPEATED)
async def test_what_is_said_to_be_safe_to_repeat_runs_again_after_a_kill(said_by: str) -> None:
    """The mark may be in the tool's policy or metadata, or in an option of node or agent for LangGraph's behaviour."""
    tools, options = REPEATED[said_by]
    texts, after = await rerun_after_kill(tools, "a", **options)
    assert texts == ["did a"]
    assert after.begun == ["a"]


@pytest.mark.parametrize(
    "tools",
    [
        lambda work: [work.tool()],
        lambda work: [work.tool(metadata={"idempotent": False, "other": 1})],
        lambda work: ToolNode([work.tool(metadata=SAFE)], policies={"work": CallPolicy(idempotent=False)}),
        lambda work: ToolNode([work.tool()], on_unknown="rerun", policies={"work": CallPolicy(on_unknown="fail")}),
    ],
    ids=["nothing said", "said not to be", "policy against metadata", "policy against node"],
)
async def test_anything_else_is_told_as_unknown_and_does_not_run(tools: Any) -> None:
    """A policy has precedence over the options of tool and node."""
    texts, after = await rerun_after_kill(tools, "a")
    assert texts == [UNKNOWN]
    assert after.begun == []


def test_the_option_belongs_to_the_node_where_one_is_given() -> None:
    """Values of this option, and of a tool's mark, are checked."""
    model = ScriptedModel(["done"])
    with pytest.raises(ValueError, match=r"on_unknown=\.\.\.\) belongs to the node"):
        create_react_agent(model, ToolNode([Work().tool()]), on_unknown="rerun")
    with pytest.raises(ValueError, match=r"ToolNode\(on_unknown=\.\.\.\) is one of .*, got 'again'"):
        create_react_agent(model, [Work().tool()], on_unknown="again")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"metadata\['idempotent'\] of the tool 'work' is True or False, got 'yes'"):
        ToolNode([Work().tool(metadata={"idempotent": "yes"})])


@pytest.mark.parametrize("limit", [Limit(concurrency=1), Limit(rate=Rate(1, per=0.01))], ids=["places", "rate"])
async def test_calls_that_waited_for_a_place_when_the_process_was_killed_have_not_begun(limit: Limit) -> None:
    texts, after = await rerun_after_kill(lambda work: ToolNode([work.tool()], limit=limit), "a", "b", "c")
    assert texts == [UNKNOWN, "did b", "did c"]
    assert after.begun == ["b", "c"]


async def test_a_run_that_ends_in_order_leaves_nothing_unknown_that_had_not_begun() -> None:
    """The claim is stored with the reply and withdrawn at an orderly end; only a killed process leaves it."""
    work, at_work = Work(), anyio.Event()

    async def hold(request: Any, execute: Any) -> Any:
        at_work.set()
        await anyio.sleep_forever()

    async def cancel_in_work(agent: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(agent.ainvoke, QUESTION, AT)
            await at_work.wait()
            group.cancel_scope.cancel()

    model = ScriptedModel([batch("a"), "done"])
    node = ToolNode([work.tool()], awrap_tool_call=hold)
    await cancel_in_work(create_react_agent(model, node, checkpointer=work.saver))
    result = await create_react_agent(model, [work.tool()], checkpointer=work.saver).ainvoke(None, AT)
    assert tool_texts(result) == ["did a"]


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_ten_turns_of_one_call_need_no_commit_for_their_claims(durability: Any) -> None:
    """As many as for calls that may run twice: two a turn, and four if each result is stored before it is seen."""
    commits = []
    for on_unknown in (None, "rerun"):
        work = Work()
        model = ScriptedModel([*[batch("a")] * 10, "done"])
        agent = create_react_agent(model, [work.tool()], checkpointer=work.saver, on_unknown=on_unknown)  # type: ignore[arg-type]
        await agent.ainvoke(QUESTION, AT, durability=durability)
        commits.append(work.saver.commits)
    assert commits == ([45, 45] if durability == "sync" else [24, 24])


async def test_results_of_calls_that_end_together_share_a_commit() -> None:
    """Ten calls of a reply that end in one turn of the event loop need no more commits than one call."""
    work = Work()
    model = ScriptedModel([*[batch(*"abcdefghij")] * 10, "done"])
    await create_react_agent(model, [work.tool()], checkpointer=work.saver).ainvoke(QUESTION, AT)
    assert work.saver.commits == 24


async def test_with_durability_exit_nothing_is_claimed_unless_a_policy_says_so() -> None:
    """As in LangGraph, a killed run with durability "exit" leaves nothing."""
    commits = []
    for policy in (CallPolicy(), CallPolicy(on_unknown="rerun"), CallPolicy(on_unknown="fail")):
        work = Work()
        node = ToolNode([work.tool()], policies={"work": policy})
        agent = scripted([batch("a"), "done"], node, checkpointer=work.saver)
        await agent.ainvoke(QUESTION, AT, durability="exit")
        commits.append(work.saver.commits)
    assert commits[0] == commits[1] < commits[2]


@pytest.mark.parametrize("factory", ["create_react_agent", "create_agent"])
@pytest.mark.parametrize(("backend", "presses"), [("trio", 1), ("asyncio", 1), ("asyncio", 2)])
def test_a_call_that_ctrl_c_interrupts_does_not_run_again(
    tmp_path: Path, backend: str, presses: int, factory: str
) -> None:
    """Ctrl-C is no error of the tool: its body may have had its effect, and only an error of its own clears a claim."""

    def start() -> str:
        command = [sys.executable, "-m", "tests.agent._interrupted_agent", tmp_path, backend, factory, str(presses)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=True).stdout

    assert start() == "interrupted\n"
    assert "whether it had any effect is unknown" in start()
    assert (tmp_path / "charged").read_text() == "8\n"
