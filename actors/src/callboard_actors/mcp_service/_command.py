"""Command line of `callboard mcp`. The implementation is imported only when the command runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from callboard_actors._util._extras import check_installed
from callboard_actors.mcp_service._token import TOKEN

# The help option is that of `callboard`.
app = typer.Typer(
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(args: list[str]) -> None:
    """Run `callboard mcp` with these command-line arguments."""
    app(args=args, prog_name="callboard mcp")


@app.command(no_args_is_help=True)
def mcp(
    tools: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:TOOLS",
            help="Object to serve: a ToolNode, an agent, a list of tools, functions, actors and MCP servers, or one of "
            "them; or a function with @asynccontextmanager that opens and yields it.",
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the server, for its clients.", show_default=False)
    ] = None,
    description: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="Description of an agent, for the models of its clients.", show_default=False
        ),
    ] = None,
    http: Annotated[
        bool,
        typer.Option("--http", help="Serve many clients by streamable HTTP, instead of one over stdin and stdout."),
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --http: address to listen on.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="N",
            help="With --http: port to listen on; 0 chooses a free port and prints it.",
            show_default="8000",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="With --http: host name that clients use to reach the server. May be repeated."
        ),
    ] = None,
    token_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]VARIABLE",
            help="With --http: environment variable with the bearer token that clients must send; or NAME=VARIABLE, "
            "repeated, for one token per client.",
            show_default=f"{TOKEN}, if it is set",
        ),
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time for calls to finish after SIGTERM or Ctrl-C.")
    ] = 30.0,
    backend: Annotated[Literal["asyncio", "trio"], typer.Option(help="Event loop to run on.")] = "asyncio",
    app_dir: Annotated[Path, typer.Option(metavar="DIR", help="Directory to search first for the module.")] = Path(),
) -> None:
    """Serve tools, a ToolNode or an agent to any MCP client.

    Every call is a supervised call of the node, with its timeouts, limits and middleware. Questions to a person go to
    the client's user. If the client cannot ask its user, the call fails.

    The default transport is stdio, for clients that start the server as a command. Output of the tools then goes to
    stderr. With `--http`, only clients on this machine are admitted, unless `--host` and `--allow-host` admit others.

    SIGTERM or Ctrl-C drains the server: no new call begins, and running calls have `--drain` seconds to finish before
    they are ended. A second signal ends them at once.

    **Examples**

    `callboard mcp trip:tools`

    `callboard mcp trip:agent --description "Plans journeys."`

    `callboard mcp trip:tools --http --host 0.0.0.0 --port 8000 --allow-host tools.example.com`

    **Exit codes**

    0: the client has left, or all calls have finished. 1: the server could not start. 2: the command line is wrong, or
    names something that does not exist. 3: some calls were ended, and may be run again. 4: some calls were ended, and
    their outcome is unknown.
    """
    options = dict(locals())
    try:
        check_installed("an MCP server", "mcp", extra="mcp")
    except ImportError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
    from callboard_actors.mcp_service._serve import Options, run

    raise typer.Exit(run(Options(**options)))
