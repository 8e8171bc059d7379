"""Permit for one attempt at a shared limit, as its process knows it."""

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from callboard.extend import PermitRequest


class Phase(Enum):
    """Phase of a permit between its request and its end."""

    NEW = "the server has not been told"
    ASKED = "the server has been told, and has not answered"
    WAITING = "it stands in the queue"
    HELD = "it has a place"
    GONE = "it has left, or never got a place"


class PermitGate(Protocol):
    """Gate of a permit, as far as the permit reports to it."""

    def is_safe(self) -> bool:
        """Return whether the server still counts this process's permits as taken; may be called from any thread."""
        ...

    def note_begin(self, stay: "LocalPermit", /) -> None:
        """Note that the body begins, which a rate counts."""
        ...

    def note_leave(self, stay: "LocalPermit", /) -> None:
        """Note that the permit is released, or no longer wanted."""
        ...


class LocalPermit:
    """Permit from its request to its release.

    `phase`, `token`, `spot` and `failure` are written in the client's thread. `begin`, `leave` and `is_lost` may be
    called from any thread.
    """

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
        self, wanted: PermitRequest, on_answer: Callable[[], object], post: Callable[[Callable[[], None]], object]
    ) -> None:
        self.wanted = wanted
        self.post = post
        """Runs a function in the client's thread."""
        self.gate: PermitGate | None = None
        self.id = ""
        self.phase = Phase.NEW
        self.spot = ""
        # `begun`: the gate has been told that the body begins. `is_begun`: the body begins; set first, at once in the
        # thread that calls `begin`, so that `_lose` never drops the permit of a running body.
        self.begun = self.is_begun = False
        self._was_lost = False
        self.failure: str | Exception | None = None
        self.token: int | None = None
        self._on_answer = on_answer

    @property
    def is_waiting(self) -> bool:
        """Return whether a call waits for the answer to this request."""
        return self.phase in (Phase.NEW, Phase.ASKED, Phase.WAITING)

    def grant(self, token: int | None) -> None:
        """Give the permit to the waiting call; the token is `None` for the local share."""
        self.phase = Phase.HELD
        self.token = token
        # Last: the waiting call reads phase and token as soon as this wakes it.
        self._on_answer()

    @property
    def is_lost(self) -> bool:
        """Return whether another process may have the permit by now; called before the body begins, from any thread."""
        if self.phase is not Phase.HELD or self.token is None:
            return self._was_lost
        return self.gate is not None and not self.gate.is_safe()

    def lose(self) -> None:
        """Note that the granted permit is lost, because the lease ended."""
        self._was_lost = True
        self.phase = Phase.GONE

    def refuse(self, failure: str | Exception) -> None:
        """End the request with a failure instead of a permit."""
        self.phase = Phase.GONE
        self.failure = failure
        self._on_answer()

    def begin(self) -> None:
        """Note that the body begins now; may be called from any thread."""
        # At once, in the caller's thread; see `is_begun`.
        self.is_begun = True
        self.post(self._begin)

    def leave(self) -> None:
        """Release the permit, or leave the queue; may be called from any thread."""
        self.post(self._leave)

    def _begin(self) -> None:
        if self.gate is not None and self.phase is Phase.HELD and not self.begun:
            self.begun = True
            self.gate.note_begin(self)

    def _leave(self) -> None:
        # A lost or refused permit needs no release: a full report leaves it out, or the server never granted it.
        if self.gate is not None and self.phase is not Phase.GONE:
            self.gate.note_leave(self)
