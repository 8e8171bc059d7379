"""OpenTelemetry metrics of actors: mailbox length and wait, duration of asks, restarts and evictions."""

from opentelemetry.metrics import Meter

import callboard.telemetry._names as names
from callboard._actor_events import ActorEvent, AskEvent
from callboard.telemetry._instruments import histogram
from callboard.telemetry._outcome import error_type, has_failed, outcome_of


class ActorMetrics:
    """Observer that measures actors. Attributes name the child, never the key: keys are unbounded in number."""

    def __init__(self, meter: Meter) -> None:
        self._began: dict[int, float] = {}
        """Start times of unfinished asks, by ask number."""
        self._waiting: set[int] = set()
        """Numbers of the asks that are still in a mailbox."""
        self._lives: set[int] = set()
        """Numbers of the live actors that this observer saw start."""
        # An actor may be older than this observer. Its end must not be counted: the counter would drop below zero.
        self._length = meter.create_up_down_counter(names.MAILBOXES, "{ask}", "Asks in mailboxes.")
        self._alive = meter.create_up_down_counter(names.ACTORS_ALIVE, "{actor}", "Actors that live.")
        self._restarts = meter.create_counter(names.RESTARTS, "{restart}", "Actors that were started again.")
        self._evictions = meter.create_counter(names.EVICTIONS, "{eviction}", "Actors that had to go.")
        self._wait = histogram(meter, names.MAILBOX_WAIT, "s", names.WAIT_BUCKETS, "Wait of an ask in a mailbox.")
        self._duration = histogram(
            meter, names.ASK_DURATION, "s", names.TOOL_BUCKETS, "Duration of an ask, waits included."
        )

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Record one event of an ask or of an actor."""
        if isinstance(event, ActorEvent):
            self._lived(event)
        elif event.phase == "begun":
            self._began[event.number] = event.time
            self._waiting.add(event.number)
            self._length.add(1, _about(event))
        elif event.number in self._began:
            self._goes_on(event)

    def _goes_on(self, event: AskEvent) -> None:
        about = _about(event)
        if event.number in self._waiting:
            self._waiting.remove(event.number)
            self._length.add(-1, about)
            self._wait.record(event.waited, about)
        if event.phase == "ended":
            if event.error is not None and has_failed(outcome_of(event.error)):
                about[names.ERROR_TYPE] = error_type(event.error)
            self._duration.record(max(event.time - self._began.pop(event.number), 0.0), about)

    def _lived(self, event: ActorEvent) -> None:
        about = {names.ACTOR: event.actor}
        if event.phase in ("started", "restarted"):
            self._lives.add(event.number)
            self._alive.add(1, about)
        elif event.phase in ("died", "stopped") and event.number in self._lives:
            self._lives.remove(event.number)
            self._alive.add(-1, about)
        if event.phase == "restarted":
            self._restarts.add(1, about)
        elif event.phase == "evicted":
            self._evictions.add(1, about)


def _about(event: AskEvent) -> dict[str, str]:
    return {names.ACTOR: event.actor, names.ACTOR_HANDLER: event.handler}
