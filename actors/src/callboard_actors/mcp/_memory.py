"""Last session that each conversation used, so that a lost session is reported once."""

from collections import OrderedDict
from collections.abc import Hashable

_KEPT = 4096
"""Maximum number of remembered conversations; the least recently used is forgotten."""


class SeenSessions:
    """Last session of a server that each conversation has seen."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, int | None] = OrderedDict()

    def is_news(self, conversation: Hashable, session: int) -> bool:
        """Return whether a conversation used another session before and has not been told of its loss.

        Args:
            conversation: key of the conversation.
            session: number of the session that answered; 0 if the server keeps no state between calls.
        """
        if not session:
            return False
        before = self._seen.get(conversation)
        self._note(conversation, session)
        return before is not None and before != session

    def is_told(self, conversation: Hashable) -> None:
        """Note that a conversation was told of the loss, so that the next session is no news."""
        self._note(conversation, None)

    def _note(self, conversation: Hashable, session: int | None) -> None:
        self._seen[conversation] = session
        self._seen.move_to_end(conversation)
        if len(self._seen) > _KEPT:
            self._seen.popitem(last=False)
