"""Workers and nodes of a Ray cluster are killed while calls run; run by `tests.ray`."""

import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import ToolMessage

import tests.ray._tools as tools  # absolute import, because Ray workers import the module by this name
from callboard import ActorDiedError, ActorStartError, CallPolicy, Drained, ToolNode, UnknownCall, child, running
from callboard.extend import Body, EngineError
from callboard.testing import calls
from callboard_actors.ray import RayEngine
from callboard_actors.ray._host_proxy import HostProxy

pytestmark = [pytest.mark.real_clock, pytest.mark.exhaustive]

WAIT = 200.0
MANY = 2_000


def engine(**options: Any) -> RayEngine:
    return RayEngine(os.environ["CALLBOARD_TEST_RAY"], **{"cpus": 1, "grace": 0.5, **options})


@asynccontextmanager
async def open_engine(**options: Any) -> AsyncGenerator[RayEngine]:
    with anyio.fail_after(WAIT):
        async with engine(**options) as ray_engine:
            yield ray_engine


@asynccontextmanager
async def second_node(cluster: Any) -> AsyncGenerator[Any]:
    # In the main thread, because Ray installs signal handlers.
    node = cluster.add_node(num_cpus=4, node_ip_address="127.0.0.1", object_store_memory=100 * 2**20)
    try:
        yield node
    finally:
        if node in cluster.list_all_nodes():
            cluster.remove_node(node)


def read_notes(folder: Path) -> Counter[int]:
    return Counter(int(line) for file in folder.iterdir() for line in file.read_text().split())


async def test_every_call_has_its_one_message_though_a_worker_and_a_node_are_killed(
    tmp_path: Path, cluster: Any
) -> None:
    """Repeatable calls were done; others ran at most once and are reported as unknown if their outcome is lost."""
    once_folder, again_folder = tmp_path / "once", tmp_path / "again"
    once_folder.mkdir()
    again_folder.mkdir()
    requests = [
        ("note_again", {"folder": str(again_folder), "number": number})
        if number % 2
        else ("note_once", {"folder": str(once_folder), "number": number})
        for number in range(MANY)
    ]
    messages: list[ToolMessage] = []
    with anyio.fail_after(WAIT):
        async with second_node(cluster) as second, engine(workers=6) as ray_engine:
            policies = {
                "note_once": CallPolicy(runs_in=ray_engine, on_unknown="fail"),
                "note_again": CallPolicy(runs_in=ray_engine, idempotent=True),
            }
            node = ToolNode([tools.note_once, tools.note_again], policies=policies, max_calls=MANY)

            async def run() -> None:
                messages.extend(await node.ainvoke([calls(*requests)]))

            async def kill() -> None:
                while read_notes(once_folder).total() < 200:
                    await anyio.sleep(0.05)
                pid = next(int(file.name) for file in once_folder.iterdir())
                os.kill(pid, signal.SIGKILL)
                while read_notes(once_folder).total() < 500:
                    await anyio.sleep(0.05)
                cluster.remove_node(second, allow_graceful=False)

            async with anyio.create_task_group() as group:
                group.start_soon(run)
                group.start_soon(kill)
    assert len({message.tool_call_id for message in messages}) == len(messages) == MANY
    failed = [message for message in messages if message.status == "error"]
    assert {message.name for message in failed} <= {"note_once"}
    assert failed or max(read_notes(again_folder).values()) > 1, "a worker was killed, and a node"
    assert len(failed) <= 6
    assert all("unknown" in message.content for message in failed)
    assert set(read_notes(again_folder)) == set(range(1, MANY, 2))
    assert max(read_notes(once_folder).values()) == 1
    done = {
        int(str(reply.content).split()[1]) for reply in messages if reply not in failed and reply.name == "note_once"
    }
    assert done <= set(read_notes(once_folder))


async def test_a_body_that_spins_is_gone_within_its_timeout_and_grace(tmp_path: Path) -> None:
    """`ray.cancel` has no effect on such a call, so its Ray actor is killed and replaced."""
    async with open_engine(workers=1) as ray_engine:
        policies = {name: CallPolicy(runs_in=ray_engine, timeout=1.0, grace=0.3) for name in ("spin", "pause")}
        node = ToolNode([tools.spin, tools.pause], policies=policies)
        [message] = await node.ainvoke([calls(("spin", {"folder": str(tmp_path)}))])
        assert "did not finish within its timeout of 1 s" in message.content
        pid = int((tmp_path / "pid").read_text())
        with pytest.raises(ProcessLookupError):
            for _ in range(100):
                os.kill(pid, 0)
                await anyio.sleep(0.02)
        [message] = await node.ainvoke([calls(("pause", {"seconds": 0.0}))])
        assert int(message.content) != pid


async def test_a_body_that_holds_the_interpreter_is_killed_and_its_place_is_filled(tmp_path: Path) -> None:
    """The kill takes longer than the grace period of the call; it continues after the call has returned."""
    async with open_engine(workers=1, grace=1.0) as ray_engine:
        policies = {
            "hold": CallPolicy(runs_in=ray_engine, timeout=2.0, grace=0.2),
            "pause": CallPolicy(runs_in=ray_engine, timeout=60.0),
        }
        node = ToolNode([tools.hold, tools.pause], policies=policies)
        [message] = await node.ainvoke([calls(("hold", {"folder": str(tmp_path)}))])
        assert "did not finish within its timeout of 2 s" in message.content
        pid = int((tmp_path / "pid").read_text())
        [message] = await node.ainvoke([calls(("pause", {"seconds": 0.0}))])
        assert int(message.content) != pid
        while _lives(pid):
            await anyio.sleep(0.05)


