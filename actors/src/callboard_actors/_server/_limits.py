"""Limits that many processes share on a server: their store, background client and connection interface.

`Gate` is the state of one limit, or of one key of a limit, in this process: permits, and changes for the server. It
decides, and never waits. It runs in the client's thread, except `Gate.is_lease_valid` and parts of `LocalPermit`.
"""

import hashlib
import logging
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from operator import itemgetter
from typing import Any, Final, Literal, Protocol, get_args

from callboard import Limit, StorageError
from callboard.extend import PermitRequest
from callboard_actors._server._client import (
    NAME_RULE,
    BackgroundClient,
    Connection,
    ServerStore,
    UnreachableError,
    is_valid_name,
)
from callboard_actors._util._boot_clock import now
from callboard_actors._util._options import MAX_SECONDS, check_seconds

# Messages between a process and a server of limits, whichever server that is.

_MAX_RESTART_PAUSE_US = 60_000_000
"""Longest time, in microseconds, for which a restarted server grants no permits because of the window of a rate."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Concurrency, queue length, rate and lease of a limit, as the server stores them; times are in microseconds."""

    concurrency: int | None
    max_waiting: int | None
    rate_calls: int | None
    rate_period_us: int
    lease_us: int

    @staticmethod
    def of(limit: Limit, lease: float) -> "LimitSettings":
        """Convert a limit to `LimitSettings`; a process counts as dead after `lease` seconds without a heartbeat."""
        rate = limit.rate
        rate_calls, rate_period_us = (None, 0) if rate is None else (rate.calls, round(rate.per * 1e6))
        return LimitSettings(limit.concurrency, limit.queue, rate_calls, rate_period_us, round(lease * 1e6))

    @property
    def text(self) -> str:
        """Text of these settings for errors; the server also checks that the text is equal in all processes."""
        rate = "None" if self.rate_calls is None else f"Rate({self.rate_calls}, per={self.rate_period_us / 1e6:g})"
        return f"concurrency={self.concurrency}, queue={self.max_waiting}, rate={rate}, lease={self.lease_us / 1e6:g}"

    @property
    def restart_pause_us(self) -> int:
        """Microseconds without new permits after a server restart, so that processes can report held permits."""
        return max(self.lease_us, min(self.rate_period_us, _MAX_RESTART_PAUSE_US))


@dataclass(frozen=True, slots=True)
class PermitChange:
    """Change of one permit, as a process reports it to the server.

    `enter` requests a permit, `leave` releases it or leaves the queue, `begin` is the start of the call's function. A
    full report has `wait` for a call that already had a place in the queue, and `hold` for a call with a permit.
    """

    kind: Literal["enter", "leave", "begin", "wait", "hold"]
    permit_id: str
    tenant: str = ""
    position: str = ""
    """Place of the waiting call in the server's queue, as the server has assigned it."""
    token: int = 0
    has_begun: bool = False

    @property
    def fields(self) -> tuple[str, str, str, str, int]:
        """Fields of this change, in the order in which the server reads them."""
        # A held permit is written as "pause" as long as its body has not started.
        kind = "pause" if self.kind == "hold" and not self.has_begun else self.kind
        return kind, self.permit_id, self.tenant, self.position, self.token


@dataclass(frozen=True, slots=True)
class Step:
    """Message of one process to the server: changes of permits of one limit, or of one key of a limit."""

    gate_name: str
    settings: LimitSettings
    epoch: str
    """Version of the server's data that this process knows, and to which the changes apply; "" for a full report."""
    changes: Sequence[PermitChange] = ()
    wants_all_permits: bool = False
    """True if the answer must list all permits of the process, because a notification may have been lost."""


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """Server's answer to a message about one limit: the granted permits, the queued calls and the refused calls."""

    epoch: str = ""
    """Version of the server's data; "" if the server has lost data of this process and needs a full report."""
    other_settings: str = ""
    """Settings of this limit in other processes, if they differ; the changes of this process were then not applied."""
    opens_in: float | None = None
    """Seconds until a waiting call may get a permit even if no other call ends, as with a rate; `None` for never."""
    granted_tokens: dict[str, int] = field(default_factory=dict[str, int])
    """Fencing tokens of the new permits, or of all permits if the message has asked for all, by permit id."""
    queue_positions: dict[str, str] = field(default_factory=dict[str, str])
    """Places of waiting calls in the queue, by permit id."""
    refusal_counts: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    """Number of running and of waiting calls for each refused request, by permit id."""


