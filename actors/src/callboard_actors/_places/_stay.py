"""One attempt at a shared limit, as its process knows it."""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from callboard.limits import Wanted


class Phase(Enum):
    """How far a stay is on its way to a place at the server, and out again."""

    NEW = "the server has not been told"
    ASKED = "the server has been told, and has not answered"
    WAITING = "it stands in the queue"
    HELD = "it has a place"
    GONE = "it has left, or never got a place"


class Told(Protocol):
    """The gate of a stay, as far as the stay tells it what happens here."""

    def note_begin(self, stay: "HeldStay", /) -> None:
        """Note that the body begins, which counts where there is a rate."""
        ...

    def note_leave(self, stay: "HeldStay", /) -> None:
        """Note that the place is free, or is wanted no more."""
        ...


class HeldStay:
    """A stay, from when it is asked for until it is left. Its phase is its desk's, in the desk's thread."""

    __slots__ = ("_on_answer", "begun", "failure", "gate", "id", "phase", "post", "spot", "token", "wanted")

    def __init__(
        self, wanted: Wanted, on_answer: Callable[[], object], post: Callable[[Callable[[], None]], object]
    ) -> None:
        self.wanted = wanted
        self.post = post
        """Has something done in the desk's thread."""
        self.gate: Told | None = None
        self.id = ""
        self.phase = Phase.NEW
        self.spot = ""
        self.begun = False
        self.failure: str | Exception | None = None
        self.token: int | None = None
        self._on_answer = on_answer

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for its answer."""
        return self.phase in (Phase.NEW, Phase.ASKED, Phase.WAITING)

    def grant(self, token: int | None) -> None:
        """Be told that the server has given this attempt its place."""
        self.phase = Phase.HELD
        self.token = token
        self._on_answer()

    def refuse(self, failure: str | Exception) -> None:
        """Leave without a place, and hand this on as the reason."""
        self.phase = Phase.GONE
        self.failure = failure
        self._on_answer()

    def begin(self) -> None:
        """Note that the body begins now; from any thread."""
        self.post(self._begin)

    def leave(self) -> None:
        """Give the place back, or leave the queue; from any thread."""
        self.post(self._leave)

    def _begin(self) -> None:
        if self.gate is not None and self.phase is Phase.HELD and not self.begun:
            self.begun = True
            self.gate.note_begin(self)

    def _leave(self) -> None:
        if self.gate is not None and self.phase is not Phase.GONE:
            self.gate.note_leave(self)
