"""Connections of one fleet member to Redis: a script executes operations, and a stream holds the member's mail."""

from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from typing import Any

from callboard_actors._server.fleet._transport import Address, Common, Owned
from callboard_actors.redis._server import RedisServer

_SCRIPT = files("callboard_actors.redis").joinpath("_fleet.lua")
_LISTENS = 1_000
"""Milliseconds that one request for mail blocks."""
_AT_ONCE = 500
"""Messages in one batch of mail."""


class RedisFleetTransport:
    """Connections of one member to a server; see `FleetTransport` for the operations.

    Args:
        url: of the server.
        where: the same, without a password.
        prefix: of all keys.
        common: settings that all members share.
    """

    def __init__(self, url: str, where: str, prefix: str, common: Common) -> None:
        # Bytes, not texts: mail and states are pickled.
        self._server = RedisServer("the keys of a fleet", url, where, decodes=False)
        self._where = where
        self._prefix = prefix
        self._common = common
        self._member = self._sha = ""

    async def open(self, member: str) -> None:
        """Connect, check the server's version, and load the script."""
        self._member = member
        with self._server.errors():
            await self._server.meet()
            self._sha = await self._server.client.script_load(_SCRIPT.read_text())

    def _script(self, client: Any, op: str, *more: object, gate: str = "", asks: str = "", mail: str = "") -> Any:
        # One hash slot for the whole fleet: a script may touch keys of one slot only.
        base = f"{{{self._prefix}}}"
        keys = [f"{base}:meta", f"{base}:members", f"{base}:key:{gate}", f"{base}:asks:{asks}", f"{base}:mail:{mail}"]
        server = self._server
        # `run` and `began` let the script notice a restart, after which no key is given away for a lease.
        known = [op, self._member, server.run, server.began, self._common.lease]
        return client.evalsha(self._sha, len(keys), *keys, *known, *more)

    async def _do(self, op: str, *more: object, gate: str = "", asks: str = "", mail: str = "") -> Any:
        with self._server.errors():
            return await self._script(self._server.client, op, *more, gate=gate, asks=asks, mail=mail)

    async def beat(self) -> bool:
        found = await self._do("beat", self._common.written, asks=self._member, mail=self._member)
        if isinstance(found, list):  # other members have other settings
            raise self._common.refusal(self._where, found[1].decode())
        return bool(found)

    async def own(self, gate: str) -> Owned:
        owner, token, opens_in = await self._do("own", gate=gate)
        return Owned(owner=owner.decode(), token=int(token), opens_in=int(opens_in) / 1e6)

    async def still(self, addresses: Sequence[Address]) -> Sequence[bool]:
        with self._server.errors():
            async with self._server.client.pipeline(transaction=False) as pipeline:
                for one in addresses:
                    self._script(pipeline, "still", one.owner, one.token, gate=one.gate)
                return [bool(found) for found in await pipeline.execute()]

    async def send(self, to: Address, number: int, ask: str, frame: bytes) -> bool:
        said = (to.owner, to.token, number, ask, frame)
        return bool(await self._do("send", *said, gate=to.gate, asks=to.owner, mail=to.owner))

    async def begin(self, gate: str, token: int, ask: str) -> bool:
        return bool(await self._do("begin", token, ask, gate=gate, asks=self._member))

    async def recall(self, owner: str, ask: str, marker: bytes) -> bool:
        return bool(await self._do("recall", ask, marker, asks=owner, mail=self._member))

    async def tell(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        with self._server.errors():
            async with self._server.client.pipeline(transaction=False) as pipeline:
                # One round trip, executed in this order; if it breaks, all of it is sent again.
                for to, frame, ask in messages:
                    self._script(pipeline, "tell", frame, ask, asks=self._member, mail=to)
                await pipeline.execute()

    async def give_back(self, gate: str, token: int) -> None:
        await self._do("free", token, gate=gate)

    async def save(self, gate: str, token: int, state: bytes) -> bool:
        return bool(await self._do("save", token, state, gate=gate))

    async def load(self, gate: str) -> bytes | None:
        with self._server.errors():
            found: bytes | None = await self._server.client.hget(f"{{{self._prefix}}}:key:{gate}", "s")
            return found

    async def mail(self) -> AsyncIterator[Sequence[bytes]]:
        stream, last = f"{{{self._prefix}}}:mail:{self._member}", "0"
        # From "0", not from "$": messages that came before this connection are still in the stream.
        while True:
            with self._server.errors():
                found = await self._server.client.xread({stream: last}, count=_AT_ONCE, block=_LISTENS)
            for _, messages in found:
                yield [fields[b"f"] for _, fields in messages]
                ids = [number for number, _ in messages]
                # Reached only when the next batch is requested, so after this one was handled. If the connection breaks
                # before that, the batch is delivered again; receivers ignore repetitions.
                last = ids[-1]
                with self._server.errors():
                    await self._server.client.xdel(stream, *ids)

    async def leave(self) -> None:
        await self._do("leave")

    async def close(self) -> None:
        await self._server.close()
