"""Observers that make OpenTelemetry spans of runs, model requests, calls, attempts and asks (actor calls).

A restart or another change of an actor is a span event of each open ask that it affects. If other instrumentation
makes a span for a model request, callboard makes none: a span processor of the SDK detects it.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import Token
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableBinding, RunnableSequence
from langgraph.errors import GraphInterrupt
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider

import callboard.telemetry._names as names
from callboard._calls._observers import careful_observers
from callboard._records._events import ActorEvent, AskEvent, CallEvent, RunEvent, RunInfo
from callboard._util._identity import ByIdentity
from callboard.exceptions import CallCancelledError, CallTimeoutError, CircuitOpenError, DeadlineExceededError
from callboard.telemetry._capture import MAX_LENGTH, Capture, Redactor, conversation, result_of, sendable
from callboard.telemetry._links import CALL, RUN, link_to_call, link_to_run, mark
from callboard.telemetry._tracker import (
    CallTracker,
    ObserverSet,
    RunTracker,
    TrackedCall,
    error_type,
    failure_of,
    is_failure,
    outcome_of,
    outcome_of_run,
)

Attributes = dict[str, Any]

# Attributes of models and replies


def about_model(model: object) -> dict[str, Any]:
    """Return the span attributes of a model, from the description that LangChain models give to LangSmith."""
    describe: Callable[[], Mapping[str, Any]] = getattr(_bare(model), "_get_ls_params", dict)
    try:
        params = dict(describe())
    except Exception:  # a user-defined model may describe itself wrongly; telemetry must not fail its run
        params = {}
    attributes: dict[str, Any] = {names.PROVIDER: provider_named(params.get("ls_provider"))}
    for key, name, kind in (
        ("ls_model_name", names.REQUEST_MODEL, str),
        ("ls_temperature", names.REQUEST_TEMPERATURE, (int, float)),
        ("ls_max_tokens", names.REQUEST_MAX_TOKENS, int),
    ):
        if isinstance(params.get(key), kind):
            attributes[name] = params[key]
    return attributes


def provider_named(name: object) -> str:
    """Return the name of a model provider in the OpenTelemetry conventions, from its name in LangChain."""
    return names.PROVIDERS.get(name, name) if isinstance(name, str) and name else "unknown"


def about_reply(reply: AIMessage | None, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the span attributes of a model request: `about` (from before the request) plus attributes of the reply."""
    attributes = dict(about)
    if reply is None:
        return attributes
    metadata = reply.response_metadata
    if isinstance(model := metadata.get("model_name") or metadata.get("model"), str):
        attributes[names.RESPONSE_MODEL] = model
        attributes.setdefault(names.REQUEST_MODEL, model)
    if attributes.get(names.PROVIDER, "unknown") == "unknown":
        attributes[names.PROVIDER] = provider_named(metadata.get("model_provider"))
    if isinstance(reply.id, str):
        attributes[names.RESPONSE_ID] = metadata["id"] if isinstance(metadata.get("id"), str) else reply.id
    if isinstance(reason := metadata.get("finish_reason") or metadata.get("stop_reason"), str):
        attributes[names.FINISH_REASONS] = [reason]
    usage = reply.usage_metadata
    if usage is not None:
        attributes[names.INPUT_TOKENS] = usage["input_tokens"]
        attributes[names.OUTPUT_TOKENS] = usage["output_tokens"]
        if cached := usage.get("input_token_details", {}).get("cache_read"):
            attributes[names.CACHED_TOKENS] = cached
    return attributes


def _bare(model: object) -> object:
    """Return the chat model inside of the LangChain bindings and sequences that wrap it."""
    for _ in range(8):
        if isinstance(model, RunnableBinding):
            model = model.bound
        elif isinstance(model, RunnableSequence):
            model = next((step for step in model.steps if hasattr(step, "_get_ls_params")), model.last)
        else:
            break
    return model


# Detection of other instrumentation


_REQUESTS = frozenset((names.CHAT, "generate_content", "text_completion"))
_OLDER_MODEL_MARKS = (("openinference.span.kind", "LLM"), ("llm.request.type", "chat"), ("traceloop.span.kind", "llm"))
"""Span attributes by which instrumentations older than the conventions mark a model request."""


