"""Known wrong orders of middleware, with reasons."""

import warnings
from collections.abc import Sequence

from callboard._util._callers import level_of_user
from callboard.exceptions import MiddlewareOrderWarning

REVEALING = "Redact(reveal=...)"
"""Kind of a `Redact` that reveals original values to some tools."""

_SAME = {"ToolRetryMiddleware": "Retry", "HumanInTheLoopMiddleware": "RequireApproval"}
"""Names of LangChain's middleware, by callboard's equivalent."""

_ASKS_TOO_LATE = "the question comes after a body has run, and the answer runs that body again"
_CHANGED_AFTERWARDS = "a person approves arguments that are changed afterwards"

_WRONG = {
    ("Retry", "CircuitBreaker"): "each attempt counts as a failure, and attempts are spent on an open circuit",
    ("Retry", "Retry"): "their attempts multiply",
    ("Retry", "Fallback"): "the fallback answers for the first failure, and nothing is left to retry",
    ("Retry", "RequireApproval"): _ASKS_TOO_LATE,
    ("CircuitBreaker", "Fallback"): "the fallback hides the failures, and the circuit never opens",
    ("CircuitBreaker", "Cache"): "answers from the cache count as proof that the tool works",
    ("Fallback", "RequireApproval"): _ASKS_TOO_LATE,
    ("Cache", "Fallback"): "what the fallback answers is cached as if the tool had said it",
    ("Cache", "RequireApproval"): "a cached result is handed out that nobody has approved",
    ("RequireApproval", "Sanitize"): _CHANGED_AFTERWARDS,
    ("RequireApproval", "RepairArguments"): _CHANGED_AFTERWARDS,
    ("Sanitize", "RepairArguments"): "what a repair takes out of a string has not been checked",
    ("Redact", "OutputBudget"): "secrets are stored in the clear, and one that is cut in two is not recognised",
    (REVEALING, "RequireApproval"): "the question shows, and a checkpoint keeps, what tokens stand for",
    ("Redact", "Cache"): "secrets are cached in the clear",
}
"""Reason why an order is wrong, by the names of the outer and the inner middleware."""


def warn_of_wrong_order(middleware: Sequence[object]) -> None:
    """Warn once for each pair of middleware that is known to go wrong in its order."""
    kinds = [_kinds(one) for one in middleware]
    for position, outer in enumerate(kinds):
        for inner in kinds[position + 1 :]:
            for pair, reason in _WRONG.items():
                if pair[0] in outer and pair[1] in inner:
                    warnings.warn(_sentence(*pair, reason), MiddlewareOrderWarning, stacklevel=level_of_user())


def _kinds(one: object) -> set[str]:
    """Return the kinds of a middleware: the names of its classes, so that no middleware module need be imported."""
    names = {cls.__name__ for cls in type(one).__mro__}
    if getattr(one, "reveals", False):
        names.add(REVEALING)
    return names | {_SAME[name] for name in names & _SAME.keys()}


def _sentence(outer: str, inner: str, reason: str) -> str:
    if outer == inner:
        return f"There are two of the kind {outer}: {reason}. Keep one."
    return f"The middleware {outer} is outside of {inner}: {reason}. Put {inner} before {outer} in middleware=[...]."
