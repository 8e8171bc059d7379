"""What is under way in an object that can be drained: then nothing new begins, and what runs finishes or is ended."""

import logging
import math
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from anyio.lowlevel import checkpoint

from callboard._calls._call import SupervisedCall
from callboard._drained import Drained, UnknownCall
from callboard._loops._bridge import stands_still
from callboard._loops._current import current_loop, run_there
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._loops._protocol import Wakeup
from callboard._types import check_duration
from callboard.exceptions import DrainingError

T = TypeVar("T")

_log = logging.getLogger("callboard")

PATIENCE = 30.0
"""Seconds that what runs has to finish, where nobody says otherwise."""


class HasCalls(Protocol):
    """A batch, as a drain sees it: calls that run together, of which it tells whose outcome is unknown."""

    calls: Sequence[SupervisedCall[Any]]


class Undertaking:
    """One thing that is under way: a block in one task, which a drain may end.

    Args:
        whole: to which it belongs.
        grace: seconds of clean-up, if it is ended.
        thread_id: of the conversation that it is for.

    Raises:
        DrainingError: on entering, if nothing new may begin.
    """

    def __init__(self, whole: "UnderWay", *, grace: float = DEFAULT_GRACE, thread_id: str | None = None) -> None:
        self.loop = current_loop()
        self.batches: set[HasCalls] = set()
        """Those that run within it."""
        self.whole = whole
        self.has_entered = self.is_over = False
        """Whether it was let in; whether it has ended."""
        self._thread_id = thread_id
        self._body: UnknownCall | None = None
        self._at_stake: list[SupervisedCall[Any]] = []
        self._scope = self.loop.scope(math.inf, grace)

    def __enter__(self) -> Self:
        self.whole.admit(self)
        self.has_entered = True
        self._token = _around.set((*_around.get(), self))
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        was_ended = False
        try:
            was_ended = self._scope.__exit__(kind, error, traceback) and error is not None  # trio says so of any end
        finally:
            _around.reset(self._token)
            self.whole.left(self, was_ended=was_ended)
        return was_ended

    def begin(self, tool: str, call_id: str | None) -> None:
        """Note that its body begins: if it is ended from now on, nobody knows what came of it."""
        self._body = UnknownCall(tool=tool, call_id=call_id, thread_id=self._thread_id)

    @property
    def has_begun(self) -> bool:
        """Whether its body has begun, which may have effects from then on."""
        return self._body is not None

    def end(self) -> None:
        """End it with its grace; in its loop's thread."""
        if not self.is_over:
            live = [call for batch in self.batches for call in batch.calls]
            self._at_stake = [call for call in live if call.running and not call.policy.idempotent]
            self._scope.cancel()

    def unknown(self) -> list[UnknownCall]:
        """The calls of which nobody knows what came of them, once it was ended."""
        lost = [call for call in self._at_stake if not call.ended]
        known = [UnknownCall(tool=call.name, call_id=call.id, thread_id=self._thread_id) for call in lost]
        return known if self._body is None else [*known, self._body]


class _Round:
    """One drain: what it waits for, and what became of that. Changed under the lock of the whole."""

    def __init__(self, left: set[Undertaking]) -> None:
        self.left = left
        self.wakeup: Wakeup | None = None
        self.report = Drained()

    def account_for(self, one: Undertaking, *, was_ended: bool) -> None:
        if one not in self.left:
            return
        self.left.remove(one)
        ended = Drained(ended=1, unknown=tuple(one.unknown())) if was_ended else Drained(finished=1)
        self.report += ended
        if not self.left and self.wakeup is not None:
            self.wakeup.set()


