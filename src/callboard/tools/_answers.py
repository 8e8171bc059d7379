"""Matching of answers to open questions by LangGraph's rules, for agents and for nodes outside of a graph."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from langgraph.errors import UnknownInterruptError
from langgraph.types import Interrupt

from callboard._langgraph import is_interrupt_id

Answers = Mapping[str, Any]
"""Answers by the interrupt id of their question."""


class AmbiguousAnswerError(UnknownInterruptError, RuntimeError):
    """Plain answer for several open questions. Both bases are errors that LangGraph raises in this case."""

    def __init__(self, pending: Sequence[str]) -> None:
        super().__init__(
            "When there are multiple pending interrupts, you must specify the interrupt id when resuming: "
            f"{{interrupt.id: answer}} for any of them; open are {list(pending)}",
            reason="ambiguous",
            pending_ids=pending,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.pending_ids,)


def is_by_id(resume: object) -> TypeGuard[Answers]:
    """Return whether a resume value is a dict of answers by interrupt id; an empty dict is.

    Any other value is one answer.
    """
    return isinstance(resume, dict) and all(isinstance(key, str) and is_interrupt_id(key) for key in resume)


def answers_by_id(resume: object, questions: Sequence[Interrupt]) -> Answers:
    """Return the answers of a resume value by interrupt id; UnknownInterruptError if one matches no open question.

    A plain answer is allowed only if exactly one question is open.
    """
    pending = sorted({question.id for question in questions})
    if is_by_id(resume):
        if unknown := sorted(resume.keys() - set(pending)):
            raise UnknownInterruptError(
                f"Unknown or already-consumed interrupt: {unknown[0]}; open are {pending}",
                reason="not_pending",
                interrupt_ids=unknown,
                pending_ids=pending,
            )
        return resume
    if len(pending) > 1:
        # Never guess: an approval that reaches the wrong call would run a call that nobody approved.
        raise AmbiguousAnswerError(pending)
    if not pending:
        raise UnknownInterruptError(
            f"No question is open, so there is nothing that {resume!r} could answer; calls that have not run ask "
            "again when they are run without an answer",
            reason="not_pending",
        )
    return {pending[0]: resume}
