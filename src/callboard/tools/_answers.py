"""Which answer is for which question. LangGraph's rule, for nodes outside of a graph and for agents."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from langgraph.errors import UnknownInterruptError
from langgraph.types import Interrupt

from callboard._langgraph import is_interrupt_id

Answers = Mapping[str, Any]
"""Answers to questions, by the id of the interrupt."""


class AmbiguousAnswerError(UnknownInterruptError, RuntimeError):
    """One answer for several questions; LangGraph raises the one or the other of its bases."""

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
    """Whether what a run is resumed with are answers by id, be it none at all; all else is one answer."""
    return isinstance(resume, dict) and all(isinstance(key, str) and is_interrupt_id(key) for key in resume)


def answers_by_id(resume: object, questions: Sequence[Interrupt]) -> Answers:
    """Answers by the id of their question.

    Args:
        resume: `{interrupt.id: answer}` for any of the open questions, or the answer itself if one is open.
        questions: the open ones.

    Raises:
        UnknownInterruptError: if an answer fits no open question.
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
        raise AmbiguousAnswerError(pending)
    if not pending:
        raise UnknownInterruptError(
            f"No question is open, so there is nothing that {resume!r} could answer; calls that have not run ask "
            "again when they are run without an answer",
            reason="not_pending",
        )
    return {pending[0]: resume}