class LimitsTransport(Connection, Protocol):
    """Connection of one process to a server that keeps limits."""

    async def send_steps(self, steps: Sequence[Step]) -> Sequence[StepAnswer]:
        """Send `Step` messages to the server, and return the server's answer to each message.

        Raises:
            UnreachableError: if the server cannot be reached; the steps may or may not have been applied.
            StorageError: if the server refuses.
        """
        ...

    def grants(self) -> AsyncIterator[tuple[str, str, int]]:
        """Yield each permit that the server grants to a waiting call: its limit (with key), id and fencing token."""
        ...


# The gate.

OutagePolicy = Literal["wait", "refuse"]
"""Policy for calls during an outage."""

_MAX_CHANGES = 500
"""Largest number of changes in one `Step`, which may block the server. A full report of held permits may exceed it."""
_HEARTBEATS_PER_LEASE = 3
"""Number of heartbeats that are sent within one lease."""


class Phase(Enum):
    """Phase of a permit between its request and its end."""

    NEW = "the server has not been told"
    ASKED = "the server has been told, and has not answered"
    WAITING = "it stands in the queue"
    HELD = "it has a place"
    GONE = "it has left, or never got a place"


class LocalPermit:
    """Permit of one call of this process, from its request to its release.

    `phase`, `token`, `position` and `failure` are written in the client's thread. `begin`, `leave` and `is_lost` may be
    called from any thread.
    """

    def __init__(
        self,
        request: PermitRequest,
        on_answer: Callable[[], object],
        post_to_client: Callable[[Callable[[], None]], object],
    ) -> None:
        self.request = request
        self.post_to_client = post_to_client
        """Function that runs another function in the client's thread."""
        self.gate: Gate | None = None
        self.id = ""
        self.phase = Phase.NEW
        self.position = ""
        # `is_begin_noted`: the gate has been told that the body begins. `is_begun`: the body begins; set first, at once
        # in the thread that calls `begin`, so that `_drop_permits_before_begin` never drops a running body's permit.
        self.is_begin_noted = self.is_begun = False
        self._was_lost = False
        self.failure: str | Exception | None = None
        self.token: int | None = None
        self._on_answer = on_answer

    @property
    def is_waiting(self) -> bool:
        return self.phase in (Phase.NEW, Phase.ASKED, Phase.WAITING)

    def grant(self, token: int) -> None:
        """Grant the permit to the waiting call."""
        self.phase = Phase.HELD
        self.token = token
        # Last: the waiting call reads phase and token as soon as this wakes it.
        self._on_answer()

    @property
    def is_lost(self) -> bool:
        """Return whether another process may have this permit by now; called before the call's function starts."""
        if self.phase is not Phase.HELD:
            return self._was_lost
        return self.gate is not None and not self.gate.is_lease_valid()

    def lose(self) -> None:
        self._was_lost = True
        self.phase = Phase.GONE

    def refuse(self, failure: str | Exception) -> None:
        """Wake the waiting call with an error (`failure`) instead of a permit."""
        self.phase = Phase.GONE
        self.failure = failure
        self._on_answer()

    def begin(self) -> None:
        """Record that the function of the call starts; may be called from any thread."""
        # At once, in the caller's thread; see `is_begun`.
        self.is_begun = True
        self.post_to_client(self._note_begin)

    def leave(self) -> None:
        """Release the permit, or remove the waiting call from the queue; may be called from any thread."""
        self.post_to_client(self._note_leave)

    def _note_begin(self) -> None:
        if self.gate is not None and self.phase is Phase.HELD and not self.is_begin_noted:
            self.is_begin_noted = True
            self.gate.note_begin(self)

    def _note_leave(self) -> None:
        # A lost or refused permit needs no release: a full report leaves it out, or the server never granted it.
        if self.gate is not None and self.phase is not Phase.GONE:
            self.gate.note_leave(self)


