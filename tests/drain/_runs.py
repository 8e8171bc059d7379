"""Runs that are started while something is drained, and what they come to."""

from typing import Any

import anyio

from callboard import DrainingError

CONFIG: Any = {"configurable": {"thread_id": "t"}}
GO: Any = {"messages": [("user", "go")]}
WAIT = 100


class Fallen:
    """What was raised where runs were started, and what they came to."""

    def __init__(self) -> None:
        self.errors: list[DrainingError] = []
        self.results: list[Any] = []

    async def run(self, work: Any, *args: Any) -> None:
        try:
            self.results.append(await work(*args))
        except DrainingError as error:
            self.errors.append(error)


async def until(holds: Any) -> None:
    while not holds():
        await anyio.sleep(0.01)
