"""The commands and their options. They know nothing of what a demo does."""

from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
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


Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Show what goes on while calls run: numbers for each tool, the queue, the slowest calls. Without a "
        "terminal, a line a second.",
    ),
]


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
    live: Live = False,
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Add a recording of the calls to this file."),
    ] = None,
) -> None:
    """Let an agent make hundreds of tool calls at once, and watch what becomes of them.

    Starts a small HTTP service on loopback, in a process of its own: it answers within 20 to 200 ms, is slow now
    and then, fails now and then, and one of its pages hangs. An agent asks for fetches from it, for look-ups in an
    archive that only two may read at a time, and for queries of a real SQLite file, all in parallel. Every call
    has a timeout and a place in a queue; a table shows how each of them ended.

    The default model is scripted: it asks for all calls at once and then reads the answers.
    """
    from callboard._cli._demo import run_demo
    from callboard._cli._shown_text import CommandError
    from callboard._cli._work import ModelError

    try:
        code = run_demo(backend=backend.value, fetches=calls, model_name=model, seed=seed, live=live, record=record)
    except (CommandError, ModelError) as error:
        typer.echo(f"Error: {error}", err=True)
        code = 1 if isinstance(error, ModelError) else 2
    raise typer.Exit(code)


Database = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="CALLBOARD_DB",
        metavar="PATH|URL",
        help="The database: the path of a SQLite file, or a URL such as postgresql://user@host/name.",
    ),
]


@app.command(no_args_is_help=True)
def run(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:AGENT",
            help="The agent, or a function without parameters, sync or async, that returns one. A compiled graph of "
            "LangGraph's will do too.",
        ),
    ],
    message: Annotated[str | None, typer.Argument(metavar="[MESSAGE]", help="What to say to it.")] = None,
    *,
    thread: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The conversation to go on with, or to begin.", show_default="a new one"),
    ] = None,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            envvar="CALLBOARD_DB",
            metavar="PATH|URL",
            help="Where conversations are kept: the path of a SQLite file, which is made if it is not there, or a URL "
            "such as postgresql://user@host/name.",
            show_default="the agent's own checkpointer; without one, nothing is kept",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on where the thread has stopped, instead of sending a message."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Accept whatever waits for approval, without asking; calls of unknown outcome, too, which then run "
            "again. Other questions stay open, or are asked.",
        ),
    ] = False,
    app_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the module is looked for first.")] = Path(),
    backend: Annotated[Backend, typer.Option(help="The event loop to run on.")] = Backend.asyncio,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the final state on stdout as JSON, and everything else on stderr."),
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="If the run fails, print where, not only why.")
    ] = False,
    live: Live = False,
    record: Annotated[
        bool | None,
        typer.Option(
            "--record/--no-record",
            help="Keep a recording of the calls: which there were, when, and how each ended.",
            show_default="where --db is a file, in PATH.calls beside it",
        ),
    ] = None,
    record_to: Annotated[
        Path | None,
        typer.Option(
            envvar="CALLBOARD_RECORDS",
            metavar="DIR",
            file_okay=False,
            help="The folder for recordings, with a file for each thread.",
        ),
    ] = None,
    capture: Annotated[
        bool,
        typer.Option(
            "--capture", help="Record the arguments and results of calls, too; secrets that Redact finds are left out."
        ),
    ] = False,
) -> None:
    """Send a message to an agent, watch its calls, answer its questions.

    What the model says is shown as it comes; each call, as it ends. Questions of the run (approvals, `interrupt()`)
    are asked at the terminal, one after the other. Without a terminal they stay open, and the thread waits.

    Ctrl-C cancels the run: its calls have time to clean up, and the thread can go on. A second Ctrl-C ends the process.

    **Examples**

    `callboard run trip:agent "What is it like in Oslo?"`

    `callboard run trip:agent "Book it." --db trip.db --thread oslo`

    `callboard run trip:agent --db trip.db --thread oslo --resume`

    `callboard run trip:agent "And Rome?" --db trip.db --thread oslo --yes --json`

    `callboard run trip:agent "And all of Europe?" --db trip.db --thread oslo --live`

    **Exit codes**

    0: the agent has answered. 1: the run failed. 2: the command line is wrong, or names what is not there.
    3: questions are open. 130: stopped by Ctrl-C; 143: by SIGTERM.
    """
    from callboard._cli._recording import Recording
    from callboard._cli._run_command import Wanted
    from callboard._cli._run_command import run as run_agent
    from callboard._cli._shown_text import CommandError

    wanted = Wanted(
        agent=agent,
        message=message,
        thread=thread,
        db=db,
        resume=resume,
        yes=yes,
        app_dir=app_dir,
        backend=backend.value,
        as_json=as_json,
        traceback=traceback,
        live=live,
        recording=Recording(wanted=record, folder=record_to, capture=capture),
    )
    try:
        code = run_agent(wanted)
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        code = 2
    raise typer.Exit(code)


