"""A server that is killed at any point: each call has one outcome, and none is sent twice."""

import os
import random
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from callboard import ActorDiedError, ActorGoneError
from callboard_actors.mcp import McpServer

from ._asked import NEW, OLD, ROOT, WAIT

pytestmark = pytest.mark.real_clock
AGENTS, CALLS = 5, 10


class Agents:
    """Agents that make a server remember one value after the other."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.answered: list[str] = []
        self.unknown: list[str] = []
        self.not_begun: list[str] = []

    async def work(self, agent: int) -> None:
        for number in range(CALLS):
            text = f"{agent}-{number}"
            try:
                await self.server.call("remember", {"text": text})
            except ActorDiedError:
                self.unknown.append(text)
            except ActorGoneError:
                self.not_begun.append(text)
            else:
                self.answered.append(text)

    @property
    def ended(self) -> int:
        return len(self.answered) + len(self.unknown) + len(self.not_begun)


async def killed_once(command: list[str], notes: Path, seed: int) -> None:
    chance = random.Random(seed)
    point = chance.randrange(AGENTS * CALLS)
    with anyio.fail_after(WAIT):
        async with McpServer(command, cwd=ROOT, env={"NOTES": str(notes)}) as server:
            [pid] = (await server.call("pid")).content
            agents = Agents(server)
            async with anyio.create_task_group() as group:
                for agent in range(AGENTS):
                    group.start_soon(agents.work, agent)
                while agents.ended < point:
                    await anyio.lowlevel.checkpoint()
                await anyio.sleep(chance.random() * 0.002)
                os.kill(int(getattr(pid, "text", "")), signal.SIGKILL)
            with suppress(ActorDiedError):  # sent before the death of the server was noticed
                await server.call("echo", {"text": "still there"})
            assert not (await server.call("echo", {"text": "still there"})).is_error
    done = Counter(notes.read_text().split()) if notes.exists() else Counter[str]()
    assert agents.ended == AGENTS * CALLS
    assert set(done.values()) <= {1}, "a call was sent twice"
    assert set(agents.answered) <= set(done), "a call was answered that had no effect"
    assert not set(agents.not_begun) & set(done), "a call had its effect that was said not to have begun"


@pytest.mark.parametrize("command", [OLD, NEW], ids=["2025", "2026"])
async def test_a_server_that_is_killed_loses_no_call_and_does_none_twice(command: list[str], tmp_path: Path) -> None:
    """This test kills the server at one point only; the exhaustive test covers all points."""
    await killed_once(command, tmp_path / "notes", seed=1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(50))
async def test_a_server_may_be_killed_at_any_point(seed: int, tmp_path: Path) -> None:
    """Both protocol versions are killed at fifty points."""
    await killed_once((OLD, NEW)[seed % 2], tmp_path / "notes", seed)
