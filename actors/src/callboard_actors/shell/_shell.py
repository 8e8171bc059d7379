"""`Shell`: commands in a working directory, and jobs in the background."""

import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import anyio
from anyio.abc import TaskGroup

from callboard import Actor, EngineError, handler, remaining
from callboard_actors._util._environment import variables
from callboard_actors._util._numbers import check_counts, check_durations
from callboard_actors.process import Processes
from callboard_actors.shell._bounds import check_confinement, confined
from callboard_actors.shell._command import Ending, Order, run_command
from callboard_actors.shell._job import Job, with_output
from callboard_actors.shell._programs import RefusedError, argv_of, found_programs
from callboard_actors.shell._spool import SpoolReader
from callboard_actors.shell._surroundings import surroundings

_MOST_TIME = 0.8
"""Share of the call's remaining time; the rest is for its answer."""
_SPARE = 2.0
"""Seconds after which a worker that should have ended its command is ended itself."""


class Shell(Actor):
    """Commands in a working directory.

        node = ToolNode([Shell("project", allow=["git", "ls", "pytest"])])

    The shell has its own worker processes: a job occupies one for as long as it runs, and their confinement is for this
    directory only. They end with the shell, and all commands with them. At least one of `allow`, `confine` and
    `unrestricted` must be given.

    Args:
        cwd: working directory, in which each command begins.
        allow: names of the allowed programs, which run without a shell. Some programs run others, such as git and make.
        confine: files that commands may read and write, enforced by the kernel: a `callboard_actors.process.Confine`
            with `processes=True` and the working directory. The system's programs may always be read and run.
        unrestricted: whether commands may do everything that this user may.
        env: environment variables for commands, in addition to a few such as PATH and HOME. Other variables of this
            process are not passed on, because they may contain keys.
        timeout: seconds for a command that does not give another number.
        max_timeout: largest number of seconds that a command may ask for.
        grace: seconds between SIGTERM and SIGKILL for a command that must end.
        max_output: bytes of a command's output that are kept, head and tail, and shown to a model.
        max_jobs: largest number of running jobs.
        max_ended: number of ended jobs that are remembered.
        parallel: commands that run at the same time, besides the jobs; others wait.

    Raises:
        ValueError: if the permissions of commands are not given, or a number is out of range.
        NotImplementedError: if this is not Linux.
    """

    groups: ClassVar[Mapping[str, int]] = {}

    def __init__(
        self,
        cwd: str | os.PathLike[str],
        *,
        allow: Sequence[str] | None = None,
        confine: Any | None = None,
        unrestricted: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        max_timeout: float = 600.0,
        grace: float = 2.0,
        max_output: int = 20_000,
        max_jobs: int = 4,
        max_ended: int = 16,
        parallel: int = 2,
    ) -> None:
        _check_system()
        _check_restriction(allow, confine, unrestricted)
        counts = [("max_output", max_output, 100), ("max_jobs", max_jobs, 0)]
        check_counts("Shell", [*counts, ("max_ended", max_ended, 0), ("parallel", parallel, 1)])
        check_durations("Shell", timeout=timeout, max_timeout=max_timeout, grace=grace)
        self._cwd = Path(cwd).absolute()
        self._env = surroundings({} if env is None else variables("Shell(env=...)", env))
        self._programs = None if allow is None else found_programs(allow, self._env)
        if confine is not None:
            check_confinement(confine, self._cwd)
        self._confine = confine
        self._timeout, self._max_timeout, self._grace = min(timeout, max_timeout), max_timeout, grace
        self._max_output, self._max_jobs, self._max_ended = max_output, max_jobs, max_ended
        self._parallel = parallel
        self._jobs: dict[int, Job] = {}
        self._last_number = 0

    async def start(self) -> None:
        """Start the workers.

        Raises:
            NotADirectoryError: if the working directory does not exist.
        """
        if not self._cwd.is_dir():
            raise NotADirectoryError(f"Shell({str(self._cwd)!r}): there is no such directory")
        bash = shutil.which("bash", path=self._env["PATH"]) or shutil.which("sh", path=self._env["PATH"]) or "/bin/sh"
        self._shell = [bash, "-c"]
        (await self.enter(ExitStack())).callback(self._close_spools)  # after all jobs have ended
        self._pool = await self.enter(self._processes())
        self._places = anyio.CapacityLimiter(self._parallel)
        self._group: TaskGroup = await self.enter(anyio.create_task_group())

    def _processes(self) -> Processes:
        # A worker is replaced after each command, so that no command sees leftovers of another. The worker's own grace
        # is longer than that of commands, so it ends its command itself.
        return Processes(
            workers=self._parallel + self._max_jobs,
            preload=[run_command.__module__],
            grace=self._grace + _SPARE / 2,
            max_calls=1,
            max_output=4096,
            **({} if self._confine is None else {"confine": confined(self._confine)}),
        )

    async def stop(self) -> None:
        """End all jobs; the workers end after them."""
        self._group.cancel_scope.cancel()

    @handler(group="commands")
    async def run(self, command: str, timeout: float | None = None) -> str:
        """Run a command in the working directory and read its exit code and its output (stdout and stderr, as written).

        It has no terminal and no input. Each command begins in the working directory anew. After `timeout` seconds it
        is ended; what takes long or has to go on is for start_job.
        """
        try:
            async with self._places:
                job = self._job(command, timeout=self._time_for(timeout))
                with job.spool:
                    return await self._to_its_end(job)
        except RefusedError as refused:
            return str(refused)

    async def _to_its_end(self, job: Job) -> str:
        await self._execute(job, self._order(job, is_job=False))
        sentence = job.state(anyio.current_time())
        if job.ending is not None and job.ending["is_late"]:
            sentence += " What takes longer is for start_job(command), and then job(job_id)."
        return with_output(sentence, job.spool.look().text())

    def _time_for(self, timeout: float | None) -> float:
        if timeout is not None and not timeout > 0:
            raise RefusedError(f"Refused: timeout={timeout:g} is no time; give a number of seconds, or leave it out.")
        asked = self._timeout if timeout is None else min(timeout, self._max_timeout)
        return max(0.1, min(asked, _MOST_TIME * remaining()))

    def _job(self, command: str, *, timeout: float | None) -> Job:
        """Return a checked command with a file for its output; raise RefusedError if it may not or cannot run."""
        self._last_number += 1
        self._argv(command)
        try:
            spool = SpoolReader(self._max_output)
        except OSError as error:
            raise RefusedError(f"Refused: there is no room for the output of a command: {error}") from error
        return Job(self._last_number, command, spool, anyio.current_time(), timeout)

    def _argv(self, command: str) -> list[str]:
        if "\0" in command:
            raise RefusedError("Refused: there is a NUL character in the command, which no program can be given.")
        if self._programs is not None:
            return argv_of(command, self._programs)
        if not command.strip():
            raise RefusedError("Refused: the command is empty.")
        return [*self._shell, command]

    def _order(self, job: Job, *, is_job: bool) -> Order:
        return Order(
            argv=self._argv(job.command),
            cwd=str(self._cwd),
            env=self._env,
            keeps=self._max_output,
            timeout=job.timeout,
            grace=self._grace,
            is_job=is_job,
        )

    async def _execute(self, job: Job, order: Order) -> None:
        """Run a command in a worker, and record its end."""
        # Longer than the worker needs to end the command by itself; a worker that is still silent then is killed.
        patience = math.inf if job.timeout is None else job.timeout + self._grace + _SPARE
        try:
            with anyio.move_on_after(patience) as scope:
                job.ending = await self._pool._run_with_file(job.spool.fileno(), run_command, order)
            if scope.cancelled_caught:  # the worker did not end the command in time, and was killed with it
                job.ending = Ending(exitcode=-9, seconds=patience, is_late=True, left_running=0, error="")
        except EngineError as error:
            job.failure = error
        finally:
            job.ended.set()

    @handler(group="commands")
    async def start_job(self, command: str) -> str:
        """Start a command that takes long or has to go on, such as a server; it runs in the background.

        The answer has its job id, for job and stop_job.
        """
        running = [job for job in self._jobs.values() if not job.ended.is_set()]
        if len(running) >= self._max_jobs:
            which = ", ".join(f"{job.number} ({job.title})" for job in running)
            return f"Refused: no more than {self._max_jobs} jobs run at once: {which}. stop_job(job_id) ends one."
        try:
            job = self._job(command, timeout=None)
        except RefusedError as refused:
            return str(refused)
        self._jobs[job.number] = job
        self._forget_some()
        self._group.start_soon(self._in_background, job)
        return f"Job {job.number} is started. job({job.number}) shows its output, stop_job({job.number}) ends it."

    def _forget_some(self) -> None:
        """Drop the oldest ended jobs beyond `max_ended`."""
        ended = [job for job in self._jobs.values() if job.ended.is_set()]
        for job in ended[: max(0, len(ended) - self._max_ended)]:
            del self._jobs[job.number]
            job.spool.close()

    def _close_spools(self) -> None:
        for job in self._jobs.values():
            job.spool.close()
        self._jobs.clear()

    async def _in_background(self, job: Job) -> None:
        with job.scope:
            await self._execute(job, self._order(job, is_job=True))
        self._forget_some()

    @handler(group="commands")
    async def job(self, job_id: int, wait: float = 0.0) -> str:
        """Look at a job: whether it runs, its exit code, and its output since the last look.

        With `wait`, up to so many seconds are waited for its end.
        """
        job = self._jobs.get(job_id)
        if job is None:
            return self._unknown(job_id)
        if wait > 0:
            with anyio.move_on_after(min(wait, self._max_timeout, _MOST_TIME * remaining())):
                await job.ended.wait()
        output = job.spool.look().text()
        return with_output(f"Job {job_id} ({job.title}): {job.state(anyio.current_time())}", output)

    def _unknown(self, job_id: int) -> str:
        known = ", ".join(map(str, self._jobs)) or "none; start_job(command) starts one"
        return f"There is no job {job_id}. Jobs: {known}."

    @handler(group="commands")
    async def stop_job(self, job_id: int) -> str:
        """End a job, with all that it has started, and read the rest of its output."""
        job = self._jobs.get(job_id)
        if job is None:
            return self._unknown(job_id)
        if not job.ended.is_set():
            job.is_stopped = True
            job.scope.cancel()
            await job.ended.wait()
        output = job.spool.look().text()
        return with_output(f"Job {job_id} ({job.title}): {job.state(anyio.current_time())}", output)

    @handler(group="commands")
    async def jobs(self) -> str:
        """List the jobs, and how far each of them is."""
        now = anyio.current_time()
        lines = [f"{job.number} ({job.title}): {job.state(now)}" for job in self._jobs.values()]
        return "\n".join(lines) or "There are no jobs. start_job(command) starts one."


def _check_system() -> None:
    if sys.platform != "linux":
        raise NotImplementedError(
            f"Shell needs Linux, where it finds all that a command has started, and this is {sys.platform}; run the "
            "program in a Linux container or within WSL"
        )


def _check_restriction(allow: Sequence[str] | None, confine: object, unrestricted: bool) -> None:
    if isinstance(allow, str):
        raise TypeError(f"Shell(allow={allow!r}) is one string; give a list of names of programs")
    if allow is not None and not allow:
        raise ValueError("Shell(allow=[]) allows no program at all; name some")
    if allow is None and confine is None and not unrestricted:
        raise ValueError(
            "Shell(...) runs what a model writes. Say what it may do: allow=['git', 'ls'] for these programs without a "
            "shell, confine=Confine(read=[...], write=[...]) for what the kernel lets them touch, or unrestricted=True "
            "for whatever this user may"
        )
    if unrestricted and (allow is not None or confine is not None):
        raise ValueError("Shell(unrestricted=True) and a restriction contradict each other; leave one of them out")
