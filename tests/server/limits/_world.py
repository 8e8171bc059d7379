"""Helpers of the tests of shared limits: permit requests without calls, and a server with stores."""

from typing import Any, Protocol

from callboard import Limit
from callboard.extend import Permit, PermitRequest
from callboard_actors._server._limits import LimitStore, LocalPermit, Phase
from tests.helpers import until
from tests.server._servers import Place

LEASE = 1.0
"""In seconds; short, because tests wait for leases to expire."""


class Stores(Protocol):
    """Factory of stores on one server; each store acts as a separate process."""

    def __call__(self, **options: Any) -> LimitStore: ...


class Asking:
    """Requests permits of one limit from stores and records the holders in order."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.answered: list[str] = []
        self.permits: dict[str, Permit] = {}

    async def ask(
        self, store: LimitStore, name: str, *, tenant: str = "", key: str = "", is_away: bool = False
    ) -> LocalPermit:
        """Request a permit; wait until it is answered or queued, or only until it is made if the server is away."""
        request = PermitRequest(limit=self.limit, name="tool:t", key=key, tenant=tenant, title="the queue of tool 't'")
        permit = self.permits[name] = store.ask(request, lambda: self.answered.append(name))
        await until(lambda: name in self.answered or permit.phase is Phase.WAITING or (is_away and permit.id != ""))
        return permit

    async def until_answered(self, *names: str) -> None:
        """Wait until these requests are answered."""
        await until(lambda: set(names) <= set(self.answered))

    def leave(self, name: str) -> None:
        self.permits[name].leave()


def stores_on(place: Place) -> Stores:
    return lambda **options: place.store("limits", **{"lease": LEASE, **options})