class UnderWay:
    """All that is under way in an object, in any event loop; any thread may ask.

    What begins within something that is under way belongs to it, and may begin as long as that goes on.

    Args:
        what: the object, in words: "the node 'tools'".
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.is_draining = False
        self._lock = threading.Lock()
        self._all: set[Undertaking] = set()
        self._rounds: list[_Round] = []

    def __deepcopy__(self, memo: object) -> "UnderWay":
        return UnderWay(self.what)  # of the copy, nothing is under way

    def __reduce__(self) -> tuple[object, ...]:
        return UnderWay, (self.what,)

    def admit(self, one: Undertaking) -> None:
        """Count something as under way, so that a drain waits for it, or refuse it.

        Raises:
            DrainingError: if nothing new may.
        """
        inside = any(outer.whole is self and not outer.is_over for outer in _around.get())
        with self._lock:
            if self.is_draining and not inside:
                raise DrainingError(self.what)
            if not inside:
                self._all.add(one)

    def left(self, one: Undertaking, *, was_ended: bool) -> None:
        """Note that something is over, so that no drain waits for it."""
        with self._lock:
            one.is_over = True
            self._all.discard(one)
            for drain in self._rounds:
                drain.account_for(one, was_ended=was_ended)

    async def run(
        self, work: Callable[[], Awaitable[T]], *, grace: float = DEFAULT_GRACE, thread_id: str | None = None
    ) -> T:
        """Run something that a drain may end.

        Args:
            work: what to run.
            grace: seconds of clean-up, if it is ended.
            thread_id: of the conversation that it is for.

        Raises:
            DrainingError: if nothing new may begin, or this was ended.
            BaseException: what the work raises.
        """
        with Undertaking(self, grace=grace, thread_id=thread_id):
            return await work()
        raise DrainingError(self.what, begun=True)

    async def drain(self, timeout: float) -> Drained:
        """Let nothing new begin until `reopen`, wait for what runs, and end what has not finished in time.

        Whoever asks from within something that is under way does not wait for that. If the caller is cancelled, what
        runs is ended at once.

        Args:
            timeout: seconds; what is ended then has its grace besides.

        Raises:
            ValueError: for a number out of range.
            RuntimeError: if something could not end, because its event loop waits for the sync code that asks.
        """
        check_duration("drain(timeout=...)", timeout)
        loop = current_loop()
        drain = self._begun()
        try:
            await checkpoint()
            with loop.scope(loop.now() + timeout, 0.0):
                await self._until_over(drain)
        finally:
            if drain.left:
                self._end(drain)
                with loop.shield(math.inf):
                    await self._until_over(drain)
            with self._lock:
                self._rounds.remove(drain)
        tell_of_drain(self.what, drain.report)
        return drain.report

    def reopen(self) -> None:
        """End the refusal of what is new, which a drain has brought."""
        self.is_draining = False

    @contextmanager
    def paused(self) -> Generator[None]:
        """A block in which this may be drained, and after which it is as it was."""
        was_draining = self.is_draining
        try:
            yield
        finally:
            self.is_draining = was_draining

    def _begun(self) -> _Round:
        with self._lock:
            left = self._all.difference(_around.get())
            if any(stands_still(one.loop) for one in left):
                raise RuntimeError(
                    f"{self.what} has something under way in the event loop that waits for this: await it there, or "
                    "call it in a thread"
                )
            self.is_draining = True
            self._rounds.append(drain := _Round(left))
        return drain

    async def _until_over(self, drain: _Round) -> None:
        with self._lock:
            if not drain.left:
                return
            wakeup = drain.wakeup = current_loop().wakeup()
        await wakeup.wait()

    def _end(self, drain: _Round) -> None:
        for one in list(drain.left):
            if not run_there(one.loop, one.end):
                self.left(one, was_ended=True)  # its event loop has ended, and it with that


def tell_of_drain(what: str, report: Drained) -> None:
    """Have it in the log what became of what ran, if anything did."""
    if report != Drained():
        _log.log(logging.WARNING if report.ended else logging.INFO, "%s was drained: %s", what, report)


_around: ContextVar[tuple[Undertaking, ...]] = ContextVar("callboard_under_way", default=())


def undertakings() -> tuple[Undertaking, ...]:
    """What the code that runs here is part of, the outermost first."""
    return _around.get()
