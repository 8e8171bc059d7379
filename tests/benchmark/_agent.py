"""Cost of an agent's run around its calls."""

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult

import callboard

from ._contestants import LOOK_UP, Work, floor, langgraph_agent, look_up
from ._measure import Budget, Contestant, Samples, Table, measure_in_turns, on_one_processor, timing_of

OURS, HAND, V2 = "callboard.create_react_agent", "written by hand", "LangGraph create_react_agent, v2"
_TO_HAND = {(10, 1): 2.0, (10, 10): 1.6, (10, 100): 1.1}
"""Budget of a run in relation to the loop by hand, by numbers of turns and of calls in each turn."""
_AT_LEAST = 100
"""Minimum number of calls in a measurement. Short runs are repeated."""


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
        tool_calls = [
            ToolCall(name="look_up", args={"query": f"{turn}.{number}"}, id=f"call_{turn}_{number}", type="tool_call")
            for number in range(self.calls if turn < self.turns else 0)
        ]
        reply = AIMessage(content="" if tool_calls else "Done.", tool_calls=tool_calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(messages)


def turns(*, shapes: tuple[tuple[int, int], ...], repetitions: int) -> Table:
    """Measure runs without a checkpointer. A shape is a number of turns and of calls in each turn."""
    table = Table("Agent runs", ["CPU ms a run", *(f"{turns} x {calls} calls" for turns, calls in shapes)])
    costs = [_costs(turns, calls, repetitions) for turns, calls in shapes]
    for name in costs[0]:
        table.add(name, *(cost[name] * 1e3 for cost in costs))
    for rival in [name for name in costs[0] if not name.startswith(OURS)]:
        table.add(f"callboard, asyncio : {rival}", *(cost.ratio(f"{OURS}, asyncio", rival) for cost in costs))
    on_trio = [cost.ratio(f"{OURS}, trio", f"{OURS}, asyncio") for cost in costs]
    table.add("callboard, trio : callboard, asyncio", *on_trio)
    for (turns, calls), cost, trio in zip(shapes, costs, on_trio, strict=True):
        name = f"{turns} x {calls} calls"
        if calls > 1:
            table.budgets.append(Budget(f"{name}, a quarter of v2", 0.25, cost.ratio(f"{OURS}, asyncio", V2)))
        if (turns, calls) in _TO_HAND:
            limit = _TO_HAND[turns, calls]
            table.budgets += [
                Budget(f"{name}, to the loop by hand", limit, cost.ratio(f"{OURS}, asyncio", HAND)),
                Budget(f"{name}, trio to asyncio", 1.3, trio),
            ]
    return table


def _costs(turns: int, calls: int, repetitions: int) -> Samples:
    model = Parrot(turns=turns, calls=calls)
    callboard_run = run_of(callboard.create_react_agent(model, [LOOK_UP]), turns)
    v1, times = run_of(langgraph_agent(model, "v1"), turns), -(-_AT_LEAST // (turns * calls))
    contestants: dict[str, Contestant] = {
        HAND: timing_of("asyncio", by_hand(turns, calls), times=times),
        f"{OURS}, asyncio": timing_of("asyncio", callboard_run, times=times),
        f"{OURS}, trio": timing_of("trio", callboard_run, times=times),
        "LangGraph create_react_agent, v1": timing_of("asyncio", v1, times=times),
        V2: timing_of("asyncio", run_of(langgraph_agent(model), turns), times=times),
    }
    with on_one_processor():  # on trio, the model runs on an asyncio loop in another thread
        return measure_in_turns(contestants, repetitions)


def run_of(agent: Any, turns: int) -> Work:
    config = {"recursion_limit": 8 * turns + 10}
    return lambda: agent.ainvoke({"messages": [HumanMessage("go", id="question")]}, config)


def by_hand(turns: int, calls: int) -> Work:
    """Return a loop without a framework: the same model, and for each call a task, validation and a message."""
    model = Parrot(turns=turns, calls=calls)

    async def run() -> list[Any]:
        messages: list[Any] = [HumanMessage("go", id="question")]
        while True:
            messages.append(reply := await model.ainvoke(messages))
            if not reply.tool_calls:
                return messages
            messages += await floor(LOOK_UP, look_up, reply)()  # type: ignore[misc]

    return run
