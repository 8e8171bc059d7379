"""The bodies that run in an engine, which can be drained."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

from callboard._calls._under_way import PATIENCE, Undertaking, UnderWay
from callboard._drained import Drained
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._types import Body
from callboard.exceptions import DrainingError, EngineError


class Bodies:
    """The bodies that run in an engine, in any event loop.

    Args:
        noun: what errors call the engine, after "its".
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._under_way = UnderWay(f"the {noun}")

    @contextmanager
    def running(self, body: Body, *, grace: float) -> Generator[Body]:
        """A block that runs a body, and is given it as it is to be run; a drain may end it.

        Args:
            body: as it was given to the engine.
            grace: seconds that the engine gives to a body which has none of its own.

        Raises:
            EngineError: if nothing new may begin, or the body was ended by a drain.
        """
        # The engine ends the body within the grace, and needs a moment for what it does about that.
        one = Undertaking(self._under_way, grace=grace + DEFAULT_GRACE)
        try:
            with one:
                yield replace(body, on_begin=_noting(one, body))
                return
        except DrainingError as error:
            if error.begun or one.has_entered:
                raise  # a body's own
            raise self._refusal(body.title, body.call_id) from None
        reason = f"its {self._noun} was drained"
        raise EngineError(body.title, body.call_id, reason, ended="unknown" if one.has_begun else "unavailable")

    def check_open(self, title: str) -> None:
        """Refuse a seat, if nothing new may begin.

        Raises:
            EngineError: if so.
        """
        if self._under_way.is_draining:
            raise self._refusal(title, None)

    def _refusal(self, title: str, call_id: str | None) -> EngineError:
        return EngineError(title, call_id, f"its {self._noun} is being drained", ended="unavailable")

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Let no body begin until `reopen`, wait for those that run, and end those that have not finished in time.

        Args:
            timeout: seconds for them to finish.
        """
        return await self._under_way.drain(timeout)

    def reopen(self) -> None:
        """Let bodies begin again, after a drain has refused them."""
        self._under_way.reopen()


def _noting(one: Undertaking, body: Body) -> Callable[[], object]:
    """What to call when a body has its turn."""

    def begin() -> None:
        one.begin(body.title, body.call_id)
        if body.on_begin is not None:
            body.on_begin()

    return begin
