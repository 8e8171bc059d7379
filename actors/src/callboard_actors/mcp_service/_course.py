"""A call on its course through the questions that it asks: their forms, and what is filled in. Knows no era of MCP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mcp import types

from callboard_actors.mcp_service._content import failed
from callboard_actors.mcp_service._questions import DeclinedError, UnfitAnswerError, with_complaint
from callboard_actors.mcp_service._work import Asking, Tell, Work

Outcome = types.CallToolResult | Asking
Filled = Mapping[str, types.ElicitResult]
"""What became of each form, by its key."""

MOST_COMPLAINTS: Final = 3
"""How often a person is told that an answer was none, before the call is given up."""

_DECLINED: Final = "The call was not run to its end: the user has not answered what it asks."


def forms(asking: Asking) -> dict[str, types.ElicitRequest]:
    """The forms of all questions of a call, by a key for each."""
    found = {_key(n, place): form for n, one in enumerate(asking.questions) for place, form in enumerate(one.forms)}
    return {key: with_complaint(form, asking.complaint) for key, form in found.items()} if asking.complaint else found


def _key(question: int, place: int) -> str:
    return f"{question}.{place}"


_LEFT: Final = types.ElicitResult(action="cancel")
"""Of a form that has not come back."""


@dataclass(slots=True)
class Course:
    """A call on its course: the work, and how often an answer for it was none."""

    work: Work
    complaints: int = 0

    async def begin(self, tell: Tell) -> Outcome:
        """Run until a person has to be asked."""
        return await self.work.go_on({}, tell)

    async def fill_in(self, asking: Asking, filled: Filled, tell: Tell) -> Outcome:
        """Go on with what was filled in."""
        try:
            answers = {
                one.question.id: one.answer([filled.get(_key(n, place), _LEFT) for place in range(len(one.forms))])
                for n, one in enumerate(asking.questions)
            }
        except DeclinedError:
            return await self.give_up(_DECLINED)
        except UnfitAnswerError as error:
            return await self._complain(Asking(asking.questions, str(error)))
        outcome = await self.work.go_on(answers, tell)
        if isinstance(outcome, Asking) and outcome.complaint:
            return await self._complain(outcome)
        return outcome

    async def _complain(self, asking: Asking) -> Outcome:
        self.complaints += 1
        if self.complaints > MOST_COMPLAINTS:
            return await self.give_up(f"{_DECLINED} {asking.complaint}")
        return asking

    async def give_up(self, why: str) -> types.CallToolResult:
        """Let the call be; the client is told why."""
        await self.work.forget()
        return failed(why)
