"""Measure the path of a call: `python -m tests.way_of_a_call` prints each callboard function from `ainvoke` to a body.

It knows no private name, so that it can be run on any version of callboard.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.tools import tool

import callboard
from callboard.testing import ScriptedModel

SOURCE = Path(callboard.__file__).parent
CALL: Any = {"name": "work", "args": {"query": "a"}, "id": "1", "type": "tool_call"}


@dataclass(frozen=True, slots=True)
class Hop:
    """A function on the path of a call."""

    file: str
    function: str
    lines: int

    @classmethod
    def of(cls, code: CodeType) -> "Hop":
        """Return the name and the length of a code object, without nested functions."""
        lines = {line for _, _, line in code.co_lines() if line is not None}
        return cls(str(Path(code.co_filename).relative_to(SOURCE)), code.co_qualname, len(lines))


def ours(frame: FrameType | None) -> Iterator[Hop]:
    """Return the functions of callboard in a stack of frames, the innermost first."""
    while frame is not None:
        if Path(frame.f_code.co_filename).is_relative_to(SOURCE):
            yield Hop.of(frame.f_code)
        frame = frame.f_back


def way(options: dict[str, Any]) -> list[Hop]:
    """Return the functions from `ToolNode.ainvoke` to the body of a tool, across the task that is started."""
    found: list[Hop] = []

    @tool
    async def work(query: str) -> str:
        """Work."""
        found.extend(reversed(list(ours(sys._getframe()))))
        return query

    def start(loop: Any, coro: Any, **more: Any) -> "asyncio.Task[Any]":
        found.extend(reversed(list(ours(sys._getframe()))))
        return asyncio.Task(coro, loop=loop, **more)

    async def run() -> None:
        node = callboard.ToolNode([work], **options)
        await node.ainvoke([CALL])  # results that are cached are computed here
        found.clear()
        asyncio.get_running_loop().set_task_factory(start)
        await node.ainvoke([CALL])

    asyncio.run(run())
    return found


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count the Python functions of callboard that the block enters, by file and name; each resumption counts."""
    found: Counter[str] = Counter()
    source = f"{SOURCE}/"

    def count(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # The watchdog's thread asks the loop every so often: its answer belongs to the clock, and to no call.
        if event == "call" and code.co_filename.startswith(source) and code.co_qualname != "Pulse._answer":
            found[f"{code.co_filename.removeprefix(source)} {code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        yield found
    finally:
        sys.setprofile(None)


async def functions_of_node(number: int, **options: Any) -> Counter[str]:
    """Return the functions that a node runs for a batch of calls, when all that is cached has been computed."""

    @tool
    async def work(query: str) -> str:
        """Work."""
        return query

    node = callboard.ToolNode([work], **options)
    calls = [{**CALL, "id": str(index)} for index in range(number)]
    for _ in range(3):
        await node.ainvoke(calls)
    with counting() as found:
        await node.ainvoke(calls)
    return found


async def functions_of_agent(number: int) -> Counter[str]:
    """Return the functions of an agent's run: a reply with a number of calls, the calls, and a last reply.

    All that is cached has been computed by earlier runs.
    """

    @tool
    async def work(query: str) -> str:
        """Work."""
        return query

    calls = [{**CALL, "id": str(index)} for index in range(number)]
    replies = [AIMessage("", tool_calls=calls), AIMessage("done")]
    agent = callboard.create_react_agent(ScriptedModel(replies, loop=True), [work])
    for _ in range(3):
        await agent.ainvoke({"messages": [("user", "work")]})
    with counting() as found:
        await agent.ainvoke({"messages": [("user", "work")]})
    return found


def main() -> None:
    """Print the path of a plain call, and of a call with a timeout."""
    for title, options in (("a plain call", {}), ("a call with a timeout", {"timeout": 60.0})):
        steps = way(options)
        files, lines = {step.file for step in steps}, sum(step.lines for step in steps)
        run = asyncio.run(functions_of_node(1, **options)).total()
        print(f"{title}: {len(steps)} hops over {len(files)} files and {lines} lines, {run} functions run")
        print(*(f"    {step.file} {step.function} ({step.lines})" for step in steps), sep="\n")


if __name__ == "__main__":
    main()
