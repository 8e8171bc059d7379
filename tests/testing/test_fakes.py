"""`fake_tools`: everything about a call is real, except the function of its tool."""

from typing import Annotated, Any

import anyio
import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.prebuilt import InjectedState

from callboard import Actor, CallPolicy, ToolNode, create_react_agent, handler
from callboard.middleware import Retry
from callboard.testing import Recorder, ScriptedModel, UnfakedToolError, calls, fake_tools
from tests.engines._fake import FakeEngine


def _never(*_: object) -> Any:
    raise AssertionError("the real tool ran")


def search(query: str, limit: int = 3) -> str:
    """Search."""
    return _never(query, limit)


@tool(response_format="content_and_artifact")
def chart(name: str) -> tuple[str, object]:
    """Draw."""
    return _never(name)


@tool
def owner(item: str, state: Annotated[dict[str, Any], InjectedState]) -> str:
    """Say whose it is."""
    return _never(item, state)


class Foreign(BaseTool):
    """Tool with an `ainvoke` of its own."""

    name: str = "foreign"
    description: str = "A tool."

    async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        return _never(input, config, kwargs)

    def _run(self, text: str) -> str:
        return _never(text)


async def results(node: ToolNode, *requests: Any, **state: Any) -> list[Any]:
    with anyio.fail_after(1000):
        output = await node.ainvoke({"messages": [calls(*requests)], **state})
    return [message.content for message in output["messages"]]


async def test_values_functions_and_exceptions_take_the_place_of_a_tools_function() -> None:
    """A function gets the validated arguments, with defaults, and injected ones only if it names them."""
    node = ToolNode([search, chart, owner, Foreign()], handle_tool_errors=True)

    async def fake_search(query: str, limit: int) -> str:
        await anyio.sleep(1)
        return f"{query} {limit}"

    fakes = {
        "search": fake_search,
        "chart": "a picture",
        "own*": lambda item, state: f"{item} of {state['user']}",
        "foreign": ConnectionError("away"),
    }
    with fake_tools(fakes) as faked:
        contents = await results(
            node,
            ("search", {"query": "tea"}),
            ("chart", {"name": "a"}),
            ("owner", {"item": "cup"}),
            ("foreign", {"text": "hi"}),
            user="ann",
        )

    assert contents[:3] == ["tea 3", "a picture", "cup of ann"]
    assert "away" in contents[3]
    assert {call.tool: (call.args, call.id) for call in faked.calls} == {
        "search": ({"query": "tea", "limit": 3}, "call_1"),
        "chart": ({"name": "a"}, "call_2"),
        "owner": ({"item": "cup"}, "call_3"),
        "foreign": ({"text": "hi"}, "call_4"),
    }


async def test_schemas_policies_and_middleware_stay() -> None:
    """A fake must not hide that the model's arguments are wrong, or that a timeout is too short."""
    node = ToolNode(
        [search],
        policies={"search": CallPolicy(timeout=2)},
        middleware=[Retry(attempts=2, on=ConnectionError, any_tool=True)],
    )
    answers = iter([ConnectionError("away"), None])

    async def flaky(query: str, limit: int) -> str:
        if error := next(answers):
            raise error
        return query

    with fake_tools({"search": flaky}) as faked:
        assert await results(node, ("search", {"query": "tea"})) == ["tea"]
        assert len(faked.calls) == 2
        assert "query: Field required" in (await results(node, ("search", {"text": "tea"})))[0]
    with fake_tools({"search": lambda query, limit: anyio.sleep(5)}):
        assert "did not finish within its timeout" in (await results(node, ("search", {"query": "tea"})))[0]


async def test_a_tool_on_an_engine_does_not_reach_the_engine() -> None:
    engine = FakeEngine()
    node = ToolNode([search], policies={"search": CallPolicy(runs_in=engine)})

    async with engine:
        with fake_tools({"*": "42"}):
            assert await results(node, ("search", {"query": "tea"})) == ["42"]
    assert engine.bodies == []


class Browser(Actor):
    """Browser."""

    @handler
    def goto(self, url: str) -> str:
        """Open a page."""
        return _never(url)


async def test_the_handlers_of_an_actor_are_faked_by_the_names_of_their_tools() -> None:
    with fake_tools({"goto": "a page"}):
        assert await results(ToolNode([Browser()]), ("goto", {"url": "x"})) == ["a page"]


