"""After a crash, a body with an unknown outcome runs again only if it is marked as safe to repeat."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import anyio
import langgraph.prebuilt
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, StructuredTool
from langgraph.checkpoint.memory import InMemorySaver

from callboard import CallPolicy, Limit, Rate, ToolNode, create_react_agent
from callboard.middleware import Retry
from callboard.testing import Recorder, ScriptedModel, calls
from callboard.tools._errors import UNKNOWN

pytestmark = pytest.mark.real_clock

WAIT = 20
AT: Any = {"configurable": {"thread_id": "t"}}
GO: Any = {"messages": [("user", "go")]}
SAFE: Any = {"idempotent": True}


class Counting(InMemorySaver):
    """A saver that counts its commits, and can be copied as a killed process leaves it."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0

    def put(self, *args: Any, **options: Any) -> Any:
        self.commits += 1
        return super().put(*args, **options)

    def put_writes(self, *args: Any, **options: Any) -> None:
        self.commits += 1
        super().put_writes(*args, **options)

    def left(self) -> InMemorySaver:
        """Return a saver with the data that is stored now."""
        found = InMemorySaver()
        for name in ("storage", "writes", "blobs"):
            part = {key: deepcopy(value) for key, value in getattr(self, name).items()}
            getattr(found, name).update(part)
        return found


class Work:
    """Tools that record their starts; the process is killed after a number of them."""

    def __init__(self, killed_at: int = 0) -> None:
        self.begun: list[str] = []
        self.saver = Counting()
        self.left: InMemorySaver | None = None
        self._killed_at = killed_at

    async def work(self, query: str = "") -> str:
        """Work."""
        self.begun.append(query)
        if len(self.begun) == self._killed_at:
            self.left = self.saver.left()
        return f"did {query}"

    def tool(self, **options: Any) -> BaseTool:
        return StructuredTool.from_function(coroutine=self.work, name="work", **options)


def batch(*queries: str) -> Any:
    return calls(*(("work", {"query": query}) for query in queries))


def told(result: Any) -> list[str]:
    return [message.text for message in result["messages"] if isinstance(message, ToolMessage)]


async def resumed(tools: Callable[[Work], Any], *queries: str, killed_at: int = 1, **options: Any) -> tuple[Any, Work]:
    """Resume a run whose process was killed as a body began; return the results, and the executions afterwards."""
    before, after = Work(killed_at), Work()
    with anyio.fail_after(WAIT):
        model = ScriptedModel([batch(*queries), "done"])
        await create_react_agent(model, tools(before), checkpointer=before.saver, **options).ainvoke(GO, AT)
        agent = create_react_agent(ScriptedModel(["done"]), tools(after), checkpointer=before.left, **options)
        return told(await agent.ainvoke(None, AT)), after


@pytest.mark.parametrize(
    "tools",
    [
        lambda work: ToolNode([work.tool()], policies={"work": CallPolicy(idempotent=True)}),
        lambda work: [work.tool(metadata=SAFE)],
        lambda work: ToolNode([work.tool()], on_unknown="rerun"),
        lambda work: ToolNode([work.tool()], policies={"work": CallPolicy(on_unknown="rerun")}),
        lambda work: ToolNode([work.tool(metadata=SAFE)], policies={"work": CallPolicy(timeout=9)}),
    ],
    ids=["policy", "metadata", "node", "rerun", "metadata and policy"],
)
async def test_what_is_said_to_be_safe_to_repeat_runs_again_after_a_kill(tools: Any) -> None:
    """The mark may be in the tool's policy or metadata, or in the node's option for LangGraph's behaviour."""
    found, after = await resumed(tools, "a")
    assert found == ["did a"]
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
    found, after = await resumed(tools, "a")
    assert found == [UNKNOWN]
    assert after.begun == []


async def test_one_option_of_the_agent_lets_everything_run_again() -> None:
    """The option restores LangGraph's behaviour, also for a node of LangGraph."""
    found, after = await resumed(lambda work: [work.tool()], "a", on_unknown="rerun")
    assert (found, after.begun) == (["did a"], ["a"])
    found, after = await resumed(lambda work: langgraph.prebuilt.ToolNode([work.tool()]), "a", on_unknown="rerun")
    assert (found, after.begun) == (["did a"], ["a"])


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
    """Waiting calls run; only the call that had begun has an unknown outcome."""
    found, after = await resumed(lambda work: ToolNode([work.tool()], limit=limit), "a", "b", "c")
    assert found == [UNKNOWN, "did b", "did c"]
    assert after.begun == ["b", "c"]


async def test_a_run_that_ends_in_order_leaves_nothing_unknown_that_had_not_begun() -> None:
    """The claim is stored with the reply and withdrawn at an orderly end; only a killed process leaves it."""
    work, at_work = Work(), anyio.Event()

    async def hold(request: Any, execute: Any) -> Any:
        at_work.set()
        await anyio.sleep_forever()

    async def cancelled(agent: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(agent.ainvoke, GO, AT)
            await at_work.wait()
            group.cancel_scope.cancel()

    model = ScriptedModel([batch("a"), "done"])
    with anyio.fail_after(WAIT):
        node = ToolNode([work.tool()], awrap_tool_call=hold)
        await cancelled(create_react_agent(model, node, checkpointer=work.saver))
        result = await create_react_agent(model, [work.tool()], checkpointer=work.saver).ainvoke(None, AT)
    assert told(result) == ["did a"]


@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_fifty_turns_of_one_call_need_no_commit_for_their_claims(durability: Any) -> None:
    """A turn has four commits, as many as for calls that may run twice."""
    commits = []
    config: Any = {**AT, "recursion_limit": 1000}
    for on_unknown in (None, "rerun"):
        work = Work()
        model = ScriptedModel([*[batch("a")] * 50, "done"])
        agent = create_react_agent(model, [work.tool()], checkpointer=work.saver, on_unknown=on_unknown)  # type: ignore[arg-type]
        with anyio.fail_after(60):
            await agent.ainvoke(GO, config, durability=durability)
        commits.append(work.saver.commits)
    assert commits == [206, 206]


async def test_with_durability_exit_nothing_is_claimed_unless_a_policy_says_so() -> None:
    """As in LangGraph, a killed run with durability "exit" leaves nothing."""
    commits = []
    for policy in (CallPolicy(), CallPolicy(on_unknown="rerun"), CallPolicy(on_unknown="fail")):
        work = Work()
        node = ToolNode([work.tool()], policies={"work": policy})
        agent = create_react_agent(ScriptedModel([batch("a"), "done"]), node, checkpointer=work.saver)
        with anyio.fail_after(WAIT):
            await agent.ainvoke(GO, AT, durability="exit")
        commits.append(work.saver.commits)
    assert commits[0] == commits[1] < commits[2]


async def test_a_retry_believes_what_a_tool_says_of_itself() -> None:
    """Retry uses the same information as the journal when it decides whether a call may run twice."""
    recorder = Recorder()
    tool = recorder.tool("work", raises=ConnectionError("lost"), times=1)
    tool.metadata = SAFE
    node = ToolNode([tool], middleware=[Retry(2, initial=0.001)])
    with anyio.fail_after(WAIT):
        found = await node.ainvoke({"messages": [calls("work")]})
    assert found["messages"][0].status == "success"
    assert recorder.count("started") == 2
