"""Spans of agent runs and of their model requests, with the attributes of models and replies.

If other instrumentation makes a span for a request, callboard makes none. A span processor of the SDK detects it.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import Token
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableBinding, RunnableSequence
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Tracer

import callboard.telemetry._names as names
from callboard._records._events import RunEvent
from callboard.telemetry._call_spans import Attributes, failed, of_run
from callboard.telemetry._capture import Capture, conversation
from callboard.telemetry._identity import ByIdentity
from callboard.telemetry._links import RUN, link_to_run
from callboard.telemetry._outcome import has_failed, outcome_of, outcome_of_run

# Attributes


def about_model(model: object) -> dict[str, Any]:
    """Return the attributes of a model (provider, name, parameters) from the description that LangSmith uses."""
    describe: Callable[[], Mapping[str, Any]] = getattr(_bare(model), "_get_ls_params", dict)
    try:
        found = dict(describe())
    except Exception:  # a user-defined model may describe itself wrongly; telemetry must not fail its run
        found = {}
    attributes: dict[str, Any] = {names.PROVIDER: provider_named(found.get("ls_provider"))}
    for key, name, kind in (
        ("ls_model_name", names.REQUEST_MODEL, str),
        ("ls_temperature", names.REQUEST_TEMPERATURE, (int, float)),
        ("ls_max_tokens", names.REQUEST_MAX_TOKENS, int),
    ):
        if isinstance(found.get(key), kind):
            attributes[name] = found[key]
    return attributes


def provider_named(name: object) -> str:
    """Return the conventions' name of a provider that LangChain names."""
    return names.PROVIDERS.get(name, name) if isinstance(name, str) and name else "unknown"


