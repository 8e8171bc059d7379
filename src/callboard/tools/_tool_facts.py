"""What is found out about tools, once for each: looking at signatures and schemas takes longer than a call."""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar
from weakref import ref

from langchain_core.tools import BaseTool

T = TypeVar("T")

_MOST = 4096
"""Tools that are known at a time; the first one goes when another comes."""


class _Known(NamedTuple, Generic[T]):
    tool: "ref[BaseTool]"
    made_of: tuple[object, ...]
    facts: T


class ToolFacts(Generic[T]):
    """Facts about tools, by the tool itself: several may have one name, and their fields may be assigned.

    Tools are not kept alive, unless the facts lead to them. May be used from any thread.

    Args:
        find_out: looks at a tool.
    """

    __slots__ = ("_find_out", "_known")

    def __init__(self, find_out: Callable[[BaseTool], T]) -> None:
        self._find_out = find_out
        self._known: dict[int, _Known[T]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def of(self, tool: BaseTool) -> T:
        """The facts about a tool, as it is now.

        Raises:
            Exception: what `find_out` raises; it is asked again the next time.
        """
        known = self._known.get(id(tool))
        if known is not None and known.tool() is tool and known.made_of == _made_of(tool):
            return known.facts
        made_of, facts = _made_of(tool), self._find_out(tool)
        if len(self._known) >= _MOST:
            self._known.pop(next(iter(list(self._known))), None)
        key = id(tool)
        self._known[key] = _Known(ref(tool, lambda gone: self._forget(key, gone)), made_of, facts)
        return facts

    def _forget(self, key: int, gone: object) -> None:
        # By now another tool may have the identity.
        known = self._known.get(key)
        if known is not None and known.tool is gone:
            self._known.pop(key, None)


def _made_of(tool: BaseTool) -> tuple[object, ...]:
    return getattr(tool, "coroutine", None), getattr(tool, "func", None), tool.args_schema
