"""Who is told of asks and of lives; nobody, mostly, and then it costs next to nothing."""

from collections.abc import Callable, Hashable
from typing import Any

from callboard._actor_events import ActorEvent, ActorObserver, ActorPhase, AskEvent, AskPhase
from callboard._calls._call import SupervisedCall, current_call
from callboard._calls._observers import current_observers, numbers
from callboard._loops._current import current_loop, run_there
from callboard.actors._journal_snapshots import own_key


class WatchedAsk:
    """An ask of an actor that somebody is told of. Made where somebody asks, before the handler's context is copied.

    Args:
        observers: who is told.
        begun: what they are told first.
    """

    __slots__ = ("_began_at", "_begun", "_loop", "_observers")

    def __init__(self, observers: tuple[ActorObserver, ...], begun: AskEvent) -> None:
        self._observers = observers
        self._begun = begun
        self._loop = current_loop()
        self._began_at: float | None = None
        self._tell(begun)

    @property
    def number(self) -> int:
        """Tells it apart from other asks."""
        return self._begun.number

    def taking(self, on_begin: Callable[[], object] | None) -> Callable[[], None]:
        """What is called in the actor's thread when the handler begins, if `on_begin` is to be called, too."""

        def taken() -> None:
            if on_begin is not None:
                on_begin()
            run_there(self._loop, self._is_taken)

        return taken

    def _is_taken(self) -> None:
        if self._observers:  # else whoever asked has gone meanwhile
            self._began_at = self._loop.now()
            self._tell(self._now("taken", None))

    def ended(self, error: BaseException | None) -> None:
        """Tell that it is over, where somebody asked."""
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
    """An ask that begins here, by a call or perhaps within one; `None` if nobody is told of it."""
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
    """Tell whoever observes where an actor lives what has become of it."""
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
