"""Current incarnation of an actor, as its cell uses it."""

from typing import Protocol

from callboard._loops._protocol import EventLoop


class Inhabitant(Protocol):
    """Current incarnation in a cell. A protocol, because `Life` imports `Cell`."""

    loop: EventLoop

    @property
    def takes_no_more(self) -> bool:
        """Return whether the incarnation is about to end, and takes only messages that its own handlers await."""
        ...

    def wake(self) -> None:
        """Wake the task to look into the mailbox. Any thread may call this."""
        ...

    def begin_urgent(self) -> None:
        """Start the messages that bypass the queue. Only in the loop's thread."""
        ...
