"""Isolation of output: a command cannot read, change or break the output of another command."""

import base64
import sys
import tempfile
from pathlib import Path

import pytest

from callboard import running
from callboard_actors.process import Confine
from callboard_actors.shell import Shell

from ._left import noted, said_by

pytestmark = pytest.mark.real_clock

INTRUDER = """
import os, stat, sys

def files():
    for pid in [one for one in os.listdir("/proc") if one.isdigit() and int(one) != os.getpid()]:
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                yield f"/proc/{pid}/fd/{fd}"
        except OSError:
            pass

def folders():
    for file in files():
        try:
            path = os.readlink(file).removesuffix(" (deleted)")
        except OSError:
            continue
        if "callboard-shell-" in path:
            yield os.path.dirname(path)

def regular():
    for file in files():
        try:
            target = os.readlink(file)
            if target.startswith("/") and "callboard-begun" not in target and stat.S_ISREG(os.stat(file).st_mode):
                yield file
        except OSError:
            pass
"""
READS = """
for file in [*regular(), *(os.path.join(folder, name) for folder in set(folders()) for name in os.listdir(folder))]:
    try:
        sys.stdout.write(open(file, "rb").read().replace(bytes(1), b"").decode(errors="replace"))
    except OSError:
        pass
print("looked")
"""
REWRITES = """
for file in [*regular(), *(os.path.join(folder, name) for folder in set(folders()) for name in os.listdir(folder))]:
    try:
        found = bytearray(open(file, "rb").read()).replace(b"genuine", b"forgery")
        with open(file, "r+b") as opened:
            opened.write(found)
    except OSError:
        pass
print("tried")
"""
OCCUPIES = """
for folder in set(folders()):
    for number in range(2, 51):
        open(os.path.join(folder, str(number)), "w").write("left for the next")
print("tried")
"""
REPLACES = """
for folder in set(folders()):
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
        os.mkdir(os.path.join(folder, name))
print("tried")
"""
EXECUTES = """
import shutil
program = open("/usr/bin/true", "rb").read()
for place in [*regular(), *(os.path.join(folder, "true") for folder in set(folders()))]:
    try:
        with open(place, "wb", opener=lambda path, flags: os.open(path, flags, 0o700)) as copy:
            copy.write(program)
    except OSError:
        pass
    try:
        if os.spawnv(os.P_WAIT, place, [place]) == 0:
            print("executed a copy")
    except OSError:
        pass
print("tried")
"""


def command(attack: str) -> str:
    code = base64.b64encode((INTRUDER + attack).encode()).decode()
    return f"""{sys.executable} -I -c 'import base64; exec(base64.b64decode("{code}"))'"""


def confined(folder: Path, **options: object) -> Shell:
    return Shell(folder, confine=Confine(write=[folder], processes=True), grace=0.3, **options)


@pytest.mark.parametrize(
    "may_write_there",
    [
        pytest.param(False, id="elsewhere", marks=pytest.mark.exhaustive),
        pytest.param(True, id="where temporary files are written"),
    ],
)
async def test_a_confined_command_can_neither_read_nor_rewrite_the_output_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_write_there: bool
) -> None:
    """A job may print secrets of its conversation, and a model would believe forged output.

    The output file has no name, and the kernel shows a worker only its own descriptors.
    """
    if may_write_there:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with running(confined(tmp_path)) as shell:
        await shell.start_job("echo genuine; echo $$ >> pids; exec sleep 600")
        await noted(tmp_path / "pids")
        await said_by(shell, "genuine")
        read = await shell.run(command(READS))
        assert "tried" in await shell.run(command(REWRITES))
        await shell.stop_job(1)
        await shell.start_job("echo genuine; echo $$ >> pids; exec sleep 600")
        await noted(tmp_path / "pids", 2)
        assert "tried" in await shell.run(command(REWRITES))
        told = await shell.job(4)

    assert "looked" in read
    assert "genuine" not in read
    assert "genuine" in told
    assert "forgery" not in told


async def test_a_confined_command_leaves_no_file_where_the_next_one_puts_its_output(tmp_path: Path) -> None:
    """With a predictable file name each later command would fail outside of the node."""
    async with running(confined(tmp_path)) as shell:
        assert "tried" in await shell.run(command(OCCUPIES))
        said = await shell.run(f"echo well; {command(READS)}")
        job = await shell.start_job("echo well")

    assert "well" in said.splitlines()
    assert "left for the next" not in said
    assert job == "Job 3 is started. job(3) shows its output, stop_job(3) ends it."


async def test_a_command_that_removes_what_holds_its_output_ends_no_other_job(tmp_path: Path) -> None:
    """The shell is one actor, so an error of its clean-up would end all jobs."""
    async with running(confined(tmp_path)) as shell:
        await shell.start_job("echo $$ >> pids; until test -e go; do sleep 0.02; done; echo went")
        await noted(tmp_path / "pids")
        await shell.start_job(command(REPLACES))
        hostile = await shell.job(2, 20.0)
        (tmp_path / "go").touch()
        innocent = await shell.job(1, 20.0)
        said = await shell.run("echo well")

    assert "): exit code 0 after " in hostile
    assert innocent.splitlines()[1:] == ["went"]
    assert said.splitlines()[1:] == ["well"]


async def test_a_command_that_may_write_nowhere_has_no_place_to_run_a_program_from(tmp_path: Path) -> None:
    """`Confine(read=...)` says which programs can be executed."""
    shell = Shell(tmp_path, confine=Confine(read=[tmp_path], processes=True), grace=0.3, max_output=100_000)
    async with running(shell) as actor:
        said = await actor.run(command(EXECUTES))

    assert "tried" in said
    assert "executed" not in said


async def test_a_command_whose_output_has_no_place_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is a temporary error of the command and not of the node."""
    async with running(Shell(tmp_path, unrestricted=True)) as shell:
        with monkeypatch.context() as patched:
            patched.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
            run, job = await shell.run("echo well"), await shell.start_job("echo well")
        again = await shell.run("echo well")

    for refused in (run, job):
        assert refused.startswith("Refused: there is no room for the output of a command: ")
    assert again.splitlines()[1:] == ["well"]
