"""Cost of observing a call (none, an observer, OpenTelemetry's SDK, a recorder), and of reading a recording."""

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import anyio
from langchain_core.tools import StructuredTool
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

import callboard
from callboard._calls._observers import observe_by_default
from callboard.telemetry import Metrics, RecordingWriter, Tracing, read_recording
from tests.telemetry._recordings import HEADER, call, run, write

from ._contestants import LOOK_UP, Work, direct, look_up, queries
from ._measure import CPU, Budget, Contestant, Table, measure_in_turns, repeats

NONE, UNWIRED, OBSERVER = "nobody watches", "the wire to telemetry cut", "an observer that does nothing"
SPANS, BY_HAND, RECORDER, METRICS = "SDK, batch export", "the SDK, the same spans by hand", "recorder", "metrics"

Around = Callable[[], AbstractContextManager[object]]


def telemetry(*, sizes: Sequence[int], repetitions: int) -> Table:
    """Measure the additional processor time per call of each kind of observer, including exports."""
    table = Table("Cost of being seen", ["calls in the batch", *map(str, sizes)])
    samples_by_size = [_samples(size, repetitions) for size in sizes]
    for name in samples_by_size[0]:
        per_call = (samples[name] * 1e6 for samples in samples_by_size)
        table.add(f"{name}, us", *per_call)
    # A call writes two spans: the same spans by hand are two bare spans. They are made around the same body, because
    # code costs a fifth less in a loop that does nothing else.
    added = [2 * (samples[SPANS] - samples[NONE]) / (samples[BY_HAND] - samples[NONE]) for samples in samples_by_size]
    table.add(f"{SPANS}, added : a bare span", *added)
    for size, samples, spans in zip(sizes, samples_by_size, added, strict=True):
        table.budgets.append(Budget(f"{size} traced calls, added : a bare span", 2.5, spans))
        table.budgets.append(Budget(f"{size} calls, nobody watches : the wire cut", 1.02, samples.ratio(NONE, UNWIRED)))
    return table


def _samples(size: int, repetitions: int) -> Any:
    message = queries(size)
    node = callboard.ToolNode([LOOK_UP])
    run_batch = direct(node, message)
    provider = _provider()
    node_by_hand = callboard.ToolNode([_by_hand(provider.get_tracer("by hand"))])
    tracing, metrics = Tracing(provider), Metrics(MeterProvider([InMemoryMetricReader()]))

    def run(run_calls: Work, context: Around = nullcontext, after: Callable[[], object] = lambda: None) -> Contestant:
        return _per_call(run_calls, size, context, after)

    file = Path(tempfile.gettempdir()) / f"callboard-benchmark-{size}.jsonl"
    contestants = {
        UNWIRED: run(run_batch, _Cut),
        NONE: run(run_batch),
        OBSERVER: run(run_batch, lambda: callboard.observe(lambda _: None)),
        SPANS: run(run_batch, tracing.on, provider.force_flush),
        BY_HAND: run(direct(node_by_hand, message), after=provider.force_flush),
        METRICS: run(run_batch, metrics.on),
        RECORDER: run(run_batch, lambda: RecordingWriter(file)),
    }
    try:
        return measure_in_turns(contestants, repetitions)
    finally:
        file.unlink(missing_ok=True)
        provider.shutdown()


def _per_call(run_calls: Work, size: int, context: Around, after: Callable[[], object]) -> Contestant:
    """Return the processor time per call over all threads, including the final flush."""
    times = repeats(size)

    async def main() -> float:
        await run_calls()
        began = CPU()
        with context():
            for _ in range(times):
                await run_calls()
        after()
        return (CPU() - began) / (times * size)

    return lambda: anyio.run(main)


class _Encoding(SpanExporter):
    """Exporter that does all the work of an OTLP exporter except the network."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


def _provider() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(_Encoding(), max_queue_size=1_000_000))
    return provider


def _by_hand(tracer: Tracer) -> StructuredTool:
    """Return the tool `look_up` with two nested spans in its body, with as many attributes as callboard's."""
    outer = dict.fromkeys(("operation", "tool", "type", "id", "description"), "look_up") | {"batch": 1}

    async def look_up_with_spans(query: str, limit: int = 10) -> str:
        span = tracer.start_span("execute_tool look_up", attributes=outer)
        token = context.attach(trace.set_span_in_context(span))
        attempt_span = tracer.start_span("attempt look_up", attributes={"attempt": 1})
        attempt_token = context.attach(trace.set_span_in_context(attempt_span))
        reply = await look_up(query, limit)
        context.detach(attempt_token)
        attempt_span.end()
        context.detach(token)
        span.set_attributes({"outcome": "ok", "attempts": 1})
        span.end()
        return reply

    return StructuredTool.from_function(coroutine=look_up_with_spans, name="look_up", description="Look something up.")


class _Cut(AbstractContextManager[None]):
    """Context manager that removes the check whether a call is observed."""

    def __enter__(self) -> None:
        self._before = observe_by_default()

    def __exit__(self, *_: object) -> None:
        observe_by_default(self._before)


REPEATED_LINES: dict[str, list[dict[str, Any]]] = {
    "requests of a run": [{"event": "model_asked", "run": 1}],
    "waits of a call": [{"event": "queued", "call": 1}],
    "waits that end": [{"event": "queued", "call": 1}, {"event": "gave_up", "call": 1}],
    "attempts without numbers": [{"event": "started", "call": 1, "attempt": 1}, {"event": "attempt_ended", "call": 1}],
    "notes of a call": [{"event": "noted", "call": 1, "what": "w"}],
    "asks of a call": [{"event": "ask_begun", "ask": 1, "call": 1}],
}


def reading(*, count: int) -> Table:
    """Measure the processor time of reading long recordings, which may come from somebody else."""
    table = Table("Reading a recording, ms", ["lines", f"{count:,}", f"{8 * count:,}"])
    for kind, events in REPEATED_LINES.items():
        short, long = _reading(events, count), _reading(events, 8 * count)
        table.add(kind, short * 1e3, long * 1e3)
        # Eight times as many lines: 8 for linear time, 64 for quadratic time.
        table.budgets.append(Budget(f"{kind}, eight times as many lines : so many lines", 24, long / short))
    return table


def _reading(events: Sequence[dict[str, Any]], count: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "calls.jsonl", [HEADER, run()[0], call(1, 0)[0]])
        repeated = "".join(json.dumps({"t": 1, **event}) + "\n" for event in events)
        with path.open("a") as file:
            file.write(repeated * (count // len(events)))
        began = CPU()
        read_recording(path)
        return CPU() - began
