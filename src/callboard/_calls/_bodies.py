"""Running bodies of an engine, and their draining."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

from callboard._calls._draining import PATIENCE, Undertaking, UnderWay
from callboard._loops._deadline import DEFAULT_GRACE
from callboard._records._policies import Body
from callboard._records._reports import Drained
from callboard.exceptions import DrainingError, EngineError


class Bodies:
    """Running bodies of an engine, in any event loop, with support for draining.

    Args:
        noun: name of the engine in errors, after the word "its".
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._under_way = UnderWay(f"the {noun}")

    @contextmanager
    def running(self, body: Body, *, grace: float) -> Generator[Body]:
        """Register a body while the block runs it, and yield the body to run; a drain may cancel the block.

        Args:
            body: the body as the engine received it.
            grace: seconds of clean-up for a body without a grace of its own.

        Raises:
            EngineError: if the engine is being drained, or a drain ended the body.
        """
        # More than the grace: the engine ends the body within its grace, and then needs time for its own clean-up.
        one = Undertaking(self._under_way, grace=grace + DEFAULT_GRACE)
        try:
            with one:
                yield replace(body, on_begin=_noting(one, body))
                return
        except DrainingError as error:
            if error.begun or one.has_entered:
                raise  # raised inside the block, by another object that is being drained
            raise self._refusal(body.title, body.call_id) from None
        # Reached only if a drain cancelled the block. A body that had begun may have had effects: "unknown".
        reason = f"its {self._noun} was drained"
        raise EngineError(body.title, body.call_id, reason, ended="unknown" if one.has_begun else "unavailable")

    def check_open(self, title: str) -> None:
        """Raise if the engine is being drained, so that no new worker is reserved.

        Args:
            title: the tool or actor, for the error.

        Raises:
            EngineError: if the engine is being drained.
        """
        if self._under_way.is_draining:
            raise self._refusal(title, None)

    def _refusal(self, title: str, call_id: str | None) -> EngineError:
        return EngineError(title, call_id, f"its {self._noun} is being drained", ended="unavailable")

    async def drain(self, timeout: float = PATIENCE) -> Drained:
        """Refuse new bodies until `reopen()`, wait for the running ones, and cancel the rest after the timeout.

        Args:
            timeout: seconds for the running bodies to finish.
        """
        return await self._under_way.drain(timeout)

    def reopen(self) -> None:
        """Accept bodies again after a drain."""
        self._under_way.reopen()


def _noting(one: Undertaking, body: Body) -> Callable[[], object]:
    """Return a function that the engine calls when the body begins."""

    def begin() -> None:
        one.begin(body.title, body.call_id)
        if body.on_begin is not None:
            body.on_begin()

    return begin
