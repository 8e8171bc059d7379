"""Instruments of a meter, as all metrics here are made."""

from collections.abc import Iterable

from opentelemetry import metrics
from opentelemetry.metrics import Meter


def histogram(meter: Meter, name: str, unit: str, buckets: Iterable[float], text: str) -> metrics.Histogram:
    """A histogram with the advised buckets; a view of the application's may have others."""
    return meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=list(buckets))
