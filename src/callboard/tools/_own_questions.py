"""Questions of a tool's body: whether a person can be asked, and the question that was asked before."""

from collections.abc import Callable

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.types import interrupt

from callboard._langgraph import scope_of


def can_ask() -> bool:
    """Return whether this code runs within a call of callboard's `ToolNode`, where `interrupt()` reaches a person."""
    return scope_of(var_child_runnable_config.get() or {}) is not None


def answered_question(is_mine: Callable[[object], bool] | None = None) -> object:
    """Return the question of an earlier run of this call, if its answer has arrived and was not taken; else `None`.

    An answered call runs again from its beginning. With its old question, the body can continue where it stopped: state
    that it needs for that can be part of the question, and is stored with it. The next `interrupt()` returns the
    answer. Answers to earlier questions are skipped.

    It is also `None` for a second attempt after the answer was taken, and after the process was killed since then.

    Args:
        is_mine: returns whether the question was asked by the present part of the body, if several parts ask. If it
            returns `False`, no answer is skipped, and the result is `None`.
    """
    scope = scope_of(var_child_runnable_config.get() or {})
    question = None if scope is None else scope.answered_question()
    if scope is None or question is None or not (is_mine is None or is_mine(question)):
        return None
    while scope.answers_left() > 1:
        interrupt(None)
    return question
