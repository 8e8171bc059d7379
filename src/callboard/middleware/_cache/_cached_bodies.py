"""Identity of the code that a tool runs, as a part of cache keys."""

import inspect
from collections.abc import Hashable

from langchain_core.tools import BaseTool


class _Identity:
    """Hashable wrapper of any object, equal only to a wrapper of the same object."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


def body_of(tool: BaseTool) -> Hashable:
    """Return the tool's function or, if it has none, the identity of the tool object."""
    fn = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return fn if inspect.isroutine(fn) else _Identity(tool)


def is_function_alone(body: Hashable) -> bool:
    """Return whether a body is a plain function without a closure, so that it depends on its arguments only.

    Such a function does the same in all processes that run the same program. A closure could hold a user or client.
    """
    return inspect.isfunction(body) and not body.__closure__
