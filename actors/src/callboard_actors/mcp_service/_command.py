"""The options of `callboard mcp`; they know nothing of what it does with them."""

from pathlib import Path
from typing import Annotated

import typer

from callboard_actors._command_app import Backend, command_app
from callboard_actors.mcp_service._token import TOKEN

app = command_app()


def main(args: list[str]) -> None:
    """Run the command, with what stands behind its name; `callboard mcp` is found by this."""
    app(args=args, prog_name="callboard mcp")


@app.command(no_args_is_help=True)
def mcp(
    tools: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:TOOLS",
            help="What is served: a ToolNode, an agent, a list of tools, functions, actors and MCP servers, or one of "
            "them; or a function with @asynccontextmanager that opens and yields it.",
        ),
    ],
    *,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the server, for its clients.", show_default=False)
    ] = None,
    description: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Of an agent, for the models of its clients.", show_default=False),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP, for many clients, instead of stdin and stdout.")
    ] = False,
    host: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --http: where to listen.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            metavar="N",
            help="With --http: at which port; 0 for any, which is told.",
            show_default="8000",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --http: a name by which clients come. May be repeated."),
    ] = None,
    token_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]VARIABLE",
            help="With --http: the environment variable with the token that clients have to show; or NAME=VARIABLE, "
            "repeated, for a token of each client.",
            show_default=f"{TOKEN}, if it is set",
        ),
    ] = None,
    drain: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="For calls to finish, after SIGTERM or Ctrl-C.")
    ] = 30.0,
    backend: Annotated[Backend, typer.Option(help="The event loop to run on.")] = Backend.asyncio,
    app_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the module is looked for first.")] = Path(),
) -> None:
    """Serve tools, a ToolNode or an agent to any MCP client.

    Every call is a supervised call of the node: with its timeouts, limits and middleware. What asks a person asks the
    client's user; a client that cannot ask is refused.

    Over stdio, which is what clients expect that start a server by a command, what the tools print goes to stderr.
    Over HTTP nobody but this machine is let in, unless `--host` and `--allow-host` say so.

    SIGTERM, or Ctrl-C, drains: no call begins, what runs has `--drain` seconds to finish, and is then ended. A second
    one ends it at once.

    **Examples**

    `callboard mcp trip:tools`

    `callboard mcp trip:agent --description "Plans journeys."`

    `callboard mcp trip:tools --http --host 0.0.0.0 --port 8000 --allow-host tools.example.com`

    **Exit codes**

    0: the client has left, or all that ran has finished. 1: it could not start. 2: the command line is wrong, or names
    what is not there. 3: some was ended, and may be run again. 4: of some that was ended, nobody knows what came of it.
    """
    from callboard_actors.mcp_service._process import Options, run

    options = Options(
        tools=tools,
        name=name,
        description=description,
        http=http,
        host=host,
        port=port,
        allow_host=allow_host or [],
        token_env=token_env or [],
        drain=drain,
        backend=backend.value,
        app_dir=app_dir,
    )
    raise typer.Exit(run(options))
