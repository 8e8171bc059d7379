"""Lease of one member, and the argument that two owners of a key never both write.

Let L be the lease, S = SAFE * L and C = CLEAN_UP * L. `t` is the owner's clock when it sends a sign of life.

1. *The server waits.* It gives the key of an owner that is silent to another member when L has passed on the server's
   clock since it handled the last sign of life. It handled that after `t`, so on the owner's clock nobody else owns
   the key before `t + L`. A server that has just started, and may have forgotten leases, gives no key away for L.
   Two clocks that differ by 100 in a million differ by 1.5 ms after a lease of 15 s; the next owner needs a round trip.
2. *The owner's clock does not stand still.* It is CLOCK_BOOTTIME where there is one: it counts while the process is
   stopped and while the machine sleeps. (A virtual machine that is paused from outside is a gap, see below.)
3. *After `t + S` nothing begins.* Every handler, and every save of a state, asks `is_safe` right before.
4. *After `t + S` everything is cancelled.* The actor's loop is told at once; L / 15 is left for that (99 of 100 threads
   that wake another one's loop took under 35 ms, on two cores with a load of 7; the shortest lease leaves 67 ms).
   What runs is cancelled, its grace is at most C, and after C the life is cancelled again and again until it ends.
   S + C + L / 15 = L, so code that ends when it is cancelled has ended by `t + L`.
5. *Nobody becomes safe again.* An answer that is read after `t + S` of the one before it renews nothing: the member
   has lost all keys, and what it owns from then on belongs to a new era, with new tokens.
6. *A draining or leaving owner* gives a key back after the actor has ended, its state has been saved, and all replies
   are at the server.

Gaps that no lease closes; in each, for less than L, the token is what keeps a resource:

- Code that does not end when it is cancelled: sync handlers, code that holds its event loop.
- A process that stands still after it asked `is_safe` and before its write arrives; also one whose machine was paused
  without its clock going on.
- A server whose clock is set forward ends leases early: servers have only that clock. The old owner is told by its next
  sign of life, after L / 4 at most, that it is no member, and ends everything within C. (A clock that is set back
  makes leases longer.) Servers of fleets have to be slewed, as chrony and ntpd do after they have started.

In the gaps *tokens* decide. Each owner of a key has a higher token than those before it. The server refuses what comes
with an older one: the beginning of an ask, and a saved state, from the moment at which it has given the key to the next
owner. A resource of the user's own learns the new token only when the new owner writes: until then it would take a
late write of the old one. So an owner writes its token to the resource in `start`, before it reads from there; from
then on the resource refuses the old owner. The page one-owner-per-key.md shows how.

Why these numbers: C is a third, so that the usual grace of 5 s fits into the usual lease of 15 s; a longer grace is
refused when a node is built, and cut otherwise. Signs of life are sent each L / 4, and each has L / 4 to be answered:
one that hangs is given up at L / 2, which leaves L / 10 to try again on a new connection before S.
"""

from collections.abc import Callable

from callboard_actors._boot_clock import now

BEATS = 4
"""Signs of life within a lease."""
SAFE = 3 / 5
"""Part of a lease after which an owner that could not renew it gives up its keys."""
CLEAN_UP = 1 / 3
"""Part of a lease within which an owner that gave up its keys ends what runs for them."""
SHORTEST = 1.0
"""Seconds: of a shorter lease, less is left for hearing of a loss than the threads of a busy machine need."""


class Lease:
    """Lease of one member, on its own clock. Decides, and never waits.

    Args:
        seconds: its length.
        clock: see `now`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = now) -> None:
        self.seconds = seconds
        self.era = 0
        """Counts how often all keys were lost."""
        self._clock = clock
        self._renewed_at = 0.0
        self._is_member = False

    def is_safe(self, era: int) -> bool:
        """Return whether nobody else can own yet what was owned in an era; from any thread."""
        return self._is_member and era == self.era and self.safe_for() > 0

    def safe_for(self) -> float:
        """Return the seconds until keys have to be given up, if nothing renews the lease."""
        return self._renewed_at + SAFE * self.seconds - self._clock()

    def is_lost(self) -> bool:
        """Return whether the keys of a member have to be given up now, because nothing renewed the lease in time."""
        return self._is_member and self.safe_for() <= 0

    def lose(self) -> None:
        """Note that no key is owned any more."""
        self._is_member = False
        self.era += 1

    def renew(self, said_at: float, *, was_member: bool) -> bool:
        """Take in the answer to a sign of life.

        Args:
            said_at: when it was sent, on this clock.
            was_member: whether the server had heard of this member within a lease.

        Returns:
            Whether keys that were owned before are still owned.
        """
        keeps = not self._is_member or (was_member and self.safe_for() > 0)
        if not keeps:
            self.lose()
        self._renewed_at, self._is_member = said_at, True
        return keeps
