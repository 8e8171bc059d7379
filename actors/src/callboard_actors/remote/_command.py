"""Command-line options of `callboard worker`. Loads the server only when the command runs."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from callboard_actors._util._command_app import Backend, command_app
from callboard_actors._util._secret import VARIABLE

app = command_app()


def main(args: list[str]) -> None:
    """Run `callboard worker` with these arguments; the `callboard` command finds this function by its name."""
    app(args=args, prog_name="callboard worker")


@app.command(no_args_is_help=True)
def worker(
    tools: Annotated[
        str,
        typer.Argument(
            metavar="MODULE[:TOOLS]",
            help="What is served: a list of tools, functions and actors, one of them, a ToolNode, or all of a module. "
            "Nothing else may be asked for.",
        ),
    ],
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 for any, which is printed.")
    ] = "127.0.0.1:7000",
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Worker processes, and so calls at once.")] = 2,
    seats: Annotated[int, typer.Option(min=0, metavar="N", help="Actors that may live here, each in a process.")] = 64,
    secret_file: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="A file with the secret that agents have, too.", show_default=f"${VARIABLE}"),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(dir_okay=False, exists=True, help="The certificate to show, with its chain, as PEM.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(dir_okay=False, exists=True, help="Its key, if that is in another file.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen for other machines without TLS: for networks of one's own.")
    ] = False,
    confine: Annotated[
        bool, typer.Option("--confine", help="Confine what runs, as Processes(confine=Confine(...)) does.")
    ] = False,
    read: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="With --confine: what may be read. May be repeated.")
    ] = None,
    write: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="With --confine: what may be written. May be repeated.")
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="With --confine: the network may be used.")] = False,
    memory: Annotated[
        int | None, typer.Option(min=1, metavar="MB", help="Address space of each worker process.")
    ] = None,
    grace: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="For what is cancelled to end.")] = 5.0,
    drain: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="For what runs to finish, after SIGTERM or Ctrl-C.")
    ] = 30.0,
    handshake_timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="For who connects to prove that it has the secret.")
    ] = 10.0,
    backend: Annotated[Backend, typer.Option(help="The event loop to run on.")] = Backend.asyncio,
    app_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the module is looked for first.")] = Path(),
) -> None:
    """Serve tools and actors to agents on other machines, which call them by a `RemoteEngine`.

    Whoever has the secret may run code here, as this user. The secret comes from a file or from the environment, never
    from the command line. Other machines have to connect by TLS, unless `--insecure` is given.

    SIGTERM, or Ctrl-C, starts a drain: no new call begins, and running calls have `--drain` seconds to finish before
    they are ended. A second signal ends them at once.

    **Examples**

    `callboard worker trip:tools --listen 0.0.0.0:7000 --tls-cert worker.pem --secret-file secret`

    `callboard worker parsers --confine --read data --workers 8`

    **Exit codes**

    0: all running calls have finished. 1: it could not start. 2: the command line is wrong, or names something that
    does not exist. 3: some calls were ended, and may be run again. 4: some calls were ended, and their outcome is
    unknown; stderr names these calls.
    """
    given = dict(locals(), backend=backend.value)
    try:
        import_module("callboard_actors.process")  # raises on systems without worker processes
    except ImportError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(1) from None
    from callboard_actors.remote._server import Options, run

    raise typer.Exit(run(Options(**given)))
