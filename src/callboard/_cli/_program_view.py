"""View of the calls of a whole process on stderr: a live picture on a terminal, lines elsewhere; and its web page."""

import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from callboard import ActorEvent, AskEvent, CallEvent, observe
from callboard._cli._call_counts import CallCounts
from callboard._cli._view import final_picture, line, picture, supports_pictures
from callboard._cli._web import web_page
from callboard.questions import printable
from callboard.telemetry import RecordingWriter

_NAME = "callboard: "
"""Beginning of each line that is no part of a picture, so that a reader of a log knows where it comes from."""
_PICTURES_PER_SECOND = 4
_PLAIN_WIDTH = 80
"""Width of lines and tables, in terminal cells, if stderr is no terminal."""
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds until the first line, and until the next line at most; each pause is twice as long as the one before."""
_LONGEST_TOOL = 200
"""Number of characters of a tool's name that are read: a model may ask for a tool with a name of any length."""


@contextmanager
def view_of_calls() -> Generator[Callable[[str], object]]:
    """Show the calls that begin in the `with` block on stderr; yield a function that prints a line there."""
    counts = CallCounts(())

    # Each event loop has its own clock, which may be a virtual one. The view needs one clock for all of them.
    def count_call(event: CallEvent) -> None:
        counts(event._replace(time=monotonic(), tool=event.tool[:_LONGEST_TOOL]))

    def count_actor(event: AskEvent | ActorEvent) -> None:
        counts.actors(event._replace(time=monotonic()))

    console = _open_stderr()
    view = _live_picture if supports_pictures(console) else _progress_lines
    with view(counts, console), observe(count_call, actors=count_actor, everywhere=True):
        yield lambda text: console.print(_NAME + text)


@contextmanager
def recorded_page() -> Generator[str]:
    """Serve a page with the calls of this process that begin in the `with` block; yield its address."""
    program = Path(sys.argv[0]).name if sys.argv[0] else "python"
    with web_page(printable(program), 0) as page, RecordingWriter(page.recording, everywhere=True):
        yield page.url


class _StderrConsole(Console):
    """Console for stderr, whose reader may have gone; the program goes on without the view."""

    def on_broken_pipe(self) -> None:
        """Discard all further output. The method of the base class would end the program."""
        self.quiet = True


def _open_stderr() -> Console:
    # Asked of the stream itself, and not of variables of the environment: a kernel of Jupyter sets FORCE_COLOR.
    try:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # the stream is closed
        is_terminal = False
    return _StderrConsole(
        stderr=True,
        width=None if is_terminal else _PLAIN_WIDTH,
        force_terminal=is_terminal,
        force_jupyter=False,
        soft_wrap=True,  # lines that the program prints stay as they are
        highlight=False,
        markup=False,
        emoji=False,
    )


# Picture on a terminal.


@contextmanager
def _live_picture(counts: CallCounts, console: Console) -> Generator[None]:
    """Redraw the picture of the calls until the end of the `with` block; then leave the final counts on the screen."""
    is_over = False

    def render() -> RenderableType:
        now = monotonic()
        width, height = console.size
        if is_over:
            return final_picture(counts, now, width) if counts.rows else Text(_NO_CALLS)
        return picture(counts, now, width, height) if counts.rows else Text()

    # A thread of Rich draws: the program may block its event loops, or have none. Streams that are no terminal are not
    # redirected: the terminal must not get what is meant for a file.
    live = Live(
        console=console,
        get_renderable=render,
        refresh_per_second=_PICTURES_PER_SECOND,
        redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
    )
    with live:
        try:
            yield
        finally:
            is_over = True


# Lines elsewhere.

_NO_CALLS = f"{_NAME}no calls"


@contextmanager
def _progress_lines(counts: CallCounts, console: Console) -> Generator[None]:
    """Print short lines about the calls until the end of the `with` block, and then the final counts."""
    is_over = threading.Event()
    thread = threading.Thread(
        target=_print_lines, args=(counts, console, is_over), name="callboard progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        final = final_picture(counts, monotonic(), _PLAIN_WIDTH) if counts.rows else Text(_NO_CALLS)
        _print(console, final)


def _print_lines(counts: CallCounts, console: Console, is_over: threading.Event) -> None:
    pause = _FIRST_PAUSE
    while not is_over.wait(pause):
        if counts.open:
            _print(console, _NAME + line(counts, monotonic(), _PLAIN_WIDTH - len(_NAME)))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _print(console: Console, content: RenderableType) -> None:
    with suppress(OSError, ValueError):  # the stream is closed: the calls of the program matter more
        console.print(content)
