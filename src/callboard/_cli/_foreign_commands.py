"""Commands of other distributions, found by entry points of the group `callboard.commands`."""

from collections.abc import Callable
from importlib.metadata import entry_points

from callboard._cli._shown_text import CommandError

GROUP = "callboard.commands"


def run_foreign(name: str, distribution: str, arguments: list[str]) -> int:
    """Run a command of another distribution and return its exit code; raise `CommandError` if it is not installed."""
    # The entry point of the same name is a function from the command-line arguments; it may also raise SystemExit.
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise CommandError(f"callboard {name} comes with {distribution}: pip install {distribution}")
    command: Callable[[list[str]], None] = found[0].load()
    command(arguments)
    return 0
