"""Middleware around a tool call, for `ToolNode(middleware=[...])`.

Each middleware gets the request of a call, and a function that runs the rest of the chain.
"""

from typing import TYPE_CHECKING

from callboard._util._lazy import lazy

if TYPE_CHECKING:
    from callboard._calls._call import note as note
    from callboard.middleware._approval._approval import RequireApproval as RequireApproval
    from callboard.middleware._approval._approved import approved_arguments as approved_arguments
    from callboard.middleware._breaker._breaker import CircuitBreaker as CircuitBreaker
    from callboard.middleware._cache._cache import Cache as Cache
    from callboard.middleware._fallback import Fallback as Fallback
    from callboard.middleware._fallback import Value as Value
    from callboard.middleware._output._output_budget import OutputBudget as OutputBudget
    from callboard.middleware._retry import Retry as Retry
    from callboard.middleware._supervise import Supervise as Supervise

_HOMES = {
    "callboard._calls._call": ("note",),
    "callboard.middleware._fallback": (
        "Value",
        "Fallback",
    ),
    "callboard.middleware._approval._approval": ("RequireApproval",),
    "callboard.middleware._approval._approved": ("approved_arguments",),
    "callboard.middleware._breaker._breaker": ("CircuitBreaker",),
    "callboard.middleware._cache._cache": ("Cache",),
    "callboard.middleware._output._output_budget": ("OutputBudget",),
    "callboard.middleware._retry": ("Retry",),
    "callboard.middleware._supervise": ("Supervise",),
}
"""Private module of each public name. Modules are imported on first use: most nodes need few of them, and
`Supervise` imports LangChain."""

# `_HOMES` is the only list of the public names, so that `__all__` cannot differ from it.
__all__ = sorted(name for names in _HOMES.values() for name in names)  # noqa: PLE0605 # pyright: ignore[reportUnsupportedDunderAll]

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
