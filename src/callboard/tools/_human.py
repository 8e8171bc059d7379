"""The shapes in which a tool asks a person, and the person answers."""

from typing import Any, Literal

from typing_extensions import TypedDict


class HumanInterruptConfig(TypedDict):
    """Which answers a request allows."""

    allow_ignore: bool
    """Skip the step."""
    allow_respond: bool
    """Answer with text instead of acting."""
    allow_edit: bool
    """Change the action or its arguments."""
    allow_accept: bool
    """Let the action happen as it is."""


class ActionRequest(TypedDict):
    """An action that waits for a person."""

    action: str
    """What is to be done, such as a tool's name."""
    args: dict[str, Any]
    """With which arguments."""


class HumanInterrupt(TypedDict):
    """What a tool hands to `interrupt()`, usually as the only element of a list."""

    action_request: ActionRequest
    config: HumanInterruptConfig
    description: str | None
    """What the person should know before answering."""


class HumanResponse(TypedDict):
    """A person's answer to a `HumanInterrupt`."""

    type: Literal["accept", "ignore", "response", "edit"]
    args: str | ActionRequest | None
    """Nothing to accept or ignore, text for a response, the changed request for an edit."""
