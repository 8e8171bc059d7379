"""Hostile commands end and leave nothing behind; background commands (jobs) can be queried and stopped."""

import os
import shutil
import signal
import tempfile
from pathlib import Path

import anyio
import pytest

from callboard import ToolNode, running
from callboard.testing import tool_call
from callboard_actors.process import WorkerDiedError
from callboard_actors.shell import Shell
from callboard_actors.shell._shell import told_as_lost
from tests.process._processes import descendants, open_fds, parent_of

from ._left import alive, noted, said_by

pytestmark = pytest.mark.real_clock


def shell(folder: Path, **options: object) -> Shell:
    return Shell(folder, unrestricted=True, grace=0.3, **options)


LEAVES_BEHIND = {
    "in the background": "sleep 600 & echo $! >> pids",
    "with nohup": "nohup sleep 600 >/dev/null 2>&1 & echo $! >> pids",
    "in a session of its own": "setsid sh -c 'echo $$ >> pids; exec sleep 600' & sleep 0.3",
    "forked twice": "(setsid sh -c 'echo $$ >> pids; exec sleep 600' >/dev/null 2>&1 &) & sleep 0.3",
    "deaf to SIGTERM": "(trap '' TERM HUP; echo $BASHPID >> pids; while :; do sleep 1; done) & sleep 0.3",
}


@pytest.mark.backends("asyncio", "trio")
@pytest.mark.parametrize("command", LEAVES_BEHIND.values(), ids=LEAVES_BEHIND)
async def test_what_a_command_leaves_running_ends_with_it_and_its_model_is_told(tmp_path: Path, command: str) -> None:
    """Models start servers with `&` and need to know that these were ended."""
    async with running(shell(tmp_path)) as actor:
        said = await actor.run(command)
        pids = await noted(tmp_path / "pids")

        assert alive(pids) == set()
        assert "left running" in said
        assert "start_job" in said


@pytest.mark.parametrize("command", LEAVES_BEHIND.values(), ids=LEAVES_BEHIND)
@pytest.mark.parametrize("how", ["late", "cancelled"])
@pytest.mark.exhaustive
async def test_what_is_late_or_cancelled_ends_with_all_that_it_has_started(
    tmp_path: Path, command: str, how: str
) -> None:
    """Processes that left their group, session and parent are ended, too."""
    async with running(shell(tmp_path)) as actor:
        if how == "late":
            said = await actor.run(f"{command}; sleep 600", 1.0)
            assert said.startswith("Ended by its timeout")
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(actor.run, f"{command}; sleep 600")
                await noted(tmp_path / "pids")
                group.cancel_scope.cancel()
        assert alive(await noted(tmp_path / "pids")) == set()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("trap '' TERM; echo $$ >> pids; echo deaf; while :; do sleep 1; done", ["deaf"]),
        ("trap 'echo bye; exit' TERM; echo $$ >> pids; echo hello; while :; do :; done", ["hello", "bye"]),
    ],
    ids=["ignores SIGTERM, and is killed after the grace", "takes its leave at SIGTERM"],
)
async def test_the_output_until_the_end_is_told(tmp_path: Path, command: str, said: list[str]) -> None:
    async with running(shell(tmp_path)) as actor:
        told = await actor.run(command, 0.3)

        assert alive(await noted(tmp_path / "pids")) == set()
        assert told.splitlines()[1:] == said


async def test_what_cannot_be_a_command_is_refused_in_words(tmp_path: Path) -> None:
    """A NUL character, an empty command and a command that is too long for the kernel are refused."""
    async with running(shell(tmp_path)) as actor:
        assert (await actor.run("echo \0")).startswith("Refused: there is a NUL")
        assert (await actor.run("  ")) == "Refused: the command is empty."
        assert "Argument list too long" in await actor.run("echo " + "a" * 3_000_000)
        assert (await actor.run("ls", -1.0)).startswith("Refused: timeout=-1")


async def test_a_directory_that_is_deleted_meanwhile_is_told(tmp_path: Path) -> None:
    """The next command cannot start, and its error says that the directory is gone."""
    folder = tmp_path / "work"
    folder.mkdir()
    async with running(shell(folder)) as actor:
        await actor.run("rmdir ../work")
        said = await actor.run("ls")
        folder.mkdir()
        again = await actor.run("ls")

    assert said == f"Not started: the working directory {folder} is not there (any more). No output."
    assert again.startswith("Exit code 0")