class Gate:
    """State of one limit (or of one key of a limit) in this process: permits, and changes to report to the server."""

    def __init__(
        self, name: str, settings: LimitSettings, server_address: str, clock: Callable[[], float] = now
    ) -> None:
        self.name = name
        self.settings = settings
        # All permits here that are not gone, in the order of their requests: a resend keeps that order.
        self.permits: dict[str, LocalPermit] = {}
        self._server_address = server_address
        self._clock = clock
        # Clock times: when the last step was sent, and when the lease ends that the last answer renewed. The lease
        # counts from the sending, so it ends here first. `is_lease_valid` reads the second one in other threads.
        self._sent_at = self._lease_until = -math.inf
        # Version of the server's memory that the changes here build on; "" means that everything is to be sent again.
        self._server_epoch = ""
        # Changes that are still to be sent.
        self._unsent_changes: deque[PermitChange] = deque()
        # Loop times of the next heartbeat, and of the next question for all permits of this process.
        self._heartbeat_at = self._full_answer_at = -math.inf
        # Loop time at which the passing of time alone may free a permit, as in a rate.
        self._opens_at = math.inf
        # Loop time from which on the server has forgotten this process; see `can_drop`.
        self._forgotten_at = -math.inf
        # Loop time of the next full report to a server that has other settings for this limit.
        self._full_report_at = -math.inf
        # Changes that were sent and not answered.
        self._unanswered_changes: list[PermitChange] = []
        # True if any other change may not have arrived, such as the release of a permit.
        self._needs_full_report = False

    def can_drop(self, now: float) -> bool:
        """Return whether this `Gate` can be dropped: it has no calls, and nothing is left to send to the server."""
        has_more = self.permits or self._unsent_changes or self._needs_full_report or self._opens_at < math.inf
        return not has_more and now > self._forgotten_at

    def request_permit(self, permit: LocalPermit) -> None:
        self.permits[permit.id] = permit
        self._unsent_changes.append(PermitChange("enter", permit.id, tenant=permit.request.tenant))

    def note_begin(self, permit: LocalPermit) -> None:
        if self.settings.rate_calls is not None:
            self._unsent_changes.append(PermitChange("begin", permit.id))

    def note_leave(self, permit: LocalPermit) -> None:
        permit.phase = Phase.GONE
        del self.permits[permit.id]  # at once: the release is queued, and a late grant is answered with another one
        self._unsent_changes.append(PermitChange("leave", permit.id, position=permit.position))

    def is_lease_valid(self) -> bool:
        """Return whether the server still counts this process's permits as taken; may be called from any thread."""
        return self._clock() < self._lease_until

    def _drop_permits_before_begin(self) -> None:
        """Drop permits of calls that have not started: after the lease, other processes may hold these permits."""
        for permit in list(self.permits.values()):
            # A body that runs cannot be undone, so its permit stays.
            if permit.phase is Phase.HELD and not permit.is_begun:
                del self.permits[permit.id]
                permit.lose()
        # The server has dropped this process: everything is reported again.
        self.forget_connection()

    def accept_grant(self, id: str, token: int) -> None:
        """Handle the server's grant of a permit to a waiting call; the call may have left the queue meanwhile."""
        # A process that was stopped also reads grants that the server has since given to other processes.
        if not self.is_lease_valid():
            return self._drop_permits_before_begin()
        permit = self.permits.get(id)
        # A call that has left reported so already: its "leave" is in the queue or at the server.
        if permit is not None and permit.is_waiting:
            permit.grant(token)
        return None

    def forget_connection(self) -> None:
        """Prepare to report all permits of this limit again, because the connection to the server was lost."""
        self._server_epoch = ""
        lost_changes = [*self._unanswered_changes, *self._unsent_changes]
        self._needs_full_report = self._needs_full_report or bool(lost_changes)
        self._unanswered_changes = []
        # Only starts must survive: one that a rate forgets would allow one call too many. The full report replaces all
        # other changes, releases by omission.
        self._unsent_changes = deque(change for change in lost_changes if change.kind == "begin")
        for permit in self.permits.values():
            if permit.phase is Phase.ASKED:
                # Without an answer, the server may or may not know it: it is requested again.
                permit.phase = Phase.NEW

    def next_message_time(self, now: float) -> float:
        """Return the loop time at which the next message about this limit must be sent to the server."""
        if self._unsent_changes:
            return -math.inf
        # A full report is due at once, unless the server has other settings: then after a pause.
        if self._needs_full_report or (not self._server_epoch and self.permits):
            return self._full_report_at
        # With no permits left, the next wake-up is when the gate can be dropped.
        return min(self._opens_at, self._heartbeat_at if self.permits else max(self._forgotten_at, now))

    def take_next_step(self, now: float) -> Step:
        """Take the gate's next changes from the queue of unsent changes, and return them as a message to the server."""
        if not self.is_lease_valid():
            self._drop_permits_before_begin()
        # Before sending: the lease must end here before it ends at the server.
        self._sent_at = self._clock()
        # A grant on the notification channel may be lost, so all permits are asked for once per heartbeat.
        wants_all_permits = now >= self._full_answer_at
        self._heartbeat_at = now + self.settings.lease_us / 1e6 / _HEARTBEATS_PER_LEASE
        if wants_all_permits:
            self._full_answer_at = self._heartbeat_at
        self._opens_at = math.inf
        self._forgotten_at = now + self.settings.lease_us / 1e6
        if not self._server_epoch:
            # The full report stands in for the changes queued so far, but not for starts: a permit that began and was
            # left since the connection broke is in no report, and its start counts for the rate.
            begin_changes = [change for change in self._unsent_changes if change.kind == "begin"]
            permits = list(self.permits.values())
            held_permits = [permit for permit in permits if permit.phase is Phase.HELD]
            hold_changes = [
                PermitChange("hold", permit.id, token=permit.token or 0, has_begun=permit.is_begin_noted)
                for permit in held_permits
            ]
            waiting_permits = [permit for permit in permits if permit.is_waiting]
            wait_changes = [
                PermitChange("wait", permit.id, position=permit.position)
                for permit in waiting_permits
                if permit.position
            ]
            entering = [
                PermitChange("enter", permit.id, tenant=permit.request.tenant)
                for permit in waiting_permits
                if not permit.position
            ]
            # In this order: held permits before waiting calls before new ones, or new calls would take others' permits.
            self._unsent_changes = deque([*begin_changes, *hold_changes, *wait_changes, *entering])
            self._needs_full_report = False
        # The server gives free permits away after each step. A permit that is reported only in the next step would be
        # given a second time, so all running and started calls go into the first step of a report.
        min_step_size = (
            0 if self._server_epoch else sum(change.kind in ("begin", "hold") for change in self._unsent_changes)
        )
        step_size = min(max(_MAX_CHANGES, min_step_size), len(self._unsent_changes))
        changes = self._unanswered_changes = [self._unsent_changes.popleft() for _ in range(step_size)]
        for change in changes:
            # ASKED only when it is really sent: a later step may hold the rest.
            if (
                change.kind == "enter"
                and (permit := self.permits.get(change.permit_id)) is not None
                and permit.phase is Phase.NEW
            ):
                permit.phase = Phase.ASKED
        return Step(self.name, self.settings, self._server_epoch, changes, wants_all_permits=wants_all_permits)

    def apply_answer(self, answer: StepAnswer, now: float) -> None:
        """Update the permits of this process from the server's answer to the last message."""
        if answer.other_settings:
            # Other processes use this limit with other settings.
            reason = (
                f"has other numbers for the limit {self.name!r}: {answer.other_settings}, and here it is "
                f"{self.settings.text}. Give it the same numbers in all processes, or another name"
            )
            self._server_epoch = ""
            self.refuse_waiting(lambda _: StorageError(self._server_address, reason + "."))
            # Deployments change numbers: once the old processes are gone, the server accepts the new ones.
            self._full_report_at = now + self.settings.lease_us / 1e6 / _HEARTBEATS_PER_LEASE
            return
        self._full_report_at = -math.inf
        self._server_epoch = answer.epoch
        # Counted from the sending: see `_sent_at`.
        if answer.epoch:
            self._lease_until = self._sent_at + self.settings.lease_us / 1e6
        # This process was stopped between question and answer: the answer is too old to be believed.
        if not self.is_lease_valid():
            self._drop_permits_before_begin()
            return
        # The server has restarted, or has dropped this process: it needs the full report.
        if not answer.epoch:
            self.forget_connection()
            return
        self._unanswered_changes = []
        if answer.opens_in is not None:
            self._opens_at = now + answer.opens_in
        for permit_id, position in answer.queue_positions.items():
            self._note_queued(permit_id, position)
        for permit_id, (running, waiting) in answer.refusal_counts.items():
            if (permit := self.permits.pop(permit_id, None)) is not None and permit.is_waiting:
                maximum = self.settings.concurrency
                used = "the rate is used up" if maximum is None else f"{running} of {maximum} run"
                permit.refuse(
                    f"{permit.request.title} is full in all processes together: {used}, {waiting} wait, and no more may"
                )
        # By token, which is the order in which the server granted them.
        for permit_id, token in sorted(answer.granted_tokens.items(), key=itemgetter(1)):
            permit = self.permits.get(permit_id)
            if permit is None:
                # Granted to a call that has left: release it, unless the release is under way.
                if not any(change.permit_id == permit_id for change in self._unsent_changes):
                    self._unsent_changes.append(PermitChange("leave", permit_id))
            elif permit.is_waiting:
                permit.grant(token)

    def _note_queued(self, id: str, position: str) -> None:
        permit = self.permits.get(id)
        if permit is None:
            # The call left before its place in the queue was known; without the place, the server cannot find it. So
            # the report that it left is repeated.
            for change in self._unsent_changes:
                if change.permit_id == id and change.kind == "leave":
                    self._unsent_changes.remove(change)
                    break
            self._unsent_changes.append(PermitChange("leave", id, position=position))
        else:
            permit.position = position
            if permit.phase is Phase.ASKED:
                permit.phase = Phase.WAITING

    def refuse_waiting(self, make_failure: Callable[[LocalPermit], str | Exception]) -> None:
        """Fail all calls that wait for a permit of this limit; `failure` returns the error for each call."""
        for permit in [permit for permit in self.permits.values() if permit.is_waiting]:
            del self.permits[permit.id]
            permit.refuse(make_failure(permit))
        # The refused calls must not enter the queue at the server later.
        self._unsent_changes = deque(change for change in self._unsent_changes if change.kind != "enter")


