"""Tools and an actor of an imaginary reader, in a module that worker processes can import."""

from typing import Any

from langchain_core.tools import tool

from callboard import Actor, fencing_token, handler


@tool
def render(scene: str) -> str:
    """Render a scene."""
    return scene.upper()


@tool
def search(query: str) -> str:
    """Search."""
    return f"all about {query}"


@tool
def book(hotel: str) -> str:
    """Book a hotel."""
    return f"{hotel} is booked"


@tool
def permitted() -> str:
    """Tell whether the call has a permit of a shared limit."""
    return "with a token" if fencing_token() else "without"


def parse(text: str) -> int:
    """Parse a text."""
    return len(text)


class Renderer(Actor):
    """Actor with a file."""

    def __init__(self, file: str = "") -> None:
        self.file = file

    @handler
    def frame(self, number: int) -> str:
        """Render a frame."""
        return f"{self.file} {number}"


class Browser(Actor):
    """Browser of one user."""

    def __init__(self) -> None:
        self.pages = 0

    @handler
    async def open(self, url: str, user: str) -> str:
        """Open a page."""
        self.pages += 1
        return f"{self.pages} pages of {user}"


def state_with_call(name: str, **args: Any) -> dict[str, Any]:
    """Return the state of an agent whose last message asks for one call."""
    from callboard.testing import calls

    return {"messages": [calls((name, args))]}
