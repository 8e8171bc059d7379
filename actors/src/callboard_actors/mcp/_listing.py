"""The tools of a server: listed to the end, and which of them are wanted."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from mcp_types import Tool

_PAGES = 100
"""Parts in which a list may come."""


class EndlessListError(Exception):
    """A list of a server does not end; says how far it was followed."""


async def list_tools(client: Any, most: int) -> list[Tool]:
    """All tools of a server, whatever it said before.

    Args:
        client: the SDK's, connected.
        most: how many there may be.

    Raises:
        EndlessListError: there are more of them, or of the parts in which they come.
    """
    found: list[Tool] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        found += page.tools
        if len(found) > most:
            raise EndlessListError(f"it has more than {most} tools; if it should have, raise max_tools")
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise EndlessListError(f"its list of tools does not end: {_PAGES} parts, and {len(found)} tools so far")


class Choice:
    """Which tools of a server are wanted, by name.

    Args:
        allow: those and no others; `None` for all.
        deny: all but those.
    """

    def __init__(self, allow: Sequence[str] | None, deny: Sequence[str]) -> None:
        for option, names in (("allow", allow), ("deny", deny)):
            if isinstance(names, str):
                raise TypeError(f"McpServer({option}=...) is a list of names, such as [{names!r}]")
        self._allow = None if allow is None else frozenset(allow)
        self._deny = frozenset(deny)

    def check(self, server: str, offered: Iterable[str]) -> None:
        """Refuse names of tools that the server does not have.

        Raises:
            ValueError: for one.
        """
        known = sorted(offered)
        for option, names in (("allow", self._allow or ()), ("deny", self._deny)):
            for name in sorted(names):
                if name not in known:
                    raise ValueError(f"McpServer({option}=[{name!r}, ...]): {no_tool(server, name, known)}")

    def of(self, tools: Iterable[Tool]) -> list[Tool]:
        """Those that are wanted."""
        return [tool for tool in tools if self._wants(tool.name)]

    def _wants(self, name: str) -> bool:
        return name not in self._deny and (self._allow is None or name in self._allow)


def no_tool(server: str, name: str, known: Iterable[str]) -> str:
    """What to say of a tool that a server does not have."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the MCP server {server!r} has no tool {name!r}, only {names[:40]}{hint}"
