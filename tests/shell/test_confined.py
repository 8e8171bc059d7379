"""A confined shell runs any command; the kernel limits the files and services that commands can use."""

from pathlib import Path

import pytest

from callboard import running
from callboard_actors.process import Confine
from callboard_actors.shell import Shell

from ._left import alive, noted, said_by

pytestmark = pytest.mark.real_clock


@pytest.mark.backends("asyncio", "trio")
async def test_a_confined_command_touches_what_it_was_given_and_nothing_else(tmp_path: Path) -> None:
    """Writing works in permitted folders only; all other files are out of reach."""
    work, secret = tmp_path / "work", tmp_path / "secret"
    work.mkdir()
    secret.write_text("secret")
    confine = Confine(write=[work], processes=True)
    async with running(Shell(work, confine=confine, grace=0.3)) as shell:
        said = await shell.run("echo mine > file; cat file; ls /usr/bin | head -1; cat ../secret; echo no > ../other")

    assert "mine" in said.splitlines()
    assert "secret: Permission denied" in said
    assert "../other: Permission denied" in said
    assert (work / "file").read_text() == "mine\n"
    assert not (tmp_path / "other").exists()


@pytest.mark.exhaustive
async def test_a_confined_command_that_is_late_ends_with_all_that_it_has_started(tmp_path: Path) -> None:
    """Child processes end with the command, as in an unconfined shell."""
    confine = Confine(write=[tmp_path], processes=True)
    command = "setsid sh -c 'echo $$ >> pids; exec sleep 600' & echo begun; sleep 600"
    async with running(Shell(tmp_path, confine=confine, grace=0.3)) as shell:
        said = await shell.run(command, 1.0)
        assert said.endswith("\nbegun\n")
        assert alive(await noted(tmp_path / "pids")) == set()
        left = await shell.run("(setsid sh -c 'echo $$ >> pids; exec sleep 600' &) ; sleep 0.3; echo done")
        assert left.endswith("\ndone\n")
        assert alive(await noted(tmp_path / "pids", 2)) == set()


async def test_a_confined_job_can_be_asked_and_stopped(tmp_path: Path) -> None:
    """The job can write its own output file and no other file of the shell."""
    confine = Confine(write=[tmp_path], processes=True)
    async with running(Shell(tmp_path, confine=confine, grace=0.3)) as shell:
        await shell.start_job("echo ready; echo $$ >> pids; exec sleep 600")
        pids = await noted(tmp_path / "pids")
        assert (await said_by(shell, "ready")).endswith("\nready\n")
        assert (await shell.stop_job(1)).startswith("Job 1 (echo ready")
        assert alive(pids) == set()


def test_a_confinement_in_which_no_command_could_run_is_refused(tmp_path: Path) -> None:
    """The error is raised when the shell is made, not by each command."""
    with pytest.raises(ValueError, match=r"Confine.processes=True"):
        Shell(tmp_path, confine=Confine(write=[tmp_path]))
    with pytest.raises(ValueError, match="working directory"):
        Shell(tmp_path, confine=Confine(read=["/usr"], processes=True))
