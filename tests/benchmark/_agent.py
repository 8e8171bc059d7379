"""Cost of an agent's run around its calls."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult

import callboard

from ._contestants import LOOK_UP, Work, langgraph_agent
from ._measure import Budget, Contestant, Samples, Table, interleaved, timed

OURS, MODEL, V2 = "callboard.create_react_agent", "the model alone", "LangGraph create_react_agent, v2"


class Parrot(BaseChatModel):
    """Model that requests this many calls in each of this many turns. Its replies depend on the conversation only.

    It does less than `callboard.testing.ScriptedModel`, so that less of the time is its own.
    """

    turns: int
    calls: int

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "parrot"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        turn = sum(isinstance(message, AIMessage) for message in messages)
        asked = [
            ToolCall(name="look_up", args={"query": str(number)}, id=f"call_{turn}_{number}", type="tool_call")
            for number in range(self.calls if turn < self.turns else 0)
        ]
        reply = AIMessage(content="" if asked else "Done.", tool_calls=asked)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


def turns(*, shapes: tuple[tuple[int, int], ...], repetitions: int) -> Table:
    """Measure runs without a checkpointer. A shape is a number of turns and of calls in each turn."""
    table = Table("Agent runs", ["CPU ms a run", *(f"{turns} x {calls} calls" for turns, calls in shapes)])
    costs = [_costs(turns, calls, repetitions) for turns, calls in shapes]
    for name in costs[0]:
        table.add(name, *(cost[name] * 1e3 for cost in costs))
    for other in [name for name in costs[0] if name.startswith("LangGraph")]:
        table.add(f"callboard, asyncio : {other}", *(cost.ratio(f"{OURS}, asyncio", other) for cost in costs))
    for (turns, calls), cost in zip(shapes, costs, strict=True):
        ratio = cost.ratio(f"{OURS}, asyncio", V2)
        table.budgets.append(Budget(f"{turns} x {calls} calls, a quarter of v2", 0.25, ratio))
    return table


def _costs(turns: int, calls: int, repetitions: int) -> Samples:
    model = Parrot(turns=turns, calls=calls)
    ours = run_of(callboard.create_react_agent(model, [LOOK_UP]), turns)
    contestants: dict[str, Contestant] = {
        MODEL: timed("asyncio", _model_alone(model, ours), times=3),
        f"{OURS}, asyncio": timed("asyncio", ours, times=3),
        f"{OURS}, trio": timed("trio", ours, times=3),
        "LangGraph create_react_agent, v1": timed("asyncio", run_of(langgraph_agent(model, "v1"), turns), times=3),
        V2: timed("asyncio", run_of(langgraph_agent(model), turns), times=3),
    }
    return interleaved(contestants, repetitions)


def run_of(agent: Any, turns: int) -> Work:
    config = {"recursion_limit": 8 * turns + 10}
    return lambda: agent.ainvoke({"messages": [HumanMessage("go", id="question")]}, config)


def _model_alone(model: BaseChatModel, run: Work) -> Work:
    """Measure the replies of a run to the same conversations, with nothing between them."""
    histories: list[list[BaseMessage]] = []

    async def replies() -> None:
        if not histories:
            messages = (await run())["messages"]  # type: ignore[index]
            histories.extend(messages[:place] for place, one in enumerate(messages) if isinstance(one, AIMessage))
        for history in histories:
            await model.ainvoke(history)

    return replies
