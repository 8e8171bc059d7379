"""Types of results in the most common programs; the type checkers read this file, nothing runs it."""

from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from langchain.agents import AgentState as LangChainState
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall, ToolMessage
from langgraph.types import Command, GraphOutput, Interrupt
from pydantic import BaseModel

from callboard import Agent, AgentOutput, ToolNode, create_agent, create_react_agent, tool_call


class Weather(BaseModel):
    """Structured response."""

    city: str
    degrees: float


@dataclass
class Place:
    """Structured response of another kind."""

    name: str


class Trip(TypedDict):
    """State with a key of the user's own."""

    messages: list[AnyMessage]
    budget: int


class LangChainTrip(LangChainState[Weather]):
    """State of LangChain with a key of the user's own."""

    budget: int


class PydanticTrip(BaseModel):
    """State that is no dict; the result of a run is one."""

    messages: list[AnyMessage]


async def weather(city: str) -> str:
    """Tell the weather."""
    return city


# 1. An agent, its answer and its whole conversation.
async def answer() -> None:
    agent = create_agent("openai:gpt-5", [weather])
    assert_type(agent, Agent)
    assert_type(agent, Agent[dict[str, Any]])
    result = await agent.ainvoke({"messages": "Oslo?"})
    assert_type(result, dict[str, Any])
    print(result["messages"][-1].text, result["todos"])


# 2. A structured response, of each kind.
async def check_structured() -> None:
    agent = create_agent("openai:gpt-5", [weather], response_format=Weather, timeout=30.0)
    assert_type(agent, Agent[AgentOutput[Weather]])
    result = await agent.ainvoke({"messages": "Oslo?"})
    assert_type(result["structured_response"], Weather)
    assert_type(result["structured_response"].degrees + 1, float)
    assert_type(result["messages"], list[AnyMessage])
    print(result["messages"][-1].text)
    assert_type(agent.invoke({"messages": "Oslo?"})["structured_response"], Weather)
    place = create_agent("openai:gpt-5", response_format=Place).invoke({"messages": "Oslo?"})["structured_response"]
    assert_type(place, Place)
    for strategy in (ToolStrategy(Weather), ProviderStrategy(Weather)):
        by_strategy = create_agent("openai:gpt-5", response_format=strategy)
        assert_type(by_strategy, Agent[AgentOutput[Weather]])
    by_schema = create_agent("openai:gpt-5", response_format={"title": "Weather", "type": "object"})
    assert_type(by_schema, Agent[Any])


def check_structured_react() -> None:
    assert_type(create_react_agent("openai:gpt-5", [weather], response_format=Weather), Agent[AgentOutput[Weather]])
    with_prompt = create_react_agent("openai:gpt-5", [weather], response_format=("Be brief.", Weather))
    assert_type(with_prompt.invoke({"messages": "Oslo?"})["structured_response"], Weather)


# 3. A state of the user's own.
async def own_state() -> None:
    react = create_react_agent("openai:gpt-5", [weather], state_schema=Trip, prompt="Be brief.")
    assert_type(react, Agent[Trip])
    assert_type((await react.ainvoke({"messages": "Oslo?", "budget": 3}))["budget"], int)
    langchain = create_agent("openai:gpt-5", state_schema=LangChainTrip, response_format=Weather)
    assert_type(langchain.invoke({"messages": "Oslo?"})["budget"], int)
    pydantic = create_react_agent("openai:gpt-5", [weather], state_schema=PydanticTrip)
    assert_type(pydantic.invoke({"messages": "Oslo?"}), Any)


# 4. A question to a person, and the answer.
async def question() -> None:
    agent = create_agent("openai:gpt-5", [weather], response_format=Weather, checkpointer="memory")
    thread: Any = {"configurable": {"thread_id": "1"}}
    result = await agent.ainvoke({"messages": "Oslo?"}, thread)
    if "__interrupt__" in result:
        assert_type(result["__interrupt__"], list[Interrupt])
        result = await agent.ainvoke(Command(resume={result["__interrupt__"][0].id: "yes"}), thread)
    print(result["structured_response"].city)


# 5. LangGraph's newer form of a result.
async def graph_output() -> None:
    agent = create_agent("openai:gpt-5", response_format=Weather)
    assert_type(await agent.ainvoke(None, version="v2"), GraphOutput[AgentOutput[Weather]])
    assert_type((await agent.ainvoke(None, version="v2")).value["structured_response"], Weather)
    assert_type(await agent.ainvoke(None, version="v2", output_keys="messages"), GraphOutput[Any])


# 6. Some keys of the state only.
async def keys() -> None:
    agent = create_agent("openai:gpt-5", response_format=Weather)
    assert_type(await agent.ainvoke(None, output_keys=["messages"]), dict[str, Any])
    assert_type(await agent.ainvoke(None, output_keys="structured_response"), Any)


# 7. A function that takes any agent, and a class that keeps one.
async def run_any(agent: Agent[Any], agents: list[Agent]) -> str:
    agents.append(create_agent("openai:gpt-5", [weather]))
    result = await agent.ainvoke({"messages": "Oslo?"})
    return str(result["messages"][-1].text)


async def run_some() -> None:
    await run_any(create_agent("openai:gpt-5", response_format=Weather), [])
    async with create_agent("openai:gpt-5", response_format=Weather) as agent:
        assert_type(agent, Agent[AgentOutput[Weather]])
    opened = await create_react_agent("openai:gpt-5", [weather], state_schema=Trip).open()
    assert_type(opened, Agent[Trip])


# 8. A node and calls.
async def node() -> None:
    tools = ToolNode([weather])
    outputs = await tools.ainvoke([tool_call("weather", "1", city="Oslo")])
    assert_type(outputs, dict[str, list[ToolMessage]])
    for message in outputs["messages"]:
        assert_type(message.tool_call_id, str)
        print(message.text, message.status)
    by_hand = tools.invoke([{"name": "weather", "args": {"city": "Oslo"}, "id": "1", "type": "tool_call"}])
    assert_type(by_hand, dict[str, list[ToolMessage]])
    calls: list[ToolCall] = AIMessage("", tool_calls=[]).tool_calls
    assert_type(tools.invoke(calls), dict[str, list[ToolMessage]])


# 9. A node and a state, or messages.
async def node_of_graph(state: Trip, message: AIMessage, history: list[BaseMessage]) -> None:
    tools = ToolNode([weather])
    assert_type(await tools.ainvoke({"messages": [message]}), dict[str, list[ToolMessage]])
    assert_type(await tools.ainvoke(state), dict[str, list[ToolMessage]])
    assert_type(await tools.ainvoke([message]), list[ToolMessage])
    history += tools.invoke(history)
    assert_type(tools.invoke(PydanticTrip(messages=[])), dict[str, list[ToolMessage]])


# 10. Tools that return a `Command`: the output is a list, and one annotation takes it, without a cast.
async def commands() -> None:
    outputs: Any = await ToolNode([weather]).ainvoke([tool_call("weather", "1", city="Oslo")])
    for output in outputs:
        print(output)


async def mistakes() -> None:
    result = await create_agent("openai:gpt-5", response_format=Weather).ainvoke({"messages": "Oslo?"})
    print(result["structured_response"].town)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    print(result["answer"])  # type: ignore[typeddict-item]  # pyright: ignore[reportGeneralTypeIssues]
    create_agent("openai:gpt-5", response_format=Weather, tmeout=3.0)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    create_react_agent("openai:gpt-5", [weather], state_schema=Trip, promt="")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
