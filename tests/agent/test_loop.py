"""The loop of an agent: commands of tools, direct answers, guards at its end, and the context after it."""

from typing import Annotated, Any

import pytest
from langchain_core.messages import ToolMessage
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import InjectedToolCallId, tool
from langchain_core.tracers.context import collect_runs
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import EmptyInputError, GraphRecursionError, InvalidUpdateError, ParentCommand
from langgraph.types import Command
from pydantic import BaseModel

from callboard import AgentState, ToolNode, create_react_agent
from callboard.middleware import CircuitBreaker
from callboard.testing import Recorder, ScriptedModel, calls

from ._savers import AT, run, say, scripted, shape

pytestmark = pytest.mark.real_clock


versions = pytest.mark.parametrize("version", ["v1", "v2"])


class Moods(AgentState):
    mood: str


def tool_update(text: str, call_id: str) -> dict[str, Any]:
    return {"messages": [ToolMessage(text, tool_call_id=call_id)]}


CallId = Annotated[str, InjectedToolCallId]


@tool
async def cheer(tool_call_id: CallId) -> Command[Any]:
    """Be glad."""
    return Command(update={"mood": "glad", **tool_update("cheered", tool_call_id)})


@versions
async def test_a_tool_may_return_several_commands_and_go_to_a_node_of_the_agent(version: Any) -> None:
    """The command's `goto` duplicates an existing edge, and the model must be asked once only."""

    @tool
    async def many(tool_call_id: CallId) -> Any:
        """Many."""
        return [Command(update={"mood": "glad"}), Command(update=tool_update("many", tool_call_id), goto="agent")]

    model = ScriptedModel([calls("many"), "done"])
    result = await run(create_react_agent(model, [many], state_schema=Moods, version=version))
    assert result["mood"] == "glad"
    assert shape(result) == ["human:go", "ai:", "tool:many", "ai:done"]
    assert len(model.requests) == 2


@versions
async def test_a_command_for_the_graph_around_is_raised_where_there_is_none(version: Any) -> None:
    """The caller of an agent that runs by itself has to learn the destination."""

    @tool
    async def hand_over(tool_call_id: CallId) -> Command[Any]:
        """Hand over."""
        return Command(goto="other", graph=Command.PARENT, update=tool_update("over", tool_call_id))

    agent = scripted([calls("hand_over")], [hand_over], version=version)
    with pytest.raises(ParentCommand) as caught:
        await run(agent)
    assert caught.value.args[0].goto == "other"


@versions
async def test_a_key_that_the_state_does_not_have_is_passed_over(version: Any) -> None:
    """As in LangGraph, unknown keys are ignored, because a tool may serve agents with different states."""
    model = ScriptedModel([calls("cheer"), "done"])
    result = await run(create_react_agent(model, [cheer], version=version))
    assert shape(result) == ["human:go", "ai:", "tool:cheered", "ai:done"]
    assert "mood" not in result


class Answer(BaseModel):
    """The answer."""

    number: int


@pytest.mark.parametrize("is_command", [False, True])
@pytest.mark.parametrize("is_stored", [False, True])
async def test_a_hook_may_return_the_same_object_each_time(is_stored: bool, is_command: bool) -> None:
    """Its messages in other forms are new ones each time, as in LangGraph, and the object stays as it is."""
    update = {"messages": [("user", "be brief")]}
    output: Any = Command(update=update) if is_command else update
    model = ScriptedModel([calls("work"), "done"])
    saver, tools = InMemorySaver() if is_stored else None, [Recorder().tool("work")]
    agent = create_react_agent(model, tools, post_model_hook=lambda _: output, checkpointer=saver)
    result = await run(agent, config=AT)

    assert shape(result).count("human:be brief") == 2
    assert update == {"messages": [("user", "be brief")]}


@versions
async def test_a_thread_whose_steps_are_used_up_goes_on(version: Any) -> None:
    recorder = Recorder()
    model = ScriptedModel([calls("work"), calls("work"), "done"])
    agent = create_react_agent(model, [recorder.tool("work")], checkpointer=InMemorySaver(), version=version)
    with pytest.raises(GraphRecursionError, match="Recursion limit of 3 reached"):
        await run(agent, config={**AT, "recursion_limit": 3})
    result = await run(agent, say("go on"), AT)

    sorry = "ai:Sorry, need more steps to process this request."
    assert shape(result) == ["human:go", "ai:", "tool:work", sorry, "human:go on", "ai:done"]
    assert recorder.count("started") == 1