async def test_other_tools_are_refused_or_run_if_they_are_named() -> None:
    """The error is raised again at the end of the block: a node makes messages of errors."""
    node = ToolNode([search, Recorder().tool("work")], handle_tool_errors=True)

    with fake_tools({"search": "42"}, real=["w*"]):
        assert await results(node, ("work", {"query": "hi"}), ("search", {"query": "tea"})) == ["hi", "42"]
    with pytest.raises(UnfakedToolError, match=r"'work' has no fake \('search'\): add fake_tools\(\{'work': ...\}\)"):
        with fake_tools({"search": "42"}):
            await results(node, "work")
    assert await results(node, ("work", {"query": "hi"})) == ["hi"], "it runs again after the block"


async def test_inner_fakes_come_first() -> None:
    node = ToolNode([search, chart])

    with fake_tools({"*": "outer"}), fake_tools({"search": "inner"}):
        assert await results(node, ("search", {"query": "tea"}), ("chart", {"name": "a"})) == ["inner", "outer"]


def test_an_agent_that_sync_code_runs_uses_fakes() -> None:
    model = ScriptedModel([calls(("search", {"query": "tea"})), "Done."])
    with fake_tools({"search": "42"}):
        state = create_react_agent(model, [search]).invoke({"messages": [("user", "go")]})
    assert state["messages"][-2].content == "42"


def test_a_single_name_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match=r"write \['search'\]"), fake_tools({}, real="search"):
        pass


# LangChain's own agent, which runs on asyncio only, and starts threads.


@pytest.fixture(params=["ainvoke", "invoke"])
def door(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def state_of(door: str, *requests: Any, tools: Any = None) -> Any:
    """Return the messages of tools of LangChain's agent with `Supervise`, and its state."""
    from langchain.agents import create_agent

    from callboard.middleware import Supervise

    supervise = Supervise(policies={"search": CallPolicy(timeout=0.5)}, missing="ignore")
    tools = [search, chart, owner, Foreign()] if tools is None else tools
    agent: Any = create_agent(ScriptedModel([calls(*requests), "Done."]), tools, middleware=[supervise])
    agent_input = {"messages": [("user", "go")]}
    with anyio.fail_after(60):
        return await (
            agent.ainvoke(agent_input) if door == "ainvoke" else anyio.to_thread.run_sync(agent.invoke, agent_input)
        )


def contents_of(state: Any) -> list[Any]:
    return [message.content for message in state["messages"] if message.type == "tool"]


@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_supervise_in_langchains_agent_uses_fakes(door: str) -> None:
    """A sync tool, a tool with an artifact, one with an injected argument, and one with an `ainvoke` of its own."""

    async def fake_search(query: str, limit: int) -> str:
        await anyio.sleep(0)
        return f"{limit} of {query}"

    requests = [
        ("search", {"query": "tea"}),
        ("chart", {"name": "a"}),
        ("owner", {"item": "x"}),
        ("foreign", {"text": "t"}),
    ]
    with fake_tools(
        {"search": fake_search, "chart": "chart a", "owner": lambda item: f"{item}: me", "*": "other"}
    ) as used:
        state = await state_of(door, *requests)

    assert contents_of(state) == ["3 of tea", "chart a", "x: me", "other"]
    assert {call.tool: call.args for call in used.calls} == {
        "search": {"query": "tea", "limit": 3},
        "chart": {"name": "a"},
        "owner": {"item": "x"},
        "foreign": {"text": "t"},
    }
    assert all(call.id for call in used.calls)


@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_a_fake_of_a_sync_tool_has_its_timeout_in_langchains_agent() -> None:
    with fake_tools({"search": lambda query, limit: anyio.sleep(60)}):
        state = await state_of("ainvoke", ("search", {"query": "tea"}))
    assert "did not finish within its timeout" in contents_of(state)[0]


@pytest.mark.backends("asyncio")
@pytest.mark.real_clock
async def test_langchains_agent_refuses_other_tools_and_runs_real_ones(door: str) -> None:
    @tool
    def echo(text: str) -> str:
        """Say it again."""
        return text

    with fake_tools({"search": "42"}, real=["echo"]):
        state = await state_of(door, ("search", {"query": "tea"}), ("echo", {"text": "me"}), tools=[search, echo])
    assert contents_of(state) == ["42", "me"]
    with pytest.raises(UnfakedToolError, match="'echo' has no fake"), fake_tools({"search": "42"}):
        await state_of(door, ("echo", {"text": "me"}), tools=[search, echo])
    assert contents_of(await state_of(door, ("echo", {"text": "me"}), tools=[echo])) == ["me"]


def test_fakes_are_a_dict() -> None:
    """The error of a list was about a "dictionary update sequence"."""
    fakes: Any = ["search"]
    with (
        pytest.raises(TypeError, match=r"takes a dict from names of tools to fakes, got \['search'\]"),
        fake_tools(fakes),
    ):
        raise AssertionError