@dataclass(slots=True)
class _Request:
    """Model request without an answer so far; `has_other_span` is true if another library has made a span for it."""

    since: int
    """Start time of the request, in nanoseconds since 1970."""
    messages: str | None
    has_other_span: bool = False
    """`True` if another instrumentation made a span for the request."""
    token: Token[Context] = field(init=False)


class ForeignSpanProcessor:
    """Span processor of one provider that detects whether other instrumentation makes a span for a model request."""

    def __init__(self) -> None:
        self._key = context.create_key("callboard-model-request")

    def context_with(self, request: _Request) -> Context:
        """Return the current context with a model request added, to detect other libraries' spans for the request."""
        return context.set_value(self._key, request)

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        self._detect_model_span(span, parent_context)

    def on_end(self, span: Any) -> None:
        self._detect_model_span(span, None)  # some instrumentations set the attributes only before the end

    def _detect_model_span(self, span: Any, parent_context: Context | None) -> None:
        request = context.get_value(self._key, parent_context)
        if isinstance(request, _Request) and not request.has_other_span:
            attributes = span.attributes or {}
            is_older_model_span = any(attributes.get(key) == kind for key, kind in _OLDER_MODEL_MARKS)
            request.has_other_span = is_older_model_span or attributes.get(names.OPERATION) in _REQUESTS

    def _on_ending(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


@cache  # each provider gets one processor at most, because the SDK cannot remove it
def processor_of(provider: ByIdentity) -> ForeignSpanProcessor:
    """Return callboard's span processor for a tracer provider; the first call also adds it to a provider of an SDK."""
    processor = ForeignSpanProcessor()
    add = getattr(provider.value, "add_span_processor", None)
    if add is not None:
        add(processor)
    return processor


# Spans of calls and attempts

_WITHOUT_ARGUMENTS = (CallCancelledError, CallTimeoutError, CircuitOpenError, DeadlineExceededError)
"""Errors whose text never contains arguments, so that the text may be put on spans.

A rejection is not among them: its text contains the key of a limit.
"""


class _Call(TrackedCall):
    """Tracked call with its span and the spans of its running attempts."""

    __slots__ = ("attempt_spans", "is_in_background", "span", "token")

    def __init__(self, first_event: CallEvent, span: Span, token: Token[Context]) -> None:
        super().__init__(first_event)
        self.span = span
        self.token = token
        self.attempt_spans: dict[int, tuple[Span, Token[Context]]] = {}
        self.is_in_background = False


class CallSpans(CallTracker[_Call, CallEvent]):
    """Observer that makes the spans of calls and attempts.

    Events arrive in the task of the call, so the spans are current in that task.
    """

    def __init__(self, tracer: Tracer, capture: Capture) -> None:
        super().__init__()
        self._tracer = tracer
        self._capture = capture

    def on_begin(self, event: CallEvent) -> _Call:
        tool = sendable(event.tool)  # invented by the model: may have lone surrogates
        attributes: Attributes = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: tool,
            names.TOOL_TYPE: "function",
            names.BATCH: event.batch,
        }
        if event.call_id is not None:
            attributes[names.TOOL_CALL_ID] = sendable(event.call_id)
        if event.description:
            attributes[names.TOOL_DESCRIPTION] = event.description
        if event.run is not None:
            attributes |= _of_run(event.run)
        if event.resumes is not None:
            attributes[names.RESUMED] = True
        if self._capture.is_on and event.call is not None:
            attributes[names.TOOL_ARGUMENTS] = self._capture.text(event.call.get("args"))
        span = self._tracer.start_span(
            f"{names.EXECUTE_TOOL} {tool}",
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            links=link_to_call(event.resumes),
        )
        # CALL finds the span of the call also where the span of an attempt is the current one; see `_links.mark`.
        token = context.attach(context.set_value(CALL, span, trace.set_span_in_context(span)))
        return _Call(event, span, token)

    def on_give_up(self, call: _Call, event: CallEvent, since: float) -> None:
        facts: Attributes = {names.QUEUE_WAIT: event.queue_wait}
        if event.error is not None:
            facts[names.ERROR_TYPE] = error_type(event.error)
        call.span.add_event(names.GAVE_UP, facts)

    def on_start(self, call: _Call, event: CallEvent, waited_since: float | None) -> None:
        attributes: Attributes = {names.ATTEMPT_NUMBER: event.attempt}
        if event.queue_wait:
            attributes[names.QUEUE_WAIT] = event.queue_wait
        span = self._tracer.start_span(f"{names.ATTEMPT} {event.tool}", attributes=attributes)
        call.attempt_spans[event.attempt] = span, context.attach(trace.set_span_in_context(span))

    def on_attempt_end(self, call: _Call, event: CallEvent, since: float) -> None:
        span, token = call.attempt_spans.pop(event.attempt)
        context.detach(token)
        if event.error is not None:
            outcome = outcome_of(event.error)
            if outcome != "ok":
                span.set_attribute(names.OUTCOME, outcome)
            mark_failed(span, event.error, self._capture)
        span.end()

    def on_note(self, call: _Call, event: CallEvent) -> None:
        call.is_in_background |= event.note == "backgrounded"
        facts = _facts(event.facts)
        if event.message and self._capture.is_on:
            facts[names.MESSAGE] = self._capture.text(event.message)
        # SDKs bound the events of a span. Frequent progress goes to the attempt, so that it cannot displace decisions.
        is_progress = event.note == "progress" and event.attempt in call.attempt_spans
        span = call.attempt_spans[event.attempt][0] if is_progress else call.span
        span.add_event(names.PREFIX + event.note, facts)

    def on_end(self, call: _Call, event: CallEvent) -> None:
        span = call.span
        context.detach(call.token)
        outcome = outcome_of(event.error)
        attributes: Attributes = {names.OUTCOME: outcome, names.ATTEMPTS: event.attempt}
        if event.queue_wait:
            attributes[names.QUEUE_WAIT] = event.queue_wait
        failure = failure_of(event)
        if event.error is not None and (failure is not None or event.result is None):
            if isinstance(event.error, GraphInterrupt):
                interrupts = event.error.args[0] if event.error.args else ()
                attributes[names.INTERRUPTS] = [interrupt.id for interrupt in interrupts]
                span.add_event(names.INTERRUPTED)
            elif outcome == "cancelled":
                span.add_event(names.CANCELLED)
            # The error of a call in the background becomes a message when the call has ended.
            has_message = call.is_in_background and isinstance(event.error, Exception)
            if outcome == "error" and (event.result is not None or has_message):
                attributes[names.HANDLED] = error_type(event.error)
            mark_failed(span, event.error, self._capture)
        elif failure is not None:
            attributes[names.ERROR_TYPE] = failure
            span.set_status(Status(StatusCode.ERROR))
        if event.error is None and self._capture.is_on:
            attributes[names.TOOL_RESULT] = self._capture.text(result_of(event.result))
        span.set_attributes(attributes)
        span.end()


