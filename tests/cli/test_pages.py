"""The documentation pages of the command match its behaviour and are complete."""

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ._commands import COMMAND, PATIENCE, Project, command_line, environment

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial" / "durable-agent.md").read_text()
REFERENCE = (DOCS / "reference" / "cli.md").read_text()

_BLOCK = re.compile(r"^```(?P<info>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^Save this as `(?P<name>\w+\.py)`[^\n]*:\s*\Z", re.MULTILINE)
# A page folds a long command after a backslash, and continues a long line of output after eight spaces.
_FOLD = re.compile(r" \\\n +|\n {8}(?=\S)")
_VARIES = [(re.compile(r"\d+\.\d\d s|\d+ ms"), "0 ms"), (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "2026-01-31 12:00")]


def steps(page: str) -> Iterator[tuple[str, str]]:
    """Return the files to save, by name, and the sessions to play, marked "console" or "text"."""
    for match in _BLOCK.finditer(page):
        file_match = _FILE.search(page[: match.start()])
        if match["info"] == "python" and file_match is not None:
            yield file_match["name"], match["code"]
        elif match["info"] != "python":
            yield match["info"], match["code"]


def commands(session: str) -> Iterator[tuple[list[str], str]]:
    """Return the typed commands and their output."""
    for part in re.split(r"^\$ ", _FOLD.sub(" ", session), flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        yield shlex.split(line), output


def play(project: Project, command: list[str]) -> str:
    argv = [*COMMAND, *command[1:]] if command[0] == "callboard" else command
    done = subprocess.run(
        argv, cwd=project.directory, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stderr == ""
    return done.stdout + ("Killed\n" if done.returncode == -signal.SIGKILL else "")


def normalize(output: str) -> str:
    """Return the output without parts that differ between runs."""
    for pattern, text in _VARIES:
        output = pattern.sub(text, output)
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


def play_at_terminal(project: Project, command: list[str], transcript: str) -> None:
    """Play a session with a prompt: check each line, and type what the page has behind the prompt."""
    with project.terminal(*command[1:]) as terminal:
        for line in filter(None, map(str.strip, transcript.splitlines())):
            prompt, asks, answer = line.partition("? ")
            if asks:
                terminal.until(prompt + asks)
                terminal.type(answer)
            else:
                terminal.until(line.partition("  2 ms")[0])
        assert terminal.end() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.exhaustive
def test_the_tutorial_happens_as_it_is_told(project: Project) -> None:
    played = 0
    for kind, content in steps(TUTORIAL):
        if kind not in ("console", "text"):
            (project.directory / kind).write_text(content)
            continue
        for command, transcript in commands(content):
            played += 1
            if kind == "text":
                play_at_terminal(project, command, transcript)
            else:
                assert normalize(play(project, command)) == normalize(transcript), shlex.join(command)

    assert played == 10


@pytest.mark.exhaustive
def test_the_finished_program_of_the_tutorial_runs_as_it_is_told(project: Project) -> None:
    """A reader copies one file, and types two commands. Calls that run at once may end in either order."""
    page = (DOCS / "tutorial" / "from-langgraph-to-production.md").read_text()
    (name, code), (_, session) = steps(page.partition("## The finished program")[2])
    (project.directory / name).write_text(code)
    for command, transcript in commands(session):
        assert sorted(normalize(play(project, command)).splitlines()) == sorted(normalize(transcript).splitlines())


def options() -> Iterator[tuple[str, str]]:
    for name, command in command_line().commands.items():
        yield name, f"## `callboard {name}"
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                if option.startswith("-") and option not in ("--help", "-h"):
                    yield name, option


@pytest.mark.parametrize(("command", "option"), list(options()))
def test_the_reference_names_every_command_and_option(command: str, option: str) -> None:
    section = next(part for part in REFERENCE.split("\n## ") if part.startswith(f"`callboard {command}"))

    assert option.removeprefix("## ") in section.partition("`")[1] + section


def test_the_reference_names_no_option_that_there_is_not() -> None:
    """A renamed option must not stay on the page."""
    known_options = {listed_option for _, listed_option in options()} | {"--help", "-h"}
    known_options |= {option for parameter in command_line().params for option in parameter.opts}

    assert set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", _BLOCK.sub("", REFERENCE))) - known_options == set()


def test_the_examples_of_the_reference_are_understood(project: Project) -> None:
    """Each example has only options of its command. The examples are parsed, not run."""
    group = command_line()
    examples = [command for _, block in steps(REFERENCE) for command, _ in commands(block)]

    assert len(examples) == 11
    for _, name, *arguments in examples:
        group.commands[name].make_context(name, arguments)


def test_every_command_has_its_options_in_its_help(project: Project) -> None:
    group = command_line()
    for name in group.commands.keys() - {"mcp"}:
        help_text = project.call(name, "--help", COLUMNS="200", TERM="dumb", NO_COLOR="1").stdout
        command_options = [option for command, option in options() if command == name and option.startswith("-")]
        assert [option for option in command_options if option not in help_text] == []
    assert re.fullmatch(r"callboard \d+\.\d+\S*\n", project.call("--version").stdout)
