"""Lease of one fleet member, and why two members do not write as owners of one key at the same time.

The argument holds while both clocks of the lease do, the server's and the owner's. Otherwise tokens protect: see the
six gaps below.

Let L be the lease, S = SAFE_FRACTION * L and C = CLEAN_UP_FRACTION * L. `t` is the owner's clock when it sends a
heartbeat.

1. *The server waits.* It gives the key of a silent owner to another member when L has passed on the server's clock
   since it handled the last heartbeat. It handled that after `t`, so on the owner's clock nobody else owns the key
   before `t + L`. PostgreSQL forgets no lease in a crash: leases stand in logged tables, and `synchronous_commit` is
   on.
   Two clocks that differ by 100 in a million differ by 1.5 ms after a lease of 15 s; the next owner needs a round trip.
2. *The owner's clock does not stand still.* It is CLOCK_BOOTTIME where there is one: it counts while the process is
   stopped and while the machine sleeps. (A virtual machine that is paused from outside is a gap, see below.)
3. *After `t + S` no handler and no `start` begins.* Every handler checks `is_safe` immediately before; `stop` still
   runs, within C. A save checks it before it waits for the connection; if it arrives late, the server refuses it by its
   token.
4. *After `t + S` everything is cancelled.* The actor's loop is told at once; L / 15 is left for that. (99 of 100
   threads that wake another thread's loop took under 35 ms, on two cores with a load of 7; the shortest lease leaves
   67 ms.) Running code is cancelled, its grace is at most C, and after C it is cancelled again until it ends; code
   behind a shield after C / 20 more, a quarter of what is left.
   S + C + L / 15 = L, so code that ends when it is cancelled has ended by `t + L`.
5. *No owner becomes safe again.* An answer that is read after `t + S` of the heartbeat before renews nothing: the
   member has lost all keys. Keys that it acquires later belong to a new era, with new tokens.
6. *A draining or leaving owner* gives a key back after the actor has ended, its state has been saved, and all replies
   are at the server.

No lease closes the following six gaps, of which only the last is bounded by L. The token protects a resource meanwhile:

- A server that has lost commits: a promoted standby that was not synchronous, a restored backup, `fsync = off`. A
  machine without CLOCK_BOOTTIME that sleeps.
- A process that exits while its actors run: it frees its keys at once, and code in daemon threads may run a little on.
- Code that does not end when it is cancelled: sync handlers, code that blocks its event loop.
- A save to a store of the user's own (`snapshots=`): its `save` has to compare the token.
- A process that is stopped after it checked `is_safe` and before its write arrives. The same holds for a process on a
  machine that was paused without its clock going on.
- A server with its clock set forward ends leases early: servers have only that clock. The answer to the old owner's
  next heartbeat, after L / 4 at most, says that it is no member, and it ends everything within C. (A clock that is
  set back makes leases longer.) Servers of fleets must be slewed, as chrony and ntpd do after they have started.

In the gaps *tokens* decide. Each owner of a key has a higher token than those before it. As soon as the server has
given the key to the next owner, it refuses operations with an older token: to begin an ask, and to save a state.
A resource of the user's own learns the new token only when the new owner writes: until then it would accept a
late write of the old owner. So an owner writes its token to the resource in `start`, before it reads from there; from
then on the resource refuses the old owner. The page one-owner-per-key.md shows how.

Why these numbers: C is a third, so that the usual grace of 5 s fits into the usual lease of 15 s; a longer grace is
refused when a node is built, and cut otherwise. Heartbeats are sent each L / 4, and each has L / 4 to be answered:
a heartbeat that hangs is given up at L / 2, which leaves L / 10 to try again on a new connection before S.

Where each step is: 1 `own` and `beat` in `postgres/_fleet.sql`. 2 `_util/_boot_clock`. 3
`LeasedRunner` in callboard's `actors/_runner`, through `KeyOwnership.is_current`; `FleetSnapshots.save` in `_member`. 4
`_watch_lease` in `_client`, `Router.lose_key`, `FleetActors._lose`, `Incarnation.kill`. 5 `renew`, and the era in
`Router._find_owner`. 6 `KeyedActors._end`, `Router.free_key`.
"""

from collections.abc import Callable

from callboard_actors._util._boot_clock import now

HEARTBEATS_PER_LEASE = 4
"""Number of heartbeats that are sent within one lease."""
SAFE_FRACTION = 3 / 5
"""Fraction of the lease after which an owner that could not renew the lease gives up its keys."""
CLEAN_UP_FRACTION = 1 / 3
"""Fraction of the lease within which an owner that gave up its keys must end the code that runs for them."""
SHORTEST_LEASE = 1.0
"""Shortest allowed lease, in seconds; with less, threads of a busy machine would learn of lost keys too late."""


class Lease:
    """Lease of one fleet member, measured on the member's own clock. No method waits.

    Args:
        seconds: length of the lease.
        clock: seconds on a clock that counts while the process is stopped; see `now`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = now) -> None:
        self.seconds = seconds
        # A key acquired in an earlier era is lost for good, even if this process becomes a member again.
        self.era = 0
        """Number of times that this member has lost all its keys."""
        self._clock = clock
        self._renewed_at = 0.0
        self._is_member = False

    def is_safe(self, era: int) -> bool:
        """Return whether this member certainly still owns its keys of `era`; each loss of all keys begins a new era."""
        # Three reads without a lock, in any thread. The era is read last: a late answer to a heartbeat loses all keys
        # and then renews the lease for a new era, and an old era that was compared before that would be taken for safe.
        return self._is_member and self.seconds_until_unsafe() > 0 and era == self.era

    def seconds_until_unsafe(self) -> float:
        """Return the seconds until all keys must be given up, if nothing renews the lease."""
        return self._renewed_at + SAFE_FRACTION * self.seconds - self._clock()

    def is_lost(self) -> bool:
        """Return whether a member's keys must be given up now, because no heartbeat renewed the lease in time."""
        return self._is_member and self.seconds_until_unsafe() <= 0

    def lose_all_keys(self) -> None:
        """Record that this member has lost all its keys; from now on, `is_safe()` returns False for these keys."""
        self._is_member = False
        self.era += 1

    def renew(self, sent_at: float, *, was_member: bool) -> bool:
        """Renew the lease from `sent_at`, when its heartbeat was sent; return whether this member has kept its keys."""
        # A first heartbeat has no keys to lose. Later, both sides must agree that the lease never ended.
        keeps_keys = not self._is_member or (was_member and self.seconds_until_unsafe() > 0)
        if not keeps_keys:
            self.lose_all_keys()
        # From the time of sending, not of the answer: the server counts its lease from a moment between the two.
        self._renewed_at, self._is_member = sent_at, True
        return keeps_keys
