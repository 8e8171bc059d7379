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

    def is_safe(self) -> bool:
        """Return whether the server still counts the places of this process as its own; from any thread."""
        ...

    def note_begin(self, stay: "HeldStay", /) -> None:
        """Note that the body begins, which counts where there is a rate."""
        ...

    def note_leave(self, stay: "HeldStay", /) -> None:
        """Note that the place is free, or is wanted no more."""
        ...


class HeldStay:
    """A stay, from when it is asked for until it is left. Its phase is its desk's, in the desk's thread."""

    __slots__ = (
        "_on_answer",
        "_was_lost",
        "begun",
        "failure",
        "gate",
        "id",
        "is_begun",
        "phase",
        "post",
        "spot",
        "token",
        "wanted",
    )

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
        self.begun = self.is_begun = False
        """Whether the gate has been told that the body begins, and whether the body does; the second is first."""
        self._was_lost = False
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

    @property
    def is_lost(self) -> bool:
        """Whether another process may have the place by now; from any thread, before the body begins."""
        if self.phase is not Phase.HELD or self.token is None:
            return self._was_lost
        return self.gate is not None and not self.gate.is_safe()

    def lose(self) -> None:
        """Be told that the place belongs to nobody here any more."""
        self._was_lost = True
        self.phase = Phase.GONE

    def refuse(self, failure: str | Exception) -> None:
        """Leave without a place, and hand this on as the reason."""
        self.phase = Phase.GONE
        self.failure = failure
        self._on_answer()

    def begin(self) -> None:
        """Note that the body begins now; from any thread."""
        self.is_begun = True
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
