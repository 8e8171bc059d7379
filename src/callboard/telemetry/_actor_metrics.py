"""OpenTelemetry metrics of actors: their mailboxes, and how often they are restarted and evicted."""

from opentelemetry.metrics import Meter

import callboard.telemetry._names as names
from callboard._actor_events import ActorEvent, AskEvent
from callboard.telemetry._instruments import histogram
from callboard.telemetry._outcome import error_type, has_failed, outcome_of


class ActorMetrics:
    """Measures them, by the name of the child: keys would make any number of time series.

    Args:
        meter: makes the instruments.
    """

    def __init__(self, meter: Meter) -> None:
        self._began: dict[int, float] = {}
        """When asks began that have not ended, by number."""
        self._waiting: set[int] = set()
        """Those of them that are in a mailbox."""
        self._lives: set[int] = set()
        """Those whose beginning was told here."""
        self._length = meter.create_up_down_counter(names.MAILBOXES, "{ask}", "Asks in mailboxes.")
        self._alive = meter.create_up_down_counter(names.ACTORS_ALIVE, "{actor}", "Actors that live.")
        self._restarts = meter.create_counter(names.RESTARTS, "{restart}", "Actors that were started again.")
        self._evictions = meter.create_counter(names.EVICTIONS, "{eviction}", "Actors that had to go.")
        self._wait = histogram(meter, names.MAILBOX_WAIT, "s", names.WAIT_BUCKETS, "Wait of an ask in a mailbox.")
        self._duration = histogram(
            meter, names.ASK_DURATION, "s", names.TOOL_BUCKETS, "Duration of an ask, waits included."
        )

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Take in what happened to an actor."""
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
