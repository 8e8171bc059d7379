"""Request and answer formats for a tool that asks a person; LangGraph's agent inbox uses the same."""

from typing import Any, Literal

from typing_extensions import TypedDict


class HumanInterruptConfig(TypedDict):
    """Answers that a request allows."""

    allow_ignore: bool
    """Allow to skip the step."""
    allow_respond: bool
    """Allow an answer with text instead of the action."""
    allow_edit: bool
    """Allow a change of the action or its arguments."""
    allow_accept: bool
    """Allow the action as it is."""


class ActionRequest(TypedDict):
    """Action that waits for a person's answer."""

    action: str
    """Name of the action, such as a tool's name."""
    args: dict[str, Any]
    """Arguments of the action."""


class HumanInterrupt(TypedDict):
    """Argument of `interrupt()`, usually as the only element of a list."""

    action_request: ActionRequest
    config: HumanInterruptConfig
    description: str | None
    """Information for the person who answers."""


class HumanResponse(TypedDict):
    """Answer of a person to a `HumanInterrupt`."""

    type: Literal["accept", "ignore", "response", "edit"]
    args: str | ActionRequest | None
    """`None` to accept or ignore, a text for a response, the changed request for an edit."""
