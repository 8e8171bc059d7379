"""Base of `RedisLimits` and `PostgresLimits`: checked options, and the client of one process at the server."""

import hashlib
import logging
import math
from collections.abc import Callable
from itertools import count
from typing import Final, get_args

from callboard import Limit, StorageError
from callboard.extend import PermitRequest
from callboard_actors._server._client import AwayError, BackgroundClient
from callboard_actors._server._store import NAME_RULE, ClientStore, check_away, is_name
from callboard_actors._server.limits._gate import Away, Gate, LimitsTransport, LocalPermit, Numbers, Share
from callboard_actors._util._options import LONGEST, check_seconds

# The client.

_logger = logging.getLogger("callboard_actors.limits")
_GOING_ON = {"wait": "calls wait", "refuse": "calls are refused", "local": "a local share is used"}


class LimitsClient(BackgroundClient[LimitsTransport]):
    """Client of one process for limits on a server: requests permits for all calls of this process.

    A cancelled call leaves at once, without a round trip. All changes that accumulate during one round trip are sent
    together in the next one.
    """

    def __init__(
        self,
        line: Callable[[], LimitsTransport],
        where: str,
        away: Away,
        share: Share,
        *,
        patience: float,
        lease: float,
    ) -> None:
        self.going_on = _GOING_ON[away]
        self._lease, self._away, self._share = lease, away, share
        # Client's thread only; other threads post functions, so gates and permits need no lock.
        self._gates: dict[str, Gate] = {}
        self._numbers = count(1)
        # Last: the thread starts here, and uses the fields above.
        super().__init__(line, where, patience, _logger)

    def ask(self, gate: str, wanted: PermitRequest, on_answer: Callable[[], object]) -> LocalPermit:
        """Request a permit, and return it at once, before the server grants it; may be called from any thread."""
        stay = LocalPermit(wanted, on_answer, self.post)
        if not self.post(lambda: self._enter(gate, stay)):  # closed by another thread meanwhile
            stay.refuse(self.closed())
        return stay

    def _enter(self, name: str, stay: LocalPermit) -> None:
        wanted = stay.wanted
        gate = self._gates.get(name)
        numbers = Numbers.of(wanted.limit, self._lease)
        if gate is None:
            gate = self._gates[name] = Gate(name, numbers, self.where)
        # Begins with the client's id: by this prefix, the Redis script finds all permits of a dead process.
        stay.gate, stay.id = gate, f"{self.client}.{next(self._numbers)}"
        # Two limits of one name in one process: neither set of numbers may silently win.
        if gate.numbers != numbers:
            reason = (
                f"is asked for the limit {name!r} with {gate.numbers.text} and with {numbers.text}. Give each a name"
            )
            stay.refuse(StorageError(self.where, reason + " of its own."))
        else:
            gate.enter(stay)

    def has_work(self) -> bool:
        return bool(self._gates)

    def has_last_words(self) -> bool:
        # Without a connection the server gave no permits, or takes them back after the lease. While connected, `talk`
        # sends all that is due before it closes.
        return False

    async def listen(self, line: LimitsTransport) -> None:
        async for name, number, token in line.heard():
            if (gate := self._gates.get(name)) is not None:  # a gate that is gone has no permits left
                gate.note_heard(number, token)
        raise AwayError("it says no more")

    async def say_what_is_due(self, line: LimitsTransport) -> float:
        now = self.loop.time()
        # Gates are named by keys, which models may choose without end: a finished gate is dropped.
        for gate in [one for one in self._gates.values() if one.is_over(now)]:
            del self._gates[gate.name]
        due = [gate for gate in self._gates.values() if gate.due(now) <= now]
        if due:
            steps = [gate.step(now) for gate in due]
            for gate, answer in zip(due, await line.say(steps), strict=True):
                # In the order of the steps. If this task is cancelled before, `forget_line` has all of it sent again.
                gate.take(answer, self.loop.time())
        return min((gate.due(now) for gate in self._gates.values()), default=math.inf)

    def look_after_waiting(self) -> None:
        for gate in self._gates.values():
            if self._away == "refuse":
                gate.refuse(lambda stay: f"{self.where}, which has {stay.wanted.title}, cannot be reached")
            elif self._away == "local":
                gate.share_out(self._share, self.loop.time())

    def refuse_all(self, error: StorageError) -> None:
        # A list, because gates without permits are deleted on the way.
        for gate in list(self._gates.values()):
            gate.refuse(lambda _: StorageError(error.where, error.reason))
            if not gate.stays:
                del self._gates[gate.name]

    def forget_line(self) -> None:
        for gate in self._gates.values():
            gate.forget_line()


# The store.

_SHORTEST: Final = 0.001
_MOST: Final = 1_000_000


class LimitStore(ClientStore[LimitsClient]):
    """Store of limits that many processes share. `RedisLimits` documents the options; `_check` below checks them."""

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        prefix: str = "callboard",
        lease: float = 10.0,
        away: Away = "wait",
        patience: float = 1.0,
        processes: int | None = None,
    ) -> None:
        super().__init__(url, prefix)
        _check(self._whose, name=name, lease=lease, away=away, patience=patience, processes=processes)
        self._name = name
        self._away: Away = away
        self._lease, self._patience, self._share = lease, patience, Share(processes or 1)

    def _new_client(self) -> LimitsClient:
        seconds = {"patience": self._patience, "lease": self._lease}
        return LimitsClient(self._line(), self._where, self._away, self._share, **seconds)

    @property
    def name(self) -> str | None:
        """Name that all limits of this store share; `None` if each limit has the name of its tool or node."""
        return self._name

    def check(self, limit: Limit, /) -> None:
        """Raise ValueError for a limit that this store cannot keep."""
        counts = {"concurrency": limit.concurrency, "queue": limit.queue}
        if limit.rate is not None:
            counts["rate"] = limit.rate.calls
            if not _SHORTEST <= limit.rate.per <= LONGEST:
                raise ValueError(f"{limit.rate!r}: a shared window has {_SHORTEST:g} to {LONGEST:g} seconds")
        for option, number in counts.items():
            if number is not None and number > _MOST:
                raise ValueError(f"a shared limit counts up to {_MOST:,}, got {option}={number!r}")
        if self._away == "local":
            self._share.check(limit)

    def ask(self, wanted: PermitRequest, on_answer: Callable[[], object], /) -> LocalPermit:
        """Request a permit, and return it at once, before the server grants it; may be called from any thread.

        `on_answer` is called when the permit was granted or refused.
        """
        name = self._name or _storable(wanted.name)
        return self._client().ask(f"{name}/{wanted.key}" if wanted.key else name, wanted, on_answer)


def _storable(name: str) -> str:
    """Return a name that every server accepts: the given name, such as that of a tool, or a hash of it."""
    if len(name) <= 200 and name.isprintable() and name.isascii():
        return name
    return f"sha256:{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()}"


def _check(whose: str, *, name: object, lease: object, away: object, patience: object, processes: object) -> None:
    if name is not None and not is_name(name):
        raise ValueError(f"{whose}(name=...) is {NAME_RULE}, got {name!r}")
    check_seconds(whose, [("lease", lease, 0.1), ("patience", patience, 0.0)])
    check_away(whose, away, get_args(Away))
    if (away == "local") != (processes is not None):
        raise ValueError(
            f"{whose}(away='local', processes=...) go together: while the server is away, each of so many processes "
            f"has its share; got away={away!r}, processes={processes!r}"
        )
    if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int) or processes < 1):
        raise ValueError(f"{whose}(processes=...) is a whole number from 1, got {processes!r}")