def about_reply(reply: AIMessage | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a request and its reply. The reply fills in a model name that the request lacks."""
    attributes = dict(asked)
    if reply is None:
        return attributes
    told = reply.response_metadata
    if isinstance(model := told.get("model_name") or told.get("model"), str):
        attributes[names.RESPONSE_MODEL] = model
        attributes.setdefault(names.REQUEST_MODEL, model)
    if attributes.get(names.PROVIDER, "unknown") == "unknown":
        attributes[names.PROVIDER] = provider_named(told.get("model_provider"))
    if isinstance(reply.id, str):
        attributes[names.RESPONSE_ID] = told["id"] if isinstance(told.get("id"), str) else reply.id
    if isinstance(reason := told.get("finish_reason") or told.get("stop_reason"), str):
        attributes[names.FINISH_REASONS] = [reason]
    usage = reply.usage_metadata
    if usage is not None:
        attributes[names.INPUT_TOKENS] = usage["input_tokens"]
        attributes[names.OUTPUT_TOKENS] = usage["output_tokens"]
        if cached := usage.get("input_token_details", {}).get("cache_read"):
            attributes[names.CACHED_TOKENS] = cached
    return attributes


def _bare(model: object) -> object:
    """Return the chat model inside bindings and sequences."""
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
_KINDS = (("openinference.span.kind", "LLM"), ("llm.request.type", "chat"), ("traceloop.span.kind", "llm"))
"""Attributes by which older instrumentations, from before the conventions, mark the span of a model request."""


class RequestProbe:
    """Flag of one model request: whether another instrumentation made a span for it."""

    __slots__ = ("was_seen",)

    def __init__(self) -> None:
        self.was_seen = False


class ForeignSpanProcessor:
    """Span processor of one provider that notices model-request spans made by other instrumentation."""

    def __init__(self) -> None:
        self._key = context.create_key("callboard-model-request")

    def following(self, request: RequestProbe) -> Context:
        """Return the current context with the request attached; spans begun in it are inspected."""
        return context.set_value(self._key, request)

    def on_start(self, span: Any, parent_context: Context | None = None) -> None:
        self._notice(span, parent_context)

    def on_end(self, span: Any) -> None:
        self._notice(span, None)  # some instrumentations set the attributes only before the end

    def _notice(self, span: Any, around: Context | None) -> None:
        request = context.get_value(self._key, around)
        if isinstance(request, RequestProbe) and not request.was_seen:
            request.was_seen = _is_request(span.attributes or {})

    def _on_ending(self, span: Any) -> None: ...

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


_known: dict[ByIdentity, ForeignSpanProcessor] = {}
"""Processors by provider: the SDK cannot remove a processor, so each provider gets one at most."""


def processor_of(provider: object) -> ForeignSpanProcessor:
    """Return the span processor of a provider, and add it at first use. A provider without an SDK takes none."""
    found = _known.get(ByIdentity(provider))
    if found is None:
        found = _known[ByIdentity(provider)] = ForeignSpanProcessor()
        add = getattr(provider, "add_span_processor", None)
        if add is not None:
            add(found)
    return found


def _is_request(attributes: Any) -> bool:
    if attributes.get(names.OPERATION) in _REQUESTS:
        return True
    return any(attributes.get(key) == value for key, value in _KINDS)


# Spans


_TOKENS = (names.INPUT_TOKENS, names.OUTPUT_TOKENS)


@dataclass(slots=True)
class _Request:
    """Model request that is not answered yet."""

    since: int
    """Start, in nanoseconds since 1970."""
    token: Token[Context]
    foreign: RequestProbe
    given: str | None


@dataclass(slots=True)
class _OpenRun:
    """Open run with its span and its token counts so far."""

    span: Span
    token: Token[Context]
    tokens: dict[str, int]
    about: Attributes
    request: _Request | None = None


class RunSpans:
    """Observer that makes the spans, in the task that sends the event.

    The span of a model request is made after the request, with its start time set back. Only then is it known whether
    the model, or another instrumentation, has made a span of the same request.

    Args:
        tracer: source of the spans.
        capture: filter for messages.
        spotter: function that returns the span processor of the provider in use now.
    """

    def __init__(self, tracer: Tracer, capture: Capture, spotter: Callable[[], ForeignSpanProcessor]) -> None:
        self._tracer = tracer
        self._capture = capture
        self._spotter = spotter
        self._open: dict[int, _OpenRun] = {}

    def __call__(self, event: RunEvent) -> None:
        """Begin or end the span that an event is about."""
        if event.phase == "begun":
            self._begun(event)
            return
        run = self._open.get(event.run.number)
        if run is None:
            return
        if event.phase == "asked":
            self._asked(run, event)
        elif event.phase == "answered":
            self._answered(run, event)
        else:
            self._ended(run, event)

    def _begun(self, event: RunEvent) -> None:
        info = event.run
        attributes: Attributes = {names.OPERATION: names.INVOKE_AGENT, names.PROVIDER: "unknown"}
        attributes |= of_run(info.agent, info.thread_id, info.run_id)
        if info.namespace:
            attributes[names.NAMESPACE] = info.namespace
        if info.resumes is not None:
            attributes[names.RESUMED] = True
        if self._capture.wanted and (messages := conversation(event.given)):
            attributes[names.INPUT_MESSAGES] = self._capture.text(messages)
        span = self._tracer.start_span(
            f"{names.INVOKE_AGENT} {info.agent}".rstrip(),
            kind=SpanKind.INTERNAL,
            attributes=attributes,
            links=link_to_run(info.resumes),
        )
        token = context.attach(context.set_value(RUN, span, trace.set_span_in_context(span)))
        self._open[info.number] = _OpenRun(span, token, {}, about_model(event.model))

    def _asked(self, run: _OpenRun, event: RunEvent) -> None:
        given = None
        if self._capture.wanted:
            given = self._capture.text(conversation(event.given))
        run.about = about_model(event.model)
        foreign = RequestProbe()
        run.request = _Request(time.time_ns(), context.attach(self._spotter().following(foreign)), foreign, given)

    def _answered(self, run: _OpenRun, event: RunEvent) -> None:
        request, run.request = run.request, None
        if request is None:
            return
        context.detach(request.token)
        reply = event.result if isinstance(event.result, AIMessage) else None
        said = about_reply(reply, run.about)
        for key in _TOKENS:
            run.tokens[key] = run.tokens.get(key, 0) + said.get(key, 0)
        run.about = {key: said[key] for key in (names.PROVIDER, names.REQUEST_MODEL) if key in said}
        if request.foreign.was_seen:
            return
        attributes: Attributes = {names.OPERATION: names.CHAT, **said, **_conversation_of(event)}
        if request.given is not None:
            attributes[names.INPUT_MESSAGES] = request.given
            if reply is not None:
                attributes[names.OUTPUT_MESSAGES] = self._capture.text(conversation(reply))
        span = self._tracer.start_span(
            f"{names.CHAT} {said.get(names.REQUEST_MODEL, '')}".rstrip(),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=request.since,
        )
        if event.error is not None and has_failed(outcome_of(event.error)):
            failed(span, event.error, self._capture)
        span.end()

    def _ended(self, run: _OpenRun, event: RunEvent) -> None:
        del self._open[event.run.number]
        context.detach(run.token)
        outcome = outcome_of_run(event)
        attributes: Attributes = {names.OUTCOME: outcome, **run.about}
        attributes |= {key: number for key, number in run.tokens.items() if number}
        if event.questions:
            attributes[names.QUESTIONS] = event.questions
        if self._capture.wanted and (messages := conversation(event.result)):
            attributes[names.OUTPUT_MESSAGES] = self._capture.text(messages[-1:])
        run.span.set_attributes(attributes)
        if event.error is not None and has_failed(outcome):
            failed(run.span, event.error, self._capture)
        run.span.end()


def _conversation_of(event: RunEvent) -> dict[str, Any]:
    return {} if event.run.thread_id is None else {names.CONVERSATION: event.run.thread_id}
