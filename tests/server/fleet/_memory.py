"""Fleet server in memory: it does what the functions in PostgreSQL do, and can be away for some members."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from callboard_actors._server._client import UnreachableError
from callboard_actors._server.fleet._client import FleetSettings, KeyOwner, OwnerAddress
from callboard_actors._server.fleet._member import FleetStore
from tests.server._servers import SECRET


@dataclass
class Key:
    """State of a key."""

    owner: str = ""
    token: int = 0
    state: bytes | None = None


@dataclass
class MemoryServer:
    """State that all members share, and the clock by which it ends leases."""

    now: Callable[[], float] = time.monotonic
    lock: threading.RLock = field(default_factory=threading.RLock)
    members: dict[str, float] = field(default_factory=dict[str, float])
    keys: dict[str, Key] = field(default_factory=lambda: defaultdict(Key))
    asks: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    counts: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    mail: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list[bytes]))
    posted: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    """All messages that were sent, with their receivers."""
    seq: int = 0

    def put(self, to: str, frame: bytes) -> None:
        self.posted.append((to, frame))
        self.mail[to].append(frame)

    def is_alive(self, member: str) -> bool:
        return self.members.get(member, 0.0) >= self.now()

    def is_owner(self, server_key: str, member: str, token: int) -> bool:
        key = self.keys[server_key]
        return (key.owner, key.token) == (member, token) and self.is_alive(member)


class MemoryFleet(FleetStore):
    """Fleet on a server in memory, as one process sees it; `is_away` cuts it off from the server."""

    def __init__(self, server: MemoryServer, *, lease: float = 15.0, patience: float | None = 30.0) -> None:
        self.is_away = False
        self.hangs = 0
        """Number of renewals that will get no answer."""
        self.slow_letters = 0.0
        """Delay in seconds of each message from this process to the server."""
        self._server = server
        super().__init__("memory", secret=SECRET, prefix="test", lease=lease, patience=patience)

    def _check_url(self, url: object) -> str:
        return str(url)

    def _connection_factory(self) -> "Callable[[], MemoryConnection]":
        return partial(MemoryConnection, self._server, self, self._fleet_settings)


class MemoryConnection:
    """Connection of one member."""

    def __init__(self, server: MemoryServer, fleet: MemoryFleet, fleet_settings: FleetSettings) -> None:
        self._server = server
        self._fleet = fleet
        self._lease = fleet_settings.lease_us / 1e6
        self._member = ""

    async def _reach(self) -> MemoryServer:
        await asyncio.sleep(0)
        if self._fleet.is_away:
            raise UnreachableError("it is away")
        return self._server

    async def open(self, member: str) -> None:
        self._member = member
        await self._reach()

    async def send_heartbeat(self) -> bool:
        if self._fleet.hangs:
            self._fleet.hangs -= 1
            await asyncio.Event().wait()
        server = await self._reach()
        with server.lock:
            was_member = server.is_alive(self._member)
            server.members[self._member] = server.now() + self._lease
            return was_member

    async def acquire_key(self, server_key: str) -> KeyOwner:
        server = await self._reach()
        with server.lock:
            key = server.keys[server_key]
            if key.owner and key.owner != self._member and server.is_alive(key.owner):
                return KeyOwner(owner_id=key.owner, token=key.token)
            if not server.is_alive(self._member):
                return KeyOwner()
            server.seq += 1
            key.owner, key.token = self._member, server.seq
            return KeyOwner(owner_id=self._member, token=key.token)

    async def are_owners(self, addresses: Sequence[OwnerAddress]) -> Sequence[bool]:
        server = await self._reach()
        with server.lock:
            return [server.is_owner(address.server_key, address.owner_id, address.token) for address in addresses]

    async def send_ask(self, address: OwnerAddress, ask_number: int, ask_id: str, frame: bytes) -> bool:
        server = await self._reach()
        with server.lock:
            if server.counts.get((address.owner_id, self._member), 0) >= ask_number:
                return True
            if not server.is_owner(address.server_key, address.owner_id, address.token):
                return False
            server.counts[address.owner_id, self._member] = ask_number
            server.asks[address.owner_id, ask_id] = "waiting"
            server.put(address.owner_id, frame)
            return True

    async def begin_ask(self, server_key: str, token: int, ask_id: str) -> bool:
        server = await self._reach()
        with server.lock:
            state = server.asks.get((self._member, ask_id))
            if state not in ("waiting", "begun") or not server.is_owner(server_key, self._member, token):
                return False
            server.asks[self._member, ask_id] = "begun"
            return True

    async def recall_ask(self, owner_id: str, ask_id: str, marker: bytes) -> bool:
        server = await self._reach()
        with server.lock:
            if server.asks.get((owner_id, ask_id)) in ("waiting", "recalled"):
                server.asks[owner_id, ask_id] = "recalled"
                return True
            server.put(self._member, marker)
            return False

    async def put_messages(self, messages: Sequence[tuple[str, bytes, str]]) -> None:
        await asyncio.sleep(self._fleet.slow_letters)
        server = await self._reach()
        with server.lock:
            for receiver_id, frame, ask_id in messages:
                server.put(receiver_id, frame)
                server.asks.pop((self._member, ask_id), None)

    async def release_key(self, server_key: str, token: int) -> None:
        server = await self._reach()
        with server.lock:
            if (server.keys[server_key].owner, server.keys[server_key].token) == (self._member, token):
                server.keys[server_key].owner = ""

    async def save_state(self, server_key: str, token: int, state: bytes) -> bool:
        server = await self._reach()
        with server.lock:
            if server.keys[server_key].token > token:
                return False
            server.keys[server_key].state = state
            return True

    async def load_state(self, server_key: str) -> bytes | None:
        server = await self._reach()
        return server.keys[server_key].state

    async def mail_batches(self) -> AsyncIterator[Sequence[bytes]]:
        while True:
            server = await self._reach()
            with server.lock:
                messages = server.mail.pop(self._member, [])
            if messages:
                yield messages
            await asyncio.sleep(0.002)

    async def leave_fleet(self) -> None:
        server = await self._reach()
        server.members.pop(self._member, None)

    async def close(self) -> None: ...
