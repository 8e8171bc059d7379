"""The life that an actor has now, as its cell knows it."""

from typing import Protocol

from callboard._loops._protocol import EventLoop


class Inhabitant(Protocol):
    """The life that goes on in a cell."""

    loop: EventLoop

    @property
    def takes_no_more(self) -> bool:
        """Whether it ends when what it has in hand has, and takes only what that waits for."""
        ...

    def wake(self) -> None:
        """Have it look into the mailbox; from any thread."""
        ...

    def begin_urgent(self) -> None:
        """Have it run what jumps the queue; in its loop's thread."""
        ...
