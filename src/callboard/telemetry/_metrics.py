"""OpenTelemetry metrics of calls, queues, runs, model requests and actors."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from langchain_core.messages import AIMessage
from opentelemetry import metrics
from opentelemetry.metrics import Meter, MeterProvider

import callboard.telemetry._names as names
from callboard._calls._observers import careful_observers
from callboard._records._events import ActorEvent, AskEvent, CallEvent, RunEvent
from callboard.telemetry._capture import sendable
from callboard.telemetry._tracing import about_model, about_reply
from callboard.telemetry._tracker import (
    CallTracker,
    ObserverSet,
    RunTracker,
    TrackedCall,
    error_type,
    failure_of,
    is_failure,
    outcome_of,
)

# Actors: mailbox length and wait, duration of asks, restarts and evictions


class ActorMetrics:
    """Observer that records metrics of actors and of their asks (calls of handlers), by the name of the child spec.

    The key of an actor is no attribute of these metrics, because the number of keys is unbounded.
    """

    def __init__(self, meter: Meter) -> None:
        self._open: dict[int, tuple[float, bool]] = {}
        """Start time of each unfinished ask, and whether it is still in a mailbox, by the number of the ask."""
        self._lives: set[int] = set()
        """Numbers of the actors that this observer saw start, and that are still alive."""
        # An actor may be older than this observer. Its end must not be counted: the counter would drop below zero.
        self._length = meter.create_up_down_counter(names.MAILBOXES, "{ask}", "Asks in mailboxes.")
        self._alive = meter.create_up_down_counter(names.ACTORS_ALIVE, "{actor}", "Actors that live.")
        self._restarts = meter.create_counter(names.RESTARTS, "{restart}", "Actors that were started again.")
        self._evictions = meter.create_counter(names.EVICTIONS, "{eviction}", "Actors that had to go.")
        self._wait = histogram(meter, names.MAILBOX_WAIT, names.WAIT_BUCKETS, "Wait of an ask in a mailbox.")
        self._duration = histogram(meter, names.ASK_DURATION, names.TOOL_BUCKETS, "Duration of an ask, waits included.")

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Record the metrics of one event of an actor or of an ask (a call of an actor)."""
        if isinstance(event, ActorEvent):
            self._count_change(event)
            return
        about = {names.ACTOR: event.actor, names.ACTOR_HANDLER: event.handler}
        if event.phase == "begun":
            self._open[event.number] = event.time, True
            self._length.add(1, about)
            return
        if event.number not in self._open:
            return
        began, is_waiting = self._open.pop(event.number)
        if is_waiting:
            self._length.add(-1, about)
            self._wait.record(event.waited, about)
        if event.phase == "ended":
            self._duration.record(max(event.time - began, 0.0), with_error(about, event.error))
        else:
            self._open[event.number] = began, False

    def _count_change(self, event: ActorEvent) -> None:
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


def histogram(meter: Meter, name: str, buckets: Iterable[float], text: str, unit: str = "s") -> metrics.Histogram:
    """Return a new histogram of a meter with advisory buckets, which a view in the application's SDK may override."""
    return meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=list(buckets))


# Calls and runs


_UNKNOWN = "_OTHER"
"""Value that replaces the name of an unknown tool: a model can invent any number of names."""


class _Call(TrackedCall):
    """Tracked call with the metric attributes of its tool."""

    __slots__ = ("about",)

    def __init__(self, first_event: CallEvent) -> None:
        super().__init__(first_event)
        # A call without a description has no tool: a model can invent any number of names, and each is a time series.
        tool = _UNKNOWN if first_event.description is None else sendable(first_event.tool)
        self.about = {names.TOOL_NAME: tool}


@dataclass(slots=True)
class _OpenRun:
    """Run of an agent that has not ended, with its counts so far."""

    since: float
    request_start: float = 0.0
    tool_calls: int = 0
    requests: int = 0
    about: dict[str, Any] = field(default_factory=dict[str, Any])


