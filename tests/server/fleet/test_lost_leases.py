"""An owner that cannot renew its lease ends its actors before the lease expires, and askers learn the known outcome."""

import pickle
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest

from callboard import ActorDiedError, CallPolicy, Keyed, StorageError, ToolNode, child, fencing_token, keyed, tool_call
from callboard_actors._server.fleet._messages import ForgedError, Message, Signer
from tests.helpers import until
from tests.server._servers import SECRET

from ._memory import MemoryFleet, MemoryServer
from ._world import LOGS, Counter, actions_in

pytestmark = pytest.mark.real_clock

LEASE = 2.0
"""In seconds; long enough for threads that are delayed on a busy machine."""


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@asynccontextmanager
async def open_two_fleets(
    server: MemoryServer, log: str, **terms: Any
) -> AsyncGenerator[tuple[MemoryFleet, Keyed[Counter], Keyed[Counter]]]:
    """Open keyed counters in two processes; yield the fleet of the first, which owns the key "k", and both."""
    cut_off, other_fleet = (MemoryFleet(server, lease=LEASE) for _ in range(2))
    with anyio.fail_after(30):
        async with (
            keyed(Counter(log), fleet=cut_off, **terms) as first_actors,
            keyed(Counter(log), fleet=other_fleet) as second_actors,
        ):
            await first_actors["k"].up()
            yield cut_off, first_actors, second_actors


@pytest.mark.exhaustive
async def test_an_owner_that_is_cut_off_ends_before_the_next_begins(server: MemoryServer, log: str) -> None:
    """Asks that had begun are unknown and are not repeated; waiting asks are done once, by the next owner."""
    ended: list[str] = []

    async def ask(counter: Any, text: str, seconds: float) -> None:
        try:
            ended.append(f"{await counter.hold(text, seconds)} done")
        except ActorDiedError as died:
            ended.append(f"{text} {died.ended}")

    async with open_two_fleets(server, log) as (cut_off, _, second_actors), anyio.create_task_group() as tasks:
        tasks.start_soon(ask, second_actors["k"], "first", 60.0)
        await until(lambda: "first began" in actions_in(log))
        tasks.start_soon(ask, second_actors["k"], "second", 0.0)
        await until(lambda: "waiting" in server.asks.values() and not any(server.mail.values()))
        cut_off.is_away = True

    assert sorted(ended) == ["first unknown", "second done"]
    assert actions_in(log) == ["first began", "first was cancelled", "second began", "second ended"]
    assert [event for event, _, _ in LOGS[log].lives] == ["start", "stop", "start", "stop"]
    assert LOGS[log].lives[2][2] > LOGS[log].lives[0][2]


@pytest.mark.exhaustive
async def test_a_call_whose_state_was_refused_is_unknown(server: MemoryServer, log: str) -> None:
    """The call had its effect, but the next owner continues from the state before it."""
    owner = MemoryFleet(server)
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=owner, save="each_call") as actors:
            await actors["k"].up()
            LOGS[log].rob = partial(_rob, server)
            with pytest.raises(ActorDiedError, match="the state after it was not kept"):
                await actors["k"].lose_key()
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(actors["k"].note, "after")
            assert (await actors["k"].up())[0] == 2

    starts = [token for event, _, token in LOGS[log].lives if event == "start"]
    assert (actions_in(log), len(starts), len(set(starts))) == (["after"] * 3, 2, 2)  # no state with the expired token


def _rob(server: MemoryServer) -> None:
    """Let another process own all keys, as if this one had stood still."""
    for key in server.keys.values():
        server.seq += 1
        key.owner, key.token = "nobody that lives", server.seq
    server.members.clear()


async def test_asks_wait_while_the_server_is_away(server: MemoryServer, log: str) -> None:
    """Asks are done after the outage; asks of actors in the same process do not wait."""
    fleet = MemoryFleet(server, lease=20.0)
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=fleet) as actors, anyio.create_task_group() as tasks:
            await actors["mine"].up()
            fleet.is_away = True
            assert (await actors["mine"].up())[0] == 2
            tasks.start_soon(actors["new"].note, "it")
            await anyio.sleep(0.2)
            assert actions_in(log) == []
            fleet.is_away = False
            await until(lambda: actions_in(log) == ["it"])


async def test_a_budget_ends_the_wait_for_a_server(server: MemoryServer, log: str) -> None:
    """The call ends with a message that the budget was spent."""
    fleet = MemoryFleet(server)
    fleet.is_away = True
    node = ToolNode([child(Counter(log), key=lambda call: "k", fleet=fleet)], policies={"up": CallPolicy(budget=0.3)})
    with anyio.fail_after(30):
        async with node:
            state = await node.ainvoke([tool_call("up", "c1")])
            fleet.is_away = False

    assert state["messages"][0].status == "error"
    assert "0.3" in state["messages"][0].content


async def test_an_ask_fails_when_the_server_is_away_for_too_long(server: MemoryServer, log: str) -> None:
    """The error names the server that cannot be reached."""
    fleet = MemoryFleet(server, patience=0.1)
    fleet.is_away = True
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=fleet) as actors:
            with pytest.raises(StorageError, match=r"memory could not be reached for 0\.1 s"):
                await actors["k"].up()


class Bomb:
    """Object that leaves a trace when it is unpickled."""

    gone_off = False

    def __reduce__(self) -> Any:
        return _go_off, ()


def _go_off() -> None:
    Bomb.gone_off = True


def test_what_was_not_written_by_the_fleet_is_never_unpickled() -> None:
    """Other programs may write to the server."""
    signer, other_signer = Signer(b"a secret of sixteen bytes", "f"), Signer(b"another of sixteen bytes", "f")
    letter = Message("told", "m1", "m2.1", Bomb())

    for frame in (other_signer.sign_value("m2", letter), signer.sign_value("m3", letter), pickle.dumps(letter), b""):
        with pytest.raises(ForgedError):
            signer.load_signed("m2", frame)
    assert not Bomb.gone_off
    signer.load_signed("m2", signer.sign_value("m2", letter))
    assert Bomb.gone_off


async def test_a_stranger_on_the_server_is_not_listened_to(
    server: MemoryServer, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Forged messages are dropped with a warning, and replayed ones are done once."""
    with anyio.fail_after(30):
        async with (
            keyed(Counter(log), fleet=MemoryFleet(server)) as first_actors,
            keyed(Counter(log), fleet=MemoryFleet(server)) as second_actors,
        ):
            await first_actors["k"].up()
            owner = server.keys[next(iter(server.keys))].owner
            await second_actors["k"].note("it")
            copies = [frame for to, frame in server.posted if to == owner]
            seal = Signer(SECRET.encode(), "test/Counter")
            for frame in copies:
                server.asks[owner, seal.load_signed(owner, frame).ask_id] = "waiting"  # so may a stranger
            server.mail[owner] = [*copies, b"nonsense"]
            await until(lambda: "nobody who has the secret" in caplog.text)
            await second_actors["k"].up()

    assert copies
    assert actions_in(log) == ["it"]


async def test_a_token_is_that_of_the_innermost_lease(server: MemoryServer, log: str) -> None:
    """Outside of an actor there is no token."""
    with anyio.fail_after(30):
        async with keyed(Counter(log), fleet=MemoryFleet(server)) as actors:
            assert (await actors["k"].up())[1] is not None
            assert fencing_token() is None
