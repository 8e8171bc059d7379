"""Pauses between attempts to start a process, or to connect."""


class Backoff:
    """Growing pauses between attempts, in seconds: each is twice as long as the one before, up to `longest_pause`."""

    def __init__(self, first_pause: float, longest_pause: float) -> None:
        self._first_pause = self._next_pause = first_pause
        self._longest_pause = longest_pause

    def next_pause(self) -> float:
        """Return the pause before the next attempt, in seconds."""
        pause, self._next_pause = self._next_pause, min(self._longest_pause, self._next_pause * 2)
        return pause

    def reset(self) -> None:
        """Reset the next pause to the first one; called after a successful attempt."""
        self._next_pause = self._first_pause
