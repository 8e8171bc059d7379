"""What the commands of this distribution have in common: how help is asked for, and on which event loops they run."""

from enum import StrEnum

import typer


class Backend(StrEnum):
    """The event loops that a command runs on."""

    asyncio = "asyncio"
    trio = "trio"


def command_app() -> typer.Typer:
    """A command, without options yet, that helps as `callboard` does."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
