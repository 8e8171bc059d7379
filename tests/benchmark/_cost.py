"""Cost of a call by itself."""

from collections.abc import Callable

import langgraph.prebuilt

import callboard

from ._agent import Parrot
from ._contestants import LOOK_UP, as_node, direct, floor, in_graph, langgraph_agent, look_up, queries
from ._measure import CPU, Budget, Contestant, Samples, Table, batches, measure_in_turns

LANGGRAPH = "LangGraph ToolNode in a graph"
FLOOR, TRIO_FLOOR = "floor, asyncio", "floor, trio"
DIRECT, TRIO_DIRECT = "callboard ToolNode, asyncio", "callboard ToolNode, trio"
IN_GRAPH = "callboard ToolNode in a graph"
FLOOR_IN_GRAPH = "floor in a graph"
"""The code by hand as a node: the cost of the graph, and the floor."""
LIMITS = {1: 2.3, 10: 1.15, 100: 0.95, 1_000: 0.95}
"""Budget of a call as a ratio to the floor on asyncio, by size of the batch; trio has 0.15 more."""


def calls(*, sizes: tuple[int, ...], repetitions: int) -> Table:
    """Measure a call without handlers, middleware or a telemetry SDK."""
    table = Table("Cost of a call", ["calls in the batch", *map(str, sizes)])
    costs = [_costs(size, repetitions if size < 10_000 else max(1, repetitions // 3)) for size in sizes]
    for name in costs[0]:
        table.add(f"{name}, us", *(cost[name] / size * 1e6 for size, cost in zip(sizes, costs, strict=True)))
    for name, reference in (
        (IN_GRAPH, LANGGRAPH),
        (DIRECT, LANGGRAPH),
        (IN_GRAPH, FLOOR),
        (IN_GRAPH, FLOOR_IN_GRAPH),
        (DIRECT, FLOOR),
        (TRIO_DIRECT, TRIO_FLOOR),
    ):
        table.add(f"{name} : {reference}", *(cost.ratio(name, reference) for cost in costs))
    for size, cost in zip(sizes, costs, strict=True):
        if (limit := LIMITS.get(size)) is not None:
            asyncio, trio = cost.ratio(DIRECT, FLOOR), cost.ratio(TRIO_DIRECT, TRIO_FLOOR)
            table.budgets += [
                Budget(f"{size} calls : floor, asyncio", limit, asyncio),
                Budget(f"{size} calls : floor, trio", limit + 0.15, trio),
            ]
    return table


def _costs(size: int, repetitions: int) -> Samples:
    message = queries(size)
    callboard_node, langgraph_node = callboard.ToolNode([LOOK_UP]), langgraph.prebuilt.ToolNode([LOOK_UP])
    ground = floor(LOOK_UP, look_up, message)
    contestants = {
        FLOOR: batches("asyncio", ground, size),
        TRIO_FLOOR: batches("trio", ground, size),
        DIRECT: batches("asyncio", direct(callboard_node, message), size),
        TRIO_DIRECT: batches("trio", direct(callboard_node, message), size),
        IN_GRAPH: batches("asyncio", in_graph(callboard_node, message), size),
        FLOOR_IN_GRAPH: batches("asyncio", in_graph(as_node(ground), message), size),
        "LangGraph ToolNode": batches("asyncio", direct(langgraph_node, message), size),
        LANGGRAPH: batches("asyncio", in_graph(langgraph_node, message), size),
    }
    return measure_in_turns(contestants, repetitions)


def building(*, count: int, repetitions: int) -> Table:
    """Measure how long it takes to build a `ToolNode` and an agent with one tool."""
    model = Parrot(turns=1, calls=1)
    builders: dict[str, Callable[[], object]] = {
        "callboard ToolNode": lambda: callboard.ToolNode([LOOK_UP]),
        "LangGraph ToolNode": lambda: langgraph.prebuilt.ToolNode([LOOK_UP]),
        "callboard create_react_agent": lambda: callboard.create_react_agent(model, [LOOK_UP]),
        "LangGraph create_react_agent": lambda: langgraph_agent(model),
    }
    samples = measure_in_turns({name: _building(build, count) for name, build in builders.items()}, repetitions)
    table = Table("Building a node and an agent", ["us of processor time", "median"])
    for name in samples:
        table.add(name, samples[name] * 1e6)
    node, agent = "callboard ToolNode", "callboard create_react_agent"
    table.budgets += [
        Budget("a node : LangGraph's node", 1.0, samples.ratio(node, "LangGraph ToolNode")),
        Budget("an agent : LangGraph's agent", 0.1, samples.ratio(agent, "LangGraph create_react_agent")),
    ]
    return table


def _building(build: Callable[[], object], count: int) -> Contestant:
    def measure() -> float:
        build()
        began = CPU()
        for _ in range(count):
            build()
        return (CPU() - began) / count

    return measure
