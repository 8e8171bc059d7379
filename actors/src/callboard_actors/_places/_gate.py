"""One limit, or one key of it, as one process knows it: its stays, and what the server has still to be told of them.

Decides, and never waits; everything here happens in the thread of one desk.
"""

import math
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING

from callboard import StorageError
from callboard.limits import Wanted
from callboard_actors._boot_clock import now
from callboard_actors._places._line import Answer, Numbers, Op, Step
from callboard_actors._places._stay import HeldStay, Phase

if TYPE_CHECKING:
    from callboard_actors._places._share import Share

_AT_ONCE = 500
"""Ops of one step: a server does nothing else meanwhile. What a process has is said at once, however much that is."""
_BEATS = 3
"""How often a process gives a sign of life within a lease."""


class Gate:
    """The stays of one process at one place of places.

    Args:
        name: of the limit and its key, in the store.
        wanted: says what it is like.
        numbers: of the limit.
        where: the store, for errors.
        clock: by which the lease is counted; see `callboard_actors._boot_clock`.
    """

    def __init__(
        self, name: str, wanted: Wanted, numbers: Numbers, where: str, clock: Callable[[], float] = now
    ) -> None:
        self.name = name
        self.numbers = numbers
        self.stays: dict[str, HeldStay] = {}
        self._wanted = wanted
        self._where = where
        self._clock = clock
        self._said_at = self._safe_until = -math.inf
        """When the last step was said, and when the lease ends that the last answer has renewed; on `clock`."""
        self._epoch = ""
        self._ops: deque[Op] = deque()
        self._beat_at = self._ask_at = -math.inf
        self._look_at = math.inf
        self._over_at = -math.inf
        self._again_at = -math.inf
        """When a server that has other numbers is told again what the process has."""
        self._unheard: list[Op] = []
        """Said, and not answered."""
        self._begins: list[Op] = []
        """Of those, and of what was not said before a line broke, the starts: a rate must not forget them."""
        self._owes_word = False
        """Whether something else was not heard: that a place is free, perhaps."""

    def is_over(self, now: float) -> bool:
        """Whether the process has had nothing to do with it for so long that the server forgets that, too."""
        has_more = self.stays or self._ops or self._owes_word or self._look_at < math.inf
        return not has_more and now > self._over_at

    def enter(self, stay: HeldStay) -> None:
        """Have a stay of the number that it has."""
        self.stays[stay.id] = stay
        self._ops.append(Op("enter", stay.id, tenant=stay.wanted.tenant))

    def note_begin(self, stay: HeldStay) -> None:
        if self.numbers.calls is not None:
            self._ops.append(Op("begin", stay.id))

    def note_leave(self, stay: HeldStay) -> None:
        stay.phase = Phase.GONE
        del self.stays[stay.id]
        self._ops.append(Op("leave", stay.id, spot=stay.spot))

    def is_safe(self) -> bool:
        """Return whether the server still counts the places of this process as its own; from any thread."""
        return self._clock() < self._safe_until

    def _lose(self) -> None:
        """Drop the places that no body has begun with: the lease was over, and others may have them."""
        for stay in list(self.stays.values()):
            if stay.phase is Phase.HELD and stay.token is not None and not stay.is_begun:
                del self.stays[stay.id]
                stay.lose()
        self.forget_line()

    def note_heard(self, id: str, token: int) -> None:
        """Note that a place was given; whoever asked for it may have left meanwhile, and the server hears of that.

        A process that stood still reads word of places that the server has given to others since.
        """
        if not self.is_safe():
            return self._lose()
        stay = self.stays.get(id)
        if stay is not None and stay.is_waiting:
            stay.grant(token)
        return None

    def forget_line(self) -> None:
        """Have everything be said anew: what the server knows and has heard is unknown."""
        self._epoch = ""
        unheard = [*self._unheard, *self._ops]
        self._begins += [op for op in unheard if op.kind == "begin"]
        self._owes_word = self._owes_word or bool(unheard)
        self._unheard = []
        self._ops.clear()
        for stay in self.stays.values():
            if stay.phase is Phase.ASKED:
                stay.phase = Phase.NEW

    def due(self, now: float) -> float:
        """When the server has to be told something, or asked."""
        if self._ops:
            return -math.inf
        if self._owes_word or (not self._epoch and self.stays):
            return self._again_at
        return min(self._look_at, self._beat_at if self.stays else max(self._over_at, now))

    def step(self, now: float) -> Step:
        """What to say to the server now."""
        if not self.is_safe():
            self._lose()
        self._said_at = self._clock()
        asks_all = now >= self._ask_at
        self._beat_at = now + self.numbers.lease / 1e6 / _BEATS
        if asks_all:
            self._ask_at = self._beat_at
        self._look_at = math.inf
        self._over_at = now + self.numbers.lease / 1e6
        if not self._epoch:
            self._ops = deque(self._everything())
            self._owes_word = False
        ops = self._unheard = [self._ops.popleft() for _ in range(self._how_many_at_once())]
        for op in ops:
            if op.kind == "enter" and (stay := self.stays.get(op.id)) is not None and stay.phase is Phase.NEW:
                stay.phase = Phase.ASKED
        return Step(self.name, self.numbers, self._epoch, ops, asks_all=asks_all)

    def _how_many_at_once(self) -> int:
        # A server gives away what is free after each step: a place that it is told of in the next one is given twice.
        least = 0 if self._epoch else sum(op.kind in ("begin", "hold") for op in self._ops)
        return min(max(_AT_ONCE, least), len(self._ops))

    def _everything(self) -> list[Op]:
        """What a server that knows nothing has to be told: who has a place, who has waited, who is new."""
        stays = list(self.stays.values())
        held = [Op("hold", one.id, token=one.token or 0, begun=one.begun) for one in stays if one.phase is Phase.HELD]
        waited = [Op("wait", one.id, spot=one.spot) for one in stays if one.is_waiting and one.spot]
        new = [Op("enter", one.id, tenant=one.wanted.tenant) for one in stays if one.is_waiting and not one.spot]
        begins, self._begins = self._begins, []
        return [*begins, *held, *waited, *new]

    def take(self, answer: Answer, now: float) -> None:
        """Bring all stays up to date with what the server has answered."""
        if answer.other:
            self._refuse_all(answer.other)
            self._again_at = now + self.numbers.lease / 1e6 / _BEATS
            return
        self._again_at = -math.inf
        self._epoch = answer.epoch
        if answer.epoch:
            self._safe_until = self._said_at + self.numbers.lease / 1e6
        if not self.is_safe():
            self._lose()
            return
        if not answer.epoch:
            self.forget_line()
            return
        self._unheard = []
        if answer.opens_in is not None:
            self._look_at = now + answer.opens_in
        for number, spot in answer.queued.items():
            self._note_queued(number, spot)
        for number, (running, waiting) in answer.full.items():
            if (stay := self.stays.pop(number, None)) is not None and stay.is_waiting:
                stay.refuse(self._no_room(stay.wanted, running, waiting))
        for number, token in sorted(answer.granted.items(), key=itemgetter(1)):
            self._note_granted(number, token)

    def _note_queued(self, id: str, spot: str) -> None:
        stay = self.stays.get(id)
        if stay is None:
            self._tell_left(id, spot)
        else:
            stay.spot = spot
            if stay.phase is Phase.ASKED:
                stay.phase = Phase.WAITING

    def _tell_left(self, id: str, spot: str) -> None:
        """Say again of a stay that it has left, now that it is known where it stood."""
        for op in self._ops:
            if op.id == id and op.kind == "leave":
                self._ops.remove(op)
                break
        self._ops.append(Op("leave", id, spot=spot))

    def _note_granted(self, id: str, token: int) -> None:
        stay = self.stays.get(id)
        if stay is None:
            if not any(op.id == id for op in self._ops):
                self._ops.append(Op("leave", id))
        elif stay.is_waiting:
            stay.grant(token)

    def _no_room(self, wanted: Wanted, running: int, waiting: int) -> str:
        concurrency = self.numbers.concurrency
        what = "the rate is used up" if concurrency is None else f"{running} of {concurrency} run"
        return f"{wanted.title} is full in all processes together: {what}, {waiting} wait, and no more may"

    def _refuse_all(self, other: str) -> None:
        """Refuse whoever waits, because other processes have other numbers."""
        reason = (
            f"has other numbers for the limit {self.name!r}: {other}, and here it is {self.numbers.text}. "
            "Give it the same numbers in all processes, or another name"
        )
        self._epoch = ""
        self.refuse(lambda _: StorageError(self._where, reason + "."))

    def refuse(self, failure: Callable[[HeldStay], str | Exception]) -> None:
        """Answer all calls that wait at this gate with a refusal."""
        for stay in [one for one in self.stays.values() if one.is_waiting]:
            del self.stays[stay.id]
            stay.refuse(failure(stay))
        self._ops = deque(op for op in self._ops if op.kind != "enter")

    def share_out(self, share: "Share", now: float) -> None:
        """Give places from this process's own share, in the order of arrival, while the server is away."""
        for stay in [one for one in self.stays.values() if one.is_waiting]:
            held = sum(one.phase is Phase.HELD for one in self.stays.values())
            if not share.allows(self.name, self.numbers, held, now):
                return
            stay.grant(None)
