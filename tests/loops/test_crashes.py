"""A crash of trio's scheduler ends its loop only: the other threads of the process go on."""

import threading

import pytest
import trio

from callboard._loops._current import current_loop
from callboard._loops._protocol import EventLoop


class BrokenClock(trio.abc.Clock):
    """Clock that fails when trio asks how long it may sleep."""

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return 0.0

    def deadline_to_sleep_time(self, deadline: float) -> float:
        raise ValueError("broken")


def loop_after_crash() -> EventLoop:
    """Return the loop of a thread in which trio's scheduler has failed."""
    loops: list[EventLoop] = []

    async def main() -> None:
        loops.append(current_loop())
        TASKS.append(trio.lowlevel.current_root_task())
        await trio.sleep(1)

    def run() -> None:
        with pytest.raises(trio.TrioInternalError):
            trio.run(main, clock=BrokenClock())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return loops[0]


TASKS: list[object] = []
"""Tasks of crashed loops: the collector would close them, and trio does not allow that outside of a loop."""


def test_another_thread_may_wake_a_task_of_a_loop_that_has_crashed() -> None:
    """The thread, which answers many loops or frees a place at a shared limit, would fail with `OSError(9)`."""
    assert loop_after_crash().post(lambda: None) is False
