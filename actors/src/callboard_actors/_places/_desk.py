"""One process at a server that keeps limits: what all who want places in this process ask for, and are told.

A call that is cancelled leaves at once. What is said within one round trip goes together.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from callboard import StorageError
from callboard.limits import Wanted
from callboard_actors._clerk import AwayError, Clerk, Terms
from callboard_actors._places._gate import Gate
from callboard_actors._places._line import Line, Numbers
from callboard_actors._places._share import Away, Share
from callboard_actors._places._stay import HeldStay

_logger = logging.getLogger("callboard_actors.limits")
_GOING_ON = {"wait": "calls wait", "refuse": "calls are refused", "local": "a local share is used"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitTerms(Terms):
    """On which terms a desk serves; its patience is for calls, which are then refused, or given a share.

    Args:
        away: what becomes of calls while the server is away.
        share: of this process.
    """

    away: Away
    share: Share


class Desk(Clerk[Line]):
    """Asks a server for places, on behalf of all who want some in this process.

    Args:
        line: makes a connection that is not open yet.
        terms: how it serves.
    """

    def __init__(self, line: Callable[[], Line], terms: LimitTerms) -> None:
        self.going_on = _GOING_ON[terms.away]
        self._terms = terms
        self._gates: dict[str, Gate] = {}
        self._numbers = count(1)
        super().__init__(line, terms, _logger)

    def ask(self, gate: str, wanted: Wanted, on_answer: Callable[[], object]) -> HeldStay:
        """Ask for a place; from any thread."""
        stay = HeldStay(wanted, on_answer, self.post)
        if not self.post(lambda: self._enter(gate, stay)):  # closed by another thread, meanwhile
            stay.refuse(self.closed())
        return stay

    def _enter(self, name: str, stay: HeldStay) -> None:
        wanted = stay.wanted
        gate = self._gates.get(name)
        numbers = Numbers.of(wanted.limit, self._terms.lease)
        if gate is None:
            gate = self._gates[name] = Gate(name, wanted, numbers, self.where)
        stay.gate, stay.id = gate, f"{self.client}.{next(self._numbers)}"
        if gate.numbers != numbers:
            reason = (
                f"is asked for the limit {name!r} with {gate.numbers.text} and with {numbers.text}. Give each a name"
            )
            stay.refuse(StorageError(self.where, reason + " of its own."))
        else:
            gate.enter(stay)

    def has_work(self) -> bool:
        """Whether anybody has a place, or wants one."""
        return bool(self._gates)

    def has_last_words(self) -> bool:
        """Never: a server that has given no places need not hear that they are free."""
        return False

    async def listen(self, line: Line) -> None:
        """Hear of places that were given.

        Raises:
            AwayError: when the line breaks.
        """
        async for name, number, token in line.heard():
            if (gate := self._gates.get(name)) is not None:
                gate.note_heard(number, token)
        raise AwayError("it says no more")

    async def say_what_is_due(self, line: Line) -> float:
        """Say it; returns when there is more."""
        now = self.loop.time()
        for gate in [one for one in self._gates.values() if one.is_over(now)]:
            del self._gates[gate.name]
        due = [gate for gate in self._gates.values() if gate.due(now) <= now]
        if due:
            steps = [gate.step(now) for gate in due]
            for gate, answer in zip(due, await line.say(steps), strict=True):
                gate.take(answer, self.loop.time())
        return min((gate.due(now) for gate in self._gates.values()), default=math.inf)

    def look_after_waiting(self) -> None:
        """Refuse those who wait, or give them a share."""
        terms = self._terms
        for gate in self._gates.values():
            if terms.away == "refuse":
                gate.refuse(lambda stay: f"{terms.where}, which has {stay.wanted.title}, cannot be reached")
            elif terms.away == "local":
                gate.share_out(terms.share, self.loop.time())

    def refuse_all(self, error: StorageError) -> None:
        """Answer everybody who waits with this error; those who have a place keep it."""
        for gate in list(self._gates.values()):
            gate.refuse(lambda _: StorageError(error.where, error.reason))
            if not gate.stays:
                del self._gates[gate.name]

    def forget_line(self) -> None:
        """Know that what was said last may not have been heard, and say it anew."""
        for gate in self._gates.values():
            gate.forget_line()
