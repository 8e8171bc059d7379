"""Sample of the exhaustive variants of a test, which `.ci/run` takes by a seed: `--sample SEED`."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

SAMPLE = 4
"""Number of consecutive seeds that together run every variant."""


def sample_of(variants: Sequence[T], seed: int) -> Sequence[T]:
    """Return every fourth variant, and at least one, so that each test runs with each seed."""
    return variants[seed % min(SAMPLE, len(variants)) :: SAMPLE]
