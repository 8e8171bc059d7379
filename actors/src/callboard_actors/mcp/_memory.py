"""What each conversation has been told of the sessions with a server: that one was lost is said once."""

from collections import OrderedDict
from collections.abc import Hashable

_KEPT = 4096
"""Conversations that are remembered; the one that was last asked longest ago is forgotten first."""


class SeenSessions:
    """Which session of a server each conversation has seen last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, int | None] = OrderedDict()

    def is_news(self, conversation: Hashable, session: int) -> bool:
        """Whether a conversation has seen another session before, and has not been told that it is lost.

        Args:
            conversation: whatever tells it apart from others.
            session: the one that has answered; 0 if the server keeps nothing from one call to the next.
        """
        if not session:
            return False
        before = self._seen.get(conversation)
        self._note(conversation, session)
        return before is not None and before != session

    def is_told(self, conversation: Hashable) -> None:
        """Note that a conversation knows that its session is lost, whichever comes next."""
        self._note(conversation, None)

    def _note(self, conversation: Hashable, session: int | None) -> None:
        self._seen[conversation] = session
        self._seen.move_to_end(conversation)
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
