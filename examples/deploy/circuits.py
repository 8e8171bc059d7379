"""A metric of your own: which circuits of `CircuitBreaker` are open."""

from opentelemetry.metrics import Meter

from callboard import CallEvent
from callboard.telemetry import CallTracker, TrackedCall


class Circuits(CallTracker[TrackedCall, CallEvent]):
    """Gauge that is 1 for a tool whose circuit is open or half-open, and 0 after it has closed."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._open = meter.create_gauge("app.circuits.open", "{circuit}", "Open circuits.")

    def on_begin(self, event: CallEvent) -> TrackedCall:
        return TrackedCall(event)

    def on_note(self, call: TrackedCall, event: CallEvent) -> None:
        if event.note in ("breaker_opened", "breaker_closed"):
            self._open.set(int(event.note == "breaker_opened"), {"gen_ai.tool.name": str(event.facts["tool"])})