# The client.

_logger = logging.getLogger("callboard_actors.limits")
_OUTAGE_BEHAVIOUR = {"wait": "calls wait", "refuse": "calls are refused"}


class LimitsClient(BackgroundClient[LimitsTransport]):
    """Client of one process for limits on a server: requests permits for all calls of this process.

    A cancelled call leaves at once, without a round trip. All changes that accumulate during one round trip are sent
    together in the next one.
    """

    def __init__(
        self,
        make_connection: Callable[[], LimitsTransport],
        server_address: str,
        outage_policy: OutagePolicy,
        *,
        patience: float,
        lease: float,
    ) -> None:
        self.outage_behaviour = _OUTAGE_BEHAVIOUR[outage_policy]
        self._lease, self._outage_policy = lease, outage_policy
        # Client's thread only; other threads post functions, so gates and permits need no lock.
        self._gates: dict[str, Gate] = {}
        self._permit_numbers = count(1)
        # Last: the thread starts here, and uses the fields above.
        super().__init__(make_connection, server_address, patience, _logger)

    def request_permit(self, gate_name: str, request: PermitRequest, on_answer: Callable[[], object]) -> LocalPermit:
        """Request a permit, and return it at once, before the server grants it; may be called from any thread."""
        permit = LocalPermit(request, on_answer, self.post)
        if not self.post(lambda: self._enter_gate(gate_name, permit)):  # closed by another thread meanwhile
            permit.refuse(self.closing_error())
        return permit

    def _enter_gate(self, gate_name: str, permit: LocalPermit) -> None:
        request = permit.request
        gate = self._gates.get(gate_name)
        settings = LimitSettings.of(request.limit, self._lease)
        if gate is None:
            gate = self._gates[gate_name] = Gate(gate_name, settings, self.server_address)
        # Begins with the client's id: by this prefix, the Redis script finds all permits of a dead process.
        permit.gate, permit.id = gate, f"{self.client_id}.{next(self._permit_numbers)}"
        # Two limits of one name in one process: neither settings may silently win.
        if gate.settings != settings:
            reason = (
                f"is asked for the limit {gate_name!r} with {gate.settings.text} and with {settings.text}. "
                "Give each a name of its own."
            )
            permit.refuse(StorageError(self.server_address, reason))
        else:
            gate.request_permit(permit)

    def has_work(self) -> bool:
        return bool(self._gates)

    async def receive_notifications(self, connection: LimitsTransport) -> None:
        async for gate_name, permit_id, token in connection.grants():
            if (gate := self._gates.get(gate_name)) is not None:  # a gate that is gone has no permits left
                gate.accept_grant(permit_id, token)
        raise UnreachableError("it says no more")

    async def send_due_messages(self, connection: LimitsTransport) -> float:
        now = self.loop.time()
        # Gates are named by keys, which models may choose without end: a finished gate is dropped.
        for gate in [gate for gate in self._gates.values() if gate.can_drop(now)]:
            del self._gates[gate.name]
        due_gates = [gate for gate in self._gates.values() if gate.next_message_time(now) <= now]
        if due_gates:
            steps = [gate.take_next_step(now) for gate in due_gates]
            for gate, answer in zip(due_gates, await connection.send_steps(steps), strict=True):
                # In the order of the steps. If this task is cancelled before, `forget_connection` has all sent again.
                gate.apply_answer(answer, self.loop.time())
        return min((gate.next_message_time(now) for gate in self._gates.values()), default=math.inf)

    def answer_waiting_callers(self) -> None:
        if self._outage_policy == "refuse":
            for gate in self._gates.values():
                gate.refuse_waiting(
                    lambda permit: f"{self.server_address}, which has {permit.request.title}, cannot be reached"
                )

    def fail_all_callers(self, error: StorageError) -> None:
        # A list, because gates without permits are deleted on the way.
        for gate in list(self._gates.values()):
            gate.refuse_waiting(lambda _: StorageError(error.database, error.reason))
            if not gate.permits:
                del self._gates[gate.name]

    def forget_connection(self) -> None:
        for gate in self._gates.values():
            gate.forget_connection()


