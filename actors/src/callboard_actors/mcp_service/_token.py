"""Checks of bearer tokens for MCP over HTTP, and reading of tokens from environment variables."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence

TOKEN = "CALLBOARD_MCP_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the token of `callboard mcp`."""

Token = str | Mapping[str, str]
"""Bearer token that all clients send, or a mapping from client names to their tokens."""


def check_token(token: Token | None) -> None:
    """Raise ValueError for an empty token, equal tokens of two clients, or an empty mapping."""
    tokens = [] if token is None else [token] if isinstance(token, str) else list(token.values())
    if not all(secret.strip() for secret in tokens):
        raise ValueError("the token is empty: whoever shows none would have it")
    if token is not None and not tokens:
        raise ValueError("token={} names no client, so nobody could come in; give {name: token}, or None")
    if any(count > 1 for count in Counter(tokens).values()):
        raise ValueError("token={...} has the same token for two clients, which nothing would tell apart")


def take_token(variables: Sequence[str] | None) -> Token | None:
    """Return the token in an environment variable, or the tokens of named clients; remove the variables."""
    # Each entry is VARIABLE or NAME=VARIABLE. They are removed, because subprocesses must not inherit the tokens.
    if not variables:
        return os.environ.pop(TOKEN, "").strip() or None
    entries = [entry.rpartition("=") for entry in variables]
    tokens: dict[str, str] = {}
    for client, _, variable in entries:
        tokens[client] = os.environ.pop(variable, "").strip()
        if not tokens[client]:
            raise ValueError(f"--token-env names the variable {variable}, which is not set, or empty")
    if "" not in tokens and len(tokens) == len(entries):
        return tokens
    if len(entries) > 1:
        raise ValueError(
            "--token-env is given once for a token that all clients show, or as NAME=VARIABLE for each client, with "
            f"another name each; got {', '.join(variables)}"
        )
    return tokens[""]
