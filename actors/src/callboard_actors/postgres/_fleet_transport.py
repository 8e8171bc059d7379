"""Connections of one fleet member to PostgreSQL: functions execute operations, and a table holds the member's mail."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import sql

from callboard_actors._server.fleet._transport import Address, Common, Owned
from callboard_actors.postgres._server import PostgresServer

_SCRIPT = files("callboard_actors.postgres").joinpath("_fleet.sql")
_LISTENS = 1.0
"""Seconds after which the mail is read even without a notification."""
_AT_ONCE = 500
"""Messages in one batch of mail."""


class PostgresFleetTransport:
    """Connections of one member to a server; see `FleetTransport` for the operations.

    Args:
        url: of the database.
        where: the same, without a password.
        prefix: of the fleet.
        common: settings that all members share.
    """

    def __init__(self, url: str, where: str, prefix: str, common: Common) -> None:
        self._server = PostgresServer("PostgresFleet", "the keys of a fleet", url, where)
        self._where = where
        self._fleet = prefix
        self._common = common
        self._member = ""
        self._saying: Any = None
        self._hearing: Any = None
        self._listening: asyncio.Task[None] | None = None

    async def open(self, member: str) -> None:
        """Open both connections, create missing tables and functions, and listen for mail to this member."""
        self._member = member
        with self._server.errors():
            self._saying = await self._server.connect()
            # The database may default to `off`, which can lose the last commits in a crash: a key could get two owners.
            await self._saying.execute("SET synchronous_commit TO on")
            await self._server.make(self._saying, _SCRIPT, "callboard_fleet_leave_1")
            self._hearing = await self._server.connect()
            await self._hearing.execute(sql.SQL("LISTEN {}").format(sql.Identifier(f"callboard_fleet_{member}")))

    async def _do(self, function: str, *arguments: object) -> Any:
        marks = ", ".join(["%s"] * (len(arguments) + 1))
        # Not an injection: `function` is a literal of this file, and all text from outside is a parameter.
        statement = f"SELECT * FROM callboard_fleet_{function}_1({marks})"  # noqa: S608
        with self._server.errors():
            # Half a lease, and at least a second: a request that hangs must not hold the connection for a whole lease.
            async with asyncio.timeout(max(1.0, self._common.lease / 2e6)):
                cursor = await self._saying.execute(statement, [self._fleet, *arguments], prepare=True)
                return await cursor.fetchone()

    async def beat(self) -> bool:
        was, other = await self._do("beat", self._member, self._common.lease, self._common.written)
        if other is not None:  # other members have other settings
            raise self._common.refusal(self._where, other)
        return bool(was)

    async def own(self, gate: str) -> Owned:
        owner, token = await self._do("own", gate, self._member)
        return Owned(owner=owner, token=token)

    async def still(self, addresses: Sequence[Address]) -> Sequence[bool]:
        return [bool((await self._do("owns", one.gate, one.owner, one.token))[0]) for one in addresses]

    async def send(self, to: Address, number: int, ask: str, frame: bytes) -> bool:
        said = (to.gate, to.owner, to.token, self._member, number, ask, frame)
        return bool((await self._do("send", *said))[0])

    async def begin(self, gate: str, token: int, ask: str) -> bool:
        return bool((await self._do("begin", gate, self._member, token, ask))[0])

    async def recall(self, owner: str, ask: str, marker: bytes) -> bool:
        return bool((await self._do("recall", owner, ask, self._member, marker))[0])

    async def tell(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        # Autocommit makes each message a transaction of its own; if the connection breaks, all of them are sent again.
        for to, frame, ask in messages:
            await self._do("tell", self._member, to, frame, ask)

    async def give_back(self, gate: str, token: int) -> None:
        await self._do("free", gate, self._member, token)

    async def save(self, gate: str, token: int, state: bytes) -> bool:
        return bool((await self._do("save", gate, token, state))[0])

    async def load(self, gate: str) -> bytes | None:
        with self._server.errors():
            statement = "SELECT state FROM callboard_fleet_keys WHERE fleet = %s AND gate = %s"
            found = await (await self._saying.execute(statement, [self._fleet, gate])).fetchone()
            return None if found is None or found[0] is None else bytes(found[0])

    async def mail(self) -> AsyncIterator[Sequence[bytes]]:
        news = asyncio.Event()
        self._listening = asyncio.ensure_future(self._listen(news))
        # Reads everything that is there, and not from the last id on: ids are assigned before the commit, so a message
        # may become visible after one with a higher id.
        read = "SELECT id, frame FROM callboard_fleet_mail WHERE fleet = %s AND member = %s ORDER BY id LIMIT %s"
        while True:
            # Before the read: a message that comes during the read sets it again.
            news.clear()
            with self._server.errors():
                found = await (await self._saying.execute(read, [self._fleet, self._member, _AT_ONCE])).fetchall()
            if found:
                yield [bytes(frame) for _, frame in found]
                # Reached only when the next batch is requested, so after this one was handled. If the connection breaks
                # before that, the batch is delivered again; receivers ignore repetitions.
                ids = [number for number, _ in found]
                with self._server.errors():
                    await self._saying.execute("DELETE FROM callboard_fleet_mail WHERE id = ANY(%s)", [ids])
                continue
            if self._listening.done():
                self._listening.result()  # raises the error that broke the second connection
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), _LISTENS)

    async def _listen(self, news: asyncio.Event) -> None:
        with self._server.errors():
            async for _ in self._hearing.notifies():
                news.set()

    async def leave(self) -> None:
        await self._do("leave", self._member)

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            # Bounded, and never raises: psycopg sometimes swallows a cancellation.
            await asyncio.wait([self._listening], timeout=1.0)
        for one in (self._saying, self._hearing):
            if one is not None:
                with suppress(psycopg.Error, OSError):
                    await one.close()
