"""What the results of a tool are the results of: tools that were made for two users may have one name."""

import inspect
from collections.abc import Hashable

from langchain_core.tools import BaseTool


class _Identity:
    """Equal to itself only, and hashable whatever it is of."""

    __slots__ = ("_of",)

    def __init__(self, of: object) -> None:
        self._of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self._of is other._of

    def __hash__(self) -> int:
        return id(self._of)


def body_of(tool: BaseTool) -> Hashable:
    """What a tool runs; the same where tools were made of one function."""
    fn = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    return fn if inspect.isroutine(fn) else _Identity(tool)


def is_function_alone(body: Hashable) -> bool:
    """Whether a body is a function that has nothing of its own, such as a client or a user, besides its arguments.

    Then the same name means the same in all processes that run one program.
    """
    return inspect.isfunction(body) and not body.__closure__
