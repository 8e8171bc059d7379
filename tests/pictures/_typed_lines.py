"""Picture of `callboard run` at a pseudo-terminal while a person types; it needs real time."""

from pathlib import Path

from tests.cli._commands import Project
from tests.pictures._terminal import Part, screen_of

MESSAGE = "Please check the tests."
RUN = ("run", "crew:agent", "Make the release.")


def capture_typed_lines(scratch: Path) -> list[list[Part]]:
    """Run the agent in `crew.py`, write to it, list its calls, and begin to cancel the call in the background."""
    project = Project(scratch)
    try:
        with project.terminal(*RUN, "--app-dir", str(Path(__file__).parent)) as terminal:
            terminal.until("The app is being built.")
            terminal.type(MESSAGE)
            terminal.until("The app is still being built.")
            terminal.type("/cancel")
            terminal.until("build(target='app')")
            terminal.press("/cancel 1 it takes too long")
            terminal.until("> /cancel 1 it takes too long")
            return screen_of(f"$ callboard {' '.join(RUN[:2])} '{RUN[2]}'\n", terminal.raw)
    finally:
        project.close()
