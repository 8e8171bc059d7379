"""Lines of a recording, made from events; `docs/reference/recording.md` describes the format."""

from collections.abc import Callable, Hashable
from typing import Any

from langchain_core.messages import AIMessage

import callboard.telemetry._names as names
from callboard._actor_events import ActorEvent, AskEvent
from callboard._records._events import CallEvent, RunEvent
from callboard.telemetry._capture import Capture, result_of
from callboard.telemetry._model_facts import about_model, about_reply
from callboard.telemetry._outcome import error_type, outcome_of, outcome_of_run

FORMAT = "callboard/recording/1"

Line = dict[str, Any]


class Records:
    """Encoder from events to lines of a recording, one line per event."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._makers: dict[str, Callable[[CallEvent], Line]] = {
            "begun": self._begun,
            "queued": lambda _: {},
            "gave_up": _gave_up,
            "started": _started,
            "attempt_ended": _attempt_ended,
            "noted": self._noted,
            "ended": self._ended,
        }

    def of_call(self, event: CallEvent, time: float) -> Line:
        """Return the line of an event of a call; `time` in seconds since the header."""
        return {"t": time, "event": event.phase, "call": event.number, **self._makers[event.phase](event)}

    def _begun(self, event: CallEvent) -> Line:
        line: Line = {"batch": event.batch, "tool": event.tool}
        if event.call_id is not None:
            line["id"] = event.call_id
        if event.run is not None and event.run.number:
            line["run"] = event.run.number
        if event.resumes is not None:  # a mark of `_links`: the span of the call, a space, the span of the run
            line["resumes"] = event.resumes.split(" ")[0]
        if self._capture.wanted and event.call is not None:
            line["args"] = self._capture.short(event.call.get("args"))
        return line

    def _noted(self, event: CallEvent) -> Line:
        line: Line = {"what": event.what}
        if event.facts:
            line["facts"] = dict(event.facts)
        if self._capture.wanted and event.message:
            line["message"] = self._capture.short(event.message)
        return line

    def _ended(self, event: CallEvent) -> Line:
        line: Line = {"outcome": outcome_of(event.error), "attempts": event.attempt}
        if event.queue_wait:
            line["waited"] = _rounded(event.queue_wait)
        if self._capture.wanted and event.result is not None:
            line["result"] = self._capture.short(result_of(event.result))
        return _with_error(line, event.error)

    def of_run(self, event: RunEvent, time: float) -> Line:
        """Return the line of an event of a run; `time` in seconds since the header."""
        line: Line = {"t": time, "event": f"run_{event.phase}", "run": event.run.number}
        if event.phase == "begun":
            return line | _run_begun(event)
        if event.phase == "ended":
            line["outcome"] = outcome_of_run(event)
            if event.questions:
                line["questions"] = event.questions
            return _with_error(line, event.error)
        line["event"] = f"model_{event.phase}"
        return _with_error(line | _about_request(event), event.error)

    def of_actor(self, event: AskEvent | ActorEvent, time: float) -> Line:
        """Return the line of an event of an ask or of an actor; `time` in seconds since the header."""
        if isinstance(event, ActorEvent):
            line: Line = {"t": time, "event": f"actor_{event.phase}", "actor": event.actor}
            return _with_error(line | self._key(event.key), event.error)
        line = {"t": time, "event": f"ask_{event.phase}", "ask": event.number}
        if event.phase == "begun":
            line |= {"actor": event.actor, "handler": event.handler, "ahead": event.ahead, **self._key(event.key)}
            return line if event.call is None else line | {"call": event.call}
        if event.phase == "ended":
            line |= {"waited": _rounded(event.waited), "outcome": outcome_of(event.error)}
        return _with_error(line, event.error)

    def _key(self, key: Hashable) -> Line:
        return {"key": self._capture.short(str(key))} if self._capture.wanted and key is not None else {}


def _gave_up(event: CallEvent) -> Line:
    return _with_error({"waited": _rounded(event.queue_wait)}, event.error)


def _started(event: CallEvent) -> Line:
    return {"attempt": event.attempt, **({"waited": _rounded(event.queue_wait)} if event.queue_wait else {})}


def _attempt_ended(event: CallEvent) -> Line:
    return _with_error({"attempt": event.attempt}, event.error)


def _run_begun(event: RunEvent) -> Line:
    info = event.run
    found = {"agent": info.agent, "thread": info.thread_id, "run_id": info.run_id, "namespace": info.namespace}
    if info.resumes is not None:
        found["resumes"] = info.resumes.split(" ")[-1]
    return {key: value for key, value in found.items() if value}


def _about_request(event: RunEvent) -> Line:
    reply = event.result if isinstance(event.result, AIMessage) else None
    said = about_reply(reply, about_model(event.model))
    found = {"model": said.get(names.REQUEST_MODEL)}
    if event.phase == "answered":
        found["calls"] = len(reply.tool_calls) if reply is not None else None
        found["input_tokens"] = said.get(names.INPUT_TOKENS)
        found["output_tokens"] = said.get(names.OUTPUT_TOKENS)
    return {key: value for key, value in found.items() if value is not None}


def _with_error(line: Line, error: BaseException | None) -> Line:
    if error is not None:
        line["error"] = error_type(error)
    return line


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
