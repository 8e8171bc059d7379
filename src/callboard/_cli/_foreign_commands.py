"""Commands that other distributions bring, found by the entry points that they have in `callboard.commands`."""

from collections.abc import Callable
from importlib.metadata import entry_points

from callboard._cli._shown_text import CommandError

GROUP = "callboard.commands"


def run_foreign(name: str, distribution: str, arguments: list[str]) -> int:
    """Run a command that another distribution has; returns its exit code, unless it exits itself.

    Args:
        name: of the command, and of its entry point: a function of the arguments behind the name.
        distribution: where it is from.
        arguments: what stands behind the name.

    Raises:
        CommandError: it is not installed.
    """
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise CommandError(f"callboard {name} comes with {distribution}: pip install {distribution}")
    command: Callable[[list[str]], None] = found[0].load()
    command(arguments)
    return 0
