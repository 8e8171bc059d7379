"""Options and configs of a run that do not exist are refused by each method that starts a run, before it begins."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from callboard import ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel

from ._savers import AGENTS, AT, QUESTION

pytestmark = pytest.mark.real_clock


async def look_up(word: str) -> str:
    """Look up a word."""
    return word


async def read(agent: Any, config: Any, options: dict[str, Any]) -> None:
    async with aclosing(agent.astream(QUESTION, config, **options)) as chunks:
        async for _ in chunks:
            pass


METHODS: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {
    "ainvoke": lambda agent, config, options: agent.ainvoke(QUESTION, config, **options),
    "astream": read,
    "start": lambda agent, config, options: agent.start(QUESTION, config, **options),
    "say": lambda agent, config, options: agent.say("hello", config, **options),
    "say(start=True)": lambda agent, config, options: agent.say("hello", config, start=True, **options),
}

OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(({"version": version}, ValueError, f"version is 'v1' or 'v2', got {version!r}") for version in ("v3", None)),
    ({"durability": "zz"}, ValueError, "durability is 'sync', 'async' or 'exit', got 'zz'"),
    ({"stream_mode": 3}, TypeError, r"stream_mode takes stream modes, such as \[.*\], or a single one; got 3"),
    ({"stream_mode": [None]}, TypeError, r"stream_mode takes .*; got \[None\]"),
    ({"print_mode": 3}, TypeError, "print_mode takes stream modes, .*; got 3"),
    ({"output_keys": 3}, TypeError, r"output_keys takes keys of the state, such as \['messages'\].*; got 3"),
    ({"interrupt_before": "tools"}, TypeError, r"interrupt_before is a list of nodes, such as \['tools'\]"),
    ({"interrupt_after": 3}, TypeError, r"interrupt_after is a list of nodes, such as \['tools'\], or '\*'; got 3"),
    ({"interrupt_before": ["tool"]}, ValueError, "there is no node 'tool', only .*; did you mean 'tools'"),
    ({"control": "stop"}, TypeError, "control is a RunControl of langgraph.runtime, got 'stop'"),
    ({"debug": "no"}, TypeError, "debug takes bool, such as True; got 'no'"),
    ({"subgraphs": "no"}, TypeError, "subgraphs takes bool, such as True; got 'no'"),
    ({"budget": 10**400}, ValueError, "budget is too large, a whole number of 1,329 bits; math.inf is without a bound"),
]
CONFIGS: list[tuple[Any, type[Exception], str]] = [
    ("t", TypeError, r"config is a mapping, such as \{'configurable': .*; got 't'"),
    ({"configurable": "t"}, TypeError, r"config\['configurable'\] is a mapping, such as \{'thread_id': '1'\}; got 't'"),
    ({**AT, "tags": "web"}, TypeError, r"config\['tags'\] is a list of texts; got 'web'"),
    ({**AT, "metadata": "web"}, TypeError, r"config\['metadata'\] is a mapping; got 'web'"),
    ({**AT, "callbacks": "web"}, TypeError, r"config\['callbacks'\] is a list of callback handlers.*; got 'web'"),
    ({**AT, "recursion_limit": "9"}, TypeError, r"config\['recursion_limit'\] is a whole number; got '9'"),
]
THREADS: list[tuple[Any, type[Exception], str]] = [
    ({"configurable": {"thread_id": thread_id}}, TypeError, "thread_id is a text or a number, and names the conversat")
    for thread_id in (["1"], {"id": "1"}, b"1", ("1", "2"))
]


@AGENTS
@pytest.mark.parametrize("method", METHODS)
async def test_an_option_that_does_not_exist_is_refused_with_those_that_do(make: Any, method: str) -> None:
    """A stop that is never reached, or a durability that is another, would be seen when it is too late."""
    model = ScriptedModel([])
    async with make(model, [look_up], checkpointer=InMemorySaver()) as agent:
        for options, error, message in OPTIONS:
            with pytest.raises(error, match=message):
                await METHODS[method](agent, AT, options)
        for config, error, message in [*CONFIGS, *THREADS]:
            with pytest.raises(error, match=message):
                await METHODS[method](agent, config, {})
        assert (await agent.aget_state(AT)).values == {}
    assert model.requests == []


@AGENTS
async def test_a_started_run_needs_a_thread_and_a_buffer(make: Any) -> None:
    """All callers without an id would share one conversation; a wrong buffer is wrong beside a live run, too."""
    async with make(ScriptedModel([]), [look_up], checkpointer=InMemorySaver()) as agent:
        for method in ("start", "say", "say(start=True)"):
            with pytest.raises(ValueError, match="thread_id is None: name the conversation"):
                await METHODS[method](agent, {"configurable": {"thread_id": None}}, {})
            for buffer in (0, "x", True):
                with pytest.raises(ValueError, match=r"\(buffer=\.\.\.\) takes a number of chunks"):
                    await METHODS[method](agent, AT, {"buffer": buffer})
        for config in ("t", None):
            with pytest.raises((TypeError, ValueError), match=r"'configurable': \{'thread_id': '1'\}"):
                await agent.aget_state(config)


@AGENTS
async def test_a_text_is_no_answer_to_a_question_of_yes_or_no(make: Any) -> None:
    """The text "no" would count as yes."""
    with pytest.raises(TypeError, match=r"create_.*agent\(debug=\.\.\.\) takes bool, such as True; got 'no'"):
        make(ScriptedModel([]), [look_up], debug="no")
    async with make(ScriptedModel([]), [look_up], checkpointer=InMemorySaver()) as agent:
        for option in ("start", "give_up"):
            with pytest.raises(TypeError, match=rf"say\({option}=\.\.\.\) takes bool, such as True; got 'no'"):
                await agent.say("hello", AT, **{option: "no"})


class Name(str):
    __slots__ = ()


@AGENTS
@pytest.mark.parametrize("thread_id", [Name("1"), 1, 2.5, UUID(int=1)])
async def test_a_thread_has_a_text_or_a_number_as_its_id(make: Any, thread_id: Any) -> None:
    agent = make(ScriptedModel(["hello"]), [look_up], checkpointer=InMemorySaver())
    await agent.ainvoke(QUESTION, {"configurable": {"thread_id": thread_id}})
    state = await agent.aget_state({"configurable": {"thread_id": str(thread_id)}})
    assert len(state.values["messages"]) == 2


@AGENTS
@pytest.mark.parametrize("option", ["interrupt_before", "interrupt_after"])
def test_a_stop_of_an_agent_is_a_list_of_nodes(make: Any, option: str) -> None:
    for nodes in ("tools", 3):
        with pytest.raises(TypeError, match=rf"{option} is a list of nodes, such as \['tools'\]"):
            make(ScriptedModel([]), [look_up], **{option: nodes})


async def test_an_empty_list_of_stream_modes_gives_no_chunks() -> None:
    """LangGraph yields nothing either."""
    agent = create_react_agent(ScriptedModel(["done", "done"]), [])
    assert await agent.ainvoke(QUESTION, stream_mode=[]) == []
    assert [chunk async for chunk in agent.astream(QUESTION, stream_mode=[])] == []


async def test_a_config_or_a_ledger_of_a_node_is_refused_with_its_value() -> None:
    node, requests = ToolNode([look_up]), [tool_call("look_up", word="tea")]
    for config, error, message in CONFIGS:
        with pytest.raises(error, match=message):
            await node.ainvoke(requests, config)
        with pytest.raises(error, match=message):
            await node.abatch([requests], config)
    with pytest.raises(TypeError, match=r"ledger is a dict, .*; got 'x'"):
        await node.ainvoke(requests, ledger="x")  # type: ignore[call-overload]


@pytest.mark.parametrize("option", ["name", "messages_key", "tags"])
def test_a_text_of_a_node_is_a_text(option: str) -> None:
    wrong: Any = {option: "web" if option == "tags" else 3}
    with pytest.raises(TypeError, match=rf"ToolNode\({option}=\.\.\.\) is a .*text"):
        ToolNode([look_up], **wrong)
