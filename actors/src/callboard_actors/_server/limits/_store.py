"""Base of `RedisLimits` and `PostgresLimits`: checked options, and the protocol of a store of shared limits."""

import hashlib
from collections.abc import Callable
from typing import Final, get_args

from callboard import Limit
from callboard.limits import Wanted
from callboard_actors._server._store import LONGEST, NAME_RULE, ServerStore, check_seconds, is_name
from callboard_actors._server.limits._desk import Desk, LimitTerms
from callboard_actors._server.limits._line import Line
from callboard_actors._server.limits._share import Away, Share
from callboard_actors._server.limits._stay import HeldStay

_SHORTEST: Final = 0.001
_MOST: Final = 1_000_000


class LimitStore(ServerStore[Desk]):
    """Store of shared limits, with one client in each process that uses it.

    Args:
        whose: name of the user's class, for errors.
        where: address of the server, without a password.
        line: makes a connection to the server.
        name: of the limit, if all limits with this store are one limit.
        lease: seconds without a heartbeat after which a process counts as dead.
        away: policy for calls during an outage.
        patience: seconds of outage before that policy applies.
        processes: number of processes that share each limit during an outage.
    """

    def __init__(
        self,
        whose: str,
        where: str,
        line: Callable[[], Line],
        *,
        name: str | None,
        lease: float,
        away: Away,
        patience: float,
        processes: int | None,
    ) -> None:
        _check(whose, name=name, lease=lease, away=away, patience=patience, processes=processes)
        self._name = name
        self._share = Share(processes or 1)
        self._is_local = away == "local"
        self._line = line
        self._terms = LimitTerms(where=where, lease=lease, away=away, patience=patience, share=self._share)
        super().__init__(whose, where)

    def _new_clerk(self) -> Desk:
        return Desk(self._line, self._terms)

    @property
    def name(self) -> str | None:
        """Name of all limits kept here; `None` if each has the name of its tool or node."""
        return self._name

    def check(self, limit: Limit, /) -> None:
        """Raise ValueError for a limit that cannot be kept here."""
        counts = {"concurrency": limit.concurrency, "queue": limit.queue}
        if limit.rate is not None:
            counts["rate"] = limit.rate.calls
            if not _SHORTEST <= limit.rate.per <= LONGEST:
                raise ValueError(f"{limit.rate!r}: a shared window has {_SHORTEST:g} to {LONGEST:g} seconds")
        for option, count in counts.items():
            if count is not None and count > _MOST:
                raise ValueError(f"a shared limit counts up to {_MOST:,}, got {option}={count!r}")
        if self._is_local:
            self._share.check(limit)

    def ask(self, wanted: Wanted, on_answer: Callable[[], object], /) -> HeldStay:
        """Request a permit without waiting; may be called from any thread."""
        name = self._name or _storable(wanted.name)
        return self._clerk().ask(f"{name}/{wanted.key}" if wanted.key else name, wanted, on_answer)


def _storable(name: str) -> str:
    """Return a name that every server accepts, for a name chosen by others, such as that of a tool."""
    if len(name) <= 200 and name.isprintable() and name.isascii():
        return name
    return f"sha256:{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()}"


def _check(whose: str, *, name: object, lease: object, away: object, patience: object, processes: object) -> None:
    if name is not None and not is_name(name):
        raise ValueError(f"{whose}(name=...) is {NAME_RULE}, got {name!r}")
    check_seconds(whose, [("lease", lease, 0.1), ("patience", patience, 0.0)])
    if away not in get_args(Away):
        raise ValueError(f"{whose}(away=...) is one of {get_args(Away)}, got {away!r}")
    if (away == "local") != (processes is not None):
        raise ValueError(
            f"{whose}(away='local', processes=...) go together: while the server is away, each of so many processes "
            f"has its share; got away={away!r}, processes={processes!r}"
        )
    if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
        raise ValueError(f"{whose}(processes=...) is a whole number from 1, got {processes!r}")
