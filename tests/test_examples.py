"""Each example asserts its own claims, and is run as a user would run it."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
PUBLIC = {
    "callboard",
    "callboard.extend",
    "callboard.guards",
    "callboard.middleware",
    "callboard.telemetry",
    "callboard.testing",
    "callboard.threads",
}
PUBLIC |= {f"callboard_actors.{name}" for name in ("http", "mcp", "process", "python", "shell", "sql")}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.exhaustive
def test_an_example_runs_to_its_end(path: Path) -> None:
    """Warnings count as failures, including the warning about an abandoned thread."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


def test_there_are_examples() -> None:
    """An empty folder would pass the test above."""
    assert {path.stem for path in EXAMPLES} >= {"quickstart", "http_fan_out", "drop_in_langgraph", "trio_native"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_only(path: Path) -> None:
    """If an example needs a private name, users need it too, and it should be public."""
    imports = [
        line for line in path.read_text().splitlines() if line.startswith(("from callboard", "import callboard"))
    ]

    assert imports
    assert {line.split()[1] for line in imports} <= PUBLIC
