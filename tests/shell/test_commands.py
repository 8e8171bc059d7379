"""Commands run in the given directory; the model reads their exit code and output."""

import math
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from callboard import ActorStartError, CallPolicy, ToolNode, running
from callboard.testing import tool_call
from callboard_actors.python import Python
from callboard_actors.shell import Shell

pytestmark = pytest.mark.real_clock

WAIT = 30


async def told(folder: Path, *commands: str, timeout: float | None = None, **options: object) -> list[str]:
    options = options or {"unrestricted": True}
    with anyio.fail_after(WAIT):
        async with running(Shell(folder, **options)) as shell:
            return [await shell.run(command, timeout) for command in commands]


@pytest.mark.backends("asyncio", "trio")
async def test_a_model_reads_the_exit_code_and_what_was_written_in_its_order(tmp_path: Path) -> None:
    """stdout and stderr share one pipe, because separate pipes would lose the order of lines."""
    (said,) = await told(tmp_path, "pwd; echo one >&2; echo two; exit 3")

    first, *rest = said.splitlines()
    assert first.startswith("Exit code 3 after ")
    assert rest == [str(tmp_path), "one", "two"]


async def test_a_command_has_no_input_no_terminal_and_no_pager(tmp_path: Path) -> None:
    """A command that would wait for a user ends at once."""
    said = await told(tmp_path, "cat; read x; echo $?", "tty; test -t 1; echo $?", "echo $PAGER $GIT_TERMINAL_PROMPT")

    assert said[0].splitlines()[1:] == ["1"]
    assert said[1].splitlines()[1:] == ["not a tty", "1"]
    assert said[2].splitlines()[1:] == ["cat 0"]


async def test_keys_in_the_environment_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only variables that are named in the options are passed on."""
    monkeypatch.setenv("SOME_API_KEY", "secret")
    said = await told(tmp_path, "env", unrestricted=True, env={"COLOUR": "red"})

    assert "secret" not in said[0]
    assert "COLOUR=red" in said[0]


@pytest.mark.backends("asyncio", "trio")
async def test_what_outlives_its_timeout_is_ended_and_its_output_told(tmp_path: Path) -> None:
    """The output so far and a suggestion help the model to continue."""
    said = await told(tmp_path, "echo begun; sleep 600", timeout=0.2999512)

    assert said[0].startswith("Ended by its timeout of 0.3 s. What takes longer is for start_job(command)")
    assert said[0].endswith("\nbegun\n")


async def test_long_output_has_its_head_and_its_tail(tmp_path: Path) -> None:
    """The text says how much was left out in the middle."""
    (said,) = await told(tmp_path, "seq 100000", unrestricted=True, max_output=1000)

    lines = said.splitlines()
    assert lines[1:4] == ["1", "2", "3"]
    assert lines[-1] == "100000"
    assert "[... 587,895 bytes left out ...]" in lines
    assert len(said) < 1200


async def test_commands_run_side_by_side_and_a_cancelled_one_disturbs_no_other(tmp_path: Path) -> None:
    """Each command has its own worker process."""
    async with running(Shell(tmp_path, unrestricted=True, grace=0.2)) as shell:
        said: list[str] = []

        async def other() -> None:
            said.append(await shell.run("until test -e go; do sleep 0.02; done; echo went"))

        async with anyio.create_task_group() as group:
            group.start_soon(other)
            with anyio.move_on_after(0.3):
                await shell.run("sleep 600")
            (tmp_path / "go").touch()

    assert said[0].splitlines()[1:] == ["went"]


async def test_in_a_node_its_handlers_are_tools(tmp_path: Path) -> None:
    """The handlers become tools; a command ends before the call's timeout, so that its output can be reported."""
    node = ToolNode([Shell(tmp_path, unrestricted=True)], policies={"run": CallPolicy(timeout=2.0)})
    async with node:
        found = await node.ainvoke([tool_call("run", "1", command="echo begun; sleep 600")])
    (message,) = found["messages"]

    assert message.content.startswith("Ended by its timeout of 1.")
    assert message.content.endswith("begun\n")


def test_a_shell_is_refused_where_it_could_not_find_what_a_command_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell on another system than Linux would fail with each command, by a missing attribute of `os`."""
    monkeypatch.setattr(sys, "platform", "darwin")

    with pytest.raises(NotImplementedError, match=r"Shell needs Linux.*this is darwin; run the program in a Linux"):
        Shell(tmp_path, unrestricted=True)


def test_a_shell_that_says_nothing_of_what_it_may_is_refused(tmp_path: Path) -> None:
    """A missing option must not mean permission for everything."""
    with pytest.raises(ValueError, match=r"allow=.*confine=.*unrestricted=True"):
        Shell(tmp_path)
    with pytest.raises(ValueError, match="contradict"):
        Shell(tmp_path, allow=["ls"], unrestricted=True)
    with pytest.raises(ValueError, match="no such program"):
        Shell(tmp_path, allow=["no-such-program"])
    with pytest.raises(TypeError, match="one string"):
        Shell(tmp_path, allow="ls")


def test_variables_that_no_command_can_have_are_refused_when_they_are_named(tmp_path: Path) -> None:
    """The error comes when the shell is made, and hides values, which may be keys."""
    with pytest.raises(TypeError, match=r"Shell\(env=\.\.\.\) has 'PORT' with a value of type int, and both"):
        Shell(tmp_path, unrestricted=True, env={"PORT": 8000})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"Shell\(env=\.\.\.\) has 'KEY'") as refused:
        Shell(tmp_path, unrestricted=True, env={"KEY": "secret\0"})
    assert "secret" not in str(refused.value)


async def test_a_directory_that_is_not_there_is_an_error_at_the_start(tmp_path: Path) -> None:
    """The error is permanent, so the actor is not restarted."""
    with pytest.raises(ActorStartError, match="no such directory"):
        await told(tmp_path / "missing", "ls")


def _shell(**options: Any) -> Shell:
    return Shell(Path(), unrestricted=True, **options)


@pytest.mark.parametrize("make", [_shell, Python])
@pytest.mark.parametrize(
    ("option", "values", "error", "says"),
    [
        ("grace", [0, -1.5, math.inf, math.nan], ValueError, "is a number of seconds"),
        ("timeout", ["60", None, (1,)], TypeError, "is a number of seconds"),
        ("max_output", [99, 1000.5, "1000", None], ValueError, "is a whole number, at least 100"),
    ],
)
def test_numbers_that_cannot_be_meant_are_refused_by_name(
    make: Any, option: str, values: list[object], error: type[Exception], says: str
) -> None:
    """An infinite timeout would never end, and a limit of too few characters would leave a model nothing to read."""
    for value in values:
        with pytest.raises(error, match=rf"(Shell|Python)\({option}=.*\) {says}"):
            make(**{option: value})
