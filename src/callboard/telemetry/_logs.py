"""Observers that write log lines of calls, runs and actors: structlog events in the standard library's logging."""

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from callboard._calls._observers import LOGGER, careful_observers
from callboard._records._events import ActorEvent, ActorPhase, AskEvent, CallEvent, RunEvent, RunInfo
from callboard.telemetry._capture import sendable
from callboard.telemetry._tracker import (
    CallTracker,
    ObserverSet,
    Outcome,
    RunTracker,
    TrackedCall,
    error_type,
    outcome_of,
    outcome_of_run,
)

_ENDS: Mapping[Outcome, tuple[int, str]] = {
    "ok": (logging.INFO, "call finished"),
    "error": (logging.WARNING, "call failed"),
    "timeout": (logging.WARNING, "call timed out"),
    "deadline": (logging.WARNING, "call ran out of budget"),
    "rejected": (logging.WARNING, "call rejected"),
    "cancelled": (logging.INFO, "call cancelled"),
    "interrupted": (logging.INFO, "call interrupted"),
}
_RUN_ENDS: Mapping[Outcome, tuple[int, str]] = {
    "ok": (logging.INFO, "run finished"),
    "error": (logging.ERROR, "run failed"),
    "timeout": (logging.ERROR, "run failed"),
    "deadline": (logging.WARNING, "run ran out of budget"),
    "rejected": (logging.ERROR, "run failed"),
    "cancelled": (logging.INFO, "run cancelled"),
    "interrupted": (logging.INFO, "run waits for a person"),
}
_NOTES = {
    "retry": (logging.INFO, "call retried"),
    "abandoned": (logging.WARNING, "thread abandoned"),
    "breaker_opened": (logging.WARNING, "circuit opened"),
    "breaker_closed": (logging.INFO, "circuit closed"),
    "refused": (logging.WARNING, "call refused"),
    "fallback": (logging.INFO, "call fell back"),
    "rerun": (logging.WARNING, "call runs again, its actor died"),
}


_LIVES: Mapping[ActorPhase, tuple[int, str]] = {
    "started": (logging.DEBUG, "actor started"),
    "restarted": (logging.WARNING, "actor restarted"),
    "failed": (logging.WARNING, "actor did not start"),
    "died": (logging.WARNING, "actor died"),
    "stopped": (logging.DEBUG, "actor stopped"),
    "evicted": (logging.INFO, "actor evicted"),
}


@dataclass(frozen=True, slots=True)
class _OpenRun:
    """Run of an agent that has not ended, with its start time and a logger that adds the run's fields to each line."""

    since: float
    log: Any


class _Call(TrackedCall):
    """Tracked call with a logger that adds the call's fields to each line."""

    __slots__ = ("log",)

    def __init__(self, first_event: CallEvent, log: Any) -> None:
        super().__init__(first_event)
        self.log = log


class Logs(ObserverSet):
    """Set of observers that write log lines of calls, runs and actors to the logger "callboard.calls".

    Each line has an event name and fields. structlog passes them to the standard library's logging as the message and
    the `extra` of a record. Any handler of the application receives them. Setting a level is enough to get them:
    `logging.getLogger("callboard").setLevel("INFO")`. No field contains an argument, a result or an error's text.
    """

    def __init__(self) -> None:
        processors = [structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs]
        log: Any = structlog.wrap_logger(
            logging.getLogger(LOGGER), processors=processors, wrapper_class=structlog.stdlib.BoundLogger
        )
        self.observers = careful_observers(_Calls(log), _Runs(log), _Actors(log), kind="logs")


class _Calls(CallTracker[_Call, CallEvent]):
    """Observer that writes the log lines about calls."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def on_begin(self, event: CallEvent) -> _Call:
        log = self._log.bind(
            tool=sendable(event.tool), call_id=event.call_id and sendable(event.call_id), **_of_run(event.run), **_ids()
        )
        log.debug("call started" if event.resumes is None else "call resumed", batch=event.batch)
        return _Call(event, log)

    def on_start(self, call: _Call, event: CallEvent, waited_since: float | None) -> None:
        call.log.debug("attempt started", attempt=event.attempt, queue_wait=round(event.queue_wait, 6))

    def on_note(self, call: _Call, event: CallEvent) -> None:
        # Middleware of the application may note decisions of any name.
        level, text = _NOTES.get(event.note, (logging.DEBUG, event.note.replace("_", " ")))
        call.log.log(level, text, attempt=event.attempt, facts=dict(event.facts))

    def on_end(self, call: _Call, event: CallEvent) -> None:
        level, text = _ENDS[outcome_of(event.error)]
        call.log.log(
            level,
            text,
            attempts=event.attempt,
            duration=round(event.time - call.began, 6),
            queue_wait=round(event.queue_wait, 6),
            **_error(event.error),
        )


class _Runs(RunTracker[_OpenRun]):
    """Observer that writes the log lines about runs of agents."""

    def __init__(self, log: Any) -> None:
        super().__init__()
        self._log = log

    def on_begin(self, event: RunEvent) -> _OpenRun:
        log = self._log.bind(**_of_run(event.run), **_ids())
        log.info("run started" if event.run.resumes is None else "run resumed")
        return _OpenRun(event.time, log)

    def on_reply(self, run: _OpenRun, event: RunEvent) -> None:
        run.log.debug("model answered", **_error(event.error))

    def on_end(self, run: _OpenRun, event: RunEvent) -> None:
        level, text = _RUN_ENDS[outcome_of_run(event)]
        duration = round(event.time - run.since, 6)
        run.log.log(level, text, duration=duration, questions=event.questions, **_error(event.error))


class _Actors:
    """Observer that writes the log lines about actors."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        if isinstance(event, ActorEvent):
            level, text = _LIVES[event.phase]
            self._log.log(level, text, actor=event.actor, waiting=len(event.asks), **_error(event.error))
        elif event.phase == "ended":
            fields = {"actor": event.actor, "handler": event.handler, "ahead": event.ahead}
            self._log.debug("actor asked", **fields, waited=round(event.waited, 6), **_ids(), **_error(event.error))


def _of_run(run: RunInfo | None) -> dict[str, Any]:
    if run is None:
        return {}
    fields = {"agent": run.agent, "run_id": run.run_id, "thread_id": run.thread_id}
    return {key: value for key, value in fields.items() if value}


def _ids() -> dict[str, str]:
    """Return the ids of the current trace and span; empty if OpenTelemetry is not imported, as there is no span."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from callboard.telemetry._links import ids

    return ids()


def _error(error: BaseException | None) -> dict[str, str]:
    return {} if error is None else {"error_type": error_type(error)}
