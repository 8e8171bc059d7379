"""Served objects and their calls, and the dialogue of a call with a person. Independent of the protocol version."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from mcp import types

from callboard_actors.mcp_service._questions import DeclinedError, FormQuestion, InvalidAnswerError, with_complaint
from callboard_actors.mcp_service._results import failed

# Served objects.

Tell = Callable[[object], None]
"""Function that takes stream chunks, and sends the progress among them to the client."""


@dataclass(frozen=True, slots=True)
class NeedsAnswers:
    """State of a call that waits for a person: its questions."""

    questions: Sequence[FormQuestion]
    complaint: str = ""
    """Error in the previous answer, for the person; empty without one."""


class ServedCall(Protocol):
    """Call of a client, from its arguments through its questions to its result."""

    async def go_on(self, answers: Mapping[str, object], tell: Tell) -> types.CallToolResult | NeedsAnswers:
        """Run until the result, or until a person has to be asked. An error of the call is returned as a result.

        `answers` are by question id, and empty to begin the call. `tell` receives stream chunks with progress.
        """
        ...

    async def forget(self) -> None:
        """Delete the stored state of the call: its questions will not be answered."""
        ...


Begun = ServedCall | types.CallToolResult | None
"""Call of a tool that has not begun, or its refusal; `None` for an unknown tool."""

# The dialogue.

Outcome = types.CallToolResult | NeedsAnswers
Filled = Mapping[str, types.ElicitResult]
"""Result of each form, by its key."""

MOST_COMPLAINTS: Final = 3
"""Number of invalid answers that are sent back to the user before the call is given up."""

_DECLINED: Final = "The call was not run to its end: the user has not answered what it asks."


def forms(asking: NeedsAnswers) -> dict[str, types.ElicitRequest]:
    """Return the forms of all questions of a call, each with a unique key."""
    found = {_key(n, place): form for n, one in enumerate(asking.questions) for place, form in enumerate(one.forms)}
    return {key: with_complaint(form, asking.complaint) for key, form in found.items()} if asking.complaint else found


def _key(question: int, place: int) -> str:
    return f"{question}.{place}"


_LEFT: Final = types.ElicitResult(action="cancel")
"""Result of a form that was not sent back."""


@dataclass(slots=True)
class Dialogue:
    """Dialogue state of a call: its work, and the number of invalid answers so far."""

    work: ServedCall
    complaints: int = 0

    async def fill_in(self, asking: NeedsAnswers, filled: Filled, tell: Tell) -> Outcome:
        """Continue with the filled-in forms, or ask again after an invalid answer."""
        try:
            answers = {
                one.question.id: one.answer([filled.get(_key(n, place), _LEFT) for place in range(len(one.forms))])
                for n, one in enumerate(asking.questions)
            }
        except DeclinedError:
            return await self.give_up(_DECLINED)
        except InvalidAnswerError as error:
            return await self._complain(NeedsAnswers(asking.questions, str(error)))
        outcome = await self.work.go_on(answers, tell)
        if isinstance(outcome, NeedsAnswers) and outcome.complaint:
            return await self._complain(outcome)
        return outcome

    async def _complain(self, asking: NeedsAnswers) -> Outcome:
        self.complaints += 1
        if self.complaints > MOST_COMPLAINTS:
            return await self.give_up(f"{_DECLINED} {asking.complaint}")
        return asking

    async def give_up(self, why: str) -> types.CallToolResult:
        """Abandon the call, and return a failed result with the reason."""
        await self.work.forget()
        return failed(why)
