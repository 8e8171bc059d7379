"""Samples of exhaustive variants, which `.ci/run` takes."""

from tests.sampling import SAMPLE, sample_of


def test_samples_of_consecutive_seeds_have_every_variant_and_each_has_some() -> None:
    """A variant that no seed takes would never run again, and a test without a variant would be lost for a day."""
    for count in (1, 2, 3, 4, 5, 7, 100):
        for first in (0, 1, 20785):
            samples = [sample_of(range(count), seed) for seed in range(first, first + SAMPLE)]

            assert {variant for sample in samples for variant in sample} == set(range(count))
            assert all(1 <= len(sample) <= 1 + count // SAMPLE for sample in samples)