async def test_one_that_kills_its_worker_ends_nobody_else(tmp_path: Path) -> None:
    """The command's child processes end with the worker, and the next command gets a new one."""
    async with running(shell(tmp_path)) as actor:
        said = await actor.run("setsid sh -c 'echo $$ >> pids; sleep 600' & sleep 0.3; kill -9 $PPID; sleep 600")
        assert "killed by SIGKILL" in said
        assert said.startswith("Lost: its worker process was killed by SIGKILL, ")
        assert said.endswith(" look at what it was to change before it is run again. No output.")
        assert "run_command" not in said
        assert ".." not in said
        assert (await actor.run("echo well")).splitlines()[1:] == ["well"]
        assert alive(await noted(tmp_path / "pids")) == set()


@pytest.mark.exhaustive
async def test_one_that_stops_its_worker_is_ended_all_the_same(tmp_path: Path) -> None:
    """A stopped worker cannot keep the timeout, so the shell's own timer ends it."""
    async with running(shell(tmp_path)) as actor:
        said = await actor.run("echo $$ >> pids; kill -STOP $PPID; sleep 600", 0.5)
        assert said.startswith("Ended by its timeout")
        assert alive(await noted(tmp_path / "pids")) == set()


async def test_binary_output_is_told_and_not_shown(tmp_path: Path) -> None:
    """Binary output is useless to a model and may break a terminal or a protocol."""
    async with running(shell(tmp_path)) as actor:
        said = await actor.run(r"printf '\177ELF\0\1\2'")

    assert said.splitlines()[1] == "[binary output, 7 bytes, is not shown; it begins with 7f 45 4c 46 00 01 02]"


async def test_nothing_is_left_when_the_shell_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process, file or descriptor is left."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    before, fds = descendants(os.getpid()), open_fds()
    async with running(shell(tmp_path)) as actor:
        await actor.start_job("echo $$ >> pids; exec sleep 600")
        await actor.start_job("setsid sh -c 'echo $$ >> pids; trap \"\" TERM; sleep 600 & sleep 600'")
        pids = await noted(tmp_path / "pids", 2)
    assert alive(pids) == set()
    assert set(temporary.iterdir()) == set()
    assert descendants(os.getpid()) == before
    assert open_fds() == fds


@pytest.mark.exhaustive
async def test_many_commands_leave_nothing(tmp_path: Path) -> None:
    """Neither processes nor descriptors grow with the number of commands."""
    async with running(shell(tmp_path)) as actor:
        await actor.run("true")
        fds = open_fds()
        for number in range(50):
            assert (await actor.run(f"sleep 600 & echo {number}")).splitlines()[-1] == str(number)
        assert open_fds() <= fds + 2
    assert shutil.which("sh")


@pytest.mark.backends("asyncio", "trio")
async def test_a_job_survives_the_call_that_started_it(tmp_path: Path) -> None:
    """Later calls read the new output, and finally the exit code."""
    async with running(shell(tmp_path)) as actor:
        said = await actor.start_job("echo one; echo $$ >> pids; until test -e go; do sleep 0.02; done; exit 4")
        await noted(tmp_path / "pids")
        first = await said_by(actor, "one")
        second = await actor.job(1)
        (tmp_path / "go").touch()
        last = await actor.job(1, 20.0)

    assert said == "Job 1 is started. job(1) shows its output, stop_job(1) ends it."
    assert "): running for " in first
    assert first.endswith("\none\n")
    assert second.endswith(" s. No output.")
    assert "): exit code 4 after " in last


async def test_a_job_lives_as_long_as_any_of_its_processes(tmp_path: Path) -> None:
    """Servers often fork into the background and end their first process."""
    async with running(shell(tmp_path)) as actor:
        await actor.start_job("(setsid sh -c 'echo $$ >> pids; sleep 600' &)")
        pids = await noted(tmp_path / "pids")
        await anyio.sleep(0.5)
        assert "): running for " in await actor.job(1)
        assert alive(pids) == pids
        assert "): stopped." in await actor.stop_job(1)
        assert alive(pids) == set()
        assert "): stopped." in await actor.stop_job(1)


