"""Workers that are new interpreters, for systems where fork is unsafe, and systems that have only POSIX."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard_actors import process
from callboard_actors._engine import _kernel
from callboard_actors.process import Confine, Processes, WorkerDiedError

from . import _bodies as bodies
from ._processes import NO_LINUX, ROOT, WAIT, descendants, open_pool


@pytest.fixture
def spawns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a system where no process can be forked."""
    monkeypatch.setattr(_kernel, "FORKS", False)


@pytest.mark.exhaustive
@pytest.mark.real_clock
@pytest.mark.parametrize("forks", [True, False])
async def test_a_module_may_put_something_of_its_own_where_output_goes(
    monkeypatch: pytest.MonkeyPatch, forks: bool
) -> None:
    """A stream may lack attributes that the worker sets; the worker must check for them or it could never start."""
    monkeypatch.setattr(_kernel, "FORKS", forks)
    async with open_pool(preload=[f"{__package__}._replaces_stdout"]) as pool:
        assert await pool.run(bodies.add, 1, 2) == 3


@pytest.mark.exhaustive
@pytest.mark.real_clock
@pytest.mark.parametrize("forks", [True, False])
async def test_workers_start_if_the_search_path_of_modules_has_an_entry_that_is_no_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forks: bool
) -> None:
    """Python ignores such an entry, and so do processes that get the search path of this one."""
    monkeypatch.setattr(_kernel, "FORKS", forks)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    async with open_pool() as pool:
        assert await pool.run(bodies.add, 1, 2) == 3


@pytest.mark.real_clock
@pytest.mark.usefixtures("spawns")
async def test_modules_that_a_fork_would_not_stand_are_loaded_by_interpreters(caplog: pytest.LogCaptureFixture) -> None:
    """Threads are safe where each worker is its own process. A module that ends its process is left to the calls."""
    caplog.set_level(logging.INFO, "callboard_actors.process")
    thread, end = f"{__package__}._starts_a_thread", f"{__package__}._ends_its_process"
    pool = Processes(workers=1, preload=[thread])
    for name in ("no_such_module", end, bodies.__name__):
        pool._optional_modules[name] = None
    with anyio.fail_after(WAIT):
        async with pool:
            assert await pool.run(bodies.is_loaded, thread)
            assert not await pool.run(bodies.is_loaded, end)

    messages = [record.getMessage() for record in caplog.records if record.name == "callboard_actors.process"]
    assert messages == [f"{end} starts threads or ends its process, so each worker loads it by itself"]


@pytest.mark.parametrize(
    ("platform", "options", "message"),
    [
        ("linux", {"start": "thread"}, "start='thread' is neither 'fork' nor 'spawn'"),
        ("linux", {"start": "spawn", "confine": Confine()}, "confine= needs start='fork', not 'spawn'"),
        ("darwin", {"start": "fork"}, "start='fork' is for Linux, and this is darwin; leave it out"),
        ("darwin", {"confine": Confine()}, "confine= needs Linux, .* and this is darwin"),
        ("darwin", {"memory": 2**30}, "memory=1073741824 needs a kernel that keeps RLIMIT_AS, and this is darwin"),
    ],
)
def test_what_a_system_cannot_keep_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, platform: str, options: dict[str, Any], message: str
) -> None:
    """The error names the argument, the system and the alternative."""
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("FORKS", "LIMITS_MEMORY"):
        monkeypatch.setattr(_kernel, name, platform == "linux")
    with pytest.raises(ValueError, match=message):
        Processes(**options)


@pytest.mark.parametrize("platform", ["win32", "emscripten", "wasi"])
def test_a_system_without_process_groups_is_told_so_by_the_import(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    """The message names the missing process groups, not some missing module of the standard library."""
    assert process.__file__ is not None
    code = compile(Path(process.__file__).read_text(), process.__file__, "exec")
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ImportError, match=f"needs a POSIX system, and this is {platform}: .* within WSL"):
        exec(code, {"__name__": process.__name__})


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.exhaustive
def test_a_system_that_has_no_more_than_posix_says_has_pools(tmp_path: Path, backend: str) -> None:
    """No Linux-only function is called: the simulated system ends every process that does so."""
    command = [sys.executable, "-m", "tests.process._without_linux", backend, str(tmp_path)]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(NO_LINUX)},
        capture_output=True,
        text=True,
        timeout=WAIT * 3,
        check=False,
    )

    assert result.stdout == "passed\n", result.stdout + result.stderr
    assert "no Linux" not in result.stderr


@pytest.mark.real_clock
@pytest.mark.usefixtures("spawns")
async def test_a_pool_that_is_closed_while_interpreters_load_leaves_none(tmp_path: Path) -> None:
    """Sessions that were requested but have not started yet end with the pool."""
    before = descendants(os.getpid())
    with anyio.fail_after(WAIT):
        async with anyio.create_task_group() as group, Processes(workers=1, grace=0) as pool:

            async def sit() -> None:
                with pytest.raises(WorkerDiedError):
                    async with pool.seat("owner") as seat:
                        await seat.until_ended()
                        raise WorkerDiedError("owner", "as others are told", begun=False)

            for _ in range(3):
                group.start_soon(sit)
            await anyio.wait_all_tasks_blocked()

    assert descendants(os.getpid()) == before
