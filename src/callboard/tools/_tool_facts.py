"""Cached facts about tools: reading signatures and schemas takes longer than a call."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from langchain_core.tools import BaseTool

T = TypeVar("T")

_MOST = 4096
"""Maximum number of cached tool names; the oldest name is removed for a new one."""
_ALIKE = 4
"""Maximum number of cached tools of one name. Several nodes may share a middleware, and a node may be made per
request."""


_Parts = tuple[object, object, object, object, object, object, object]


class _Known(NamedTuple, Generic[T]):
    """Facts about a tool, with the functions and schema that they were read from."""

    tool: "ref[BaseTool]"
    made_of: _Parts
    facts: T


class ToolFacts(Generic[T]):
    """Cache of facts about tools, by tool object: several tools may share a name, and their fields may change.

    Facts may refer to their tool, and keep it alive until enough other tools of the same name are cached. May be used
    from any thread.

    Args:
        find_out: reads the facts of a tool.
    """

    __slots__ = ("_find_out", "_known")

    def __init__(self, find_out: Callable[[BaseTool], T]) -> None:
        self._find_out = find_out
        self._known: dict[str, tuple[_Known[T], ...]] = {}

    def __len__(self) -> int:
        return sum(one.tool() is not None for known in list(self._known.values()) for one in known)

    def of(self, tool: BaseTool) -> T:
        """Return the facts about a tool in its present state; errors of `find_out` are raised and not cached."""
        # No lock: each update stores a new tuple. Two threads may read the same tool at once, which only costs time.
        known = self._known.get(tool.name, ())
        for one in known:
            if one.tool() is tool and _is_made_of(tool, one.made_of):
                return one.facts
        made_of, facts = _made_of(tool), self._find_out(tool)
        if not known and len(self._known) >= _MOST:
            self._known.pop(next(iter(list(self._known))), None)
        others = tuple(one for one in known if (held := one.tool()) is not None and held is not tool)
        self._known[tool.name] = (_Known(ref(tool), made_of, facts), *others[: _ALIKE - 1])
        return facts


def _made_of(tool: BaseTool) -> _Parts:
    # A user's test may replace a tool's fields, or its class's methods, by mocks.
    cls: Any = tool.__class__
    return (
        getattr(tool, "coroutine", None),
        getattr(tool, "func", None),
        getattr(tool, "args_schema", None),
        cls._run,
        cls._arun,
        cls.invoke,
        cls.ainvoke,
    )


def _is_made_of(tool: BaseTool, parts: _Parts) -> bool:
    # By identity: callable objects may be equal and behave differently.
    coroutine, func, schema, run, arun, invoke, ainvoke = parts
    cls: Any = tool.__class__
    return (
        getattr(tool, "coroutine", None) is coroutine
        and getattr(tool, "func", None) is func
        and getattr(tool, "args_schema", None) is schema
        and cls._run is run
        and cls._arun is arun
        and cls.invoke is invoke
        and cls.ainvoke is ainvoke
    )
