"""What a server is asked for that says who owns which key, and that carries asks and replies."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from callboard import StorageError


@dataclass(frozen=True, slots=True)
class Owned:
    """Who owns a key now."""

    owner: str = ""
    """The member; "" for nobody."""
    token: int = 0
    opens_in: float = 0.0
    """Seconds until somebody may own it, if nobody does: a server that has just started waits for the end of leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Who has a key, as far as its asker knows: a message arrives if that is still so."""

    gate: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all members of a fleet have alike.

    Args:
        lease: in microseconds.
        seal: the fingerprint of their secret.
    """

    lease: int
    seal: str

    @property
    def written(self) -> str:
        """What is stored at the server of what all members have alike, in one text to compare."""
        return f"{self.lease}:{self.seal}"

    def refusal(self, where: str, written: str) -> StorageError:
        """What is said to one that comes with others."""
        lease = int(written.partition(":")[0])
        if lease == self.lease:
            return StorageError(where, "has other processes of this fleet with another secret. Give all the same one.")
        return StorageError(
            where,
            f"has other processes of this fleet with lease={lease / 1e6:g}, and this one has {self.lease / 1e6:g}. "
            "Give all of them the same, or another prefix.",
        )


class FleetLine(Protocol):
    """Connections of one member to a server. Whatever is said may be said again, if its answer was lost.

    All of it raises `AwayError` if the server cannot be reached, and `StorageError` if it refuses.
    """

    async def open(self, member: str) -> None:
        """Connect to the server as this member, so that everything else can be said."""
        ...

    async def beat(self) -> bool:
        """Be a member for one more lease; False if this one was none, or was none any more, and is one now."""
        ...

    async def own(self, gate: str) -> Owned:
        """Own a key that nobody owns; says who does."""
        ...

    async def still(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """Whether each of these members still owns its key, under the same token."""
        ...

    async def send(self, to: Address, number: int, ask: str, frame: bytes) -> bool:
        """Put an ask into the mail of the owner of a key; False if that does not own it.

        Args:
            to: the owner.
            number: counts what this member sends to that one; of what has a number that was there, nothing is put.
            ask: its id.
            frame: the ask.
        """
        ...

    async def begin(self, gate: str, token: int, ask: str) -> bool:
        """Begin an ask that was sent to this member; False if it was recalled, or the key is owned no more."""
        ...

    async def recall(self, owner: str, ask: str, marker: bytes) -> bool:
        """Have an ask never begin; if it may have begun, put a marker into the own mail, after any reply to it."""
        ...

    async def tell(self, letters: Sequence[tuple[str, bytes, str]]) -> None:
        """Put letters into the mail of members: to whom, the letter, and the ask that it ends, or ""."""
        ...

    async def give_back(self, gate: str, token: int) -> None:
        """Give a key up, so that whoever asks next may own it."""
        ...

    async def save(self, gate: str, token: int, state: bytes) -> bool:
        """Keep a state; False if the key has a later owner."""
        ...

    async def load(self, gate: str) -> bytes | None:
        """The state that the key's last owner has stored; `None` if there is none."""
        ...

    def mail(self) -> AsyncIterator[Sequence[bytes]]:
        """Letters to this member, in the order in which they were put; each is there until the next are asked for."""
        ...

    async def leave(self) -> None:
        """Stop being a member, so that its keys count as free."""
        ...

    async def close(self) -> None:
        """Let the connections go; raises nothing."""
        ...
