"""The same agent in each framework: a model that asks for a number of calls in each of a number of turns.

The models answer at once and cost next to nothing, so the time that is measured is the framework's own.
"""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import callboard
from tests.benchmark._agent import HAND, Parrot, by_hand, run_of
from tests.benchmark._contestants import LOOK_UP, Work, langgraph_agent, look_up

OURS = "callboard"
_QUESTION = "go"


def _calls_of_turn(turn: int, calls: int) -> list[tuple[str, dict[str, str]]]:
    """Return the id and the arguments of each call that a model asks for in a turn."""
    return [(f"call_{turn}_{number}", {"query": str(number)}) for number in range(calls)]


def of_callboard(turns: int, calls: int) -> Work:
    return run_of(callboard.create_react_agent(Parrot(turns=turns, calls=calls), [LOOK_UP]), turns)


def of_langgraph(turns: int, calls: int) -> Work:
    return run_of(langgraph_agent(Parrot(turns=turns, calls=calls)), turns)


def of_langchain(turns: int, calls: int) -> Work:
    from langchain.agents import create_agent

    return run_of(create_agent(Parrot(turns=turns, calls=calls), [LOOK_UP]), turns)


def of_pydantic_ai(turns: int, calls: int) -> Work:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.usage import UsageLimits

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn == turns:
            return ModelResponse(parts=[TextPart("Done.")])
        return ModelResponse(parts=[ToolCallPart("look_up", args, key) for key, args in _calls_of_turn(turn, calls)])

    agent = Agent(FunctionModel(answer), tools=[look_up])
    limits = UsageLimits(request_limit=None)
    return lambda: agent.run(_QUESTION, usage_limits=limits)


def of_openai_agents(turns: int, calls: int) -> Work:
    from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    set_tracing_disabled(True)

    class Scripted(Model):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **kwargs: Any) -> ModelResponse:
            items = input if isinstance(input, list) else []
            call_count = sum(item.get("type") == "function_call" for item in items)
            turn = call_count // calls
            if turn == turns:
                text = ResponseOutputText(text="Done.", type="output_text", annotations=[])
                last = ResponseOutputMessage(
                    id="last", content=[text], role="assistant", status="completed", type="message"
                )
                return ModelResponse(output=[last], usage=Usage(), response_id=None)
            output: list[Any] = [
                ResponseFunctionToolCall(arguments=json.dumps(args), call_id=key, name="look_up", type="function_call")
                for key, args in _calls_of_turn(turn, calls)
            ]
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            raise NotImplementedError

    agent = Agent(name="agent", model=Scripted(), tools=[function_tool(look_up)])
    config = RunConfig(tracing_disabled=True)
    return lambda: Runner.run(agent, _QUESTION, max_turns=turns + 1, run_config=config)


Build = Callable[[int, int], Work]
"""Function from a number of turns, and of calls in each turn, to a run of an agent."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, and the distributions that it needs."""

    name: str
    build: Build
    distribution: str


FRAMEWORKS = (
    Framework(HAND, by_hand, "langchain-core"),
    Framework(OURS, of_callboard, "callboard"),
    Framework("LangGraph `create_react_agent`", of_langgraph, "langgraph"),
    Framework("LangChain `create_agent`", of_langchain, "langchain"),
    Framework("pydantic-ai", of_pydantic_ai, "pydantic-ai-slim"),
    Framework("openai-agents", of_openai_agents, "openai-agents"),
)
