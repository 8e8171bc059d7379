"""What clients that come by HTTP have to show, and where `callboard mcp` finds it."""

import os

TOKEN = "CALLBOARD_MCP_TOKEN"  # noqa: S105 - the name of a variable
"""Has it, where it is set."""


def take_token(variable: str | None) -> str | None:
    """Take the token out of the environment, so that what the tools start does not have it.

    Args:
        variable: that has it, as the command line says; `None` for `TOKEN`, where it is set.

    Raises:
        ValueError: the variable was named, and is not set, or empty.
    """
    found = os.environ.pop(variable or TOKEN, "").strip()
    if variable is not None and not found:
        raise ValueError(f"--token-env names the variable {variable}, which is not set, or empty")
    return found or None
