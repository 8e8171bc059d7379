"""Protocol of a server that records the owner of each key, and carries asks and replies between members."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from callboard import StorageError
from callboard_actors._server._client import Connection


@dataclass(frozen=True, slots=True)
class Owned:
    """Owner of a key at the moment."""

    owner: str = ""
    """Id of the member that owns the key; "" if no member does."""
    token: int = 0  # of fencing: each owner of a key has a higher one than those before it
    opens_in: float = 0.0
    """Seconds until a key without an owner may get one; a server that has just started waits until old leases end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Owner of a key as far as the asker knows; a message to it is accepted only if that is still true."""

    gate: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Settings that must be equal in all members of a fleet.

    Args:
        lease: in microseconds.
        seal: fingerprint of the secret.
    """

    # Checked by the server at each heartbeat: a member with a shorter lease would break the argument in `_lease`.
    lease: int
    seal: str

    @property
    def written(self) -> str:
        """Text under which the server stores these settings, to compare them."""
        return f"{self.lease}:{self.seal}"

    def refusal(self, where: str, written: str) -> StorageError:
        """Return the error for a member with settings other than the stored ones."""
        lease = int(written.partition(":")[0])
        if lease == self.lease:
            return StorageError(where, "has other processes of this fleet with another secret. Give all the same one.")
        return StorageError(
            where,
            f"has other processes of this fleet with lease={lease / 1e6:g}, and this one has {self.lease / 1e6:g}. "
            "Give all of them the same, or another prefix.",
        )


class FleetTransport(Connection, Protocol):
    """Connections of one member to a server.

    Every operation may be repeated if its answer was lost, and does no harm when it arrives twice.
    All operations raise `AwayError` if the server cannot be reached, and `StorageError` if it refuses.
    """

    async def beat(self) -> bool:
        """Send a heartbeat: this process is a member for one more lease.

        Returns False if it was not a member before, or no longer, and has become one now.
        """
        ...

    async def own(self, gate: str) -> Owned:
        """Acquire a key that has no owner; return the owner that the key then has."""
        ...

    async def still(self, addresses: Sequence[Address]) -> Sequence[bool]:
        """Return, for each address, whether that member still owns the key under the same token."""
        ...

    async def send(self, to: Address, number: int, ask: str, frame: bytes) -> bool:
        """Put an ask into the mail of a key's owner; return False if that member does not own the key.

        Args:
            to: the owner.
            number: count of this member's asks to that owner; an ask with a number that has arrived is not put again.
            ask: id of the ask.
            frame: the signed ask.
        """
        ...

    async def begin(self, gate: str, token: int, ask: str) -> bool:
        """Mark an ask to this member as begun; return False if it was recalled, or if the key has another owner."""
        ...

    async def recall(self, owner: str, ask: str, marker: bytes) -> bool:
        """Ensure that an ask never begins; return False if it may have begun.

        In that case the marker is put into the asker's own mail, behind any reply to the ask that is already there.
        """
        ...

    async def tell(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        """Put messages into the mail of members.

        Args:
            messages: for each message the receiver, the signed frame, and the id of the ask that it ends, or "".
        """
        ...

    async def give_back(self, gate: str, token: int) -> None:
        """Give up a key, so that the next asker may own it."""
        ...

    async def save(self, gate: str, token: int, state: bytes) -> bool:
        """Save the state of a key; return False if the key has a later owner."""
        ...

    async def load(self, gate: str) -> bytes | None:
        """Return the state that the last owner of the key saved; `None` if there is none."""
        ...

    def mail(self) -> AsyncIterator[Sequence[bytes]]:
        """Yield batches of messages to this member, in order; a batch is deleted when the next one is requested."""
        ...

    async def leave(self) -> None:
        """Stop being a member, so that this member's keys count as free."""
        ...