def _of_run(run: RunInfo) -> Attributes:
    attributes = {names.AGENT_NAME: run.agent, names.CONVERSATION: run.thread_id, names.RUN_ID: run.run_id}
    return {key: value for key, value in attributes.items() if value}


def mark_failed(span: Span, error: BaseException, capture: Capture) -> None:
    """Mark a span as failed by an error; do nothing for an interrupt."""
    if not is_failure(error):
        return
    kind = error_type(error)
    facts: Attributes = {names.EXCEPTION_TYPE: kind}
    attributes: Attributes = {names.ERROR_TYPE: kind}
    description = str(error) if type(error) in _WITHOUT_ARGUMENTS else None
    if capture.is_on:  # the error's text may contain arguments, so it is exported only if arguments are
        description = facts[names.EXCEPTION_MESSAGE] = capture.error_text(error)
    if isinstance(error, CallTimeoutError):
        attributes[names.IDLE_TIMEOUT if error.idle else names.TIMEOUT] = error.timeout
    elif isinstance(error, DeadlineExceededError):
        attributes[names.BUDGET] = error.budget
    span.set_attributes(attributes)
    span.add_event(names.EXCEPTION, facts)
    span.set_status(Status(StatusCode.ERROR, description))


def _facts(facts: Mapping[str, object]) -> Attributes:
    """Return the details of an event, converted to types that are valid for span attributes."""
    attributes: Attributes = {}
    for key, value in facts.items():
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            attributes[names.PREFIX + key] = [sendable(item) for item in value]
        else:
            attributes[names.PREFIX + key] = value if isinstance(value, (bool, int, float)) else sendable(str(value))
    return attributes


