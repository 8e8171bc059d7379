"""Tokens that clients over HTTP have to show, and where `callboard mcp` finds them."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

TOKEN = "CALLBOARD_MCP_TOKEN"  # noqa: S105 - the name of a variable
"""Has it, where it is set."""

Token = str | Mapping[str, str]
"""One token that all clients show; or the token of each client, by the client's name."""


def check_token(token: Token | None) -> None:
    """Refuse tokens that do not keep anybody out, or do not tell clients apart.

    Raises:
        ValueError: a token is empty, two clients have the same one, or no client has one.
    """
    tokens = [] if token is None else [token] if isinstance(token, str) else list(token.values())
    if not all(one.strip() for one in tokens):
        raise ValueError("the token is empty: whoever shows none would have it")
    if token is not None and not tokens:
        raise ValueError("token={} names no client, so nobody could come in; give {name: token}, or None")
    if any(count > 1 for count in Counter(tokens).values()):
        raise ValueError("token={...} has the same token for two clients, which nothing would tell apart")


def take_token(variables: Sequence[str] | None) -> Token | None:
    """Take the tokens out of the environment, so that what the tools start does not have them.

    Args:
        variables: as the command line names them: one variable, or NAME=VARIABLE for each client; without any, `TOKEN`
            is looked at.

    Raises:
        ValueError: a variable was named, and is not set, or empty; or the two forms are mixed.
    """
    if not variables:
        return os.environ.pop(TOKEN, "").strip() or None
    named = [one.rpartition("=") for one in variables]
    taken = {client: _taken(variable) for client, _, variable in named}
    if "" not in taken and len(taken) == len(named):
        return taken
    if len(named) > 1:
        raise ValueError(
            "--token-env is given once for a token that all clients show, or as NAME=VARIABLE for each client, with "
            f"another name each; got {', '.join(variables)}"
        )
    return taken[""]


def _taken(variable: str) -> str:
    if found := os.environ.pop(variable, "").strip():
        return found
    raise ValueError(f"--token-env names the variable {variable}, which is not set, or empty")
