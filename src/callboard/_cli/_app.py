"""The commands and their options. They know nothing of what a demo does."""

from enum import StrEnum
from importlib.metadata import version
from typing import Annotated

import typer

app = typer.Typer(
    name="callboard",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Backend(StrEnum):
    """The event loops that callboard runs on."""

    asyncio = "asyncio"
    trio = "trio"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"callboard {version('callboard')}")
        raise typer.Exit


@app.callback()
def callboard(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Tool calls of LLM agents as supervised tasks, on asyncio and trio."""


@app.command()
def demo(
    *,
    backend: Annotated[Backend, typer.Option(help="The event loop to run on.")] = Backend.asyncio,
    calls: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many fetches to ask for. Queries (a fifth as many) and up to 12 archive look-ups come on top.",
            show_default="300, or 20 with a real model",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PROVIDER:NAME",
            help="Ask a real model, such as openai:gpt-5-mini. Needs callboard[langchain], the provider's package and "
            "its API key, and costs what the provider charges.",
            show_default="a script",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the calls, and which of them are slow, fail or hang.")] = 0,
) -> None:
    """Let an agent make hundreds of tool calls at once, and watch what becomes of them.

    Starts a small HTTP service on loopback, in a process of its own: it answers within 20 to 200 ms, is slow now
    and then, fails now and then, and one of its pages hangs. An agent asks for fetches from it, for look-ups in an
    archive that only two may read at a time, and for queries of a real SQLite file, all in parallel. Every call
    has a timeout and a place in a queue; a table shows how each of them ended.

    The default model is scripted: it asks for all calls at once and then reads the answers.
    """
    from callboard._cli._demo import run_demo
    from callboard._cli._work import ModelError

    try:
        code = run_demo(backend=backend.value, fetches=calls, model_name=model, seed=seed)
    except ModelError as error:
        typer.echo(f"Error: {error}", err=True)
        code = 1
    raise typer.Exit(code)
