"""Pauses between attempts to start a process, or to connect."""


class Backoff:
    """Growing pauses between attempts, in seconds: each is twice as long as the one before, up to `longest`."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = self._next = first
        self._longest = longest

    def next(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        pause, self._next = self._next, min(self._longest, self._next * 2)
        return pause

    def reset(self) -> None:
        """Reset the next pause to the first one; called after a successful attempt."""
        self._next = self._first
