"""Protocols of a served object and of its calls, independent of transport and protocol version."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from mcp import types

from callboard import Drained
from callboard_actors.mcp_service._callers import Caller
from callboard_actors.mcp_service._content import failed
from callboard_actors.mcp_service._questions import FormQuestion

Tell = Callable[[object], None]
"""Function that takes stream chunks, and sends the progress among them to the client."""


@dataclass(frozen=True, slots=True)
class NeedsAnswers:
    """State of a call that waits for a person: its questions."""

    questions: Sequence[FormQuestion]
    complaint: str = ""
    """Error in the previous answer, for the person; empty without one."""


class ServedCall(Protocol):
    """Call of a client, from its arguments through its questions to its result."""

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run until the result, or until a person has to be asked. An error of the call is returned as a result.

        Args:
            answers: answers by question id; empty to begin the call.
            tell: receives stream chunks with progress.
        """
        ...

    async def forget(self) -> None:
        """Delete the stored state of the call: its questions will not be answered."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Call that is refused with a reason."""

    why: str

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Return the refusal as the result."""
        return failed(self.why)

    async def forget(self) -> None:
        """Do nothing: the call has no stored state."""


class ServedObject(Protocol):
    """Served object: its name, its tools, and calls of them."""

    @property
    def name(self) -> str:
        """Name of the server for clients."""
        ...

    def tools(self) -> list[types.Tool]:
        """Return the tools that clients may see now."""
        ...

    def begin(self, name: str, arguments: dict[str, Any], caller: Caller) -> ServedCall | None:
        """Return a call that has not begun; `None` for an unknown tool.

        Args:
            name: name of the tool.
            arguments: arguments from the client, not validated.
            caller: client that makes the call.
        """
        ...

    def opened(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager: calls are possible inside its block."""
        ...

    async def drain(self, timeout: float) -> Drained:
        """Refuse new calls, and wait for running ones; `timeout` is in seconds."""
        ...
