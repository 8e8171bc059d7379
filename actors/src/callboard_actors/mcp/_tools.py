"""Complete lists of a server's tools, the selection of wanted ones, and their conversion to LangChain's."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from langchain_core.tools import BaseTool, StructuredTool
from mcp_types import CallToolResult, PaginatedResult, Tool

from callboard_actors.mcp._content import content_and_artifact, content_of_error, metadata_of
from callboard_actors.mcp._link import MOST_PARTS

# Lists and names.

_P = TypeVar("_P", bound=PaginatedResult)
_T = TypeVar("_T")

_TAKEN_BY_ALL = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that every model provider accepts; some accept more."""
_PAGES = 100
"""Maximum number of pages of a list."""


class EndlessListError(Exception):
    """Raised if a list of a server has too many items or pages."""


async def list_tools(client: Any) -> list[Tool]:
    """Return all tools of a server, bypassing caches; raise `EndlessListError` for too many."""
    return await all_of("tools", client.list_tools, lambda page: page.tools)


def repeated_names(tools: Iterable[Tool]) -> list[str]:
    """Return names that several tools have; a lookup by name finds the last of them."""
    times = Counter(tool.name for tool in tools)
    return sorted(name for name, several in times.items() if several > 1)


async def all_of(what: str, ask: Callable[..., Awaitable[_P]], items: Callable[[_P], Sequence[_T]]) -> list[_T]:
    """Return all items that a server lists, page by page, bypassing caches.

    `ask` requests the page at a `cursor`. Raise `EndlessListError` for too many items, or too many pages.
    """
    found: list[_T] = []
    cursor: str | None = None
    # Bounded, because a faulty or hostile server may return a next page for ever.
    for _ in range(_PAGES):
        page = await ask(cursor=cursor, cache_mode="refresh")
        found += items(page)
        if len(found) > MOST_PARTS:
            raise EndlessListError(f"it has more than {MOST_PARTS} {what}")
        cursor = page.next_cursor
        if cursor is None:
            return found
    raise EndlessListError(f"its list of {what} does not end: {_PAGES} parts, and {len(found)} {what} so far")


class Choice:
    """Selection of a server's tools by name."""

    def __init__(self, allow: Sequence[str] | None, deny: Sequence[str]) -> None:
        for option, names in (("allow", allow), ("deny", deny)):
            if isinstance(names, str):
                raise TypeError(f"McpServer({option}=...) is a list of names, such as [{names!r}]")
        self._allow = None if allow is None else frozenset(allow)
        self._deny = frozenset(deny)

    def check(self, server: str, offered: Iterable[str], unfit: Mapping[str, str]) -> None:
        """Raise `ValueError` for a selected or excluded name that is neither offered nor left out as unfit."""
        known = sorted(offered)
        for option, names in (("allow", self._allow or ()), ("deny", self._deny)):
            for name in sorted(names):
                if name not in known and not (option == "deny" and name in unfit):
                    raise ValueError(f"McpServer({option}=[{name!r}, ...]): {no_tool(server, name, known, unfit)}")

    def of(self, tools: Iterable[Tool]) -> list[Tool]:
        """Return the selected tools."""
        return [tool for tool in tools if self._wants(tool.name)]

    def _wants(self, name: str) -> bool:
        return name not in self._deny and (self._allow is None or name in self._allow)


def no_tool(server: str, name: str, known: Iterable[str], unfit: Mapping[str, str]) -> str:
    """Return the error text for a tool that a server lacks, or that was left out."""
    if name in unfit:
        return f"the tool {name!r} of the MCP server {server!r} is left out: {unfit[name]}"
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"the MCP server {server!r} has no tool {name!r}, only {names[:40]}{hint}"


def refused_names(names: Iterable[str]) -> list[str]:
    """Return names that some model providers refuse, together with the whole request."""
    return [name for name in names if _TAKEN_BY_ALL.fullmatch(name) is None]


# Conversion.

Call = Callable[[str, dict[str, Any]], Awaitable[tuple[CallToolResult, str]]]
"""Function of a tool's name and arguments; returns the result, and a notice for the model or an empty text."""


class ServersTool(StructuredTool):
    """Tool that accepts any argument names; LangChain reserves `config`, `run_manager` and `self`."""

    async def _arun(self, /, **arguments: Any) -> Any:  # type: ignore[override]
        assert self.coroutine is not None
        return await self.coroutine(**arguments)


def as_langchain_tool(tool: Tool, *, prefix: str, call: Call) -> BaseTool:
    """Return a LangChain tool; `call` sends its calls to the server."""
    name = prefix + tool.name

    async def ask(**arguments: Any) -> tuple[Any, Any]:
        result, notice = await call(tool.name, arguments)
        content, artifact = content_and_artifact(result)
        if notice:
            content = [*content, {"type": "text", "text": f"({notice})"}]
        return content, artifact

    return ServersTool(
        name=name,
        description=tool.description or tool.title or tool.name,
        args_schema=_schema(tool),
        coroutine=ask,
        response_format="content_and_artifact",
        metadata=metadata_of(tool),
        handle_tool_error=content_of_error,
    )


def _schema(tool: Tool) -> dict[str, Any]:
    """Return the schema for models. LangChain reads `properties`, which the schema of a tool may omit."""
    return {"properties": {}, **tool.input_schema}