@pytest.mark.parametrize("is_bound", [False, True])
async def test_a_model_is_not_told_of_a_tool_whose_circuit_is_open(is_bound: bool) -> None:
    """A call would only be answered with an error; a model that was bound before is bound again to the other tools."""
    recorder = Recorder()
    tools = [recorder.tool("flaky", raises=ConnectionError("down")), recorder.tool("work")]
    node = ToolNode(tools, handle_tool_errors=True, middleware=[CircuitBreaker(minimum=1)])
    model = ScriptedModel([calls("flaky"), calls("work"), "done"])
    await run(create_react_agent(model.bind_tools(tools) if is_bound else model, node))
    assert model.requested_tools == [("flaky", "work"), ("work",), ("work",)]


async def test_tools_of_the_provider_are_offered_whatever_is_held_back() -> None:
    """Circuits exist for the agent's own tools only."""
    recorder = Recorder()
    search = {"type": "function", "function": {"name": "search", "description": "At the provider.", "parameters": {}}}
    flaky = recorder.tool("flaky", raises=ConnectionError("down"))
    model = ScriptedModel([calls("flaky"), "done"])
    agent = create_react_agent(model, [flaky, search], middleware=[CircuitBreaker(minimum=1)], state_schema=AgentState)
    with pytest.raises(ConnectionError):
        await run(agent)
    await run(agent)
    assert model.requested_tools == [("flaky", "search"), ("search",)]


async def test_every_part_finds_its_own_config_around_it() -> None:
    """In hooks, prompts, models and tools, `get_config()` returns the config of that part."""
    part_nodes: list[tuple[str, str]] = []

    def note(part_name: str) -> None:
        part_nodes.append((part_name, get_config()["metadata"]["langgraph_node"]))

    def part(part_name: str, returns: Any) -> Any:
        def body(state: Any) -> Any:
            note(part_name)
            return state["messages"] if returns is None else returns

        return body

    @tool
    def look() -> str:
        """Look."""
        note("tool")
        return "looked"

    agent = scripted(
        [calls("look"), "done"],
        [look],
        prompt=part("prompt", None),
        pre_model_hook=part("before", {}),
        post_model_hook=part("after", {}),
    )
    await run(agent)

    turn = [("before", "pre_model_hook"), ("prompt", "agent"), ("after", "post_model_hook")]
    assert part_nodes == [*turn, ("tool", "tools"), *turn]


OPTIONS: dict[str, dict[str, Any]] = {
    "a model": {},
    "a hook before": {"pre_model_hook": lambda _: {}},
    "a hook after": {"post_model_hook": lambda _: {}},
    "a response": {"response_format": Answer},
}


async def test_every_step_without_a_checkpointer_has_a_task_of_its_own() -> None:
    """Ids of questions, and namespaces of nested graphs, follow from the id of the task."""
    namespaces: list[str] = []

    @tool
    def look() -> str:
        """Look."""
        namespaces.append(get_config()["metadata"]["langgraph_checkpoint_ns"])
        return "looked"

    agent = scripted([calls("look"), calls("look"), "done"], [look], loop=True)
    await run(agent)
    await run(agent)
    assert len({*namespaces}) == 4


async def test_a_tracer_that_only_a_context_variable_names_sees_the_run() -> None:
    """A run without callbacks in its config makes no callback manager, unless LangChain would find a tracer."""
    with collect_runs() as tracer:
        await run(scripted([calls("work"), "done"], [Recorder().tool("work")]))
    assert [[child.name for child in traced_run.child_runs] for traced_run in tracer.traced_runs] == [
        ["agent", "tools", "agent"]
    ]


@pytest.mark.parametrize("label", OPTIONS)
async def test_a_run_leaves_no_config_behind(label: str) -> None:
    """Later code in the caller's task must not see the run's config, nor call its handlers."""
    model = ScriptedModel([calls("work"), "done", calls(("Answer", {"number": 1}))])
    await run(create_react_agent(model, [Recorder().tool("work")], **OPTIONS[label]), config={"tags": ["a"]})
    assert var_child_runnable_config.get() is None


# Basic behaviour of the ReAct agent on every loop; `tests/parity` compares it with LangGraph's.


@pytest.mark.parametrize(
    ("agent_input", "error", "reason"),
    [
        *((bad_input, EmptyInputError, "An agent starts from messages") for bad_input in ({"question": "hi"}, None)),
        ("hello", InvalidUpdateError, "Expected dict, got hello"),
        ([("user", "hi")], InvalidUpdateError, "an agent starts from a state with messages: {'messages'"),
        (7, InvalidUpdateError, "Expected dict, got 7"),
    ],
    ids=repr,
)
async def test_input_without_messages_is_refused(agent_input: Any, error: type[Exception], reason: str) -> None:
    """The error has a remedy, and no thread is made."""
    saver = InMemorySaver()
    with pytest.raises(error, match=reason):
        await scripted(["hi"], [], checkpointer=saver).ainvoke(agent_input, AT)
    assert not [*saver.list(AT)] or agent_input == {"question": "hi"}
