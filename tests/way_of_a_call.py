"""The way of a call in numbers: `python -m tests.way_of_a_call` names every function of ours from `ainvoke` to a body.

It knows no private name, so that it can be run on any version of callboard.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from langchain_core.tools import tool

import callboard

SOURCE = Path(callboard.__file__).parent
CALL: Any = {"name": "work", "args": {"query": "a"}, "id": "1", "type": "tool_call"}


def ours(frame: FrameType | None) -> Iterator[str]:
    """The functions of callboard that wait for a frame, the innermost first."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            yield f"{path.relative_to(SOURCE)} {frame.f_code.co_qualname if sys.version_info >= (3, 11) else ''}"
        frame = frame.f_back


def way(options: dict[str, Any]) -> list[str]:
    """The functions from `ToolNode.ainvoke` to the body of a tool, through the task that is started."""
    found: list[str] = []

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
        await node.ainvoke([CALL])  # what is found out once is found out here
        found.clear()
        asyncio.get_running_loop().set_task_factory(start)
        await node.ainvoke([CALL])

    asyncio.run(run())
    return found


def calls(options: dict[str, Any]) -> int:
    """Python functions of callboard that one call runs, on the way in and out."""

    @tool
    async def work(query: str) -> str:
        """Work."""
        return query

    async def run() -> int:
        number = 0

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal number
            number += event == "call" and Path(frame.f_code.co_filename).is_relative_to(SOURCE)

        node = callboard.ToolNode([work], **options)
        for _ in range(3):
            await node.ainvoke([CALL])
        sys.setprofile(count)
        try:
            await node.ainvoke([CALL])
        finally:
            sys.setprofile(None)
        return number

    return asyncio.run(run())


def main() -> None:
    """Print the way of a plain call, and of one with a timeout, a limit and a budget."""
    for title, options in (("a plain call", {}), ("a call with a timeout", {"timeout": 60.0})):
        steps = way(options)
        files = {step.split()[0] for step in steps}
        print(f"{title}: {len(steps)} hops over {len(files)} files, {calls(options)} functions run")
        print(*(f"    {step}" for step in steps), sep="\n")


if __name__ == "__main__":
    main()
