"""Async bodies share Ray actors of a cluster, while Ray actors and a node are killed; run by `tests.ray`."""

import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

import tests.ray._tools as tools  # absolute import, because Ray workers import the module by this name
from callboard import ActorStartError, CallPolicy, ToolNode
from callboard.extend import Body, EngineError
from callboard.testing import calls

from .within_faults import engine, open_engine, read_notes, second_node

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

KILLS = 100
PATIENCE = 900.0


async def test_a_body_that_holds_the_event_loop_costs_its_ray_actor_and_its_neighbours_are_unknown(
    tmp_path: Path,
) -> None:
    """They may have had their effects; bodies in other Ray actors go on."""
    ended: dict[str, str] = {}
    async with open_engine(workers=2, concurrency=4, cpus=0.5) as ray_engine:
        policies = {"block": CallPolicy(runs_in=ray_engine, timeout=1.0, grace=0.3)}
        node = ToolNode([tools.block], policies=policies)
        pids: set[int] = set()
        reasons: list[str] = []

        async def neighbour(name: str) -> None:
            try:
                pids.add(await ray_engine.run_body(Body(fn=tools.pause, args=(4.0,), title=name)))
                ended[name] = "finished"
            except EngineError as error:
                reasons.append(str(error))
                ended[name] = error.ended

        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(neighbour, str(number))
            await anyio.sleep(0.5)
            [message] = await node.ainvoke([calls(("block", {"folder": str(tmp_path)}))])
        assert "did not finish within its timeout of 1 s" in message.content
        assert Counter(ended.values()) == {"finished": 2, "unknown": 2}
        assert all("'block' had been cancelled there and did not end within its grace" in text for text in reasons)
        assert int((tmp_path / "pid").read_text()) not in pids
        # The Ray actor was replaced.
        new_pids = {await ray_engine.run_body(Body(fn=tools.pause, args=(0.0,), title="pause")) for _ in range(4)}
        assert not new_pids & {int((tmp_path / "pid").read_text())}


async def test_a_sync_body_never_shares_its_ray_actor(tmp_path: Path) -> None:
    """Only the death of the process ends a sync body, and that would end its neighbours."""
    kinds: list[str] = []
    async with open_engine(workers=2, concurrency=8, cpus=0.5) as ray_engine:

        async def run(fn: Any) -> None:
            kinds.append(await ray_engine.run_body(Body(fn=fn, args=(0.05,), title=fn.__name__)))

        async with anyio.create_task_group() as group:
            for number in range(200):
                group.start_soon(run, tools.alone if number % 5 == 0 else tools.together)
    syncs = [kind for kind in kinds if kind.startswith("sync")]
    assert syncs == ["sync"] * 40
    shared = [kind.split() for kind in kinds if kind not in syncs]
    assert {kind for kind, _ in shared} == {"async"}
    assert max(int(highest) for _, highest in shared) == 8


@pytest.mark.hangs_after(PATIENCE)
async def test_no_result_is_lost_or_doubled_in_a_hundred_kills_of_ray_actors_and_of_a_node(
    tmp_path: Path, cluster: Any
) -> None:
    """A call has one outcome. A body that may not run again runs at most once, and is unknown if its end is."""
    chance = random.Random(37)
    outcomes: dict[int, str] = {}
    kills = 0
    is_over = False
    with anyio.fail_after(PATIENCE):
        async with (
            second_node(cluster) as second,
            engine(workers=8, concurrency=20, cpus=0.5, patience=60.0) as ray_engine,
        ):

            async def call(number: int) -> None:
                body = Body(fn=tools.note_and_wait, args=(str(tmp_path), number), title="note")
                try:
                    assert await ray_engine.run_body(body) == f"noted {number}"
                    outcome = "finished"
                except EngineError as error:
                    outcome = error.ended
                assert number not in outcomes
                outcomes[number] = outcome

            async def caller(first: int) -> None:
                number = first
                while not is_over:
                    await call(number)
                    number += 40

            async def kill() -> None:
                nonlocal kills, is_over
                while kills < KILLS:
                    await anyio.sleep(chance.uniform(0.1, 0.6))
                    pids = [int(file.name) for file in tmp_path.iterdir()]
                    living = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
                    if living:
                        os.kill(chance.choice(living), signal.SIGKILL)
                        kills += 1
                    if kills == KILLS // 2 and second in cluster.list_all_nodes():
                        cluster.remove_node(second, allow_graceful=False)
                is_over = True

            async with anyio.create_task_group() as group:
                for first in range(40):
                    group.start_soon(caller, first)
                await kill()
    runs = read_notes(tmp_path)
    finished = {number for number, outcome in outcomes.items() if outcome == "finished"}
    assert max(runs.values()) == 1, "no body ran twice"
    assert finished <= set(runs), "no result without its body"
    assert not set(runs) & {number for number, outcome in outcomes.items() if outcome == "unavailable"}
    assert Counter(outcomes.values())["unknown"] <= (KILLS + 8) * 20
    assert len(finished) > KILLS
    print(f"{kills} kills: {Counter(outcomes.values())}")


async def test_a_module_that_a_node_lacks_is_named(tmp_path: Path) -> None:
    """Ray itself says that the actor died, with a traceback of another process."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'callboard_actors':\n"
        "            raise ModuleNotFoundError(\"No module named 'callboard_actors'\", name=name)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    with anyio.fail_after(100):
        with pytest.raises(ActorStartError, match=r"a node of the cluster has no module 'callboard_actors': install"):
            async with engine(workers=1, runtime_env={"env_vars": {"PYTHONPATH": str(tmp_path)}}):
                pass


async def test_a_node_with_another_version_is_refused_by_name(tmp_path: Path) -> None:
    """Bodies and replies are pickles of classes that both sides must have."""
    metadata = tmp_path / "callboard-9.9.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: callboard\nVersion: 9.9\n")
    path = f"{tmp_path}:{os.environ['PYTHONPATH']}"
    with anyio.fail_after(100):
        with pytest.raises(ActorStartError, match=r"the cluster has callboard 9\.9, and here it is"):
            async with engine(workers=1, runtime_env={"env_vars": {"PYTHONPATH": path}}):
                pass
