"""The tests of other people that fail with callboard in place, and the promise of ours that is the reason."""

EXPLAINED: dict[str, dict[str, str]] = {}
