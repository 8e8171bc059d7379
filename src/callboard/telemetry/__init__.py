"""OpenTelemetry spans and metrics, log lines and recordings of calls, agent runs and actors.

Tracing, Metrics, Logs            observers; active by themselves once the application has an SDK, or sets a log level
setup                             sets up an OpenTelemetry SDK and log lines for an application without them
RecordingWriter, read_recording   write all events to a file, and read the file back
CallTracker                       base class of your own observers: follows the state of each call
carrier, continue_trace           inject the trace context into another process, and extract it again
"""

from typing import TYPE_CHECKING

from callboard._util._lazy import lazy_exports

if TYPE_CHECKING:
    from callboard._records._events import CallPlace as CallPlace
    from callboard.telemetry._links import carrier as carrier
    from callboard.telemetry._links import continue_trace as continue_trace
    from callboard.telemetry._logs import Logs as Logs
    from callboard.telemetry._metrics import Metrics as Metrics
    from callboard.telemetry._recording._recorder import RecordingWriter as RecordingWriter
    from callboard.telemetry._recording._recordings import read_recording as read_recording
    from callboard.telemetry._recording._timeline import ActorChange as ActorChange
    from callboard.telemetry._recording._timeline import Closing as Closing
    from callboard.telemetry._recording._timeline import ModelRequest as ModelRequest
    from callboard.telemetry._recording._timeline import Note as Note
    from callboard.telemetry._recording._timeline import Part as Part
    from callboard.telemetry._recording._timeline import ReadMessage as ReadMessage
    from callboard.telemetry._recording._timeline import RecordedAsk as RecordedAsk
    from callboard.telemetry._recording._timeline import RecordedAttempt as RecordedAttempt
    from callboard.telemetry._recording._timeline import RecordedCall as RecordedCall
    from callboard.telemetry._recording._timeline import RecordedRun as RecordedRun
    from callboard.telemetry._recording._timeline import Recording as Recording
    from callboard.telemetry._recording._timeline import Wait as Wait
    from callboard.telemetry._setup import Telemetry as Telemetry
    from callboard.telemetry._setup import setup as setup
    from callboard.telemetry._tracing import Tracing as Tracing
    from callboard.telemetry._tracker import FAILURES as FAILURES
    from callboard.telemetry._tracker import CallTracker as CallTracker
    from callboard.telemetry._tracker import Outcome as Outcome
    from callboard.telemetry._tracker import TrackedCall as TrackedCall
    from callboard.telemetry._tracker import outcome_of as outcome_of

_HOMES = {
    "callboard._records._events": ("CallPlace",),
    "callboard.telemetry._links": ("carrier", "continue_trace"),
    "callboard.telemetry._logs": ("Logs",),
    "callboard.telemetry._metrics": ("Metrics",),
    "callboard.telemetry._recording._recordings": ("read_recording",),
    "callboard.telemetry._recording._recorder": ("RecordingWriter",),
    "callboard.telemetry._setup": ("Telemetry", "setup"),
    "callboard.telemetry._recording._timeline": (
        "ActorChange",
        "Closing",
        "ModelRequest",
        "Note",
        "Part",
        "ReadMessage",
        "RecordedAsk",
        "RecordedAttempt",
        "RecordedCall",
        "RecordedRun",
        "Recording",
        "Wait",
    ),
    "callboard.telemetry._tracing": ("Tracing",),
    "callboard.telemetry._tracker": ("FAILURES", "CallTracker", "Outcome", "TrackedCall", "outcome_of"),
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
