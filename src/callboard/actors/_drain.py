"""Drain of actors: refuses new calls, and finishes or ends the accepted ones."""

import math
from collections.abc import Callable, Collection
from functools import partial

from anyio import sleep
from anyio.lowlevel import checkpoint

from callboard._calls._draining import report_drain
from callboard._loops._current import current_loop, run_there
from callboard._records._fleets import KeyMovedError
from callboard._records._policies import check_duration
from callboard._records._reports import Drained, UnknownCall
from callboard.actors._cell import Cell
from callboard.actors._message import Message
from callboard.exceptions import ActorDiedError, ActorGoneError

_LOOK = 0.01
"""Seconds between two checks for unfinished calls."""


class Draining:
    """Drain of several actors. Calls between actors of one drain are still accepted.

    Args:
        what: name of the drained object, for the log.
        cells: returns the cells; more may appear during the drain.
    """

    def __init__(self, what: str, cells: Callable[[], Collection[Cell]]) -> None:
        self._what = what
        self._cells = cells
        self._ended = Drained()
        self._moved = 0
        """Number of messages that another process of the fleet will run."""

    async def run(self, timeout: float) -> Drained:
        """Wait for accepted calls to finish; end those that do not finish in time.

        Args:
            timeout: seconds; ended calls have their grace in addition.

        Raises:
            ValueError: for a number out of range.
        """
        check_duration("drain(timeout=...)", timeout)
        for cell in self._cells():
            # Before the first count: from here on the number of messages can only grow by calls inside the drain.
            cell.draining = self
        first, loop = len(self._left()), current_loop()
        try:
            await checkpoint()
            with loop.scope(loop.now() + timeout, 0.0):
                await self._until_idle()
        finally:
            # Also if the task that drains is cancelled: then the running calls are ended at once.
            if self._left():
                self._end_all()
                # Bounded although the shield is not: each handler was cancelled and has its own grace.
                with loop.shield(math.inf):
                    await self._until_idle()
        # An estimate: calls inside the drain that were added later are not in `first`.
        report = self._ended + Drained(finished=max(0, first - self._ended.ended - self._moved))
        report_drain(self._what, report)
        return report

    def _left(self) -> list[Message]:
        return [message for cell in self._cells() for message in cell.messages()]

    async def _until_idle(self) -> None:
        while self._left():
            await sleep(_LOOK)

    def _end_all(self) -> None:
        for cell in self._cells():
            for message in cell.messages():
                life = cell.life
                # Handlers are cancelled in their loop's thread. If that loop has ended, this thread settles the
                # messages.
                if life is None or not run_there(life.loop, partial(self._end, cell, message)):
                    self._end(cell, message)

    def _end(self, cell: Cell, message: Message) -> None:
        """End a message, in the thread of its incarnation's loop if there is one."""
        reason = f"{cell.name} was drained"
        with cell.lock:
            if message.state == "ended":
                return
            # A message from another process of the fleet is sent back, so that the next owner of the key runs it.
            refused = cell.refused_by_drain(message)
            is_moved = isinstance(refused, KeyMovedError)
            if cell.withdraw(message, refused if is_moved else ActorGoneError(message.title, message.call_id, reason)):
                self._moved += is_moved
                self._ended += Drained(ended=not is_moved)
                return
            self._ended += Drained(ended=1)
            self._ended += Drained(unknown=(UnknownCall(tool=message.title, call_id=message.call_id),))
            # The caller was not cancelled and needs an error; `Incarnation._body` raises this one.
            message.fate = ActorDiedError(message.title, message.call_id, reason)
            message.cancel_asked = True
            if message.state == "deferred" or cell.life is None:
                cell.settle(message, None, message.fate)
            elif message.scope is not None:
                message.scope.cancel()
