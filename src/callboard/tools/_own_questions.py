"""What the body of a tool may know of its questions: whether anybody can be asked, and what was asked before."""

from collections.abc import Callable

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.types import interrupt

from callboard._langgraph import scope_of


def can_ask() -> bool:
    """Whether this code runs within a call of a `ToolNode` of ours, where `interrupt()` reaches a person."""
    return scope_of(var_child_runnable_config.get() or {}) is not None


def answered_question(is_mine: Callable[[object], bool] | None = None) -> object:
    """What this call asked last, in a run before this one, if the answer is there and was not taken yet; else `None`.

    A call that has asked starts anew when it is answered. Here it finds what it handed to `interrupt()`, so that it
    can go on from there: whatever it needs for that may be part of the question, and is stored with it. The next
    `interrupt()` returns the answer. Answers to earlier questions are passed over.

    Args:
        is_mine: says of the question whether who asks now has asked it then, where several parts of a body may ask;
            if not, nothing is passed over, and there is none.

    To an attempt after one that took the answer, and to a call that was killed since, this is `None`, too.
    """
    scope = scope_of(var_child_runnable_config.get() or {})
    question = None if scope is None else scope.answered_question()
    if scope is None or question is None or not (is_mine is None or is_mine(question)):
        return None
    while scope.answers_left() > 1:
        interrupt(None)
    return question
