"""Tracer providers other than the SDK's."""

from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import TracerProvider

from callboard import create_react_agent, tool_call
from callboard.testing import ScriptedModel, calls


@dataclass
class TracersOfLogfire(TracerProvider):
    """Dataclass, like Logfire's provider: it compares by value and has no hash."""

    provider: SdkTracerProvider = field(default_factory=lambda: SdkTracerProvider(shutdown_on_exit=False))

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        return self.provider.get_tracer(*args, **kwargs)

    def add_span_processor(self, processor: Any) -> None:
        self.provider.add_span_processor(processor)


@dataclass
class MetersOfLogfire(MeterProvider):
    provider: SdkMeterProvider

    def get_meter(self, *args: Any, **kwargs: Any) -> metrics.Meter:
        return self.provider.get_meter(*args, **kwargs)


async def test_providers_without_a_hash_are_watched_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logfire's providers have no hash, so a lookup by hash would make each call fail."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracersOfLogfire(), MetersOfLogfire(SdkMeterProvider([reader], shutdown_on_exit=False))
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: tracers)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)

    async def add(a: int) -> int:
        """Add one."""
        return a + 1

    agent = create_react_agent(ScriptedModel([calls(tool_call("add", a=1)), "2"]), [add])
    await agent.ainvoke({"messages": "What is 1 + 1?"})
    measured: Any = reader.get_metrics_data()
    scopes = [
        measured.resource_metrics[0].scope_metrics[0].scope,
        exporter.get_finished_spans()[0].instrumentation_scope,
    ]
    metric_names = {metric.name for metric in measured.resource_metrics[0].scope_metrics[0].metrics}

    assert [span.name for span in exporter.get_finished_spans()] == [
        *("chat", "attempt add", "execute_tool add", "chat", "invoke_agent LangGraph")
    ]
    assert [(scope.name, scope.version) for scope in scopes] == [("callboard", version("callboard"))] * 2
    assert metric_names >= {"gen_ai.execute_tool.duration", "gen_ai.invoke_agent.duration"}
