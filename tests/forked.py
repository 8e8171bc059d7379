"""A fork in the middle of a running event loop, as by a tool that starts processes."""

import os
import threading
import warnings
from collections.abc import Awaitable, Callable
from functools import partial

import anyio


def run_in_child(work: Callable[[], Awaitable[None]], backend: str) -> None:
    """Fork, run an async function in the child, and wait for the child's end."""
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, since Python 3.12
    child = os.fork()
    if not child:
        # The child has a copy of the running event loop's state, so its own loop needs a thread of its own.
        thread = threading.Thread(target=partial(anyio.run, work, backend=backend))
        thread.start()
        thread.join()
        os._exit(0)
    os.waitpid(child, 0)
