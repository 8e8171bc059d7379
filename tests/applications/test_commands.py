"""The recipe for commands: hostile commands of a model, against its confined worker processes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from langchain_core.messages import ToolMessage

from callboard import CallPolicy, ToolNode, create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls
from callboard_actors.process import Processes
from tests.helpers import until
from tests.process._processes import descendants, running

from .record_agents import example

pytestmark = pytest.mark.real_clock

Run = Callable[..., Awaitable[ToolMessage]]
TIMEOUT = 1.0
LATE = 3.0
"""Seconds that a killed worker may take on a busy machine."""
SECRET = "S3cretPassw0rd"


def policy_for(folder: Path, *programs: str, timeout: float = 20.0) -> CallPolicy:
    policy: CallPolicy = example("commands").policy_of(folder, programs, timeout=timeout)
    return policy


@asynccontextmanager
async def commands(policy: CallPolicy) -> AsyncIterator[Run]:
    """Open a node with the tool of the recipe; yield a function that calls the tool."""

    async def run(program: str, *arguments: str) -> ToolMessage:
        call = tool_call("run_command", "1", program=program, arguments=list(arguments))
        message: ToolMessage = (await node.ainvoke([call]))["messages"][0]
        return message

    node = ToolNode([example("commands").run_command], policies={"run_command": policy}, handle_tool_errors=True)
    with anyio.fail_after(120):
        async with node:
            yield run


@pytest.fixture
def neighbour() -> Iterator[int]:
    """Start a process outside of the confinement, with a password in its arguments and in its variables."""
    command = [sys.executable, "-c", "import time; time.sleep(100)", SECRET]
    with subprocess.Popen(command, env={**os.environ, "KEY": SECRET}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


async def test_a_command_returns_its_exit_code_and_its_output_in_the_order_of_writing(tmp_path: Path) -> None:
    async with commands(policy_for(tmp_path, "ls", "sh")) as run:
        message = await run("sh", "-c", "echo one; echo two >&2; echo three; exit 3")
        assert message.text == "Exit code 3.\none\ntwo\nthree\n"
        assert (await run("ls", "*.txt; ls")).text.startswith("Exit code 2.\nls: cannot access '*.txt; ls'")


@pytest.mark.exhaustive
@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
async def test_git_reads_a_repository_and_commits(tmp_path: Path) -> None:
    """Without its variable in the recipe, git ends because it may not read /etc/gitconfig."""
    (tmp_path / "notes.txt").write_text("tea\n")
    name = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
    for arguments in (["init", "--quiet"], ["add", "."], [*name, "commit", "--quiet", "--message", "first"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True, timeout=60)
    (tmp_path / "notes.txt").write_text("ham\n")
    async with commands(policy_for(tmp_path, "git")) as run:
        assert (await run("git", "status", "--short")).text == "Exit code 0.\n M notes.txt\n"
        assert (await run("git", "diff")).text.endswith("\n-tea\n+ham\n")
        committed = await run("git", *name, "commit", "--all", "--message", "second")
        assert committed.text.startswith("Exit code 0."), committed.text
        assert len((await run("git", "log", "--oneline")).text.splitlines()) == 3


async def test_only_programs_of_the_list_run(tmp_path: Path) -> None:
    """A path, an option or a null byte in the place of a program is refused with the list."""
    shutil.copy("/bin/rm", tmp_path / "ls")
    (tmp_path / "notes.txt").write_text("tea")
    async with commands(policy_for(tmp_path, "ls", "missing")) as run:
        for program in ("rm", "./ls", "/bin/ls", "", "ls ", "ls\0", "x" * 1_000_000):
            message = await run(program, "notes.txt")
            assert (message.status, "allowed are ls, missing" in message.text) == ("error", True)
            assert len(message.text) < 300
        assert (await run("ls", "notes.txt")).text == "Exit code 0.\nnotes.txt\n"  # not the file in the project
        for program, arguments in (("missing", []), ("ls", ["a\0b"]), ("ls", ["x" * 1_000_000])):
            assert "was not started" in (await run(program, *arguments)).text


@pytest.mark.exhaustive
async def test_output_is_bounded_while_it_is_read(tmp_path: Path) -> None:
    """The beginning and the end are kept; a hundred megabytes in between needs no memory."""
    async with commands(policy_for(tmp_path, "sh", timeout=60.0)) as run:
        text = (await run("sh", "-c", "echo begin; yes | head -c 100000000; echo end")).text

    assert text.startswith("Exit code 0.\nbegin\ny\n")
    assert text.endswith("y\nend\n")
    assert "[99980010 bytes left out]" in text
    assert len(text) < 21_000


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sleep 100", marks=pytest.mark.exhaustive),
        pytest.param("trap '' TERM; while :; do :; done", marks=pytest.mark.exhaustive),
        pytest.param("yes", marks=pytest.mark.exhaustive),
        "sleep 100 & setsid sleep 100 & exit 0",
        pytest.param("kill -STOP $PPID; sleep 100", marks=pytest.mark.exhaustive),
    ],
)
async def test_the_end_of_the_worker_ends_all_processes_of_a_command(tmp_path: Path, script: str) -> None:
    """Processes in the background and in other sessions end, too, and so do processes that ignore signals."""
    async with commands(policy_for(tmp_path, "sh", timeout=TIMEOUT)) as run:
        assert (await run("sh", "-c", "true")).text == "Exit code 0.\n"
        begun = time.monotonic()
        message = await run("sh", "-c", script)
        seconds = time.monotonic() - begun
        assert (await run("sh", "-c", "true")).text == "Exit code 0.\n"
        remaining_pids = {
            pid for pid in running(descendants(os.getpid())) if _command_of(pid)[:1] in ([b"sleep"], [b"sh"], [b"yes"])
        }

    assert "did not finish within its timeout" in message.text
    assert seconds < TIMEOUT + LATE
    assert remaining_pids == set()


def _command_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.mark.exhaustive
async def test_a_process_that_does_not_hold_the_output_ends_with_its_command(tmp_path: Path) -> None:
    async with commands(policy_for(tmp_path, "sh")) as run:
        message = await run("sh", "-c", "setsid sleep 100 >/dev/null 2>&1 & echo $!")
        assert (await run("sh", "-c", "true")).status == "success"
    assert message.text.startswith("Exit code 0.\n")
    await until(lambda: not running({int(message.text.split()[-1])}), 10)


async def test_a_command_reads_the_project_and_the_system_only(tmp_path: Path) -> None:
    """Files beside the project, such as a `.env`, and variables of this process stay hidden."""
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / ".env").write_text(SECRET)
    os.environ["KEY_OF_THE_TESTS"] = SECRET
    try:
        async with commands(policy_for(project, "sh")) as run:
            text = (await run("sh", "-c", "cat ../.env; env; cat /etc/shadow; echo a > ../b; echo a > b; cat b")).text
    finally:
        del os.environ["KEY_OF_THE_TESTS"]

    assert SECRET not in text
    assert text.count("Permission denied") == 3, text
    assert text.endswith("\na\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".env", "project"]


@pytest.mark.exhaustive
async def test_of_other_processes_a_command_sees_that_they_exist_and_whose_they_are(
    tmp_path: Path, neighbour: int
) -> None:
    """Landlock refuses /proc; passwords in arguments of other programs stay hidden."""
    names = ("cmdline", "environ", "maps", "status", "stat", "comm", "mem", "fd", "cwd", "exe", "root")
    script = "; ".join(f"cat /proc/{neighbour}/{name}; ls /proc/{neighbour}/{name}/" for name in names)
    async with commands(policy_for(tmp_path, "sh")) as run:
        hidden = (await run("sh", "-c", f"{script}; ls /proc; readlink /proc/{neighbour}/exe; ps aux")).text
        owner = (await run("sh", "-c", f"stat -c %u /proc/{neighbour}; kill -0 {neighbour}")).text

    assert SECRET not in hidden
    lines = [line for line in hidden.splitlines()[1:] if not line.startswith("Error, do this: mount -t proc")]
    assert [line for line in lines if not line.endswith(("Permission denied", "Not a directory", "not found"))] == []
    assert owner.splitlines()[1] == str(os.getuid())
    assert "Operation not permitted" in owner


HOSTILE = {
    "the pipe by which a failed start is reported": (
        "for k in 1 2 3; do for f in /proc/$PPID/fd/*; do echo X > $f; done; "
        "for n in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do echo X > /proc/$PPID/fd/$n; done; done 2>/dev/null"
    ),
    "the death of the worker": "kill -9 $PPID",
    "the memory of the worker": "echo X > /proc/$PPID/mem; cat /proc/$PPID/maps /proc/$PPID/environ",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.exhaustive
async def test_no_command_ends_the_run_or_another_call(tmp_path: Path, name: str) -> None:
    """A command may spoil its own worker and its own result; the other calls of the reply end as they would."""

    async def pay_later() -> str:
        """Make a payment that takes longer than the command."""
        await anyio.sleep(1)
        return "paid"

    batch = [tool_call("run_command", "1", program="sh", arguments=["-c", HOSTILE[name]]), tool_call("pay_later", "2")]
    model = ScriptedModel([calls(*batch), "end"], loop=True)
    node = ToolNode(
        [example("commands").run_command, pay_later],
        policies={"run_command": policy_for(tmp_path, "sh")},
        handle_tool_errors=True,
    )
    with anyio.fail_after(100):
        async with create_react_agent(model, node) as agent:
            for _ in range(3):
                state = await agent.ainvoke({"messages": [("user", "x")]})
                [_, _, command, paid, last] = state["messages"]
                assert (paid.text, last.text) == ("paid", "end")
                assert isinstance(command, ToolMessage)
                assert "KEY" not in command.text


@pytest.mark.exhaustive
async def test_the_pool_is_confined_and_bounded(tmp_path: Path) -> None:
    """A fork bomb and a large allocation end with their call."""
    policy = policy_for(tmp_path, "python3", timeout=TIMEOUT + 4)
    assert isinstance(policy.runs_in, Processes)
    async with commands(policy) as run:
        grown = await run("python3", "-c", "bytearray(8 * 1024**3)")
        assert "MemoryError" in grown.text
        refused = await run("python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 1))")
        assert "PermissionError" in refused.text
