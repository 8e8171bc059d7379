"""With a list of programs there is no shell, and what only a shell could do is refused, not done otherwise."""

import shutil
from pathlib import Path

import anyio
import pytest

from callboard import running
from callboard_actors.shell import Shell
from callboard_actors.shell._shell import RefusedError, argv_of

PROGRAMS = {"echo": "/bin/echo", "find": "/usr/bin/find"}
HOWTO = "Allowed: echo, find, one of them in a call, with its arguments and without a shell."

AS_THEY_ARE = {
    "echo a b": ["a", "b"],
    "echo 'a; b | $c `d` * > e'": ["a; b | $c `d` * > e"],
    'echo "a; b" c\\;d': ["a; b", "c;d"],
    "find . -exec echo {} +": [".", "-exec", "echo", "{}", "+"],
    "echo a#b x~ a=b": ["a#b", "x~", "a=b"],
    "echo 'a\nb'": ["a\nb"],
}
REFUSED = {
    "echo a; rm b": ";",
    "echo a && rm b": "&",
    "echo a | sh": "|",
    "echo $(id)": "$",
    'echo "$(id)"': "$",
    'echo "`id`"': "`",
    "echo a > b": ">",
    "echo *.py": "*",
    "echo ~/.ssh": "~",
    "echo a\nrm b": "\n",
    "echo {a,b}": "{",
    "# echo": "#",
}


@pytest.mark.parametrize("command", AS_THEY_ARE)
def test_words_reach_the_program_as_they_are(command: str) -> None:
    """Quoted, a sign stands for itself."""
    program, *arguments = argv_of(command, PROGRAMS)

    assert program == PROGRAMS[command.split(maxsplit=1)[0]]
    assert arguments == AS_THEY_ARE[command]


@pytest.mark.parametrize("command", REFUSED)
def test_what_a_shell_would_read_is_refused(command: str) -> None:
    """Passed on as it is, it would mean something else than its writer thought."""
    with pytest.raises(RefusedError) as refused:
        argv_of(command, PROGRAMS)

    assert str(refused.value) == (
        f"Refused: there is no shell here, which {REFUSED[command]!r} is for; in single quotes it stands for itself. "
        f"{HOWTO}"
    )


@pytest.mark.parametrize("command", ["rm -rf x", "/bin/echo a", "./echo", "A=1 echo", "'echo a'", ""])
def test_other_programs_are_refused_with_those_that_are_allowed(command: str) -> None:
    """A path might lead to what the model has written itself."""
    with pytest.raises(RefusedError) as refused:
        argv_of(command, PROGRAMS)

    assert str(refused.value).endswith(HOWTO)


def test_an_open_quote_is_told() -> None:
    """It is the model's slip, and easy to mend."""
    with pytest.raises(RefusedError, match="cannot be read: No closing quotation"):
        argv_of("echo 'a", PROGRAMS)


@pytest.mark.real_clock
async def test_an_allowed_program_runs_without_a_shell(tmp_path: Path) -> None:
    """And its arguments are its own."""
    assert shutil.which("echo")
    with anyio.fail_after(30):
        async with running(Shell(tmp_path, allow=["echo"])) as shell:
            said = await shell.run("echo 'a  b' '$HOME'")
            refused = await shell.run("echo a; id")
            job = await shell.start_job("id")

    assert said.splitlines()[1:] == ["a  b $HOME"]
    assert refused.startswith("Refused: there is no shell here")
    assert job.startswith("Refused: 'id' is not allowed")
