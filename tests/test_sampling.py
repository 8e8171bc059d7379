"""Samples of exhaustive variants, which `.ci/run` takes."""

from tests.sampling import SAMPLE, sample_of


def test_samples_of_consecutive_seeds_have_every_variant_and_each_has_some() -> None:
    """A variant that no seed takes would never run again, and a test without a variant would be lost for a day."""
    for count in (1, 2, 3, 4, 5, 7, 100):
        variants = [f"test_a_promise[{backend}-{count}]" for backend in range(count)]
        for first in (0, 1, 20785):
            samples = [sample_of(variants, seed) for seed in range(first, first + SAMPLE)]

            assert {variant for sample in samples for variant in sample} == set(variants)
            assert all(1 <= len(sample) <= 1 + count // SAMPLE for sample in samples)


def test_a_sample_has_variants_of_each_backend() -> None:
    """Variants that take turns, eight by eight, must not make a sample of one backend only."""
    variants = [f"test_a_promise[{backend}-{number}]" for number in range(50) for backend in "abcdefgh"]
    for seed in range(SAMPLE):
        backends = [variant.partition("[")[2][0] for variant in sample_of(variants, seed)]

        assert min(backends.count(backend) for backend in "abcdefgh") > 1