# Spans of runs and model requests


_TOKENS = (names.INPUT_TOKENS, names.OUTPUT_TOKENS)


@dataclass(slots=True)
class _OpenRun:
    """Run of an agent that has not ended, with its span and its token counts so far."""

    span: Span
    token: Token[Context]
    tokens: dict[str, int]
    about: Attributes
    model: str | None
    request: _Request | None = None


class RunSpans(RunTracker[_OpenRun]):
    """Observer that makes the spans of agent runs and model requests, in the task that sends the event.

    The span of a model request is made after the request, with its start time set back. Only then is it known whether
    the model, or another instrumentation, has made a span of the same request.
    """

    def __init__(self, tracer: Tracer, capture: Capture, spotter: Callable[[], ForeignSpanProcessor]) -> None:
        super().__init__()
        self._tracer = tracer
        self._capture = capture
        self._spotter = spotter

    def on_begin(self, event: RunEvent) -> _OpenRun:
        info = event.run
        attributes: Attributes = {names.OPERATION: names.INVOKE_AGENT, **_of_run(info)}
        if info.namespace:
            attributes[names.NAMESPACE] = info.namespace
        if info.resumes is not None:
            attributes[names.RESUMED] = True
        if self._capture.is_on and (messages := conversation(event.input)):
            attributes[names.INPUT_MESSAGES] = self._capture.text(messages)
        span = self._tracer.start_span(
            f"{names.INVOKE_AGENT} {info.agent}".rstrip(),
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            links=link_to_run(info.resumes),
        )
        token = context.attach(context.set_value(RUN, span, trace.set_span_in_context(span)))
        about = about_model(event.model)
        return _OpenRun(span, token, {}, about, about.get(names.REQUEST_MODEL))

    def on_message(self, run: _OpenRun, event: RunEvent) -> None:
        facts = _facts(event.facts)
        if self._capture.is_on and (messages := conversation([event.input])):
            facts[names.INPUT_MESSAGES] = self._capture.text(messages)
        run.span.add_event(names.MESSAGE_READ, facts)

    def on_request(self, run: _OpenRun, event: RunEvent) -> None:
        messages = self._capture.text(conversation(event.input)) if self._capture.is_on else None
        run.about = about_model(event.model)
        run.request = _Request(time.time_ns(), messages)
        run.request.token = context.attach(self._spotter().context_with(run.request))

    def on_note(self, run: _OpenRun, event: RunEvent) -> None:
        # The span of the request begins only when it has its answer.
        run.span.add_event(names.PREFIX + event.note, _facts(event.facts))

    def on_reply(self, run: _OpenRun, event: RunEvent) -> None:
        request, run.request = run.request, None
        if request is None:
            return
        context.detach(request.token)
        reply = event.result if isinstance(event.result, AIMessage) else None
        about = about_reply(reply, run.about)
        for key in _TOKENS:
            run.tokens[key] = run.tokens.get(key, 0) + about.get(key, 0)
        run.model = about.get(names.REQUEST_MODEL)
        if request.has_other_span:
            return
        attributes: Attributes = {names.OPERATION: names.CHAT, **about}
        if event.run.thread_id is not None:
            attributes[names.CONVERSATION] = event.run.thread_id
        if request.messages is not None:
            attributes[names.INPUT_MESSAGES] = request.messages
            if reply is not None:
                attributes[names.OUTPUT_MESSAGES] = self._capture.text(conversation(reply))
        span = self._tracer.start_span(
            f"{names.CHAT} {about.get(names.REQUEST_MODEL, '')}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=request.since,
        )
        if event.error is not None:
            mark_failed(span, event.error, self._capture)
        span.end()

    def on_end(self, run: _OpenRun, event: RunEvent) -> None:
        context.detach(run.token)
        attributes: Attributes = {names.OUTCOME: outcome_of_run(event)}
        if run.model is not None:
            attributes[names.REQUEST_MODEL] = run.model
        attributes |= {key: number for key, number in run.tokens.items() if number}
        if event.questions:
            attributes[names.QUESTIONS] = event.questions
        if self._capture.is_on and (messages := conversation(event.result)):
            attributes[names.OUTPUT_MESSAGES] = self._capture.text(messages[-1:])
        run.span.set_attributes(attributes)
        if event.error is not None:
            mark_failed(run.span, event.error, self._capture)
        run.span.end()


