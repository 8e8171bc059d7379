"""With a list of allowed programs no shell is used, and shell syntax is refused."""

import shutil
from pathlib import Path

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
    """Quoted special characters are passed literally."""
    program, *arguments = argv_of(command, PROGRAMS)

    assert program == PROGRAMS[command.split(maxsplit=1)[0]]
    assert arguments == AS_THEY_ARE[command]


@pytest.mark.parametrize("command", REFUSED)
def test_what_a_shell_would_read_is_refused(command: str) -> None:
    """Passed on literally, shell syntax would not do what the model expects."""
    with pytest.raises(RefusedError) as refused:
        argv_of(command, PROGRAMS)

    assert str(refused.value) == (
        f"Refused: there is no shell here, which {REFUSED[command]!r} is for; in single quotes it stands for itself. "
        f"{HOWTO}"
    )


@pytest.mark.parametrize("command", ["rm -rf x", "/bin/echo a", "./echo", "A=1 echo", "'echo a'", ""])
def test_other_programs_are_refused_with_those_that_are_allowed(command: str) -> None:
    """Paths are refused, too, because they may lead to a program that the model has written."""
    with pytest.raises(RefusedError) as refused:
        argv_of(command, PROGRAMS)

    assert str(refused.value).endswith(HOWTO)


def test_an_open_quote_is_told() -> None:
    """The error lets the model correct its mistake."""
    with pytest.raises(RefusedError, match="cannot be read: No closing quotation"):
        argv_of("echo 'a", PROGRAMS)


@pytest.mark.real_clock
async def test_an_allowed_program_runs_without_a_shell(tmp_path: Path) -> None:
    """The program gets exactly the arguments of the command."""
    assert shutil.which("echo")
    async with running(Shell(tmp_path, allow=["echo"])) as shell:
        said = await shell.run("echo 'a  b' '$HOME'")
        refused = await shell.run("echo a; id")
        job = await shell.start_job("id")

    assert said.splitlines()[1:] == ["a  b $HOME"]
    assert refused.startswith("Refused: there is no shell here")
    assert job.startswith("Refused: 'id' is not allowed")
