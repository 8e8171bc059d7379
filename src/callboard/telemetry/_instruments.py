"""Creation of metric instruments."""

from collections.abc import Iterable

from opentelemetry import metrics
from opentelemetry.metrics import Meter


def histogram(meter: Meter, name: str, unit: str, buckets: Iterable[float], text: str) -> metrics.Histogram:
    """Return a histogram with advisory buckets; a view in the application's SDK may override them."""
    return meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=list(buckets))
