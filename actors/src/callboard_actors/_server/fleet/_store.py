"""Base of `RedisFleet` and `PostgresFleet`: checked options, and the `Fleet` protocol."""

import os
from collections.abc import Callable
from functools import partial

from callboard.extend import FleetHost
from callboard_actors._server._store import check_seconds
from callboard_actors._server.fleet._client import FleetOptions
from callboard_actors._server.fleet._lease import CLEAN_UP, SHORTEST
from callboard_actors._server.fleet._member import Member
from callboard_actors._server.fleet._messages import Signer, fingerprint
from callboard_actors._server.fleet._transport import Common, FleetTransport
from callboard_actors._util._secret import checked

_LONGEST = 86_400.0
"""Largest lease or patience, in seconds."""
VARIABLE = "CALLBOARD_FLEET_SECRET"


class FleetStore:
    """Fleet, as one process knows it.

    Args:
        whose: name of the user's class, for errors.
        where: address of the server, without a password.
        line: makes a connection to the server, given the settings that all members must share.
        prefix: name of the fleet at the server.
        secret: shared by all processes of the fleet; `None` takes it from the environment.
        lease: seconds without a heartbeat after which a member counts as dead.
        patience: seconds that asks wait during an outage; `None` for no end.
    """

    def __init__(
        self,
        whose: str,
        where: str,
        line: Callable[[Common], FleetTransport],
        *,
        prefix: str,
        secret: str | bytes | None,
        lease: float,
        patience: float | None,
    ) -> None:
        check_seconds(whose, [("lease", lease, SHORTEST)], _LONGEST)
        if patience is not None:
            check_seconds(whose, [("patience", patience, 0.0)], _LONGEST)
        self._whose = whose
        self._prefix = prefix
        self._secret = _secret(whose, secret)
        # The server compares lease and fingerprint of all members: a fleet with two leases could have two owners.
        self._line = partial(line, Common(lease=round(lease * 1e6), seal=fingerprint(self._secret)))
        self._terms = FleetOptions(where=where, lease=lease, patience=patience)

    @property
    def lease(self) -> float:
        """Seconds without a heartbeat after which a process counts as dead."""
        return self._terms.lease

    @property
    def clean_up(self) -> float:
        """Seconds that an owner has to end its running code after it gave up a key."""
        return self._terms.lease * CLEAN_UP

    def admit(self, host: FleetHost, /) -> Member:
        """Make the actors of one kind in this process a member of the fleet; returns at once."""
        # The actor's name is part of what is signed: a message for one kind of actors is invalid for another.
        return Member(host, self._line, self._terms, Signer(self._secret, f"{self._prefix}/{host.name}"))

    def __repr__(self) -> str:
        return f"{self._whose}({self._terms.where!r})"


def _secret(whose: str, secret: object) -> bytes:
    if secret is None:
        secret = os.environ.get(VARIABLE, "")
        if not secret:
            raise ValueError(
                f"{whose} has no secret: give it secret=..., or set {VARIABLE}, to the same in all processes: "
                "what they send each other is signed with it"
            )
    if not isinstance(secret, (str, bytes)):
        raise TypeError(f"{whose}(secret=...) is a text or bytes, got one of type {type(secret).__qualname__}")
    return checked(secret.encode() if isinstance(secret, str) else secret, f"{whose}(secret=...)")
