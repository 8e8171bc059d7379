"""The options of each command, as records; they know nothing of what a command does with them."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, TypeVar, get_type_hints

import typer

T = TypeVar("T")


class Backend(StrEnum):
    """The event loops that callboard runs on."""

    asyncio = "asyncio"
    trio = "trio"


Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Show what goes on while calls run: numbers for each tool, the queue, the slowest calls. Without a "
        "terminal, a line a second.",
    ),
]
OnBackend = Annotated[Backend, typer.Option(help="The event loop to run on.")]
Database = Annotated[
    str,
    typer.Option(
        "--db",
        envvar="CALLBOARD_DB",
        metavar="PATH|URL",
        help="The database: the path of a SQLite file, or a URL such as postgresql://user@host/name.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of `callboard demo`."""

    backend: OnBackend = Backend.asyncio
    calls: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="How many fetches to ask for. Queries (a fifth as many) and up to 12 archive look-ups come on top.",
            show_default="300, or 20 with a real model",
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="PROVIDER:NAME",
            help="Ask a real model, such as openai:gpt-5-mini. Needs callboard[langchain], the provider's package and "
            "its API key, and costs what the provider charges.",
            show_default="a script",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Decides the calls, and which of them are slow, fail or hang.")] = 0
    live: Live = False
    record: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, help="Add a recording of the calls to this file."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The arguments and options of `callboard run`."""

    agent: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:AGENT",
            help="The agent, or a function without parameters, sync or async, that returns one or opens one. A "
            "compiled graph of LangGraph's will do too.",
        ),
    ]
    message: Annotated[str | None, typer.Argument(metavar="[MESSAGE]", help="What to say to it.")] = None
    thread: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The conversation to go on with, or to begin.", show_default="a new one"),
    ] = None
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
    ] = None
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on where the thread has stopped, instead of sending a message."),
    ] = False
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Accept whatever waits for approval, without asking; calls of unknown outcome, too, which then run "
            "again. Other questions stay open, or are asked.",
        ),
    ] = False
    app_dir: Annotated[Path, typer.Option(metavar="DIR", help="Where the module is looked for first.")] = Path()
    backend: OnBackend = Backend.asyncio
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the final state on stdout as JSON, and everything else on stderr."),
    ] = False
    traceback: Annotated[bool, typer.Option("--traceback", help="If the run fails, print where, not only why.")] = False
    live: Live = False
    record: Annotated[
        bool | None,
        typer.Option(
            "--record/--no-record",
            help="Keep a recording of the calls: which there were, when, and how each ended.",
            show_default="where --db is a file, in PATH.calls beside it",
        ),
    ] = None
    record_to: Annotated[
        Path | None,
        typer.Option(
            envvar="CALLBOARD_RECORDS",
            metavar="DIR",
            file_okay=False,
            help="The folder for recordings, with a file for each thread.",
        ),
    ] = None
    capture: Annotated[
        bool,
        typer.Option(
            "--capture", help="Record the arguments and results of calls, too; secrets that Redact finds are left out."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadsOptions:
    """The options of `callboard threads`."""

    db: Database


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """The arguments and options of `callboard show`."""

    thread: Annotated[str, typer.Argument(metavar="THREAD", help="The name of the conversation.")]
    db: Database
    at: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT", help="As it stood once; --history lists the checkpoints.", show_default="now"
        ),
    ] = None
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the last N messages.", show_default="all")
    ] = None
    full: Annotated[bool, typer.Option("--full", help="Calls and results in full, not one line each.")] = False
    history: Annotated[
        bool, typer.Option("--history", help="List the checkpoints, the latest first, instead of the messages.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """The arguments and options of `callboard trace`."""

    recording: Annotated[
        str, typer.Argument(metavar="FILE|THREAD", help="A recording, or the name of the conversation it is of.")
    ]
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            envvar="CALLBOARD_DB",
            metavar="PATH",
            help="The database of the conversation; its recordings are in PATH.calls/.",
        ),
    ] = None
    records: Annotated[
        Path | None,
        typer.Option(envvar="CALLBOARD_RECORDS", metavar="DIR", help="Where recordings are, if they are not there."),
    ] = None
    html: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Write a page for a browser. It needs nothing else, and no net.")
    ] = None
    perfetto: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Write trace events, for ui.perfetto.dev or chrome://tracing.")
    ] = None
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Only the calls of one tool.")] = None
    failed: Annotated[bool, typer.Option("--failed", help="Only the calls that failed.")] = False
    everything: Annotated[
        bool, typer.Option("--all", help="Every call, not only those that failed or took longest.")
    ] = False
    slowest: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The N slowest calls, side by side, and nothing between.")
    ] = None


def takes(kind: type[T]) -> Callable[[Callable[[T], None]], Callable[..., None]]:
    """Let a command take its options as one record.

    Args:
        kind: a dataclass; each field is an argument or an option, as its annotation says.
    """
    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)  # type: ignore[arg-type]
    ]

    def decorate(command: Callable[[T], None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: object) -> None:
            command(kind(**given))

        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = hints
        return called

    return decorate