# The store.

_SHORTEST_WINDOW: Final = 0.001
_MAX_COUNT: Final = 1_000_000


class LimitStore(ServerStore):
    """Store of limits that many processes share on a server, with one background client in each process.

    See `RedisLimits` for the options.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        prefix: str = "callboard",
        lease: float = 10.0,
        away: OutagePolicy = "wait",
        patience: float = 1.0,
    ) -> None:
        super().__init__(url, prefix)
        if name is not None and not is_valid_name(name):
            raise ValueError(f"{self._store_name}(name=...) is {NAME_RULE}, got {name!r}")
        check_seconds(self._store_name, least=0.1, longest=MAX_SECONDS, lease=lease)
        check_seconds(self._store_name, least=0.0, longest=MAX_SECONDS, patience=patience)
        if away not in get_args(OutagePolicy):
            raise ValueError(f"{self._store_name}(away=...) is one of {get_args(OutagePolicy)}, got {away!r}")
        self._name = name
        self._outage_policy: OutagePolicy = away
        self._lease, self._patience = lease, patience
        # Any thread may be the first to use the store, so `_current_client` is read and replaced under the lock only.
        self._lock = threading.Lock()
        self._current_client: LimitsClient | None = None

    @property
    def name(self) -> str | None:
        """Name that all limits of this store share; `None` if each limit has the name of its tool or node."""
        return self._name

    def check(self, limit: Limit, /) -> None:
        """Raise ValueError for a limit that this store cannot keep."""
        counts = {"concurrency": limit.concurrency, "queue": limit.queue}
        if limit.rate is not None:
            counts["rate"] = limit.rate.calls
            if not _SHORTEST_WINDOW <= limit.rate.per <= MAX_SECONDS:
                raise ValueError(f"{limit.rate!r}: a shared window has {_SHORTEST_WINDOW:g} to {MAX_SECONDS:g} seconds")
        for option, value in counts.items():
            if value is not None and value > _MAX_COUNT:
                raise ValueError(f"a shared limit counts up to {_MAX_COUNT:,}, got {option}={value!r}")

    def ask(self, request: PermitRequest, on_answer: Callable[[], object], /) -> LocalPermit:
        """Request a permit, and return it at once, before the server grants it; may be called from any thread."""
        name = self._name or request.name
        if len(name) > 200 or not name.isprintable() or not name.isascii():  # not every server accepts it
            name = f"sha256:{hashlib.sha256(name.encode(errors='backslashreplace')).hexdigest()}"
        with self._lock:
            client = self._current_client
            if client is None or client.pid != os.getpid():  # after a fork the child has the object, but not the thread
                options = {"patience": self._patience, "lease": self._lease}
                client = LimitsClient(self._connection_factory(), self._server_address, self._outage_policy, **options)
                self._current_client = client
                # Stops the thread when the store is garbage. At exit, `_close_all` waits for the final messages.
                weakref.finalize(self, client.dismiss).atexit = False
        return client.request_permit(f"{name}/{request.key}" if request.key else name, request, on_answer)

    def close(self) -> None:
        """Send the remaining messages and close the connection, in one second at most; the next use opens a new one."""
        with self._lock:
            client, self._current_client = self._current_client, None
        if client is not None:
            # Outside the lock: other threads may use the store meanwhile, with a new client.
            client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy, without the background client: the copy will make a new client."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_current_client")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.Lock(), _current_client=None)
