"""What is served, and one call of it: it ends with a result, or waits for a person. Knows no transport and no era."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mcp import types

from callboard import Drained
from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._content import failed
from callboard_actors.mcp_service._questions import Asked

Tell = Callable[[object], None]
"""Takes the chunks of a stream; of those that are progress, the client is told."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A call that waits for a person."""

    questions: Sequence[Asked]
    complaint: str = ""
    """What was wrong with the answer that they have given before."""


class Work(Protocol):
    """One call, from its arguments to its result, through all of its questions."""

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | Asking:
        """Run until it has a result, or a person has to be asked; never raises an error of the call.

        Args:
            answers: by the id of the question; none to begin.
            tell: is told of progress.
        """
        ...

    async def forget(self) -> None:
        """Let go of what was kept for it: its questions will not be answered."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call that does not begin; says why."""

    why: str

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | Asking:
        """Return the refusal as the result."""
        return failed(self.why)

    async def forget(self) -> None:
        """Do nothing: nothing is kept for the call."""


class Offer(Protocol):
    """What a server of MCP offers: its name, its tools, and calls of them."""

    @property
    def name(self) -> str:
        """What clients are told that the server is."""
        ...

    def tools(self) -> list[types.Tool]:
        """The tools that clients may see now."""
        ...

    def begin(self, name: str, arguments: dict[str, Any], caller: Caller) -> Work | None:
        """A call, which has not begun; `None` if there is no such tool.

        Args:
            name: of the tool.
            arguments: as the client has written them.
            caller: the client that makes the call.
        """
        ...

    def opened(self) -> AbstractAsyncContextManager[object]:
        """A block in which it can be called."""
        ...

    async def drain(self, timeout: float) -> Drained:
        """Begin nothing any more, and let what runs finish within so many seconds."""
        ...