@app.command()
def threads(*, db: Database) -> None:
    """List the conversations of a database, the latest first.

    Also those that LangGraph's agents have written.

    **Example**

    `callboard threads --db trip.db`
    """
    from callboard._cli._shown_text import CommandError
    from callboard._cli._threads_command import list_threads

    try:
        list_threads(db)
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None


@app.command(no_args_is_help=True)
def show(
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The name of the conversation.")],
    *,
    db: Database,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT", help="As it stood once; --history lists the checkpoints.", show_default="now"
        ),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the last N messages.", show_default="all")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Calls and results in full, not one line each.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="List the checkpoints, the latest first, instead of the messages.")
    ] = False,
) -> None:
    """Print a conversation: what was said, which calls were made, and what became of each.

    A call is *done*, *failed*, *waits* for a person, or is *open*: it has no result yet.

    **Examples**

    `callboard show oslo --db trip.db`

    `callboard show oslo --db trip.db --last 10`

    `callboard show oslo --db trip.db --at 1f0c6c1e-1d6b-6c3e-8000-000000000000`
    """
    from callboard._cli._shown_text import CommandError
    from callboard._cli._threads_command import show_history, show_thread

    try:
        if history:
            show_history(db, thread, last=last)
        else:
            show_thread(db, thread, at=at, last=last, full=full)
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None


@app.command(no_args_is_help=True)
def trace(
    recording: Annotated[
        str, typer.Argument(metavar="FILE|THREAD", help="A recording, or the name of the conversation it is of.")
    ],
    *,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            envvar="CALLBOARD_DB",
            metavar="PATH",
            help="The database of the conversation; its recordings are in PATH.calls/.",
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(envvar="CALLBOARD_RECORDS", metavar="DIR", help="Where recordings are, if they are not there."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write a page for a browser. It needs nothing else, and no net.")
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Write trace events, for ui.perfetto.dev or chrome://tracing.")
    ] = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Only the calls of one tool.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only the calls that failed.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Every call, not only those that failed or took longest.")
    ] = False,
    slowest: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The N slowest calls, side by side, and nothing between.")
    ] = None,
) -> None:
    """Show what was recorded: every call with its queues, its attempts and its end.

    Recordings are made by `callboard run ... --record`, or by `callboard.telemetry.Recorder` in a program.

    A bar is a call: light where it waited in a queue, full where an attempt ran, thin in between.

    **Examples**

    `callboard trace oslo --db trip.db`

    `callboard trace calls.jsonl --failed`

    `callboard trace calls.jsonl --html calls.html`
    """
    from callboard._cli._shown_text import CommandError
    from callboard._cli._trace_command import Wanted
    from callboard._cli._trace_command import trace as show_recording

    wanted = Wanted(
        recording=recording,
        db=db,
        records=records,
        html=html,
        perfetto=perfetto,
        tool=tool,
        failed=failed,
        everything=everything,
        slowest=slowest,
    )
    try:
        show_recording(wanted)
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(2) from None
