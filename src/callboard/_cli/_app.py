"""Commands of the command line. Each command imports its implementation when it runs, so that `--help` is fast."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from importlib.metadata import entry_points, version
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar, get_type_hints

import typer

from callboard._cli._command_options import (
    DemoOptions,
    DoctorOptions,
    InitOptions,
    RunOptions,
    ShowOptions,
    ThreadsOptions,
    TraceOptions,
)
from callboard._cli._shown_text import CommandError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

GROUP = "callboard.commands"
"""Group of the entry points by which other distributions add commands."""

app = typer.Typer(
    name="callboard",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        print(f"callboard {version('callboard')}")
        raise typer.Exit


@app.callback()
def callboard(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Tool calls of LLM agents as supervised tasks, on asyncio and trio."""


def _finish(command: Callable[[], int]) -> NoReturn:
    """Run a command, and exit with the code that the command returns; print a `CommandError` without a traceback."""
    try:
        code = command()
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        code = error.exit_code
    raise typer.Exit(code)


def takes(kind: type[T]) -> Callable[[Callable[[T], int]], Callable[..., None]]:
    """Return a decorator for a command, which gets its options in one instance of `kind` and returns its exit code."""
    # typer reads the signature of the decorated function, so the fields become its parameters.
    hints = get_type_hints(kind, include_extras=True)
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]

    def decorate(command: Callable[[T], int]) -> Callable[..., None]:
        @wraps(command)
        def run_command(**values: object) -> None:
            _finish(lambda: command(kind(**values)))

        # Python reads this attribute of any function, and typeshed does not list it.
        run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run_command.__annotations__ = hints
        return run_command

    return decorate


@app.command()
@takes(InitOptions)
def init(options: InitOptions) -> int:
    """Write a small project that runs: an agent with one tool, its test, and the next steps.

    The tool has a timeout and a limit. The agent's model is scripted, so that neither a key nor the network is needed;
    the environment variable AGENT_MODEL names a real one. Existing files are never overwritten.

    **Examples**

    `callboard init trip`

    `callboard init --name trip`

    **Exit codes**

    0: the project is written. 2: the name is wrong, the folder is not empty, or it cannot be written to.
    """
    from callboard._cli._init_command import write_project

    return write_project(options)


@app.command()
@takes(DoctorOptions)
def doctor(options: DoctorOptions) -> int:
    """Check this installation: versions, extras, confinement and event loops.

    Runs a small agent on each event loop; nothing is sent over the network.
    Each problem is shown with its remedy. The command works without any extra.

    A check is *ok*, *absent* (optional, and not installed or not supported here), *warning* or *broken*.

    **Examples**

    `callboard doctor`

    `callboard doctor --json`

    **Exit codes**

    0: all required parts work. 1: a check is *broken*. 2: the command line is wrong.
    """
    from callboard._cli._doctor import run_doctor

    return run_doctor(as_json=options.as_json)


@app.command()
@takes(DemoOptions)
def demo(options: DemoOptions) -> int:
    """Let an agent make hundreds of tool calls at once, and show how each call ends.

    Starts a small HTTP service on loopback. The service answers within 20 to 200 ms, is sometimes
    slow, sometimes fails, and one of its pages never answers. An agent makes three kinds of calls in parallel: fetches
    from the service, look-ups in an archive with at most two readers at a time, and queries of a real SQLite file.
    Every call has a timeout and a queue. A table shows how the calls ended.

    The model is scripted: it asks for all calls at once and then reads the answers.
    """
    from callboard._cli._demo import run_demo

    return run_demo(options)


@app.command(no_args_is_help=True)
@takes(RunOptions)
def run(options: RunOptions) -> int:
    """Send a message to an agent, watch its calls, answer its questions.

    Prints the model's reply while it streams, and each call when it ends. Questions of the run (approvals,
    `interrupt()`) are asked at the terminal, one after the other. Without a terminal the questions stay open, and
    the thread waits for answers.

    Ctrl-C cancels the run: its calls have time to clean up, and the thread can be resumed. A second Ctrl-C ends the
    process at once.

    **Examples**

    `callboard run trip:agent "What is it like in Oslo?"`

    `callboard run trip:agent "Book it." --db trip.db --thread oslo`

    `callboard run trip:agent --db trip.db --thread oslo --resume`

    `callboard run trip:agent "And Rome?" --db trip.db --thread oslo --yes --json`

    `callboard run trip:agent "And all of Europe?" --db trip.db --thread oslo --live`

    `callboard run trip:agent "And Asia?" --web`

    **Exit codes**

    0: the agent has answered. 1: the run failed. 2: the command line is wrong, or names something that does not
    exist. 3: questions are open. 130: stopped by Ctrl-C. 143: stopped by SIGTERM.
    """
    from callboard._cli._run_command import run_agent

    return run_agent(options)


@app.command()
@takes(ThreadsOptions)
def threads(options: ThreadsOptions) -> int:
    """List the conversations in a database, latest first.

    Conversations written by LangGraph's own agents are listed too.

    **Examples**

    `callboard threads --db trip.db`

    `callboard threads --db trip.db --check trip:agent`

    **Exit codes**

    0: done. 1: with --check, the agent would refuse an open call. 2: the command line is wrong, or names something
    that does not exist.
    """
    if options.check is None:
        from callboard._cli._threads_command import list_threads

        return list_threads(options)
    from callboard._cli._check_threads import check_threads

    return check_threads(options, options.check)


@app.command(no_args_is_help=True)
@takes(ShowOptions)
def show(options: ShowOptions) -> int:
    """Print a conversation: its messages, its calls and their results.

    The state of a call is *done*, *failed*, *waits* (for a person) or *open* (no result yet).

    **Examples**

    `callboard show oslo --db trip.db`

    `callboard show oslo --db trip.db --last 10`

    `callboard show oslo --db trip.db --at 1f0c6c1e-1d6b-6c3e-8000-000000000000`
    """
    from callboard._cli._threads_command import show_history, show_thread

    return show_history(options) if options.history else show_thread(options)


@app.command(no_args_is_help=True)
@takes(TraceOptions)
def trace(options: TraceOptions) -> int:
    """Show a recording: every call with its waits in queues, its attempts and its outcome.

    Make recordings with `callboard run ... --record`, or with `callboard.telemetry.RecordingWriter` in a program.

    Each bar is a call: light while it waited in a queue, full while an attempt ran, thin in between.

    **Examples**

    `callboard trace oslo --db trip.db`

    `callboard trace calls.jsonl --failed`

    `callboard trace calls.jsonl --html calls.html`
    """
    from callboard._cli._trace_command import show_recording

    return show_recording(options)


_passed_on = app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    no_args_is_help=False,
)
"""Decorator of a command that another distribution implements, and that parses all arguments itself, even `--help`."""


@_passed_on
def mcp(context: typer.Context) -> None:
    """Serve tools, a ToolNode or an agent to any MCP client.

    Needs the distribution callboard-actors. `callboard mcp --help` lists its options.
    """

    def run_command() -> int:
        # A function from the command-line arguments; it may also raise SystemExit.
        entries = list(entry_points(group=GROUP, name="mcp"))
        if not entries:
            raise CommandError(
                "callboard mcp comes with callboard-actors: install it as callboard, see docs/how-to/install.md"
            )
        command: Callable[[list[str]], None] = entries[0].load()
        command(context.args)
        return 0

    _finish(run_command)
