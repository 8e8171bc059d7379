"""Common parts of this distribution's commands: the help option, and the choice of the event loop."""

from enum import StrEnum

import typer


class Backend(StrEnum):
    """Event loop that a command runs on."""

    asyncio = "asyncio"
    trio = "trio"


def command_app() -> typer.Typer:
    """Return a Typer application without commands, with the same help option as `callboard`."""
    return typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
