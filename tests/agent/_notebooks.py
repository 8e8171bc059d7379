"""Actors with lines of text, whose states are stored with a thread."""

from typing import Any

from callboard import Actor, handler


class Lines(Actor):
    """Lines of text."""

    starts: list[object] = []
    """Keys of the started actors of all kinds."""

    async def start(self) -> None:
        self.starts.append(self.key)
        self.lines: list[Any] = []

    async def snapshot(self) -> Any:
        return self.lines

    async def restore(self, snapshot: Any) -> None:
        self.lines = snapshot


class Notebook(Lines):
    """Lines of text, to which calls append."""

    answers: list[str] = []
    """Results of all calls."""

    @handler
    async def append(self, line: str) -> str:
        """Append a line."""
        self.lines.append(line)
        self.answers.append(",".join(self.lines))
        return self.answers[-1]
