"""What is found out about tools, once for each: looking at signatures and schemas takes longer than a call."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ref

from langchain_core.tools import BaseTool

T = TypeVar("T")

_MOST = 4096
"""Names of tools that are known at a time; the first one goes when another comes."""
_ALIKE = 4
"""Tools of one name that are known at a time: nodes share a middleware, and a new node may be made for each request."""


_Parts = tuple[object, object, object, object, object, object, object]


class _Known(NamedTuple, Generic[T]):
    """Facts of a tool, and of what they were made: of another one they are not its own."""

    tool: "ref[BaseTool]"
    made_of: _Parts
    facts: T


class ToolFacts(Generic[T]):
    """Facts about tools, by the tool itself: several may have one name, and their fields may be assigned.

    Facts may lead to their tool, and keep it alive until as many others of its name are known. May be used from any
    thread.

    Args:
        find_out: looks at a tool.
    """

    __slots__ = ("_find_out", "_known")

    def __init__(self, find_out: Callable[[BaseTool], T]) -> None:
        self._find_out = find_out
        self._known: dict[str, tuple[_Known[T], ...]] = {}

    def __len__(self) -> int:
        return sum(one.tool() is not None for known in list(self._known.values()) for one in known)

    def of(self, tool: BaseTool) -> T:
        """The facts about a tool, as it is now.

        Raises:
            Exception: what `find_out` raises; it is asked again the next time.
        """
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
    # A test may put mocks in the place of a tool's fields, and in that of its class's methods.
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
    # By identity: functions may be objects that are equal and do something else.
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
