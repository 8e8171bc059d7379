"""Dialogue of one call with a person: forms out, answers in. Independent of the protocol version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mcp import types

from callboard_actors.mcp_service._content import failed
from callboard_actors.mcp_service._questions import DeclinedError, InvalidAnswerError, with_complaint
from callboard_actors.mcp_service._served import NeedsAnswers, ServedCall, Tell

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

    async def begin(self, tell: Tell) -> Outcome:
        """Run until the result, or until a person has to be asked."""
        return await self.work.go_on({}, tell)

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
