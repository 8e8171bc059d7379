"""Print the way of one plain call and of one durable turn through the code: `python -m tests.way_of_a_call`.

A room is a folder of the package. A room is crossed when the next function that begins is one of another room.
The numbers tell how much of the project a reader has to open. No test bounds them.
"""

import sys
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
from langgraph.checkpoint.memory import InMemorySaver

import callboard
from callboard import ToolNode, create_react_agent
from callboard.testing import ScriptedModel, calls

_SOURCE = Path(callboard.__file__).parent


async def look_up(query: str) -> str:
    """Look something up."""
    return query


def _way(action: Callable[[], Awaitable[object]]) -> list[tuple[str, str]]:
    """Return the functions of callboard that run, one after the other, as pairs of file and qualified name."""
    steps: list[tuple[str, str]] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        # A coroutine that goes on after a wait is not called again: its instruction RESUME has another argument then.
        if event == "call" and code.co_code[frame.f_lasti + 1] == 0:
            path = Path(code.co_filename)
            if path.is_relative_to(_SOURCE):
                steps.append((path.relative_to(_SOURCE).as_posix(), code.co_qualname))

    async def main() -> None:
        await action()  # what is built once, at the first call, is not part of the way
        sys.setprofile(profile)
        try:
            await action()
        finally:
            sys.setprofile(None)

    anyio.run(main)
    return steps


def _show(title: str, steps: list[tuple[str, str]]) -> None:
    rooms = [file.rpartition("/")[0] for file, _ in steps]
    crossed = sum(room != next_room for room, next_room in pairwise(rooms))
    files = dict.fromkeys(file for file, _ in steps)
    print(f"{title}: {crossed} rooms crossed, {len(files)} files, {len(set(steps))} functions")
    for file in files:
        functions = list(dict.fromkeys(name for step_file, name in steps if step_file == file))
        print(f"    {file}: {', '.join(functions)}")


def main() -> None:
    """Print the functions of both ways, file by file."""
    request = calls(("look_up", {"query": "tea"}))
    node = ToolNode([look_up])
    _show("A plain call", _way(lambda: node.ainvoke({"messages": [request]})))
    agent = create_react_agent(
        ScriptedModel([calls(("look_up", {"query": "tea"})), "done"], loop=True),
        [look_up],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    _show("A durable turn", _way(lambda: agent.ainvoke({"messages": [("user", "go")]}, config)))


if __name__ == "__main__":
    main()
