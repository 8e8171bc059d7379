"""Tools and an actor that run in workers, in a module that loads neither LangChain nor LangGraph there."""

import os

from callboard import Actor, handler, idempotency_key

from . import _bodies as bodies


def hang(folder: str) -> None:
    """Hang in C."""
    bodies.sleep_in_c(folder)


async def later(text: str) -> str:
    """Say a text, and where."""
    return f"{text} from {os.getpid()}"


class Desk(Actor):
    """Actor that keeps papers."""

    def __init__(self, room: str) -> None:
        self.room = room
        self.papers: list[str] = []

    async def start(self) -> None:
        self.papers.append(f"in {self.room}")

    @handler
    async def put(self, paper: str) -> str:
        """Put a paper on the desk."""
        self.papers.append(paper)
        return ", ".join(self.papers)

    @handler
    def where(self) -> int:
        """In which process the desk is."""
        return os.getpid()

    @handler
    def hang(self, folder: str) -> None:
        """Hang in C."""
        bodies.sleep_in_c(folder)

    async def snapshot(self) -> list[str]:
        return self.papers

    async def restore(self, snapshot: list[str]) -> None:
        self.papers = snapshot


def key_of_order(order: str, note: str = "") -> str:
    """Return the key of an order."""
    return idempotency_key(of=("order",))