async def test_an_actor_that_has_no_room_on_the_cluster_is_told_what_lacks() -> None:
    """The Ray actors of the engine take all processors, and each callboard actor needs one more."""
    async with open_engine(workers=4, patience=1.0) as ray_engine:
        with pytest.raises(ActorStartError, match=r"CPU: it needs 1, and 0 of 4 are free"):
            async with running(child(tools.Counter, runs_in=ray_engine)):
                pass


async def test_a_call_waits_for_its_patience_where_no_ray_actor_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of live Ray actors is 0, and it is not known when one will start again."""

    async def cannot(self: HostProxy) -> None:
        raise ActorStartError("RayEngine", "there is no more")

    async with open_engine(workers=1, patience=0.5) as ray_engine:
        pid = await ray_engine.run_body(Body(fn=tools.pause, args=(0.0,), title="pause"))
        monkeypatch.setattr(HostProxy, "start", cannot)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineError, match=r"no Ray actor lives, and none came within 0.5 s") as caught:
            while True:  # the first call may still be given the killed Ray actor
                with suppress_lost():
                    await ray_engine.run_body(Body(fn=tools.pause, args=(0.0,), title="pause"))
        assert caught.value.ended == "unavailable"


@contextmanager
def suppress_lost() -> Generator[None]:
    try:
        yield
    except EngineError as error:
        if "is lost" not in str(error):
            raise


async def test_an_actor_lives_in_a_ray_actor_and_starts_again_when_that_is_killed() -> None:
    """The actor's mailbox, supervisor and restarts are in this process."""
    with anyio.fail_after(WAIT):
        ray_engine = engine(workers=1)
        async with running(child(tools.Counter, runs_in=ray_engine)) as counter:
            assert (await counter.add(2))[0] == 2
            count, pid = await counter.add(3)
            assert count == 5
            assert pid != os.getpid()
            os.kill(pid, signal.SIGKILL)
            while (answer := await _try_add(counter)) is None:
                pass
            count, new_pid = answer
            assert (count, new_pid != pid) == (1, True)


async def _try_add(counter: tools.Counter) -> tuple[int, int] | None:
    try:
        return await counter.add(1)
    except ActorDiedError:  # asked before the loss was known
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_what_a_ray_actor_says_comes_while_its_body_runs() -> None:
    """Progress reports arrive during the call and reset its idle timeout."""
    async with open_engine(workers=1) as ray_engine:
        node = ToolNode([tools.step], policies={"step": CallPolicy(runs_in=ray_engine, idle_timeout=2.0)})
        [message] = await node.ainvoke([calls(("step", {"times": 10, "seconds": 0.5}))])
    assert message.content == "10 steps"


async def test_an_engine_that_cannot_have_what_it_asks_for_says_so() -> None:
    """Ray itself would wait for ever for missing resources."""
    with anyio.fail_after(WAIT):
        with pytest.raises(ActorStartError, match="Ray refuses an option: /nowhere is not a valid path") as caught:
            async with engine(workers=1, runtime_env={"working_dir": "/nowhere"}):
                raise AssertionError
        assert caught.value.is_permanent
        with pytest.raises(ActorStartError, match="moon: it needs 1, and 0 of 0 are free"):
            async with engine(workers=1, resources={"moon": 1}, start_timeout=3.0):
                pass
        with pytest.raises(ActorStartError, match=r"no Ray can be reached|connected to Ray"):
            async with RayEngine("127.0.0.1:1", start_timeout=3.0):
                pass


async def test_an_engine_that_is_drained_ends_a_body_that_never_looks_up(tmp_path: Path) -> None:
    """The drain takes at most its timeout and grace period; calls that had not begun are not unknown."""
    ended: dict[str, str] = {}
    async with open_engine(workers=1) as ray_engine, anyio.create_task_group() as group:

        async def run(call_id: str) -> None:
            body = Body(fn=tools.spin, args=(str(tmp_path),), title="spin", call_id=call_id)
            with pytest.raises(EngineError, match="its engine on Ray was drained") as caught:
                await ray_engine.run_body(body)
            ended[call_id] = caught.value.ended

        group.start_soon(run, "runs")
        while not (tmp_path / "pid").exists():
            await anyio.sleep(0.05)
        group.start_soon(run, "waits")
        await anyio.sleep(0.2)
        report = await ray_engine.drain(0.5)
        with pytest.raises(EngineError, match="its engine on Ray is being drained"):
            await ray_engine.run_body(Body(fn=tools.pause, args=(0.0,), title="pause"))

    assert ended == {"runs": "unknown", "waits": "unavailable"}
    assert report == Drained(ended=2, unknown=(UnknownCall(tool="spin", call_id="runs"),))
    pid = int((tmp_path / "pid").read_text())
    while Path(f"/proc/{pid}").exists():
        await anyio.sleep(0.05)
