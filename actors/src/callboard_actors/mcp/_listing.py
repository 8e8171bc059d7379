"""The tools of a server: listed to the end, and which of them are wanted."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeVar

from mcp_types import PaginatedResult, Tool

_P = TypeVar("_P", bound=PaginatedResult)
_T = TypeVar("_T")

_TAKEN_BY_ALL = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Names of tools that every provider takes; some take more."""
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
    ask = partial(client.list_tools, cache_mode="refresh")
    return await all_of("tools", ask, lambda page: page.tools, most, "; if it should have, raise max_tools")


def repeated_names(tools: Iterable[Tool]) -> list[str]:
    """Names that several tools have; of those, whoever looks for one finds the last."""
    times = Counter(tool.name for tool in tools)
    return sorted(name for name, several in times.items() if several > 1)


async def all_of(
    what: str, ask: Callable[..., Awaitable[_P]], items: Callable[[_P], Sequence[_T]], most: int, remedy: str = ""
) -> list[_T]:
    """All that a server lists, part after part.

    Args:
        what: what it lists, for errors.
        ask: asks for the part at a `cursor`.
        items: what is in a part.
        most: how many there may be.
        remedy: what to do if there should be more.

    Raises:
        EndlessListError: there are more, or too many parts in which they come.
    """
    found: list[_T] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await ask(cursor=cursor)
        found += items(page)
        if len(found) > most:
            raise EndlessListError(f"it has more than {most} {what}{remedy}")
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise EndlessListError(f"its list of {what} does not end: {_PAGES} parts, and {len(found)} {what} so far")


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

    def check(self, server: str, offered: Iterable[str], unfit: Mapping[str, str]) -> None:
        """Refuse names of tools that the server does not have.

        Args:
            server: its name.
            offered: names of its tools.
            unfit: why those were left out that it has as well.

        Raises:
            ValueError: for one.
        """
        known = sorted(offered)
        for option, names in (("allow", self._allow or ()), ("deny", self._deny)):
            for name in sorted(names):
                if name not in known and not (option == "deny" and name in unfit):
                    raise ValueError(f"McpServer({option}=[{name!r}, ...]): {no_tool(server, name, known, unfit)}")

    def of(self, tools: Iterable[Tool]) -> list[Tool]:
        """Those that are wanted."""
        return [tool for tool in tools if self._wants(tool.name)]

    def _wants(self, name: str) -> bool:
        return name not in self._deny and (self._allow is None or name in self._allow)


def no_tool(server: str, name: str, known: Iterable[str], unfit: Mapping[str, str]) -> str:
    """What to say of a tool that a server does not have, or that was left out."""
    if name in unfit:
        return f"the tool {name!r} of the MCP server {server!r} is left out: {unfit[name]}"
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the MCP server {server!r} has no tool {name!r}, only {names[:40]}{hint}"


def refused_names(names: Iterable[str]) -> list[str]:
    """Names that some providers of models refuse, and with them the whole request."""
    return [name for name in names if _TAKEN_BY_ALL.fullmatch(name) is None]
