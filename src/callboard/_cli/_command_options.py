"""Options of each command, as dataclasses with typer annotations; the implementations are not imported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Show progress while calls run: numbers for each tool, the queue, the slowest calls. Without a terminal, "
        "print one line per second.",
    ),
]
Backend = Annotated[Literal["asyncio", "trio"], typer.Option(help="Event loop to run on.")]


def _database(help: str, metavar: str = "PATH|URL", **settings: Any) -> Any:
    return typer.Option("--db", envvar="CALLBOARD_DB", metavar=metavar, help=help, **settings)


Database = Annotated[
    str, _database("Database: the path of a SQLite file, or a URL such as postgresql://user@host/name.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Options of `callboard demo`."""

    backend: Backend = "asyncio"
    calls: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of fetches. Queries (a fifth as many) and up to 12 archive look-ups are added.",
            show_default="300",
        ),
    ] = None
    live: Live = False
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", dir_okay=False, help="Append a recording of the calls to this file.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Arguments and options of `callboard run`."""

    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:AGENT",
            help="Agent, or a function without parameters, sync or async, that returns an agent or an async context "
            "manager of one. A compiled graph of LangGraph works too.",
        ),
    ]
    message: Annotated[str | None, typer.Argument(metavar="[MESSAGE]", help="Message for the agent.")] = None
    thread: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the conversation to continue or to begin.", show_default="a new one"
        ),
    ] = None
    db: Annotated[
        str | None,
        _database(
            "Database for conversations: the path of a SQLite file, which is created if missing, or a URL such as "
            "postgresql://user@host/name.",
            show_default="the agent's own checkpointer; without one, nothing is stored",
        ),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue where the thread stopped, instead of sending a message.")
    ] = False
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Accept every approval without asking. This includes calls of unknown outcome, which then run again. "
            "Other questions are asked at the terminal, or stay open.",
        ),
    ] = False
    app_dir: Annotated[Path, typer.Option(metavar="DIR", help="Directory to search first for the module.")] = Path()
    backend: Backend = "asyncio"
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the final state as JSON on stdout, and everything else on stderr.")
    ] = False
    live: Live = False
    web: Annotated[
        bool,
        typer.Option(
            "--web",
            help="Show the calls live on a page for a browser, on loopback. Its printed address contains a token.",
        ),
    ] = False
    web_port: Annotated[
        int | None, typer.Option(min=0, max=65535, metavar="N", help="Port of the page.", show_default="a free port")
    ] = None
    wait: Annotated[
        bool | None,
        typer.Option(
            "--wait/--no-wait",
            help="Keep the page after the run, until Ctrl-C.",
            show_default="--wait at a terminal, --no-wait otherwise",
        ),
    ] = None
    record: Annotated[
        bool | None,
        typer.Option(
            "--record/--no-record",
            help="Record the calls: their times and outcomes.",
            show_default="on if --db is a file; written to PATH.calls beside it",
        ),
    ] = None
    record_to: Annotated[
        Path | None,
        typer.Option(
            envvar="CALLBOARD_RECORDS",
            metavar="DIR",
            file_okay=False,
            help="Directory for recordings, with one file per thread.",
        ),
    ] = None
    capture: Annotated[
        bool,
        typer.Option(
            "--capture", help="Also record the arguments and results of calls, without the secrets that Redact finds."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsOptions:
    """Options of `callboard threads`."""

    db: Database
    check: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:AGENT",
            help="List the open calls that the tools of this agent would refuse, instead of the conversations.",
        ),
    ] = None
    app_dir: Annotated[Path, typer.Option(metavar="DIR", help="Directory to search first for the module.")] = Path()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """Arguments and options of `callboard show`."""

    thread: Annotated[str, typer.Argument(metavar="THREAD", help="Name of the conversation.")]
    db: Database
    at: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT", help="Show the state at this checkpoint; --history lists them.", show_default="now"
        ),
    ] = None
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Print only the last N messages.", show_default="all")
    ] = None
    full: Annotated[bool, typer.Option("--full", help="Print calls and results in full, instead of one line each.")] = (
        False
    )
    history: Annotated[
        bool, typer.Option("--history", help="List the checkpoints, latest first, instead of the messages.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Arguments and options of `callboard trace`."""

    recording: Annotated[
        str, typer.Argument(metavar="FILE|THREAD", help="Recording file, or the name of a recorded conversation.")
    ]
    db: Annotated[
        str | None, _database("Database of the conversation; its recordings are in PATH.calls/.", metavar="PATH")
    ] = None
    records: Annotated[
        Path | None,
        typer.Option(
            envvar="CALLBOARD_RECORDS", metavar="DIR", help="Directory of recordings, if it is not PATH.calls/."
        ),
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(metavar="PAGE", help="Write a self-contained HTML page. It loads nothing from the network."),
    ] = None
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Show only the calls of one tool.")] = None
    failed: Annotated[bool, typer.Option("--failed", help="Show only the calls that failed.")] = False
    everything: Annotated[
        bool, typer.Option("--all", help="Show every call, not only the failed and the slowest ones.")
    ] = False
    slowest: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Show only the N calls that took longest without their waits in queues, on a common time scale.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorOptions:
    """Options of `callboard doctor`."""

    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InitOptions:
    """Arguments and options of `callboard init`."""

    directory: Annotated[
        Path, typer.Argument(metavar="[DIRECTORY]", help="Empty or new folder for the project.", show_default=False)
    ] = Path()
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Name of the project and its module.", show_default="name of the folder"),
    ] = None
