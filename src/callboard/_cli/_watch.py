"""`watch`: shows the calls of a program while it runs."""

import threading
import warnings
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType

from callboard.exceptions import CallboardWarning
from callboard.extend import install_command

_is_watched = threading.Lock()
"""Held while the calls of this process are shown: two live views would overwrite each other on the terminal."""


def watch(*, web: bool = False) -> AbstractContextManager[None]:
    """Show the tool calls of this process that begin in the `with` block, in all of its threads and event loops.

    A terminal at stderr shows a live view, and the final counts stay on the screen after the block. Text that the
    program prints meanwhile goes above the view. Without a terminal, as in a log file or a notebook, short lines tell
    the progress, the first after a second, the later ones at growing intervals of at most a minute.

    Needs the extra `cli`.

    Args:
        web: also serve a page with the calls as bars over time, on this machine only, and print its address. The page
            ends with the block.

    Raises:
        RuntimeError: if a block of `watch` is active in this process already.
        ImportError: if the extra `cli` is not installed.
        TypeError: if `web` is no bool.
        OSError: if the page cannot be served.
    """
    if not isinstance(web, bool):
        raise TypeError(f"watch(web=...) is True or False; got {web!r}")
    return _Watch(web)


class _Watch(AbstractContextManager[None]):
    """Block of `watch`; a warning says that it shows nothing if the program does not enter it."""

    def __init__(self, web: bool) -> None:
        self._view = _show_calls(web)
        self._is_entered = False

    def __enter__(self) -> None:
        self._is_entered = True
        self._view.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return self._view.__exit__(kind, error, traceback)

    def __del__(self) -> None:
        if not self._is_entered:
            message = "watch() shows nothing outside of its block: write `with callboard.watch():`"
            warnings.warn(message, CallboardWarning, stacklevel=2)


@contextmanager
def _show_calls(web: bool) -> Generator[None]:
    try:
        from callboard._cli._program_view import recorded_page, view_of_calls
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        raise ImportError(f"watch() needs rich: {install_command('callboard', 'cli')}") from error
    if not _is_watched.acquire(blocking=False):
        raise RuntimeError("watch() is active already, and shows all calls of this process: leave out the inner block")
    try:
        with ExitStack() as stack:
            say = stack.enter_context(view_of_calls())
            if web:
                say(f"page {stack.enter_context(recorded_page())}")
            yield
    finally:
        _is_watched.release()