# Spans of actors, and the observers of all spans


class ActorSpans:
    """Observer that makes one span for each ask (call of an actor); the span is current in the caller and the handler.

    The lifetime of an actor has no span, because it may last for days. Instead, a change of the actor is added as
    a span event to each open ask that the change affects.
    """

    def __init__(self, tracer: Tracer, capture: Capture) -> None:
        self._tracer = tracer
        self._capture = capture
        self._open: dict[int, tuple[Span, Token[Context]]] = {}

    def __call__(self, event: AskEvent | ActorEvent) -> None:
        """Handle an event of an actor or of an ask: begin or end the ask's span, or add a span event to open spans."""
        if isinstance(event, ActorEvent):
            facts: Attributes = {names.ACTOR: event.actor}
            if event.error is not None:
                facts[names.ERROR_TYPE] = error_type(event.error)
            for number in event.asks:  # an ask may have begun before this observer
                if (entry := self._open.get(number)) is not None:
                    entry[0].add_event(f"{names.ACTOR}.{event.phase}", facts)
        elif event.phase == "begun":
            self._begin(event)
        elif event.phase == "ended" and (entry := self._open.pop(event.number, None)) is not None:
            span, token = entry
            context.detach(token)
            span.set_attributes({names.ACTOR_WAIT: event.waited, names.OUTCOME: outcome_of(event.error)})
            if event.error is not None:
                mark_failed(span, event.error, self._capture)
            span.end()

    def _begin(self, event: AskEvent) -> None:
        attributes: Attributes = {
            names.ACTOR: event.actor,
            names.ACTOR_HANDLER: event.handler,
            names.MAILBOX_LENGTH: event.ahead,
        }
        if self._capture.is_on and event.key is not None:
            attributes[names.ACTOR_KEY] = self._capture.text(event.key)
        span = self._tracer.start_span(f"{names.ASK} {event.actor}.{event.handler}", attributes=attributes)
        # The event "ended" arrives in the same task; the token can be detached only in the context that made it.
        self._open[event.number] = span, context.attach(trace.set_span_in_context(span))


class Tracing(ObserverSet):
    """Set of observers that make spans by the OpenTelemetry conventions for generative AI, with any tracer provider.

    callboard makes spans by itself once the application has set up an SDK. Make an instance for other settings.

    Args:
        provider: source of the tracer; by default the global tracer provider.
        capture: put arguments, results and messages on the spans; `None` reads the environment variable
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT (SPAN_ONLY, SPAN_AND_EVENT or true for yes).
        redact: function that removes secrets from captured values of plain JSON types; `True` for
            `callboard.guards.Redact()`, `False` for no removal.
        max_length: limit of one captured value in characters, at least 1; a longer value is cut.

    Raises `ImportError` if a package that `Redact()` needs is not installed, and `TypeError` for a `redact` that is no
    plain function.
    """

    def __init__(
        self,
        provider: TracerProvider | None = None,
        *,
        capture: bool | None = None,
        redact: Redactor | bool = True,
        max_length: int = MAX_LENGTH,
    ) -> None:
        tracer = (provider or trace.get_tracer_provider()).get_tracer(names.SCOPE, version("callboard"))
        capture_filter = Capture(capture, redact, max_length)

        # Resolved at each use, like the proxy tracer of the API: the application may set its provider after this.
        def spotter() -> ForeignSpanProcessor:
            return processor_of(ByIdentity(provider or trace.get_tracer_provider()))

        self.observers = careful_observers(
            CallSpans(tracer, capture_filter),
            RunSpans(tracer, capture_filter, spotter),
            ActorSpans(tracer, capture_filter),
            mark=mark,
            kind="spans",
        )
