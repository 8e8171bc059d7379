"""The actor behind a server passes the contract tests for actors."""

import pytest

from callboard import ChildSpec, child
from callboard.testing import ActorContract
from callboard_actors.mcp._connection import Catalog, Connection, Sending
from callboard_actors.mcp._plan import Given, Plan, Target, target_of

from ._asked import NEW, ROOT, WAIT
from ._served import server


class _Contract(ActorContract):
    patience = WAIT

    def target(self) -> Target:
        raise NotImplementedError

    def actor(self) -> ChildSpec[Connection]:
        plan = Plan(name="shop", target=self.target(), mode="auto", log_level=None)
        return child(Connection(plan, Catalog()))

    async def ask(self, reference: Connection) -> object:
        return (await reference.call("echo", {"text": "x"}, Sending())).result

    def test_its_handlers_are_tools(self) -> None:
        """The handlers of the actor are internal: only the tools of the server become tools."""


class TestConnectionInThisProcess(_Contract):
    """Contract tests on a server in this process; each connection has its own server."""

    def target(self) -> Target:
        return Given(server())


@pytest.mark.real_clock
class TestConnectionToACommand(_Contract):
    """Contract tests on a process that is started for each connection."""

    def target(self) -> Target:
        return target_of(NEW, env=None, cwd=ROOT, http={})
