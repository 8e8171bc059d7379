"""Cost of observing a call: none, an observer, OpenTelemetry's SDK, and a recorder."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import anyio
from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Tracer

import callboard
from callboard._calls._observers import observe_by_default
from callboard.telemetry import Metrics, RecordingWriter, Tracing

from ._contestants import LOOK_UP, Work, direct, queries
from ._measure import CPU, Budget, Contestant, Table, interleaved, repeats

NONE, UNWIRED, OBSERVER = "nobody watches", "the wire to telemetry cut", "an observer that does nothing"
SPANS, BARE, RECORDER, METRICS = "SDK, batch export", "the SDK alone, same spans", "recorder", "metrics"

Around = Callable[[], AbstractContextManager[object]]


def telemetry(*, sizes: Sequence[int], repetitions: int) -> Table:
    """Measure the additional processor time per call of each kind of observer, including exports."""
    table = Table("Cost of being seen", ["calls in the batch", *map(str, sizes)])
    found = [_samples(size, repetitions) for size in sizes]
    for name in found[0]:
        per_call = (samples[name] * 1e6 for samples in found)
        table.add(f"{name}, us", *per_call)
    # The budget is 2.5 bare spans. A row and no budget: a call writes two spans, which are two bare spans already.
    table.add(f"{SPANS}, added : a bare span", *(2 * (one[SPANS] - one[NONE]) / one[BARE] for one in found))
    for size, samples in zip(sizes, found, strict=True):
        table.budgets.append(Budget(f"{size} calls, nobody watches : the wire cut", 1.02, samples.ratio(NONE, UNWIRED)))
    return table


def _samples(size: int, repetitions: int) -> Any:
    message = queries(size)
    node = callboard.ToolNode([LOOK_UP])
    work = direct(node, message)
    provider = _provider()
    tracing, metrics = Tracing(provider), Metrics(MeterProvider([InMemoryMetricReader()]))

    def run(work: Work, around: Around = nullcontext, after: Callable[[], object] = lambda: None) -> Contestant:
        return _per_call(work, size, around, after)

    file = Path(tempfile.gettempdir()) / f"callboard-benchmark-{size}.jsonl"
    contestants = {
        UNWIRED: run(work, _Cut),
        NONE: run(work),
        OBSERVER: run(work, lambda: callboard.observe(lambda _: None)),
        SPANS: run(work, tracing.on, provider.force_flush),
        BARE: run(_bare(provider.get_tracer("bare"), size), after=provider.force_flush),
        METRICS: run(work, metrics.on),
        RECORDER: run(work, lambda: RecordingWriter(file)),
    }
    try:
        return interleaved(contestants, repetitions)
    finally:
        file.unlink(missing_ok=True)
        provider.shutdown()


def _per_call(work: Work, size: int, around: Around, after: Callable[[], object]) -> Contestant:
    """Return the processor time per call over all threads, including the final flush."""
    times = repeats(size)

    async def main() -> float:
        await work()
        began = CPU()
        with around():
            for _ in range(times):
                await work()
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


def _bare(tracer: Tracer, count: int) -> Work:
    """Measure the minimum: two nested spans per call with as many attributes as callboard's."""
    outer = dict.fromkeys(("operation", "tool", "type", "id", "description"), "look_up") | {"batch": 1}

    async def run() -> None:
        for _ in range(count):
            span = tracer.start_span("execute_tool look_up", attributes=outer)
            token = context.attach(trace.set_span_in_context(span))
            inner = tracer.start_span("attempt look_up", attributes={"attempt": 1})
            second = context.attach(trace.set_span_in_context(inner))
            context.detach(second)
            inner.end()
            context.detach(token)
            span.set_attributes({"outcome": "ok", "attempts": 1})
            span.end()

    return run


class _Cut(AbstractContextManager[None]):
    """Context manager that removes the check whether a call is observed."""

    def __enter__(self) -> None:
        self._before = observe_by_default()

    def __exit__(self, *_: object) -> None:
        observe_by_default(self._before)
