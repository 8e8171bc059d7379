"""Events about actor calls and incarnations. Without observers they cost next to nothing."""

from collections.abc import Callable, Hashable
from typing import Any

from callboard._calls._call import SupervisedCall, current_call
from callboard._calls._observers import current_observers, numbers
from callboard._loops._current import current_loop, run_there
from callboard._records._events import ActorEvent, ActorObserver, ActorPhase, AskEvent, AskPhase
from callboard.actors._snapshots import own_key


class WatchedAsk:
    """Reporter of one actor call to its observers.

    Created in the caller's task, before the handler's context is copied.

    Args:
        observers: observers of the call.
        begun: the first event.
    """

    __slots__ = ("_began_at", "_begun", "_loop", "_observers")

    def __init__(self, observers: tuple[ActorObserver, ...], begun: AskEvent) -> None:
        self._observers = observers
        self._begun = begun
        self._loop = current_loop()
        self._began_at: float | None = None
        # In the constructor: a telemetry observer sets the span in the context here, and the handler must inherit it.
        self._tell(begun)

    @property
    def number(self) -> int:
        """Number of the call, unique in the process."""
        return self._begun.number

    def taking(self, on_begin: Callable[[], object] | None) -> Callable[[], None]:
        """Return a callback for the actor's thread that runs `on_begin` and reports the begin of the handler."""

        def taken() -> None:
            if on_begin is not None:
                on_begin()
            # Observers are called in the caller's loop only.
            run_there(self._loop, self._is_taken)

        return taken

    def _is_taken(self) -> None:
        if self._observers:  # empty after `ended`: this notice may arrive late from another thread
            self._began_at = self._loop.now()
            self._tell(self._now("taken", None))

    def ended(self, error: BaseException | None) -> None:
        """Report the end of the call, in the caller's task."""
        self._tell(self._now("ended", error))
        self._observers = ()

    def _now(self, phase: AskPhase, error: BaseException | None) -> AskEvent:
        now = self._loop.now()
        waited = (now if self._began_at is None else self._began_at) - self._begun.time
        return self._begun._replace(phase=phase, time=now, waited=waited, error=error)

    def _tell(self, event: AskEvent) -> None:
        for observer in self._observers:
            observer(event)


def watched(actor: str, key: Hashable, handler: str, ahead: int, call: SupervisedCall[Any] | None) -> WatchedAsk | None:
    """Return the watch of a call that begins now; `None` if nobody observes it."""
    call = call or current_call()
    observers = current_observers().actors if call is None else call.actor_observers
    if not observers:
        return None
    begun = AskEvent(
        phase="begun",
        actor=actor,
        handler=handler,
        time=current_loop().now(),
        number=next(numbers),
        key=own_key(key),
        call=None if call is None else call.number,
        ahead=ahead,
    )
    return WatchedAsk(observers, begun)


def tell_of_life(
    phase: ActorPhase,
    actor: str,
    key: Hashable,
    number: int,
    *,
    error: BaseException | None = None,
    asks: tuple[int, ...] = (),
) -> None:
    """Report a phase of an incarnation to the observers of the current context."""
    observers = current_observers().actors
    if observers:
        event = ActorEvent(
            phase=phase,
            actor=actor,
            time=current_loop().now(),
            number=number,
            key=own_key(key),
            error=error,
            asks=asks,
        )
        for observer in observers:
            observer(event)
