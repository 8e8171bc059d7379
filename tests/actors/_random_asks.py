"""Common part of random plans for actors: asks, kills, the diary of a run, and the end that each ask must have."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
from hypothesis import strategies as st

from callboard import ActorDiedError, ActorGoneError, Reply
from tests.helpers import live_tasks

Result = Literal["value", "error", "fatal"]


@dataclass(frozen=True)
class Ask:
    """One planned ask: its time, handler, duration, end and the caller's patience."""

    at: int
    key: str = ""
    name: str = "up"
    seconds: int = 0
    result: Result = "value"
    patience: int | None = None
    cleanup: int = 0
    """Seconds of clean-up in the handler after a cancellation."""


@dataclass(frozen=True)
class Kill:
    """Planned kill of an actor, if it is alive."""

    at: int
    key: str = ""


Steps = Sequence[Ask | Kill]


def steps(
    names: Sequence[str], patience: st.SearchStrategy[int | None], *, keys: Sequence[str] = ("",), until: int, most: int
) -> st.SearchStrategy[list[Ask | Kill]]:
    """Return a strategy for the steps of a plan, with one kill for three asks."""
    key, instants = st.sampled_from(keys), st.integers(0, until)
    asks = st.builds(
        Ask,
        at=instants,
        key=key,
        name=st.sampled_from(names),
        seconds=st.integers(0, 3),
        result=st.sampled_from(("value", "value", "value", "error", "fatal")),
        patience=patience,
        cleanup=st.integers(0, 1),
    )
    return st.lists(asks | asks | asks | st.builds(Kill, at=instants, key=key), min_size=1, max_size=most)


class FatalError(Exception):
    """Fatal error of an actor."""


@dataclass(frozen=True)
class Line:
    """Entry of the diary."""

    at: float
    event: str
    ask_id: int = -1
    key: Hashable = None
    value: object = None


@dataclass
class Diary:
    """Ordered record of what happened."""

    lines: list[Line] = field(default_factory=list)
    began_at: float = 0.0

    def write(self, event: str, ask_id: int = -1, key: Hashable = None, value: object = None) -> None:
        self.lines.append(Line(round(anyio.current_time() - self.began_at, 6), event, ask_id, key, value))

    def all_of(self, event: str) -> list[int]:
        return [line.ask_id for line in self.lines if line.event == event]

    def position_of(self, event: str, ask_id: int) -> int:
        return next(number for number, line in enumerate(self.lines) if (line.event, line.ask_id) == (event, ask_id))


class Player:
    """Player of the steps of a plan, who checks that each ask has one end."""

    group: Any

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.diary = Diary()
        self.came_to: dict[int, object] = {}
        self._before = live_tasks()

    def list_left_tasks(self) -> list[str]:
        """Return the tasks that have begun since the player was made, and have not ended."""
        return [f"a task is left: {task}" for task in live_tasks() - self._before]

    async def ask(self, actor: Any, ask_id: int, ask: Ask) -> None:
        self.diary.write("asked", ask_id, ask.key)
        with anyio.move_on_after(float("inf") if ask.patience is None else ask.patience) as scope:
            try:
                self.came_to[ask_id] = await getattr(actor, ask.name)(ask_id, ask)
            except Exception as error:
                self.came_to[ask_id] = error
        if scope.cancelled_caught:
            assert ask_id not in self.came_to
            self.came_to[ask_id] = "cancelled"
        self.diary.write("answered", ask_id, ask.key)

    async def send(self, reply: Reply[int], ask_id: int, ask: Ask, value: int) -> None:
        await anyio.sleep(ask.seconds)
        if ask.result == "error":
            reply.fail(ValueError(ask_id))
        else:
            self.diary.write("replies", ask_id)
            reply.send(value)

    def wrong_ends(self) -> list[str]:
        """Check that each ask ends once, after its handler, and that none is handled twice."""
        begun, ended = self.diary.all_of("begins"), self.diary.all_of("ends")
        wrong = [f"{ask_id} began twice" for ask_id in set(begun) if begun.count(ask_id) > 1]
        for ask_id, ask in enumerate(self.steps):
            if isinstance(ask, Kill):
                continue
            if ask_id not in self.came_to:
                wrong.append(f"{ask_id} was lost")
            elif ask_id in begun and ask_id not in ended:
                wrong.append(f"the handler of {ask_id} did not end")
            elif ask_id in begun and self.diary.position_of("ends", ask_id) > self.diary.position_of(
                "answered", ask_id
            ):
                wrong.append(f"{ask_id} was answered before its handler had ended")
            elif (complaint := self.complaint(ask_id, ask, self.came_to[ask_id], begun=ask_id in begun)) is not None:
                wrong.append(f"{ask_id} {complaint}: {self.came_to[ask_id]!r}")
        return wrong

    def complaint(self, ask_id: int, ask: Ask, outcome: object, *, begun: bool) -> str | None:
        """Return what is wrong with the end of an ask."""
        if isinstance(outcome, ActorDiedError):
            return None if begun else "had not begun"
        if isinstance(outcome, ActorGoneError):
            return "had begun" if begun else None if self.may_be_gone(ask_id, ask) else "was refused too early"
        if isinstance(outcome, ValueError):
            return None if begun and ask.result == "error" and outcome.args == (ask_id,) else "was another's error"
        if outcome == "cancelled":
            return None if ask.patience is not None else "was cancelled by nobody"
        return None if begun and self.is_result(ask_id, ask, outcome) else "was not the result"

    def may_be_gone(self, ask_id: int, ask: Ask) -> bool:
        """Return whether the actor may have been gone for good when the ask was answered."""
        raise NotImplementedError

    def is_result(self, ask_id: int, ask: Ask, outcome: object) -> bool:
        """Return whether the ask has succeeded, and with this result."""
        raise NotImplementedError