class Metrics(ObserverSet):
    """Set of observers that record OpenTelemetry's metrics for generative AI, and metrics of queues, limits and actors.

    callboard records them by itself once the application has set up a meter provider. Make an instance only for
    another provider.

    Args:
        provider: source of the meter; by default the global meter provider.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        provider = provider or metrics.get_meter_provider()
        meter = provider.get_meter(names.SCOPE, version("callboard"))
        self.observers = careful_observers(_Calls(meter), _Runs(meter), ActorMetrics(meter), kind="metrics")


class _Calls(CallTracker[_Call, CallEvent]):
    """Observer that measures calls and their waiting times in queues."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._waiting = meter.create_up_down_counter(names.QUEUE_LENGTH, "{call}", "Attempts that wait for a place.")
        self._running = meter.create_up_down_counter(names.IN_FLIGHT, "{call}", "Attempts that run.")
        self._duration = histogram(meter, names.TOOL_DURATION, names.TOOL_BUCKETS, "Duration of a call.")
        self._wait = histogram(meter, names.QUEUE_WAIT_METRIC, names.WAIT_BUCKETS, "Wait of an attempt for its place.")
        timeouts = meter.create_counter(names.TIMEOUTS, "{call}", "Calls that were out of time.")
        rejections = meter.create_counter(names.REJECTIONS, "{call}", "Calls that were refused a place.")
        self._ends = {"rejected": rejections, "timeout": timeouts, "deadline": timeouts}
        self._notes = {
            "retry": meter.create_counter(names.RETRIES, "{attempt}", "Attempts that were made again."),
            "abandoned": meter.create_counter(names.ABANDONED, "{thread}", "Worker threads that outlived their calls."),
        }

    def on_begin(self, event: CallEvent) -> _Call:
        return _Call(event)

    def on_queue(self, call: _Call, event: CallEvent) -> None:
        self._waiting.add(1, call.about)

    def on_give_up(self, call: _Call, event: CallEvent, since: float) -> None:
        self._end_wait(call, event)

    def on_start(self, call: _Call, event: CallEvent, waited_since: float | None) -> None:
        if waited_since is not None:
            self._end_wait(call, event)
        self._running.add(1, call.about)

    def _end_wait(self, call: _Call, event: CallEvent) -> None:
        self._waiting.add(-1, call.about)
        self._wait.record(event.queue_wait, call.about)

    def on_attempt_end(self, call: _Call, event: CallEvent, since: float) -> None:
        self._running.add(-1, call.about)

    def on_note(self, call: _Call, event: CallEvent) -> None:
        if event.note in self._notes:
            self._notes[event.note].add(1, call.about)

    def on_end(self, call: _Call, event: CallEvent) -> None:
        if call.waiting:  # attempts still queued end with their call, without an event of their own
            self._waiting.add(-len(call.waiting), call.about)
        attributes = {**call.about, names.TOOL_TYPE: "function"}
        if event.run is not None and event.run.agent:
            attributes[names.AGENT_NAME] = event.run.agent
        if (outcome := outcome_of(event.error)) in self._ends:
            self._ends[outcome].add(1, call.about)
        if (failure := failure_of(event)) is not None:
            attributes[names.ERROR_TYPE] = failure
        self._duration.record(max(event.time - call.began, 0.0), attributes)


class _Runs(RunTracker[_OpenRun]):
    """Observer that measures runs of agents and their model requests."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._duration = histogram(meter, names.AGENT_DURATION, names.AGENT_BUCKETS, "Duration of an agent's run.")
        self._calls = histogram(meter, names.AGENT_TOOL_CALLS, names.COUNT_BUCKETS, "Tool calls of a run.", "1")
        requests = (names.AGENT_INFERENCE_CALLS, names.COUNT_BUCKETS, "Model requests of a run.", "1")
        self._requests = histogram(meter, *requests)
        self._request = histogram(meter, names.INFERENCE_DURATION, names.TOOL_BUCKETS, "Duration of a model request.")
        counter = partial(meter.create_counter, unit="{token}", description="Tokens of model requests.")
        self._used = {
            names.INPUT_TOKENS: counter(names.USED_INPUT_TOKENS),
            names.OUTPUT_TOKENS: counter(names.USED_OUTPUT_TOKENS),
            names.CACHED_TOKENS: counter(names.USED_CACHED_TOKENS),
        }
        about_tokens = (names.TOKEN_BUCKETS, "Tokens of a model request.", "{token}")
        self._tokens = {
            names.INPUT_TOKENS: histogram(meter, names.REQUEST_INPUT_TOKENS, *about_tokens),
            names.OUTPUT_TOKENS: histogram(meter, names.REQUEST_OUTPUT_TOKENS, *about_tokens),
        }

    def on_begin(self, event: RunEvent) -> _OpenRun:
        return _OpenRun(event.time)

    def on_request(self, run: _OpenRun, event: RunEvent) -> None:
        run.request_start = event.time
        run.requests += 1

    def on_reply(self, run: _OpenRun, event: RunEvent) -> None:
        reply = event.result if isinstance(event.result, AIMessage) else None
        about = about_reply(reply, about_model(event.model))
        run.tool_calls += 0 if reply is None else len(reply.tool_calls)
        keys = (names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL)
        attributes = {names.OPERATION: names.CHAT, **{key: about[key] for key in keys if key in about}}
        run.about = {key: about[key] for key in (names.REQUEST_MODEL,) if key in about}
        # A request whose tokens nobody has told counts as 0, as the conventions ask.
        for key, used in self._used.items():
            used.add(about.get(key, 0), {**attributes, names.MODALITY: "unknown"})
        attributes = with_error(attributes, event.error)
        for key, tokens in self._tokens.items():
            tokens.record(about.get(key, 0), attributes)
        self._request.record(max(event.time - run.request_start, 0.0), attributes)

    def on_end(self, run: _OpenRun, event: RunEvent) -> None:
        name = {names.AGENT_NAME: event.run.agent}
        self._calls.record(run.tool_calls, name)
        self._requests.record(run.requests, name)
        attributes = {**name, **run.about}
        self._duration.record(max(event.time - run.since, 0.0), with_error(attributes, event.error))


def with_error(attributes: dict[str, str], error: BaseException | None) -> dict[str, str]:
    """Return metric attributes with the error type added, if the error counts as a failure."""
    if error is None or not is_failure(error):
        return attributes
    return {**attributes, names.ERROR_TYPE: error_type(error)}
