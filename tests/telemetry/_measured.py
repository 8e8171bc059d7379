"""In-memory metrics, with helpers for tests."""

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from callboard.telemetry import Metrics


class Seen:
    """Metrics and their measured values."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.metrics = Metrics(MeterProvider([self._reader]))

    def all(self) -> dict[str, Any]:
        data = self._reader.get_metrics_data()
        resources = () if data is None else data.resource_metrics
        return {
            metric.name: metric
            for resource in resources
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> list[tuple[dict[str, Any], Any]]:
        return [
            (dict(point.attributes), point.value if hasattr(point, "value") else point)
            for point in self.all()[name].data.data_points
        ]
