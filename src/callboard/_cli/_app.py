"""The commands. Each loads what it does when it is run, so that `--help` is there at once."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from callboard._cli._command_options import DemoOptions, RunOptions, ShowOptions, ThreadsOptions, TraceOptions, takes

app = typer.Typer(
    name="callboard",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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


def _finish(command: Callable[[], int]) -> None:
    """Run a command, and exit with its code, or with that of what was wrong with the command line."""
    from callboard._cli._shown_text import CommandError

    try:
        code = command()
    except CommandError as error:
        typer.echo(f"Error: {error}", err=True)
        code = error.exit_code
    raise typer.Exit(code)


@app.command()
@takes(DemoOptions)
def demo(options: DemoOptions) -> None:
    """Let an agent make hundreds of tool calls at once, and watch what becomes of them.

    Starts a small HTTP service on loopback, in a process of its own: it answers within 20 to 200 ms, is slow now
    and then, fails now and then, and one of its pages hangs. An agent asks for fetches from it, for look-ups in an
    archive that only two may read at a time, and for queries of a real SQLite file, all in parallel. Every call
    has a timeout and a place in a queue; a table shows how each of them ended.

    The default model is scripted: it asks for all calls at once and then reads the answers.
    """
    from callboard._cli._demo import run_demo

    _finish(lambda: run_demo(options))


@app.command(no_args_is_help=True)
@takes(RunOptions)
def run(options: RunOptions) -> None:
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
    from callboard._cli._run_command import run_agent

    _finish(lambda: run_agent(options))


@app.command()
@takes(ThreadsOptions)
def threads(options: ThreadsOptions) -> None:
    """List the conversations of a database, the latest first.

    Also those that LangGraph's agents have written.

    **Example**

    `callboard threads --db trip.db`
    """
    from callboard._cli._threads_command import list_threads

    _finish(lambda: list_threads(options))


@app.command(no_args_is_help=True)
@takes(ShowOptions)
def show(options: ShowOptions) -> None:
    """Print a conversation: what was said, which calls were made, and what became of each.

    A call is *done*, *failed*, *waits* for a person, or is *open*: it has no result yet.

    **Examples**

    `callboard show oslo --db trip.db`

    `callboard show oslo --db trip.db --last 10`

    `callboard show oslo --db trip.db --at 1f0c6c1e-1d6b-6c3e-8000-000000000000`
    """
    from callboard._cli._threads_command import show_history, show_thread

    _finish(lambda: show_history(options) if options.history else show_thread(options))


@app.command(no_args_is_help=True)
@takes(TraceOptions)
def trace(options: TraceOptions) -> None:
    """Show what was recorded: every call with its queues, its attempts and its end.

    Recordings are made by `callboard run ... --record`, or by `callboard.telemetry.Recorder` in a program.

    A bar is a call: light where it waited in a queue, full where an attempt ran, thin in between.

    **Examples**

    `callboard trace oslo --db trip.db`

    `callboard trace calls.jsonl --failed`

    `callboard trace calls.jsonl --html calls.html`
    """
    from callboard._cli._trace_command import show_recording

    _finish(lambda: show_recording(options))


_passed_on = app.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    no_args_is_help=False,
)
"""For a command of another distribution, which has its options."""


@_passed_on
def worker(context: typer.Context) -> None:
    """Serve tools and actors to agents on other machines.

    Comes with callboard-actors; `callboard worker --help` says more.
    """
    from callboard._cli._foreign_commands import run_foreign

    _finish(lambda: run_foreign("worker", "callboard-actors", context.args))


@_passed_on
def mcp(context: typer.Context) -> None:
    """Serve tools, a ToolNode or an agent to any MCP client.

    Comes with callboard-actors; `callboard mcp --help` says more.
    """
    from callboard._cli._foreign_commands import run_foreign

    _finish(lambda: run_foreign("mcp", "callboard-actors", context.args))
