"""Runs that are started during a drain, and their outcomes."""

from typing import Any

from callboard import DrainingError

CONFIG: Any = {"configurable": {"thread_id": "t"}}
GO: Any = {"messages": [("user", "go")]}
WAIT = 100


class Fallen:
    """Outcomes of runs, and the exceptions that they raised."""

    def __init__(self) -> None:
        self.errors: list[DrainingError] = []
        self.results: list[Any] = []

    async def run(self, call: Any, *args: Any) -> None:
        try:
            self.results.append(await call(*args))
        except DrainingError as error:
            self.errors.append(error)