async def test_more_jobs_than_there_may_be_are_refused_by_name(tmp_path: Path) -> None:
    """Jobs have a limit of their own, so they do not block commands."""
    async with running(shell(tmp_path, max_jobs=2, parallel=1)) as actor:
        assert await actor.jobs() == "There are no jobs. start_job(command) starts one."
        await actor.start_job("sleep 600")
        await actor.start_job("sleep 601")
        said = await actor.start_job("sleep 602")
        assert said == (
            "Refused: no more than 2 jobs run at once: 1 (sleep 600), 2 (sleep 601). stop_job(job_id) ends one."
        )
        assert (await actor.run("echo well")).endswith("well\n")
        await actor.stop_job(1)
        assert (await actor.start_job("sleep 603")).startswith("Job ")
        assert (await actor.jobs()).splitlines()[0] == "1 (sleep 600): stopped."


async def test_jobs_that_have_ended_are_forgotten_one_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The output of ended jobs would otherwise be kept for ever."""
    monkeypatch.setattr("callboard_actors.shell._shell._MOST_ENDED", 1)
    async with running(shell(tmp_path)) as actor:
        for number in (1, 2, 3):
            await actor.start_job("echo well")
            await actor.job(number, 20.0)
        said = await actor.job(1)

    assert said == "There is no job 1. Jobs: 3."


@pytest.mark.exhaustive
async def test_output_that_nobody_looked_at_keeps_its_ends(tmp_path: Path) -> None:
    """A server may write for days without any read."""
    async with running(shell(tmp_path, max_output=1000)) as actor:
        await actor.start_job("seq 100000; sleep 0.5; echo $$ >> pids; until test -e go; do sleep 0.02; done; seq 5")
        await noted(tmp_path / "pids")
        first = (await actor.job(1)).splitlines()
        (tmp_path / "go").touch()
        last = (await actor.job(1, 20.0)).splitlines()

    assert first[1] == "1"
    assert any("bytes left out" in line for line in first)
    assert first[-1] == "100000"
    assert last[1:] == ["1", "2", "3", "4", "5"]


async def test_in_a_node_a_job_ends_with_the_node(tmp_path: Path) -> None:
    """The job continues between two batches."""
    node = ToolNode([shell(tmp_path)])
    async with node:
        await node.ainvoke([tool_call("start_job", "1", command="echo $$ >> pids; exec sleep 600")])
        pids = await noted(tmp_path / "pids")
        found = await node.ainvoke([tool_call("jobs", "2")])
        assert found["messages"][0].content.startswith("1 (echo $$ >> pids; exec sleep 600): running")
        assert alive(pids) == pids
    assert alive(pids) == set()


def test_a_command_whose_zygote_was_killed_is_not_said_to_be_ended_with_all_it_had_started() -> None:
    """No process could end the children, because the zygote's death ended its workers at once."""
    lost = WorkerDiedError("run", "its worker process was lost with the zygote, its parent", begun=True)
    killed = WorkerDiedError("run", "its worker process was killed by SIGKILL", begun=True, exitcode=-9)

    assert "was ended with it" not in told_as_lost(lost)
    assert "what it had started may still run" in told_as_lost(lost)
    assert "all that the command had started was ended with it" in told_as_lost(killed)


async def test_a_command_outlives_a_killed_zygote_and_its_model_is_told_so(tmp_path: Path) -> None:
    """A process that left its session survives the zygote, and the text for the model says so."""
    others = set(descendants(os.getpid()))
    async with running(shell(tmp_path)) as actor:
        said: list[str] = []

        async def run() -> None:
            said.append(await actor.run("setsid sh -c 'echo $$ >> pids; exec sleep 5' & sleep 60"))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await noted(tmp_path / "pids")
            ours = set(descendants(os.getpid())) - others
            [zygote] = [pid for pid in ours if parent_of(pid) == os.getpid()]
            os.kill(zygote, signal.SIGKILL)

    assert said[0].startswith("Lost: its worker process was lost with the zygote, its parent, and what it had started")
