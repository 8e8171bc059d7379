"""`Agent.running()` and `Agent.cancel()`: one call of a run ends, and the run goes on, in the background too."""

from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from callboard import CallPolicy, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from tests.helpers import ending_of, until

from ._savers import AGENTS, AT, QUESTION, agent_with, complaint

pytestmark = pytest.mark.real_clock
WAIT = 30


class Build:
    """Tools whose calls wait until the test lets them go on."""

    def __init__(self) -> None:
        self.open = anyio.Event()
        self.bodies: list[str] = []

    async def build(self, part: str) -> str:
        """Build a part."""
        self.bodies.append(part)
        await self.open.wait()
        return f"built {part}"


def agent_of(make: Any, model: ScriptedModel, build: Build, policy: CallPolicy | None = None) -> Any:
    policies = {} if policy is None else {"build": policy}
    return agent_with(make, model, [build.build], policies, checkpointer=InMemorySaver())


def build_calls(*parts: str) -> Any:
    return calls(*(tool_call("build", part, part=part) for part in parts))


def tool_messages(state: Any) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


@AGENTS
async def test_one_call_ends_and_the_run_goes_on(make: Any) -> None:
    """The model reads why the call has no result, and the thread has the message as its result."""
    build, model = Build(), ScriptedModel([build_calls("roof", "wall"), "done"])
    agent, states = agent_of(make, model, build), list[Any]()

    async def run() -> None:
        states.append(await agent.ainvoke(QUESTION, AT))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: len(build.bodies) == 2)
        listed = [(call.tool, call.call_id, call.thread_id, call.place) for call in agent.running()]
        assert listed == [("build", "roof", "1", "running"), ("build", "wall", "1", "running")]
        assert await agent.cancel("roof", "too long", thread_id="1")
        stored = (await agent.aget_state(AT)).tasks
        assert [call.call_id for call in agent.running()] == ["wall"]
        assert any("too long" in str(task.result) for task in stored)
        build.open.set()
    assert agent.running() == []
    assert await agent.ainvoke(None, AT) == states[0]
    roof, wall = tool_messages(states[0])
    assert (ending_of(roof), wall.text) == ("cancelled", "built wall")
    assert "was cancelled by the application before it had a result: too long" in roof.text
    assert sorted(build.bodies) == ["roof", "wall"]
    assert all(complaint(request) is None for request in model.requests)


@AGENTS
async def test_a_run_that_continues_does_not_run_a_cancelled_call_again(make: Any) -> None:
    """The result is in the journal when `cancel()` returns, even if the run itself ends then."""
    build, model = Build(), ScriptedModel([build_calls("roof", "wall"), "done"])
    agent = agent_of(make, model, build, CallPolicy(on_unknown="rerun"))
    async with anyio.create_task_group() as group:
        group.start_soon(agent.ainvoke, QUESTION, AT)
        await until(lambda: len(build.bodies) == 2)
        assert await agent.cancel("roof", "too long")
        group.cancel_scope.cancel()
    build.open.set()
    state = await agent.ainvoke(None, AT)
    assert [ending_of(message) for message in tool_messages(state)] == ["cancelled", None]
    assert sorted(build.bodies) == ["roof", "wall", "wall"]


@AGENTS
async def test_an_agent_inside_the_call_ends_with_it(make: Any) -> None:
    """The inner agent lists its own calls, and the outer one the call around it."""
    build = Build()
    inner = create_react_agent(ScriptedModel([build_calls("roof"), "built"], loop=True), [build.build])

    async def research(topic: str) -> str:
        """Research."""
        return str((await inner.ainvoke({"messages": [("user", topic)]}))["messages"][-1].text)

    model = ScriptedModel([calls(tool_call("research", "r", topic="tea")), "done"])
    outer, states = make(model, [research]), list[Any]()

    async def run() -> None:
        states.append(await outer.ainvoke(QUESTION))

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await until(lambda: build.bodies)
        assert [call.tool for call in outer.running()] == ["research"]
        assert [call.tool for call in inner.running()] == ["build"]
        assert await outer.cancel("r", "too long")
        assert inner.running() == []
    assert [ending_of(message) for message in tool_messages(states[0])] == ["cancelled"]
    assert states[0]["messages"][-1].text == "done"


@AGENTS
async def test_a_call_in_the_background_is_listed_once_and_cancelled(make: Any) -> None:
    """Its result, a message of its own, says that it was cancelled."""
    build, model = Build(), ScriptedModel([build_calls("roof"), "it is being built", "done"])
    agent = agent_of(make, model, build, CallPolicy(background=True))
    async with agent:
        run = await agent.start(QUESTION, AT)
        await until(lambda: len(model.requests) == 2)
        assert [(call.call_id, call.place) for call in agent.running()] == [("roof", "running")]
        assert agent.tools.statistics().running == 1
        assert await agent.cancel("roof", "too long", thread_id="1")
        state = await run.result()
        assert agent.running() == []
    result = state["messages"][-2]
    assert "was cancelled by the application before it had a result: too long" in result.text
    assert result.additional_kwargs["callboard"]["status"] == "error"


@AGENTS
async def test_a_background_call_in_its_time_in_the_foreground_is_listed_once_and_cancelled(make: Any) -> None:
    """Its batch waits for it, and gets the message at once."""
    build, model = Build(), ScriptedModel([build_calls("roof", "wall"), "done"])
    agent = agent_of(make, model, build, CallPolicy(background=WAIT))
    async with agent:
        run = await agent.start(QUESTION, AT)
        await until(lambda: len(build.bodies) == 2)
        assert sorted(str(call.call_id) for call in agent.running()) == ["roof", "wall"]
        assert await agent.cancel("roof", "too long")
        build.open.set()
        state = await run.result()
    roof, wall = tool_messages(state)
    assert (ending_of(roof), wall.text) == ("cancelled", "built wall")
