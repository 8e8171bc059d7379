"""Completion in shells: typer's options are switched on, and commands and options are completed."""

import subprocess
import sys

import pytest

from ._commands import PATIENCE, Project, environment

SCRIPT = "import sys; sys.argv[0] = 'callboard'; from callboard._cli import main; main()"


@pytest.mark.real_clock
@pytest.mark.parametrize(
    ("words", "completed"),
    [("callboard d", {"demo", "doctor"}), ("callboard init --n", {"--name"}), ("callboard run --backend t", {"trio"})],
)
def test_words_are_completed(words: str, completed: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment()
        | {"_CALLBOARD_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert (set(done.stdout.split()), done.stderr) == (completed, "")


def test_the_help_names_the_options(project: Project) -> None:
    output = project.call("--help").stdout

    assert "--install-completion" in output
    assert "--show-completion" in output
