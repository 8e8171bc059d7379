"""Sample of the exhaustive variants of a test, which `.ci/run` takes by a seed: `--sample SEED`."""

from collections.abc import Sequence
from zlib import crc32

SAMPLE = 8
"""Number of consecutive seeds that together run every variant."""


def sample_of(variants: Sequence[str], seed: int) -> Sequence[str]:
    """Return every eighth variant, and at least one, so that each test runs with each seed.

    The variants are put in an order of their own: in that of their parameters, each eighth could have the same backend.
    """
    mixed = sorted(variants, key=lambda variant: crc32(variant.encode()))
    return mixed[seed % min(SAMPLE, len(mixed)) :: SAMPLE]
