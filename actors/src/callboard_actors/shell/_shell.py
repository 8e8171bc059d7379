"""`Shell`: commands in a working directory, and jobs in the background.

The actor stands at the end. Before it stand the environment of commands, their state and texts for a model, their
confinement, and the parsing of command lines, which no shell interprets.
"""

import math
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import anyio
from anyio.abc import TaskGroup

from callboard import Actor, EngineError, handler, remaining
from callboard_actors._engine._errors import signal_name
from callboard_actors._util._options import check_counts, check_durations, variables
from callboard_actors.process import Processes, WorkerDiedError
from callboard_actors.shell._command import Ending, Order, SpoolReader, run_command

# Environment of commands.

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR")
# With these values, programs that would wait for a person fail at once, or continue without one.
_NOBODY_IS_THERE = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "false",
    "VISUAL": "false",
    "GIT_EDITOR": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "false",
    "SSH_ASKPASS": "false",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "DEBIAN_FRONTEND": "noninteractive",
    "PIP_NO_INPUT": "1",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",  # otherwise stderr would come before earlier output
}


def environment_of_commands(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of commands: a few variables of this process, and the variables in `own`."""
    kept = {name: value for name, value in os.environ.items() if name in _PASSED_ON or name.startswith("LC_")}
    return {"PATH": os.defpath, **kept, **_NOBODY_IS_THERE, **own}


# State of a command, and the text about it for a model.

_TITLE = 60


@dataclass(slots=True, eq=False)
class Job:
    """Command that the shell runs, from its start until its result was read."""

    number: int
    command: str
    argv: list[str]
    spool: SpoolReader
    began: float
    timeout: float | None = None
    ending: Ending | None = None
    failure: EngineError | None = None
    """Error of the worker that ran the command; how the command ended is unknown."""
    is_stopped: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def title(self) -> str:
        """Command line, shortened to one short line of text."""
        line = " ".join(self.command.split())
        return line if len(line) <= _TITLE else f"{line[:_TITLE]}..."

    def state(self, now: float) -> str:
        """Return a sentence about the state of the command: running, stopped, lost, or how it ended."""
        if not self.ended.is_set():
            return f"running for {now - self.began:.1f} s."
        if self.is_stopped:
            return "stopped."
        if self.ending is None:
            assert self.failure is not None
            return told_as_lost(self.failure)
        return told(self.ending, self.timeout)


def told(ending: Ending, timeout: float | None) -> str:
    """Return a sentence for a model about how a command has ended."""
    code, seconds = ending["exitcode"], f"{ending['seconds']:.1f} s"
    if code is None:
        return f"not started: {ending['error']}."
    if ending["is_late"]:
        return f"ended by its timeout of {round(timeout or 0.0, 1):g} s."
    end = f"exit code {code} after {seconds}." if code >= 0 else f"killed by {signal_name(-code)} after {seconds}."
    if left := ending["left_running"]:
        what = "A process that it left running was" if left == 1 else f"{left} processes that it left running were"
        end += f" {what} ended with it; what has to go on is for start_job(command)."
    return end


def told_as_lost(failure: EngineError) -> str:
    """Return sentences for a model about a command whose end is unknown, with advice."""
    if failure.ended == "unavailable":
        return f"not started: {failure.reason}. It had no effect, and can be run again."
    is_known = not isinstance(failure, WorkerDiedError) or failure.exitcode is not None
    left = "all that the command had started was ended with it" if is_known else "what it had started may still run"
    return (
        f"lost: {failure.reason}, and {left}. How far it came is unknown: "
        "look at what it was to change before it is run again."
    )


def with_output(sentence: str, output: str) -> str:
    """Join a sentence about a command and the output of the command into one text for a model."""
    sentence = sentence[:1].upper() + sentence[1:]
    return f"{sentence}\n{output}" if output.strip() else f"{sentence} No output."


# Confinement of commands: the user's permissions, and the programs of the system. Output needs no permission: it goes
# to a file without a name that only the command's worker has open, so no command can find the output of another.

# /proc: the worker finds its descendants there, and many programs need it. The kernel hides the memory and the
# variables of processes outside of the confinement, but not their existence.
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/passwd",
    "/etc/group",
    "/proc",
)


def check_confinement(confine: Any, cwd: Path) -> None:
    """Raise ValueError for a confinement that allows no child processes, or no access to the working directory."""
    if not confine.processes:
        raise ValueError("Shell(confine=...): commands are processes; say Confine(processes=True, ...)")
    known = [Path(path) for path in (*confine.read, *confine.write)]
    if not any(cwd.resolve().is_relative_to(path) for path in known):
        raise ValueError(f"Shell(confine=...): its `read` or `write` need the working directory, {str(cwd)!r}")


def confined(confine: Any) -> Any:
    """Return a copy of the user's confinement for worker processes, with added read access to the system's programs."""
    system = [path for path in _SYSTEM if Path(path).exists()]
    return replace(confine, read=[*confine.read, *system])


# Command lines without a shell.


class RefusedError(Exception):
    """Raised for a command that may not be run; the text is for the model."""


_SHELL_ONLY = frozenset("|&;<>()$`*?[\n")
_AT_BEGIN = frozenset("~#")
"""Characters that a shell interprets only at the beginning of a word."""


def found_programs(allow: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return a mapping from the name of each allowed program to its path; raise ValueError if a program is missing."""
    found: dict[str, str] = {}
    for name in allow:
        path = shutil.which(name, path=env.get("PATH"))
        if path is None:
            raise ValueError(f"Shell(allow=[{name!r}, ...]): there is no such program on PATH={env.get('PATH')!r}")
        found[name] = path
    return found


def argv_of(command: str, programs: Mapping[str, str]) -> list[str]:
    """Split a command line into the path of an allowed program and its arguments."""
    allowed = f"Allowed: {', '.join(programs)}, one of them in a call, with its arguments and without a shell."
    if (sign := _first_of_shell(command)) is not None:
        raise RefusedError(
            f"Refused: there is no shell here, which {sign!r} is for; in single quotes it stands for itself. {allowed}"
        )
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise RefusedError(f"Refused: the command cannot be read: {error}. {allowed}") from None
    if not words:
        raise RefusedError(f"Refused: the command is empty. {allowed}")
    if words[0] not in programs:
        raise RefusedError(f"Refused: {words[0]!r:.80} is not allowed. {allowed}")
    return [programs[words[0]], *words[1:]]


def _first_of_shell(command: str) -> str | None:
    """Return the first character that a shell would interpret in a command; `None` if there is no such character."""
    quote = ""
    is_begin = True
    at = 0
    while at < len(command):
        sign = command[at]
        if quote == "'":
            quote = "" if sign == "'" else quote
        elif sign == "\\":
            at += 1
        elif quote == '"':
            if sign in "$`":
                return sign
            quote = "" if sign == '"' else quote
        elif sign in "'\"":
            quote = sign
        # `find` uses `{}`, which a shell does not expand.
        elif (
            sign in _SHELL_ONLY
            or (is_begin and sign in _AT_BEGIN)
            or (sign == "{" and not command.startswith("{}", at))
        ):
            return sign
        is_begin = not quote and sign in " \t"
        at += 1
    return None


# The actor.

_MOST_TIME = 0.8
"""Maximum share of the call's remaining time for the command; the rest is for the answer of the call."""
_LONGEST = 600.0
"""Maximum number of seconds that a model may ask for, unless the shell's own timeout is longer."""
_MOST_ENDED = 16
"""Maximum number of ended jobs that the shell keeps."""
_SPARE = 2.0
"""Seconds after a command's timeout and grace at which a worker that has not ended the command is killed."""


class Shell(Actor):
    """Actor that runs commands in a working directory.

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
        grace: seconds between SIGTERM and SIGKILL for a command that must end.
        max_output: bytes of a command's output that are kept, head and tail, and shown to a model.
        max_jobs: largest number of running jobs.
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
        grace: float = 2.0,
        max_output: int = 20_000,
        max_jobs: int = 4,
        parallel: int = 2,
    ) -> None:
        _check_system()
        _check_restriction(allow, confine, unrestricted)
        counts = [("max_output", max_output, 100), ("max_jobs", max_jobs, 0)]
        check_counts("Shell", [*counts, ("parallel", parallel, 1)])
        check_durations("Shell", timeout=timeout, grace=grace)
        self._cwd = Path(cwd).absolute()
        self._env = environment_of_commands({} if env is None else variables("Shell(env=...)", env))
        self._programs = None if allow is None else found_programs(allow, self._env)
        if confine is not None:
            check_confinement(confine, self._cwd)
        self._confine = confine
        self._timeout, self._grace = timeout, grace
        self._max_output, self._max_jobs = max_output, max_jobs
        self._parallel = parallel
        self._jobs: dict[int, Job] = {}
        self._last_number = 0

    async def start(self) -> None:
        """Start the worker processes that run the commands.

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
        """Cancel all jobs. The worker processes end after the jobs."""
        self._group.cancel_scope.cancel()

    @handler(group="commands")
    async def run(self, command: str, timeout: float | None = None) -> str:
        """Run a command in the working directory and read its exit code and its output (stdout and stderr, as written).

        It has no terminal and no input. Each command begins in the working directory anew. After `timeout` seconds it
        is ended; what takes long or has to go on is for start_job.
        """
        async with self._places:
            try:
                job = self._job(command, timeout=self._time_for(timeout))
            except RefusedError as refused:
                return str(refused)
            with closing(job.spool):
                await self._execute(job, is_job=False)
                sentence = job.state(anyio.current_time())
                if job.ending is not None and job.ending["is_late"]:
                    sentence += " What takes longer is for start_job(command), and then job(job_id)."
                return with_output(sentence, job.spool.look().text())

    def _time_for(self, timeout: float | None) -> float:
        if timeout is not None and not timeout > 0:
            raise RefusedError(f"Refused: timeout={timeout:g} is no time; give a number of seconds, or leave it out.")
        asked = self._timeout if timeout is None else min(timeout, max(_LONGEST, self._timeout))
        return max(0.1, min(asked, _MOST_TIME * remaining()))

    def _job(self, command: str, *, timeout: float | None) -> Job:
        """Check a command; return a `Job` with a file for its output, or raise RefusedError if it cannot be run."""
        self._last_number += 1
        argv = self._argv(command)
        try:
            spool = SpoolReader(self._max_output)
        except OSError as error:
            raise RefusedError(f"Refused: there is no room for the output of a command: {error}") from error
        return Job(self._last_number, command, argv, spool, anyio.current_time(), timeout)

    def _argv(self, command: str) -> list[str]:
        if "\0" in command:
            raise RefusedError("Refused: there is a NUL character in the command, which no program can be given.")
        if self._programs is not None:
            return argv_of(command, self._programs)
        if not command.strip():
            raise RefusedError("Refused: the command is empty.")
        return [*self._shell, command]

    async def _execute(self, job: Job, *, is_job: bool) -> None:
        """Run a command in a worker, and record in `job` how it ended."""
        order = Order(
            argv=job.argv,
            cwd=str(self._cwd),
            env=self._env,
            keeps=self._max_output,
            timeout=job.timeout,
            grace=self._grace,
            is_job=is_job,
        )
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
        """Remove the oldest ended jobs, so that at most `_MOST_ENDED` ended jobs are left."""
        ended = [job for job in self._jobs.values() if job.ended.is_set()]
        for job in ended[: max(0, len(ended) - _MOST_ENDED)]:
            del self._jobs[job.number]
            job.spool.close()

    def _close_spools(self) -> None:
        for job in self._jobs.values():
            job.spool.close()
        self._jobs.clear()

    async def _in_background(self, job: Job) -> None:
        with job.scope:
            await self._execute(job, is_job=True)
        self._forget_some()

    @handler(group="commands")
    async def job(self, job_id: int, wait: float = 0.0) -> str:
        """Look at a job: whether it runs, its exit code, and its output since the last look.

        With `wait`, up to so many seconds are waited for its end.
        """
        job = self._jobs.get(job_id)
        if job is not None and wait > 0:
            with anyio.move_on_after(min(wait, _LONGEST, _MOST_TIME * remaining())):
                await job.ended.wait()
        return self._shown(job_id, job)

    def _shown(self, job_id: int, job: Job | None) -> str:
        """Return a text for a model about a job and its new output; `job` is `None` if no job has this `job_id`."""
        if job is None:
            known = ", ".join(map(str, self._jobs)) or "none; start_job(command) starts one"
            return f"There is no job {job_id}. Jobs: {known}."
        output = job.spool.look().text()
        return with_output(f"Job {job_id} ({job.title}): {job.state(anyio.current_time())}", output)

    @handler(group="commands")
    async def stop_job(self, job_id: int) -> str:
        """End a job, with all that it has started, and read the rest of its output."""
        job = self._jobs.get(job_id)
        if job is not None and not job.ended.is_set():
            job.is_stopped = True
            job.scope.cancel()
            await job.ended.wait()
        return self._shown(job_id, job)

    @handler(group="commands")
    async def jobs(self) -> str:
        """List the jobs, with the state of each job."""
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
