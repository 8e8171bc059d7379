"""Two conversations with Python: each has names of its own, and one of them kills its interpreter.

Code that takes too long is interrupted, and its names stay. Code that ignores the interrupt is killed, and its model is
told that the names are lost. The other conversation is not affected.
"""

import logging

import anyio

from callboard import ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls
from callboard_actors.python import Python, python_tool

CAREFUL = [
    "prices = {'tea': 3, 'ham': 5}",
    "print('sum'); sum(prices.values())",
    "prices['jam']",
]
CARELESS = [
    "prices = {'tea': 4}",
    "while True: pass",
    "prices",
    "10 ** 10 ** 9",
    "prices",
]


async def converse(thread: str, cells: list[str], node: ToolNode, results: dict[str, list[str]]) -> None:
    model = ScriptedModel([*(calls(("run_python", {"code": code})) for code in cells), "Done."])
    agent = create_react_agent(model, node)
    run = await agent.ainvoke({"messages": [("user", "Please.")]}, {"configurable": {"thread_id": thread}})
    results[thread] = [message.text for message in run["messages"] if message.type == "tool"]


async def main() -> None:
    logging.getLogger("callboard").setLevel(logging.ERROR)  # hides the warning about the restart
    results: dict[str, list[str]] = {}
    node = ToolNode([python_tool(Python(timeout=0.5, grace=0.5))])
    async with node, anyio.create_task_group() as group:
        group.start_soon(converse, "careful", CAREFUL, node, results)
        group.start_soon(converse, "careless", CARELESS, node, results)

    for thread, answers in results.items():
        print(f"-- {thread}", *answers, sep="\n")
    assert results["careful"][1] == "sum\nOut[2]: 8"
    assert results["careful"][2].endswith("KeyError: 'jam'")
    _, interrupted, unchanged, killed, gone = results["careless"]
    assert interrupted.endswith("its names stay.]")
    assert unchanged == "Out[3]: {'tea': 4}"
    assert killed.endswith("What Python['careless'] held is lost. Find out before you call it again.")
    assert gone.endswith("NameError: name 'prices' is not defined")


if __name__ == "__main__":
    anyio.run(main)
    anyio.run(main, backend="trio")
